//! How many blocks of a transaction a change of a map can need at most: what a handle is opened
//! with.
//!
//! The estimates are generous; a handle gives back what it did not use. None includes the inode
//! itself.

use stetfs_format::indirect::pointers_per_block;

use super::node::depth_of;
use super::run::is_by_extents;
use crate::alloc::Alloc;
use crate::inode::InodeState;
use crate::volume::Volume;

/// Blocks that one step of a removal frees at most: what it needs of the journal must fit any
/// handle.
pub(super) const STEP_MAX: u32 = 8192;

/// Bitmap and descriptor.
pub(crate) const ALLOCATE_CREDITS: u32 = 2;
/// Freed blocks for each of which a record of its revocation needs a block of the log, at least.
const REVOKES_PER_CREDIT: u32 = 100;
/// Levels of block pointers.
const POINTER_LEVELS: u32 = 3;

/// For mapping one run, or converting or switching one, blocks allocated beforehand. A run of `len`
/// blocks.
pub(crate) fn credits_for_insert(vol: &Volume, st: &InodeState, len: u32) -> u32 {
    if is_by_extents(&st.raw) {
        // Each node on the way changes; each may split into a block that is allocated, and the root
        // may grow.
        let depth = u32::from(depth_of(&st.raw.block).min(stetfs_format::extent::MAX_DEPTH));
        return depth + (depth + 1) * (1 + ALLOCATE_CREDITS);
    }
    let blocks = len.div_ceil(pointers_per_block(&vol.geo)) + 1;
    (blocks + POINTER_LEVELS) * (1 + ALLOCATE_CREDITS)
}

/// What a removal leaves for its caller to finish with: the inode, the superblock and a neighbour
/// on the orphan list, the attribute block, and bitmaps and descriptors of the attribute block and
/// the inode.
const FINISH_CREDITS: u32 = 8;

/// For one step of a removal, which frees at most `len` blocks in one piece, and for finishing
/// after it.
pub(super) fn remove_credits(alloc: &Alloc, len: u32, depth: u16) -> u32 {
    let groups = len / alloc.geo().blocks_per_group() + 2;
    let nodes = 2 * (u32::from(depth) + 1);
    groups * ALLOCATE_CREDITS
        + nodes * (1 + ALLOCATE_CREDITS)
        + len / REVOKES_PER_CREDIT
        + 1
        + FINISH_CREDITS
}

/// What the blocks of a transaction come to in which everything is unmapped from `from` on, of
/// which `runs` runs of `blocks` blocks are mapped. Its last step may ask for
/// [`credits_for_last_cut`] beside.
pub(crate) fn credits_for_cut(vol: &Volume, st: &InodeState, runs: u32, blocks: u32) -> u32 {
    let geo = &vol.geo;
    // At worst a node has one entry in four; the deeper ones are fewer.
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

/// For the least that a removal must be able to do to make progress.
pub(crate) fn credits_for_remove(vol: &Volume, st: &InodeState) -> u32 {
    credits_for_last_cut(vol, st, STEP_MAX)
}

/// For the last step of a removal that unmaps so many blocks in all.
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
