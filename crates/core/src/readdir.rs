//! Lists a directory.
//!
//! A call starts at a *cookie* and passes entries on, each with the cookie of the next one. A name
//! that exists from the first call to the last comes exactly once, whatever else is added or
//! removed meanwhile:
//!
//! - A linear directory of several blocks is listed in the order of bytes; a cookie is a byte
//!   offset. An entry never moves.
//! - An indexed directory is listed in the order of hashes, as the kernel does it; a cookie is the
//!   hash of the next entry (`hash2pos`: the major hash halved in the upper 32 bits, the minor in
//!   the lower). So splitting a leaf does not matter. If the volume has `dir_index`, a linear
//!   directory of one block is listed that way too, because the next name may turn it into an
//!   indexed one. "." counts as hash 0 and ".." as hash 2.
//!
//! Names with the same 63 bits of hash share a cookie: if a listing stops between two of them, the
//! first ones come again. (The "legacy" hash has no minor half, so the checksum of the name takes
//! its place.)
//!
//! One call reads only the leaves whose entries it passes on, and the path to them. It gathers the
//! entries of a leaf under the directory's lock, and passes them on without the lock.

use smallvec::SmallVec;
use stetfs_format::checksum::crc32c;
use stetfs_format::dirent::check_name;
use stetfs_format::width::{high32, must_fit, must_fit_u16, usize_as_u64};
use stetfs_format::{HashVersion, Hasher, InodeNo, LBlock};

use crate::dir::block::{Dir, DirBlock, file_type};
use crate::dir::{self, leaf};
use crate::error::{Error, Inconsistent, Result};
use crate::htree::{self, CONTINUED, Leaves};
use crate::inode::Inode;
use crate::types::DirEntry;
use crate::volume::Volume;

/// The cookie at the end of a listing in the order of hashes (EXT4_HTREE_EOF_64BIT).
const END: u64 = 0x7fff_ffff_ffff_ffff;

/// The cookie of "..".
const DOTDOT: u64 = 1 << 32;

/// The most leaves that the names of one hash may fill. A leaf holds at least three names.
const CONTINUED_MAX: usize = 1024;

/// The entries of a leaf that are still to be passed on, in order.
struct Batch {
    blocks: SmallVec<[DirBlock; 2]>,
    items: SmallVec<[Item; 128]>,
    /// The cookie behind the last entry; `None` at the end of the directory.
    next: Option<u64>,
}

struct Item {
    /// The entry's own cookie.
    cookie: u64,
    ino: InodeNo,
    /// The index of its block in the batch.
    block: u16,
    /// The offset of its name in the block.
    name: u16,
    name_len: u8,
    file_type: u8,
}

/// Passes the entries from `cookie` on (0: all) to `sink`, until `sink` returns false because it
/// did not take the entry. `sink` may call back into the volume.
///
/// # Errors
/// `NotDirectory`; `NotFound` when the directory was removed; damage found in a block.
pub(crate) fn readdir(
    vol: &Volume,
    inode: &Inode,
    cookie: u64,
    sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    let mut from = Some(cookie);
    while let Some(cookie) = from {
        let batch = gather(vol, inode, cookie)?;
        for (i, item) in batch.items.iter().enumerate() {
            let next = batch
                .items
                .get(i + 1)
                .map(|n| n.cookie)
                .or(batch.next)
                .unwrap_or(END);
            let name = match item.name_len {
                0 if item.cookie == 0 => b".".as_slice(),
                0 => b"..",
                n => {
                    &batch.blocks[usize::from(item.block)].bytes[usize::from(item.name)..]
                        [..usize::from(n)]
                }
            };
            let entry = DirEntry {
                ino: item.ino,
                next,
                kind: d_type(item.file_type),
                name,
            };
            if !sink(entry) {
                return Ok(());
            }
        }
        from = batch.next;
    }
    Ok(())
}

/// The `d_type` of a directory entry's file type.
fn d_type(file_type: u8) -> u8 {
    const D_TYPE: [u8; 8] = [0, 8, 4, 2, 6, 1, 12, 10];
    D_TYPE.get(usize::from(file_type)).copied().unwrap_or(0)
}

/// Returns the entries of the first leaf that has any from `cookie` on.
fn gather(vol: &Volume, inode: &Inode, cookie: u64) -> Result<Batch> {
    let _shared = inode.lock.read();
    let st = inode.state.read();
    st.check_live()?;
    if st.raw.links_count == 0 {
        return Err(Error::NotFound);
    }
    let dir = Dir::open(vol, inode, &st)?;
    if dir.is_indexed() {
        by_hash(dir, cookie)
    } else if vol.geo.dir_index && dir.blocks == 1 {
        one_block_by_hash(dir, cookie)
    } else {
        by_offset(dir, cookie)
    }
}

