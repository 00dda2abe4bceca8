//! Directories, linear and indexed: finding, adding, changing and removing a name.
//!
//! The blocks of a *linear* directory are searched one after the other. Block 0 of an *indexed* one
//! holds the root of a tree by hash (`htree.rs`). The blocks with entries look alike (`leaf.rs`).
//! As in the kernel, a directory starts with one linear block and becomes indexed when that block
//! is full, if the volume has `dir_index`.
//!
//! Invariants:
//! 1. The caller holds the directory's `lock`: shared to search, alone to change. A [`Place`] is
//!    valid as long as that lock is held and the directory is not changed otherwise.
//! 2. A name is at most once in a directory: [`place`] has looked before [`insert`] is called.
//! 3. Every change writes the bytes that differ and the block's checksum in one handle. A borrowed
//!    block is dropped before it is written, so that the write need not copy it.
//! 4. A new block is allocated before anything else is changed, so that "no space" changes nothing.

use stetfs_format::dirent;
pub(crate) use stetfs_format::dirent::is_dot_or_dotdot;
use stetfs_format::{FileType, InodeFlags, InodeNo, LBlock};
use stetfs_journal::Handle;

use crate::alloc::Source;
use crate::error::{Error, Inconsistent, Result};
use crate::htree::{self, split};
use crate::inline;
use crate::inode::{Inode, InodeState};
use crate::volume::Volume;

pub(crate) mod block;
pub(crate) mod dirs;
pub(crate) mod leaf;

use block::{
    Dir, Found, NewEntry, Place, append, apply, file_type, found, is_empty_block, put, read_again,
};

/// Returns the entry `name`, if there is one.
#[inline]
pub(crate) fn find(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    if dir.is_indexed() {
        if is_dot_or_dotdot(name) {
            find_dot(dir, name)
        } else {
            htree::find(dir, name)
        }
    } else {
        find_linear(dir, name)
    }
}

