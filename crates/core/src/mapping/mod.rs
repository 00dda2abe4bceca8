//! Which block of the volume holds which block of a file.
//!
//! One interface for both maps of ext4: extent trees (`extent` reads, `tree` and `edit` change) and
//! the block pointers of ext2 and ext3 (`indirect`). The functions here change `InodeState::raw`
//! (its `block`, `blocks` and flags) and blocks of [`Class::Mapping`]. The caller holds
//! `Inode::state` for writing and stores the inode in the same handle.
//!
//! `i_blocks` is kept here: mapping adds to it, unmapping subtracts, for data and for the map
//! itself. Blocks of the map are allocated here, from the pool when nothing else is left: a file's
//! data has been promised its place by then.
//!
//! The caller allocates the data: [`goal`], [`Alloc::allocate`](crate::alloc::Alloc::allocate),
//! [`insert`].

mod credits;
pub(crate) mod damage;
mod edit;
mod extent;
mod indirect;
mod node;
mod run;
#[cfg(test)]
mod tests;
mod tree;

use stetfs_format::extent::{ExtentNodeMut, MAX_BLOCKS};
use stetfs_format::inode::InodeFlags;
use stetfs_format::{BlockNo, Geometry, Inode as RawInode, InodeNo, LBlock};
use stetfs_journal::Handle;
use stetfs_media::Class;
use stetfs_planted::{Bug, is_planted};

use crate::alloc::{Alloc, Source};
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::volume::Volume;
pub(crate) use credits::{credits_for_cut, credits_for_insert};
pub(crate) use credits::{credits_for_last_cut, credits_for_remove};
use extent::Tree;
use indirect::{BlockMap, BlockMapMut};
use run::Removed;
use run::is_by_extents;
pub(crate) use run::{MapState, Run};
use tree::TreeMut;

/// Whether `i_block` maps blocks. It does not in device files, pipes, sockets, and inodes that hold
/// their content themselves.
pub(crate) fn has_map(raw: &RawInode, geo: &Geometry) -> bool {
    let has_content = raw.is_regular() || raw.is_dir() || raw.is_symlink();
    has_content && !raw.is_inline() && !raw.is_fast_symlink(geo)
}

/// Gives a new inode an empty map, by extents when the volume has them.
pub(crate) fn init(raw: &mut RawInode, geo: &Geometry) {
    raw.block = [0; 60];
    raw.flags.set(InodeFlags::EXTENTS, geo.extents);
    if geo.extents {
        ExtentNodeMut::init_root(&mut raw.block, 0);
    }
}

/// Checks the part of a map that lies in the inode. The nodes below are checked when they are read.
pub(crate) fn check(vol: &Volume, ino: InodeNo, raw: &RawInode) -> Result<()> {
    check_in(&vol.alloc, ino, raw)
}

fn check_in(alloc: &Alloc, ino: InodeNo, raw: &RawInode) -> Result<()> {
    if is_by_extents(raw) {
        Tree { alloc, ino, raw }.check_root()
    } else {
        BlockMap { alloc, ino, raw }.check_root()
    }
}

/// Returns the run at `lblk`: at most `max` blocks (at least 1) of one state. A hole may come in
/// pieces. An inode that holds its content itself is one hole.
///
/// # Errors
/// Damage in the map.
pub(crate) fn lookup(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    lblk: LBlock,
    max: u32,
) -> Result<Run> {
    lookup_in(&vol.alloc, inode.ino, &st.raw, lblk, max)
}

fn lookup_in(alloc: &Alloc, ino: InodeNo, raw: &RawInode, lblk: LBlock, max: u32) -> Result<Run> {
    if raw.is_inline() {
        return Ok(Run {
            lblk,
            len: max.max(1),
            pblk: BlockNo(0),
            state: MapState::Hole,
        });
    }
    if is_by_extents(raw) {
        Tree { alloc, ino, raw }.lookup(lblk, max)
    } else {
        BlockMap { alloc, ino, raw }.lookup(lblk, max)
    }
}

/// Returns where a new block at `lblk` should be allocated.
///
/// # Errors
/// Damage in the map.
pub(crate) fn goal(vol: &Volume, inode: &Inode, st: &InodeState, lblk: LBlock) -> Result<BlockNo> {
    goal_in(&vol.alloc, inode.ino, &st.raw, lblk)
}

fn goal_in(alloc: &Alloc, ino: InodeNo, raw: &RawInode, lblk: LBlock) -> Result<BlockNo> {
    if is_by_extents(raw) {
        Tree { alloc, ino, raw }.goal(lblk)
    } else {
        BlockMap { alloc, ino, raw }.goal(lblk)
    }
}

/// Maps `run`, all of which must be a hole, to blocks that the caller allocated. Needs
/// [`credits_for_insert`].
///
/// # Errors
/// `NoSpace` when the map needs a block and not even the pool has one; nothing is mapped then.
/// `TooBig` when a file cannot have so many blocks. Damage in the map.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    run: Run,
) -> Result<()> {
    st.map_changes = st.map_changes.wrapping_add(1);
    insert_in(&vol.alloc, h, inode.ino, &mut st.raw, run)
}

