//! The volume as `stetfs_mkfs` makes it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use stetfs_format::width::must_fit;
use stetfs_media::{BlockDev, FileDev};
use stetfs_mkfs::{Content, JournalSize, MkfsError, Params, Plan};

use super::from;
use super::sizes::wanted_journal;
use crate::archive::Spool;
use crate::args::Mkfs;
use crate::failure::{Explain, Failure, Result};
use crate::identity;
use crate::part;

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
    params.raid = raid(&args.image, block);
    params.time = identity::time()?;
    let uuid = |given: Option<identity::Uuid>| given.map_or_else(identity::random, Ok);
    params.uuid = uuid(args.uuid)?.0;
    params.hash_seed = uuid(args.hash_seed)?.0;
    Ok(params)
}

/// Returns stride and stripe width of a block device in blocks, as its driver knows them; 0 if
/// there is none, and for a file.
fn raid(image: &Path, block: u64) -> (u16, u32) {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = image.metadata() else {
        return (0, 0);
    };
    if !meta.file_type().is_block_device() {
        return (0, 0);
    }
    let (major, minor) = (
        rustix::fs::major(meta.rdev()),
        rustix::fs::minor(meta.rdev()),
    );
    let device = format!("/sys/dev/block/{major}:{minor}");
    let bytes = |name: &str| {
        // A partition has the queue of its disk.
        let paths = [
            format!("{device}/queue/{name}"),
            format!("{device}/../queue/{name}"),
        ];
        let texts = paths
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok());
        texts.flat_map(|text| text.trim().parse()).next()
    };
    let least = bytes("minimum_io_size").unwrap_or(0);
    stripes(least, bytes("optimal_io_size").unwrap_or(0), block)
}

/// Returns stride and stripe width in blocks, from the least and the best size of a request in
/// bytes. What is no larger than a block says nothing.
fn stripes(least: u64, best: u64, block: u64) -> (u16, u32) {
    let best = if best == 0 { least } else { best };
    let blocks = |bytes: u64| if bytes > block { bytes / block } else { 0 };
    (
        u16::try_from(blocks(least)).unwrap_or(0),
        u32::try_from(blocks(best)).unwrap_or(0),
    )
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
    let latest = identity::latest()?;
    let spool = Spool::beside(part::file_of(&args.image), args.quiet);
    let content = from::Content::open(from, &spool, &args.which, &args.owners, latest)?;
    let need = content.measure(args.block_size.0)?;
    let free = args.free.map_or(0, |free| free.0);
    need.apply(params, free, is_sized, |size| journal(args, size))?;
    need.check_room(&plan(args, params)?)
        .map_err(|e| e.context(args.image.display()))?;
    if latest.is_some() {
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
    Plan::new(params).map_err(|e| {
        let is_of_journal = matches!(
            e,
            MkfsError::JournalTooLarge { .. } | MkfsError::JournalBlocks(_)
        );
        let failure = Failure::from(e).context(args.image.display());
        if is_of_journal {
            failure.advise("choose a larger --size, or another --journal-size")
        } else {
            failure
        }
    })
}

/// Writes a volume into a file that reads as zeros, on a block device, or into a part of a file.
pub(super) fn write(params: &Params, plan: Plan, target: &Path) -> Result<()> {
    let shown = || target.display().to_string();
    let is_part = part::is_part(target);
    let dev: Arc<dyn BlockDev> = if is_part {
        part::open_device(target)?
    } else {
        Arc::new(FileDev::options().direct(None).open(target)?)
    };
    if !is_part
        && !target
            .metadata()
            .during(shown)?
            .file_type()
            .is_block_device()
    {
        return plan.write(&*dev).during(shown);
    }
    // The device's memory need not keep the old content. Many devices cannot discard; and what a
    // discarded block then holds is not known.
    let _ = dev.discard(0, dev.size());
    let params = Params {
        content: Content::Lazy,
        ..params.clone()
    };
    Plan::new(&params)
        .and_then(|plan| plan.write(&*dev))
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

#[cfg(test)]
mod tests {
    use super::stripes;

    /// As mke2fs has it.
    #[test]
    fn a_raid_of_four_disks_with_chunks_of_64_kib() {
        assert_eq!(stripes(64 << 10, 256 << 10, 4096), (16, 64));
        assert_eq!(stripes(64 << 10, 0, 4096), (16, 16));
        assert_eq!(stripes(4096, 4096, 4096), (0, 0), "a disk");
        assert_eq!(stripes(4096, 0, 1024), (4, 4), "its blocks are smaller");
        assert_eq!(stripes(0, 0, 1024), (0, 0), "nothing is known");
        assert_eq!(
            stripes(u64::MAX, u64::MAX, 1024),
            (0, 0),
            "no field holds it"
        );
    }
}
