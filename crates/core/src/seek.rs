//! Finds data and holes in a file: SEEK_DATA, SEEK_HOLE and FIEMAP.
//!
//! Written extents and delayed data count as data. An unwritten extent is a hole to a seek unless
//! it holds delayed data, as in the kernel.

use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_format::width::usize_as_u64;

use crate::error::{Error, Result};
use crate::inline;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState};
use crate::types::{FiemapExtent, FiemapFlags, Whence};
use crate::volume::Volume;

/// Offset of `i_block` in an inode, in bytes.
const I_BLOCK: u64 = 0x28;

/// The state of one piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Neither mapped nor delayed.
    Hole,
    /// Delayed: new data without a home.
    Delayed,
    /// Mapped to block `physical`.
    Mapped { physical: u64, unwritten: bool },
}

/// Returns the piece that begins at `lblk`, and its length in blocks, at most `max`.
fn piece_at(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    lblk: LBlock,
    max: u32,
) -> Result<(Piece, u32)> {
    let run = mapping::lookup(vol, inode, st, lblk, max)?;
    let mut len = run.len.min(max);
    if run.state != MapState::Written
        && let Some((start, count)) = inode.data(vol).dirty_in(lblk, Some(lblk.plus(len)))
    {
        if start == lblk {
            return Ok((Piece::Delayed, count.min(len)));
        }
        len = start.0 - lblk.0;
    }
    let piece = match run.state {
        MapState::Hole => Piece::Hole,
        state => Piece::Mapped {
            physical: run.pblk.0,
            unwritten: state == MapState::Unwritten,
        },
    };
    Ok((piece, len))
}

/// Returns the first offset at or after `offset` that has what `whence` looks for.
///
/// # Errors
/// `NoSuchDevice` at or beyond the end, and when no data follows.
pub(crate) fn seek(vol: &Volume, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
    let _guard = inode.lock.read();
    let st = inode.state.read();
    st.check_live()?;
    let size = st.raw.size;
    if offset >= size {
        return Err(Error::NoSuchDevice);
    }
    if !st.is_reg() || st.raw.is_inline() {
        return match whence {
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(size),
        };
    }
    let end = vol.end_block(size).0;
    let mut at = vol.block_of(offset).min(LBlock(end));
    while at.0 < end {
        let (piece, len) = piece_at(vol, inode, &st, at, end - at.0)?;
        let is_data = matches!(
            piece,
            Piece::Delayed
                | Piece::Mapped {
                    unwritten: false,
                    ..
                }
        );
        if is_data == (whence == Whence::Data) {
            return Ok(offset.max(vol.start_of(at)).min(size));
        }
        at = at.plus(len);
    }
    match whence {
        Whence::Data => Err(Error::NoSuchDevice),
        Whence::Hole => Ok(size),
    }
}

/// Passes the mapped and delayed ranges that touch `[offset, offset + len)` to `each`, until it
/// returns false.
pub(crate) fn fiemap(
    vol: &Volume,
    inode: &Inode,
    offset: u64,
    len: u64,
    each: &mut dyn FnMut(FiemapExtent) -> bool,
) -> Result<()> {
    let _guard = inode.lock.read();
    let st = inode.state.read();
    st.check_live()?;
    if !(st.is_reg() || st.is_dir()) {
        return Err(Error::NotSupported);
    }
    if st.raw.is_inline() {
        let extent = inline_extent(vol, inode, &st)?;
        if offset < extent.length {
            each(extent);
        }
        return Ok(());
    }
    // Blocks may be preallocated beyond the end of the file.
    let last = u32::MAX;
    let end = vol.end_block(offset.saturating_add(len)).0;
    let mut at = vol.block_of(offset);
    let merged = if st.raw.flags.contains(InodeFlags::EXTENTS) {
        FiemapFlags::empty()
    } else {
        FiemapFlags::MERGED
    };
    let mut pending: Option<FiemapExtent> = None;
    while at.0 < last {
        let (piece, len) = piece_at(vol, inode, &st, at, last - at.0)?;
        let Some((physical, flags)) = place_of(vol, piece, merged) else {
            at = at.plus(len);
            continue;
        };
        if let Some(extent) = pending.take()
            && !each(extent)
        {
            return Ok(());
        }
        if at.0 >= end {
            return Ok(());
        }
        let (logical, length) = (vol.start_of(at), vol.geo.block.offset_of(len.into()));
        pending = Some(FiemapExtent {
            logical,
            physical,
            length,
            flags,
        });
        at = at.plus(len);
    }
    if let Some(extent) = pending {
        each(FiemapExtent {
            flags: extent.flags | FiemapFlags::LAST,
            ..extent
        });
    }
    Ok(())
}

/// Returns where a piece is on the volume, and its properties beside those of its map; `None` for a
/// hole.
fn place_of(vol: &Volume, piece: Piece, of_map: FiemapFlags) -> Option<(u64, FiemapFlags)> {
    match piece {
        Piece::Hole => None,
        Piece::Delayed => Some((0, FiemapFlags::UNKNOWN | FiemapFlags::DELALLOC)),
        Piece::Mapped {
            physical,
            unwritten,
        } => {
            let mut flags = of_map;
            flags.set(FiemapFlags::UNWRITTEN, unwritten);
            Some((vol.geo.block.offset_of(physical), flags))
        }
    }
}

/// The content that an inode holds itself, which begins in its `i_block`.
fn inline_extent(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<FiemapExtent> {
    let length = usize_as_u64(inline::content(vol, inode, st)?.len());
    let slot = vol.geo.block.offset_of(inode.slot.block.0) + u64::from(inode.slot.offset);
    Ok(FiemapExtent {
        logical: 0,
        physical: slot + I_BLOCK,
        length,
        flags: FiemapFlags::INLINE | FiemapFlags::NOT_ALIGNED | FiemapFlags::LAST,
    })
}
