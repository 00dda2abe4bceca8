//! `stetfs mkfs --from`: a volume with the content of a directory or of an archive.
//!
//! The same content makes the same bytes, as long as `SOURCE_DATE_EPOCH` says when it is made:
//! 1. UUID and hash seed are made from the names and attributes of the files (not from what is in
//!    them), and from the arguments;
//! 2. files are copied in the order of their names, and get a last access that is their last
//!    change, since reading them changes that of the originals; no time is later than
//!    `SOURCE_DATE_EPOCH`;
//! 3. the volume is filled without a journal, whose records hold times: nobody needs a volume that
//!    was half filled when the power failed.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use stetfs_format::dirent::rec_len;
use stetfs_format::width::usize_as_u64;
use stetfs_mkfs::{Inodes, Params, Plan};

use super::sizes::{MIB, VOLUME_BLOCKS_MIN};
use crate::archive::{self, Archive, Spool, Which};
use crate::copy::{self, Destination, Host};
use crate::failure::{Explain, Failure, Result};
use crate::image::Volume;
use crate::owners::Owners;
use crate::place::join;
use crate::repeatable;
use crate::size::Size;
use crate::tree::{FileKind, Item, Meta, Stamp, Tree, Walk};

/// Inodes of a volume that are no files of the content.
const OWN_INODES: u64 = 11;
/// Bytes of free space for each free inode: what mke2fs takes for volumes of ordinary size.
const BYTES_OF_FREE_INODE: u64 = 16384;
/// Bytes of extended attributes that an inode of 256 bytes has room for, roughly.
const XATTRS_IN_INODE: usize = 90;
/// Bytes of a symbolic link that lie in the inode.
const LINK_IN_INODE: u64 = 59;
/// Files below this size count in full: looking for their holes costs more than it saves.
const DENSE: u64 = 1 << 20;

/// Where the content comes from.
pub(super) struct Content {
    tree: Box<dyn Tree>,
    path: Vec<u8>,
    /// No time of a file may be later.
    latest: Option<Stamp>,
    owners: Owners,
}

/// What the content needs of a volume.
pub(super) struct Need {
    files: u64,
    blocks: u64,
    /// Identifies names and attributes.
    digest: [u8; 32],
}

impl Content {
    /// Opens a directory, an archive or a container image.
    pub(super) fn open(
        path: &Path,
        spool: &Spool,
        which: &Which,
        owners: &Owners,
        latest: Option<Stamp>,
    ) -> Result<Self> {
        let shown = || archive::shown_path(path);
        let time = latest.unwrap_or_default();
        let archive = if path.is_dir() {
            Archive::open_dir(&Host, path, spool, which, time)
        } else {
            Archive::open(path, spool, which, time).map(Some)
        };
        let (tree, path): (Box<dyn Tree>, Vec<u8>) = match archive.during(shown)? {
            Some(archive) => (Box::new(archive), b"/".to_vec()),
            None => (Box::new(Host), join(path.as_os_str().as_bytes(), b".")),
        };
        Ok(Self {
            tree,
            path,
            latest,
            owners: owners.clone(),
        })
    }

    /// Finds out what a volume with blocks of this size needs.
    pub(super) fn measure(&self, block: u64) -> Result<Need> {
        let shown = || self.tree.shown(&self.path);
        let root = self.tree.at(&self.path, true)?;
        let root = root.ok_or_else(|| Failure::new("no such directory").context(shown()))?;
        let mut measure = Measure {
            content: self,
            block,
            files: 0,
            blocks: 0,
            counted: HashSet::new(),
            digest: blake3::Hasher::new(),
        };
        measure.add(&mut Walk::new(&*self.tree), &*root, None, b"")?;
        Ok(Need {
            files: measure.files,
            blocks: measure.blocks,
            digest: measure.digest.finalize().into(),
        })
    }