fn insert_in(alloc: &Alloc, h: &Handle, ino: InodeNo, raw: &mut RawInode, run: Run) -> Result<()> {
    debug_assert_ne!(run.state, MapState::Hole);
    if is_by_extents(raw) {
        TreeMut::new(alloc, h, ino, raw).insert(run)
    } else {
        BlockMapMut { alloc, h, ino, raw }.insert(run)
    }
}

/// Allocates one block and maps it at `lblk`, which must be a hole. For directories and other
/// metadata; the caller fills the block by `Handle::create`. Needs two credits and
/// [`credits_for_insert`].
///
/// # Errors
/// `NoSpace`; nothing is changed then. Damage in the map or a bitmap.
pub(crate) fn allocate_block(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    source: Source,
) -> Result<BlockNo> {
    let goal = goal(vol, inode, st, lblk)?;
    let pblk = vol.alloc.allocate_one(h, goal, source)?;
    let run = Run {
        lblk,
        len: 1,
        pblk,
        state: MapState::Written,
    };
    if let Err(e) = insert(vol, h, inode, st, run) {
        vol.alloc.free(h, pblk, 1, Class::Directory)?;
        return Err(e);
    }
    Ok(pblk)
}

/// Makes the unwritten blocks in `[lblk, lblk + len)` written. Needs [`credits_for_insert`] for
/// each run.
///
/// # Errors
/// As [`insert`].
pub(crate) fn convert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    len: u32,
) -> Result<()> {
    st.map_changes = st.map_changes.wrapping_add(1);
    let len = if is_planted(Bug::ConvertedBeyond) {
        match lookup(vol, inode, st, lblk.plus(len), 4)? {
            run if run.state == MapState::Unwritten => len + run.len.min(4),
            _ => len,
        }
    } else {
        len
    };
    convert_in(&vol.alloc, h, inode.ino, &mut st.raw, lblk, len, false)
}

/// Makes the written blocks in `[lblk, lblk + len)` unwritten. Needs [`credits_for_insert`] for
/// each run.
///
/// # Errors
/// `NotSupported` for block pointers, which have no such state. Otherwise as [`insert`].
pub(crate) fn set_unwritten(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    len: u32,
) -> Result<()> {
    if !is_by_extents(&st.raw) {
        return Err(Error::NotSupported);
    }
    st.map_changes = st.map_changes.wrapping_add(1);
    convert_in(&vol.alloc, h, inode.ino, &mut st.raw, lblk, len, true)
}

fn convert_in(
    alloc: &Alloc,
    h: &Handle,
    ino: InodeNo,
    raw: &mut RawInode,
    lblk: LBlock,
    len: u32,
    unwritten: bool,
) -> Result<()> {
    // Blocks mapped by pointers are always written.
    if is_by_extents(raw) {
        TreeMut::new(alloc, h, ino, raw).convert(lblk, len, unwritten)
    } else {
        Ok(())
    }
}

/// Maps blocks from `lblk` on to written blocks from `new` on instead: at most `len`, up to the end
/// of their run. Returns the first old block and the number of blocks, which the caller frees.
/// Needs [`credits_for_insert`].
///
/// # Errors
/// As [`insert`]; damage when `lblk` is not mapped.
pub(crate) fn switch_run(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    len: u32,
    new: BlockNo,
) -> Result<(BlockNo, u32)> {
    st.map_changes = st.map_changes.wrapping_add(1);
    switch_in(&vol.alloc, h, inode.ino, &mut st.raw, lblk, len, new)
}

fn switch_in(
    alloc: &Alloc,
    h: &Handle,
    ino: InodeNo,
    raw: &mut RawInode,
    lblk: LBlock,
    len: u32,
    new: BlockNo,
) -> Result<(BlockNo, u32)> {
    if is_by_extents(raw) {
        TreeMut::new(alloc, h, ino, raw).switch(lblk, len, new)
    } else {
        BlockMapMut { alloc, h, ino, raw }.switch(lblk, len, new)
    }
}

/// Unmaps and frees the blocks in `[from, to)`; without `to`, to the end of the file. Begins at the
/// end. Returns false when `h` cannot get more credits: the caller then goes on in a new handle of
/// [`credits_for_remove`], and keeps the inode on the orphan list in case of a crash in between.
///
/// # Errors
/// Damage in the map or a bitmap.
pub(crate) fn remove(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    from: LBlock,
    to: Option<LBlock>,
) -> Result<bool> {
    st.map_changes = st.map_changes.wrapping_add(1);
    let to = to.map_or(MAX_BLOCKS, |to| to.0);
    Ok(remove_in(&vol.alloc, h, inode.ino, &mut st.raw, from, to)?.done)
}

fn remove_in(
    alloc: &Alloc,
    h: &Handle,
    ino: InodeNo,
    raw: &mut RawInode,
    from: LBlock,
    to: u32,
) -> Result<Removed> {
    // Only the content of ordinary files is written as data. The log may hold old versions of
    // everything else.
    let logged = !raw.is_regular() || raw.flags.contains(InodeFlags::JOURNAL_DATA);
    let class = if logged {
        Class::Directory
    } else {
        Class::Data
    };
    if is_by_extents(raw) {
        TreeMut::new(alloc, h, ino, raw).remove(from, to, class)
    } else {
        BlockMapMut { alloc, h, ino, raw }.remove(from, to, class)
    }
}
