//! What both maps take and return: runs of blocks, and how many blocks a file has.

use stetfs_format::inode::InodeFlags;
use stetfs_format::{BlockNo, Inode, InodeNo, LBlock};

use super::damage::Damage;
use crate::alloc::Alloc;
use crate::error::{Error, Result};

/// What a file has at one of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MapState {
    /// No block: reads as zeros.
    Hole,
    /// Blocks with data.
    Written,
    /// Blocks that were allocated but never written: read as zeros.
    Unwritten,
}

/// Consecutive blocks of a file that are consecutive on the volume too, or all missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first logical block.
    pub(crate) lblk: LBlock,
    /// The number of blocks, at least 1.
    pub(crate) len: u32,
    /// Where the first block is; 0 in a hole.
    pub(crate) pblk: BlockNo,
    /// Their state.
    pub(crate) state: MapState,
}

/// How far a removal got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) done: bool,
    pub(super) blocks: u64,
}

/// Whether the file is mapped by extents.
pub(crate) fn is_by_extents(raw: &Inode) -> bool {
    raw.flags.contains(InodeFlags::EXTENTS)
}

/// Adds `blocks` to `i_blocks`; subtracts when negative.
pub(super) fn charge(alloc: &Alloc, ino: InodeNo, raw: &mut Inode, blocks: i64) -> Result<()> {
    let geo = alloc.geo();
    let units = blocks << (geo.block.bits() - 9);
    let new = raw
        .blocks_512(geo)
        .checked_add_signed(units)
        .ok_or(Damage::BlockCount { ino })?;
    if raw.set_blocks_512(new, geo) {
        Ok(())
    } else {
        Err(Error::TooBig)
    }
}
