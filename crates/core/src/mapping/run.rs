//! What both maps give and take: runs of blocks, and how many blocks a file has.

use stetfs_format::inode::InodeFlags;
use stetfs_format::{BlockNo, Inode, InodeNo, LBlock};

use super::damage::Damage;
use crate::alloc::Alloc;
use crate::error::{Error, Result};

/// What there is at a block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MapState {
    /// Nothing: reads as zeros.
    Hole,
    /// Blocks with data.
    Written,
    /// Blocks that were allocated but never written: reads as zeros.
    Unwritten,
}

/// Blocks of a file that follow each other on the volume, or are all missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first block.
    pub(crate) lblk: LBlock,
    /// How many, at least 1.
    pub(crate) len: u32,
    /// Where the first is; 0 in a hole.
    pub(crate) pblk: BlockNo,
    /// What they are.
    pub(crate) state: MapState,
}

/// What a removal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) done: bool,
    pub(super) blocks: u64,
}

/// Whether the file is mapped by extents.
pub(crate) fn is_by_extents(raw: &Inode) -> bool {
    raw.flags.contains(InodeFlags::EXTENTS)
}

/// Adds `blocks` (or takes them off) to what `i_blocks` counts.
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