fn find_linear(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    for lblk in (0..dir.blocks).map(LBlock) {
        if let Some(found) = dir.find_in(&dir.read_leaf(lblk)?, name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Finds "." or ".." of an indexed directory, which are in the root at fixed offsets.
fn find_dot(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    let block = htree::read_root(dir)?;
    let size = dir.vol.geo.block_size();
    let hit = leaf::find(&block.bytes, size, name).map_err(|b| dir.broken(&block, b))?;
    Ok(hit.map(|hit| found(&block, hit)))
}

/// Returns the entry ".." of a directory.
pub(crate) fn dotdot(dir: Dir<'_>) -> Result<Found> {
    find(dir, b"..")?.ok_or_else(|| Inconsistent::NoDotDot(dir.inode.ino).into())
}

/// Returns where `name`, which must not exist, can be put.
///
/// # Errors
/// [`Error::Exists`], or an error of reading the directory.
pub(crate) fn place(dir: Dir<'_>, name: &[u8]) -> Result<Place> {
    if is_dot_or_dotdot(name) {
        return Err(Error::Exists);
    }
    if dir.is_indexed() {
        return htree::place(dir, name);
    }
    let mut place = Place::Grow;
    for lblk in (0..dir.blocks).map(LBlock) {
        let block = dir.read_leaf(lblk)?;
        let (found, room) = dir.find_or_room_in(&block, name)?;
        if found.is_some() {
            return Err(Error::Exists);
        }
        if let (Place::Grow, Some(offset)) = (place, room) {
            place = Place::Room {
                pblk: block.pblk,
                offset,
            };
        }
    }
    Ok(place)
}

/// Returns the block of entries for a new name. Block 0 stands for all of a linear directory.
pub(crate) fn leaf_for(dir: Dir<'_>, name: &[u8]) -> Result<LBlock> {
    if dir.is_indexed() {
        htree::leaf_for(dir, name)
    } else {
        Ok(LBlock(0))
    }
}

/// Returns the longest record, in bytes, that leaf `at` has room for; in a linear directory, any
/// block.
pub(crate) fn room_at(dir: Dir<'_>, at: LBlock) -> Result<usize> {
    let all = if dir.is_indexed() {
        at.0..at.0.saturating_add(1)
    } else {
        0..dir.blocks
    };
    let mut longest = 0;
    for lblk in all.map(LBlock) {
        let block = dir.read_leaf(lblk)?;
        let room = leaf::longest_room(&block.bytes, block.end);
        longest = longest.max(room.map_err(|b| dir.broken(&block, b))?);
    }
    Ok(longest)
}

/// Adds a name at a place from [`place`]. The caller stores the directory's inode, since the
/// directory may have grown.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    place: Place,
    entry: NewEntry<'_>,
) -> Result<()> {
    if !vol.geo.dir_index {
        // The index will not be kept up, and would hide the new name from readers that trust it
        // (`ext4_update_dx_flag`).
        st.raw.flags.remove(InodeFlags::INDEX);
    }
    match place {
        Place::Room { pblk, offset } => put(vol, h, inode, st, (pblk, offset), entry),
        Place::Grow => grow(vol, h, inode, st, entry),
    }
}

fn grow(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    entry: NewEntry<'_>,
) -> Result<()> {
    let most = vol.opts.max_dir_size_kb;
    if most > 0 && st.raw.size >> 10 >= most.into() {
        return Err(Error::NoSpace);
    }
    if st.raw.is_inline() {
        unfold(vol, h, inode, st, entry.source)?;
        let place = place(Dir::open(vol, inode, st)?, entry.name)?;
        return insert(vol, h, inode, st, place, entry);
    }
    let dir = Dir::open(vol, inode, st)?;
    if dir.is_indexed() {
        return split::insert(vol, h, inode, st, entry);
    }
    if dir.blocks == 1 && vol.geo.dir_index {
        split::make_indexed(vol, h, inode, st, entry.source)?;
        return split::insert(vol, h, inode, st, entry);
    }
    let seed = dir.seed();
    let mut block = vec![0; vol.geo.block_size()];
    let record = dirent::NewEntry {
        inode: entry.ino,
        file_type: FileType::of_mode(entry.mode),
        name: entry.name,
    };
    dirent::fill(&mut block, [record], &vol.geo);
    dirent::write_checksum(&mut block, seed, &vol.geo);
    append(vol, h, inode, st, &block, entry.source).map(|_| ())
}

/// Removes an entry from [`find`]. The caller stores the directory's inode.
pub(crate) fn remove(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    found: &Found,
) -> Result<()> {
    let block = read_again(vol, inode, st, found.pblk)?;
    let mut hit = found.hit;
    if st.raw.is_inline() {
        let joins = |at: &usize| inline::are_together(*at, hit.offset);
        hit.previous = hit.previous.filter(joins);
    }
    let changes = leaf::remove(&block, &hit);
    apply(vol, h, inode, st, (found.pblk, block), &changes)
}

/// Points an entry from [`find`] to another inode. The caller stores the directory's inode.
pub(crate) fn replace(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    found: &Found,
    ino: InodeNo,
    mode: u16,
) -> Result<()> {
    let block = read_again(vol, inode, st, found.pblk)?;
    let changes = leaf::replace(&block, found.hit.offset, ino, file_type(vol, mode));
    let dir = Dir::open(vol, inode, st)?;
    if found.lblk == LBlock(0) && dir.is_indexed() {
        // In an indexed directory, only ".." changes here. Its block ends with an index, not with a
        // dirent tail.
        return split::apply(dir, h, found.pblk, block, &changes);
    }
    apply(vol, h, inode, st, (found.pblk, block), &changes)
}

/// Whether the directory has only "." and "..".
pub(crate) fn is_empty(dir: Dir<'_>) -> Result<bool> {
    if dir.is_indexed() {
        return htree::is_empty(dir);
    }
    for lblk in (0..dir.blocks).map(LBlock) {
        if !is_empty_block(dir, &dir.read_leaf(lblk)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the first block of a new directory, with "." and "..".
pub(crate) fn init(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    parent: InodeNo,
    source: Source,
) -> Result<()> {
    let mut block = vec![0; vol.geo.block_size()];
    dirent::init_dot_dotdot(&mut block, inode.ino, parent, &vol.geo);
    dirent::write_checksum(&mut block, st.raw.csum_seed(inode.ino, &vol.geo), &vol.geo);
    append(vol, h, inode, st, &block, source).map(|_| ())
}

/// Moves the entries of a directory out to a block.
///
/// # Errors
/// `NoSpace`; nothing is changed then.
fn unfold(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    source: Source,
) -> Result<()> {
    let (old, end) = inline::block(vol, inode, st)?;
    let mut entries = Vec::new();
    for record in leaf::records(&old, end) {
        // The block was checked when it was made.
        let Ok(record) = record else { break };
        if record.ino != 0 {
            entries.push(dirent::NewEntry {
                inode: InodeNo(record.ino),
                file_type: FileType::of_dirent_code(record.file_type),
                name: record.name(&old),
            });
        }
    }
    let mut new = vec![0; vol.geo.block_size()];
    dirent::fill(&mut new, entries, &vol.geo);
    let seed = st.raw.csum_seed(inode.ino, &vol.geo);
    dirent::write_checksum(&mut new, seed, &vol.geo);
    let before = st.raw.clone();
    inline::empty_map(vol, st);
    st.raw.size = 0;
    match append(vol, h, inode, st, &new, source) {
        Ok(_) => inline::forget_second(vol, h, inode, st),
        Err(error) => {
            st.raw = before;
            Err(error)
        }
    }
}