    /// Copies everything into the volume.
    pub(super) fn fill(&self, image: &Path, time: u64, quiet: bool) -> Result<()> {
        let volume = Volume::fresh(image, time)?;
        let to = Destination {
            volume: &volume,
            path: b"/",
            image,
            owners: &self.owners,
            quiet,
            replaces: false,
        };
        let copied = copy::fill(&*self.tree, &self.path, &to, self.latest);
        let closed = volume.close();
        copied.and(closed)
    }
}

impl Need {
    /// Makes the parameters those of a volume with room for the content: with so many more bytes
    /// free, if its size is not given.
    pub(super) fn apply(
        &self,
        params: &mut Params,
        free: u64,
        is_sized: bool,
        journal: impl Fn(u64) -> stetfs_mkfs::JournalSize,
    ) -> Result<()> {
        // What is left free is of use with inodes only.
        let inodes = self.files + OWN_INODES + free / BYTES_OF_FREE_INODE;
        let inodes = u32::try_from(inodes)
            .map_err(|_| Failure::new("the content has more files than a volume can have"))?;
        let block = u64::from(params.block_size);
        if is_sized {
            self.set_inodes(params, inodes);
            return Ok(());
        }
        // A volume made to measure has nothing to reserve.
        params.reserved_percent = 0.0;
        let need = self.blocks + self.blocks / 64 + 64 + free.div_ceil(block);
        let unit = MIB / block;
        let sized = |units: u64| {
            let mut params = params.clone();
            params.blocks = (units * unit).max(VOLUME_BLOCKS_MIN);
            params.journal = journal(params.blocks * block);
            params.inodes = Inodes::usual(params.block_size, params.blocks);
            self.set_inodes(&mut params, inodes);
            params
        };
        let is_enough =
            |units: u64| Plan::new(&sized(units)).is_ok_and(|plan| plan.free_blocks() >= need);
        let mut most = need.div_ceil(unit).max(1);
        while !is_enough(most) {
            most = most
                .checked_mul(2)
                .filter(|units| units * MIB <= 1 << 60)
                .ok_or_else(|| Failure::new("no volume has room for the content"))?;
        }
        let mut few = 0;
        while few + 1 < most {
            let middle = (few + most) / 2;
            if is_enough(middle) {
                most = middle;
            } else {
                few = middle;
            }
        }
        *params = sized(most);
        Ok(())
    }

    /// Fails if a volume of given size has no room for the content.
    pub(super) fn check_room(&self, plan: &Plan) -> Result<()> {
        let block = u64::from(plan.geometry().block.bytes_u32());
        let free = plan.free_blocks();
        if self.blocks <= free {
            return Ok(());
        }
        Err(Failure::new(format!(
            "there is no room for the content: it takes up to {}, and {} would be free",
            Size(self.blocks * block),
            Size(free * block)
        ))
        .advise("without --size the volume becomes as large as it must be"))
    }

    /// Gives the volume the inodes that a volume of its size has, or what the content needs.
    fn set_inodes(&self, params: &mut Params, needed: u32) {
        if let Inodes::Ratio(ratio) = params.inodes {
            let usual = params.blocks * u64::from(params.block_size) / u64::from(ratio);
            if usual < needed.into() {
                params.inodes = Inodes::Count(needed);
            }
        }
    }

