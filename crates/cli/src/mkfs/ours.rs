//! The volume as `stetfs_mkfs` makes it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use stetfs_format::width::must_fit;
use stetfs_media::{BlockDev, FileDev};
use stetfs_mkfs::{Content, JournalSize, Params, Plan};

use super::from;
use super::sizes::wanted_journal;
use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::identity;

/// Returns what the arguments ask for.
pub(super) fn params(args: &Mkfs, size: u64) -> Result<Params> {
    let block = args.block_size.0;
    let (block_size, blocks) = (must_fit(block), size / block);
    let mut params = match args.kind.as_str() {
        "ext3" => Params::ext3(block_size, blocks),
        _ => Params::ext4(block_size, blocks),
    };
    params.journal = journal(args, size);
    if let Some(label) = &args.label {
        params.label[..label.len()].copy_from_slice(label.as_bytes());
    }
    if let Some(scheme) = &args.scheme {
        let words = format!("scheme={scheme}");
        params.mount_opts[..words.len()].copy_from_slice(words.as_bytes());
    }
    let user = rustix::process::geteuid();
    if !user.is_root() {
        // The user who makes a volume can write to its root directory.
        params.root_owner = (user.as_raw(), rustix::process::getegid().as_raw());
    }
    params.time = identity::time()?;
    let uuid = |given: Option<identity::Uuid>| given.map_or_else(identity::random, Ok);
    params.uuid = uuid(args.uuid)?.0;
    params.hash_seed = uuid(args.hash_seed)?.0;
    Ok(params)
}

/// Returns the journal of a volume of so many bytes.
fn journal(args: &Mkfs, size: u64) -> JournalSize {
    let blocks = wanted_journal(args, size) / args.block_size.0;
    JournalSize::Blocks(u32::try_from(blocks).unwrap_or(u32::MAX))
}

/// Opens the content, and makes the parameters those of a volume that has room for it. UUID and
/// hash seed depend on the content if `SOURCE_DATE_EPOCH` is set and they are not given.
pub(super) fn content(
    args: &Mkfs,
    from: &Path,
    is_sized: bool,
    params: &mut Params,
) -> Result<from::Content> {
    let epoch = identity::source_date_epoch()?;
    let content = from::Content::open(from, epoch)?;
    let need = content.measure(args.block_size.0)?;
    let free = args.free.map_or(0, |free| free.0);
    need.apply(params, free, is_sized, |size| journal(args, size))?;
    need.check_room(&plan(args, params)?)
        .map_err(|e| e.context(args.image.display()))?;
    if epoch.is_some() {
        if args.uuid.is_none() {
            params.uuid = need.uuid(params, "volume");
        }
        if args.hash_seed.is_none() {
            params.hash_seed = need.uuid(params, "hash seed");
        }
    }
    Ok(content)
}

/// Plans a volume; fails if it cannot be made.
pub(super) fn plan(args: &Mkfs, params: &Params) -> Result<Plan> {
    Plan::new(params).map_err(|e| Failure::new(e.to_string()).context(args.image.display()))
}

/// Writes a volume into a file that reads as zeros, or on a block device.
pub(super) fn write(params: &Params, plan: Plan, target: &Path) -> Result<()> {
    let shown = || target.display().to_string();
    let dev = FileDev::options().direct(None).open(target)?;
    let kind = target.metadata().during(shown)?.file_type();
    if !kind.is_block_device() {
        return plan.write(&dev).during(shown);
    }
    // The device's memory need not keep the old content. Many devices cannot discard; and what a
    // discarded block then holds is not known.
    let _ = dev.discard(0, dev.size());
    let params = Params {
        content: Content::Lazy,
        ..params.clone()
    };
    Plan::new(&params)
        .and_then(|plan| plan.write(&dev))
        .during(shown)
}

/// Makes the file one of zeros, sparse.
pub(super) fn set_size(image: &Path, size: u64) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(image)?;
    Ok(file.set_len(size)?)
}