impl Batch {
    fn new() -> Self {
        Self {
            blocks: SmallVec::new(),
            items: SmallVec::new(),
            next: None,
        }
    }

    /// Adds the used records of `block` whose cookies are not below `from`.
    fn add(
        &mut self,
        dir: Dir<'_>,
        block: DirBlock,
        from: u64,
        cookie_of: impl Fn(&leaf::Record, &[u8]) -> Option<u64>,
    ) -> Result<()> {
        let index = must_fit_u16(self.blocks.len());
        for record in leaf::records(&block.bytes, block.end) {
            let record = record.map_err(|b| dir.broken(&block, b))?;
            if record.ino == 0 {
                continue;
            }
            // Check each name again: if a file has this block too, it may have been written since
            // the block was checked.
            let name = record.name(&block.bytes);
            check_name(name, record.offset).map_err(|e| dir.corrupt(block.lblk, e))?;
            let Some(cookie) = cookie_of(&record, name).filter(|&c| c >= from) else {
                continue;
            };
            self.items.push(Item {
                cookie,
                ino: InodeNo(record.ino),
                block: index,
                name: must_fit_u16(record.offset + leaf::HEADER),
                name_len: must_fit(record.name_len),
                file_type: record.file_type,
            });
        }
        self.blocks.push(block);
        Ok(())
    }

    /// Adds "." and "..". The kernel fixed their places in the order of hashes.
    fn add_dots(&mut self, dir: Dir<'_>, parent: InodeNo, from: u64) {
        let file_type = file_type(dir.vol, crate::types::mode::S_IFDIR);
        let mut add = |cookie, ino| {
            if cookie >= from {
                self.items.push(Item {
                    cookie,
                    ino,
                    block: 0,
                    name: 0,
                    name_len: 0,
                    file_type,
                });
            }
        };
        add(0, dir.inode.ino);
        add(DOTDOT, parent);
    }

    fn sort(&mut self) {
        self.items
            .sort_unstable_by_key(|i| (i.cookie, i.block, i.name));
    }
}

fn by_offset(dir: Dir<'_>, cookie: u64) -> Result<Batch> {
    let mut batch = Batch::new();
    let mut from = cookie;
    while dir.vol.geo.block.block_of(from) < dir.blocks.into() {
        let lblk = dir.vol.block_of(from);
        let start = dir.vol.start_of(lblk);
        batch.add(dir, dir.read_leaf(lblk)?, from, |record, _| {
            Some(start + usize_as_u64(record.offset))
        })?;
        from = dir.vol.start_of(lblk.plus(1));
        if !batch.items.is_empty() {
            batch.next = Some(from);
            return Ok(batch);
        }
    }
    Ok(batch)
}

/// The cookie of a name in the order of hashes.
fn hash_cookie(hasher: &Hasher, name: &[u8]) -> Option<u64> {
    if dir::is_dot_or_dotdot(name) {
        return None;
    }
    let hash = hasher.hash(name);
    let minor = if hasher.version == HashVersion::Legacy {
        crc32c(0, name)
    } else {
        hash.minor
    };
    Some(cookie_at(hash.major, minor))
}

fn cookie_at(major: u32, minor: u32) -> u64 {
    u64::from(major >> 1) << 32 | u64::from(minor)
}

fn one_block_by_hash(dir: Dir<'_>, cookie: u64) -> Result<Batch> {
    let block = dir.read_leaf(LBlock(0))?;
    let parent = dir::dotdot(dir)?.ino;
    let mut batch = Batch::new();
    let hasher = dir.vol.dirs.default_hasher();
    batch.add(dir, block, cookie, |_, name| hash_cookie(&hasher, name))?;
    batch.add_dots(dir, parent, cookie);
    batch.sort();
    Ok(batch)
}

fn by_hash(dir: Dir<'_>, cookie: u64) -> Result<Batch> {
    let mut batch = Batch::new();
    if cookie >= END {
        return Ok(batch);
    }
    let mut leaves = Leaves::new(dir, htree::probe(dir, |_| high32(cookie) << 1)?)?;
    let hasher = leaves.hasher();
    if cookie <= DOTDOT {
        batch.add_dots(dir, dir::dotdot(dir)?.ino, cookie);
    }
    loop {
        batch.add(dir, leaves.read()?, cookie, |_, name| {
            hash_cookie(&hasher, name)
        })?;
        let Some(next) = leaves.next_hash() else {
            batch.next = None;
            break;
        };
        batch.next = Some(cookie_at(next, 0));
        if next & CONTINUED == 0 {
            if !batch.items.is_empty() {
                break;
            }
            batch.blocks.clear();
        }
        if batch.blocks.len() > CONTINUED_MAX {
            let ino = dir.inode.ino;
            return Err(Inconsistent::IndexAstray { ino, hash: next }.into());
        }
        leaves.advance()?;
    }
    batch.sort();
    Ok(batch)
}
