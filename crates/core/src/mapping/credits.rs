//! How many blocks of a transaction a change of a map can need at most. A handle is opened with
//! this many credits.
//!
//! The estimates are generous; a handle gives back what it did not use. The inode itself is not
//! included.

use stetfs_format::indirect::pointers_per_block;

use super::node::depth_of;
use super::run::is_by_extents;
use crate::alloc::Alloc;
use crate::inode::InodeState;
use crate::volume::Volume;

/// How many blocks one step of a removal frees at most, so that any handle can have the credits for
/// it.
pub(super) const STEP_MAX: u32 = 8192;

/// One for the bitmap, one for the descriptor.
pub(crate) const ALLOCATE_CREDITS: u32 = 2;
/// How many freed blocks have their revoke records in one block of the log, at least.
const REVOKES_PER_CREDIT: u32 = 100;
/// Levels of block pointers.
const POINTER_LEVELS: u32 = 3;

/// Returns the credits to map, convert or switch one run of `len` blocks, which are allocated
/// beforehand.
pub(crate) fn credits_for_insert(vol: &Volume, st: &InodeState, len: u32) -> u32 {
    if is_by_extents(&st.raw) {
        // Each node on the way changes. Each may split and allocate a block, and the root may grow.
        let depth = u32::from(depth_of(&st.raw.block).min(stetfs_format::extent::MAX_DEPTH));
        return depth + (depth + 1) * (1 + ALLOCATE_CREDITS);
    }
    let blocks = len.div_ceil(pointers_per_block(&vol.geo)) + 1;
    (blocks + POINTER_LEVELS) * (1 + ALLOCATE_CREDITS)
}

/// What the caller needs to finish a removal: the inode, the superblock and a neighbour on the
/// orphan list, the attribute block, and bitmaps and descriptors of the attribute block and the
/// inode.
const FINISH_CREDITS: u32 = 8;

/// Returns the credits for one step of a removal, which frees at most `len` blocks in one piece,
/// and for the end of the removal.
pub(super) fn remove_credits(alloc: &Alloc, len: u32, depth: u16) -> u32 {
    let groups = len / alloc.geo().blocks_per_group() + 2;
    let nodes = 2 * (u32::from(depth) + 1);
    groups * ALLOCATE_CREDITS
        + nodes * (1 + ALLOCATE_CREDITS)
        + len / REVOKES_PER_CREDIT
        + 1
        + FINISH_CREDITS
}

/// Returns how many blocks a transaction changes that unmaps everything from some block on, where
/// `runs` runs with `blocks` blocks in all are mapped. Its last step may need
/// [`credits_for_last_cut`] in addition.
pub(crate) fn credits_for_cut(vol: &Volume, st: &InodeState, runs: u32, blocks: u32) -> u32 {
    let geo = &vol.geo;
    // At worst a node is a quarter full; nodes further up are fewer.
    let entries = pointers_per_block(geo) / 3 / 4;
    let nodes = if is_by_extents(&st.raw) {
        runs / entries + u32::from(depth_of(&st.raw.block)) + 1
    } else {
        runs + blocks / pointers_per_block(geo) + POINTER_LEVELS
    };
    let freed = runs + blocks / geo.blocks_per_group() + nodes;
    let bitmaps = freed.min(geo.groups_count()) * ALLOCATE_CREDITS;
    bitmaps + nodes + (blocks + nodes) / REVOKES_PER_CREDIT + FINISH_CREDITS
}

/// Returns the credits that a removal needs at least to make progress.
pub(crate) fn credits_for_remove(vol: &Volume, st: &InodeState) -> u32 {
    credits_for_last_cut(vol, st, STEP_MAX)
}

/// Returns the credits for the last step of a removal that unmaps `blocks` blocks in all.
pub(crate) fn credits_for_last_cut(vol: &Volume, st: &InodeState, blocks: u32) -> u32 {
    let depth = if is_by_extents(&st.raw) {
        depth_of(&st.raw.block)
    } else {
        3
    };
    remove_credits(
        &vol.alloc,
        blocks.min(STEP_MAX),
        depth.min(stetfs_format::extent::MAX_DEPTH),
    )
}