    /// Makes 16 bytes that are the same for the same content, arguments and purpose, as a UUID.
    pub(super) fn uuid(&self, params: &Params, purpose: &str) -> [u8; 16] {
        let mut digest = blake3::Hasher::new();
        digest.update(&self.digest);
        digest.update(purpose.as_bytes());
        digest.update(&params.label);
        digest.update(&params.mount_opts);
        for number in [
            params.block_size.into(),
            params.blocks,
            params.time,
            u64::from(params.incompat.bits()),
            u64::from(params.ro_compat.bits()),
        ] {
            digest.update(&number.to_le_bytes());
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&digest.finalize().as_bytes()[..16]);
        // Version 8, variant of RFC 9562: made by a rule of our own.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// A walk through the content.
struct Measure<'a> {
    content: &'a Content,
    block: u64,
    files: u64,
    blocks: u64,
    /// Files with several names.
    counted: HashSet<(u64, u64)>,
    digest: blake3::Hasher,
}

impl Measure<'_> {
    fn add(
        &mut self,
        walk: &mut Walk,
        item: &dyn Item,
        parent: Option<&dyn Item>,
        name: &[u8],
    ) -> Result<()> {
        let meta = item.meta().during(|| item.shown())?;
        self.note(name);
        if meta.nlink > 1 && meta.kind != FileKind::Dir && !self.counted.insert(meta.id) {
            return Ok(());
        }
        self.files += 1;
        let mut xattrs = item.xattrs().during(|| item.shown())?;
        self.note_meta(&meta);
        let mut room = 0;
        for (name, value) in &mut xattrs {
            self.content.owners.adapt(name, value);
            self.note(name);
            self.note(value);
            room += 16 + name.len() + value.len();
        }
        self.blocks += u64::from(room > XATTRS_IN_INODE);
        match meta.kind {
            FileKind::Dir => return self.add_dir(walk, item, parent),
            FileKind::File => {
                self.blocks += self.file_blocks(item, &meta).during(|| item.shown())?;
            }
            FileKind::Symlink => {
                let target = item.read_link().during(|| item.shown())?;
                self.note(&target);
                self.blocks += u64::from(usize_as_u64(target.len()) > LINK_IN_INODE);
            }
            _ => {}
        }
        Ok(())
    }

    fn add_dir(
        &mut self,
        walk: &mut Walk,
        dir: &dyn Item,
        parent: Option<&dyn Item>,
    ) -> Result<()> {
        walk.enter(dir, parent)?;
        let names = dir.names().during(|| dir.shown())?;
        let entries: u64 = names.iter().map(|n| usize_as_u64(rec_len(n.len()))).sum();
        self.blocks += self.dir_blocks(entries);
        for name in &names {
            // What went away since will be missed by the copy.
            if let Some(child) = dir.child(name)? {
                self.add(walk, &*child, Some(dir), name)?;
            }
        }
        self.note(b"/");
        walk.leave();
        Ok(())
    }

    /// Blocks of a directory whose entries take so many bytes, at most: a full block of a hash tree
    /// is split in two.
    fn dir_blocks(&self, entries: u64) -> u64 {
        let usable = self.block - 40;
        if entries <= usable {
            return 1;
        }
        let leaves = (2 * entries).div_ceil(usable) + 1;
        leaves + 1 + leaves.div_ceil(self.block / 16)
    }

    /// Blocks of a file's data and of what maps them, at most.
    fn file_blocks(&self, item: &dyn Item, meta: &Meta) -> Result<u64> {
        let blocks = if meta.size < DENSE {
            meta.size.div_ceil(self.block)
        } else {
            let (mut blocks, mut from) = (0, 0);
            let mut source = item.open()?;
            while let Some((start, end)) = source.next_data(from)? {
                let end = end.min(meta.size);
                if start >= end {
                    break;
                }
                blocks += end.div_ceil(self.block) - start / self.block;
                from = end;
            }
            blocks
        };
        // Pointers take a block for each 256 to 1,024, extents much less.
        Ok(blocks
            + if blocks > 12 {
                3 + blocks / (self.block / 4)
            } else {
                0
            })
    }

    fn note(&mut self, bytes: &[u8]) {
        self.digest.update(&usize_as_u64(bytes.len()).to_le_bytes());
        self.digest.update(bytes);
    }

    fn note_meta(&mut self, meta: &Meta) {
        let (uid, gid) = self.content.owners.of(meta.uid, meta.gid);
        let (_, mtime) = repeatable::times(meta, self.content.latest);
        let size = if meta.kind == FileKind::File {
            meta.size
        } else {
            0
        };
        for number in [
            u64::from(meta.kind.bits()),
            meta.mode.into(),
            uid.into(),
            gid.into(),
            size,
            mtime.0.cast_unsigned(),
            mtime.1.into(),
            meta.rdev.0.into(),
            meta.rdev.1.into(),
        ] {
            self.digest.update(&number.to_le_bytes());
        }
    }
}
