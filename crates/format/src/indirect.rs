//! Block maps of ext2 and ext3: 12 direct pointers in the inode, then one block of
//! pointers, one of pointers to such blocks, and one level more. Pointers have 32
//! bits; 0 means a hole.
//!
//! Source: kernel `Documentation/filesystems/ext4/ifork.rst`
//! ("Direct/Indirect Block Addressing").

use crate::bytes::{read_u32le, write_u32le};
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::num::{BlockNo, LBlock};
use crate::width::{low32, must_fit, u32_as_u64, u32_as_usize};

/// Direct pointers at the start of `i_block`.
pub const DIRECT: u32 = 12;
/// Index in `i_block` of the pointer to the indirect block.
pub const INDIRECT: u32 = 12;
/// Index in `i_block` of the pointer to the double indirect block.
pub const DOUBLE_INDIRECT: u32 = 13;
/// Index in `i_block` of the pointer to the triple indirect block.
pub const TRIPLE_INDIRECT: u32 = 14;
/// Pointers in `i_block`.
pub const ROOT_POINTERS: u32 = 15;

/// The way from the inode to a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    indexes: [u32; 4],
    depth: usize,
}

impl Path {
    /// The way to `lblk`; `None` when it lies beyond what three levels reach.
    pub fn to(lblk: LBlock, geometry: &Geometry) -> Option<Self> {
        let bits = geometry.block.bits() - 2;
        let per_block = 1u64 << bits;
        let index = |value: u64, level: u32| low32(value >> (bits * level) & (per_block - 1));
        let mut rest = u64::from(lblk.0);
        if rest < u64::from(DIRECT) {
            return Some(Self {
                indexes: [lblk.0, 0, 0, 0],
                depth: 1,
            });
        }
        rest -= u64::from(DIRECT);
        if rest < per_block {
            return Some(Self {
                indexes: [INDIRECT, index(rest, 0), 0, 0],
                depth: 2,
            });
        }
        rest -= per_block;
        if rest < per_block << bits {
            let indexes = [DOUBLE_INDIRECT, index(rest, 1), index(rest, 0), 0];
            return Some(Self { indexes, depth: 3 });
        }
        rest -= per_block << bits;
        if rest < per_block << (2 * bits) {
            let indexes = [
                TRIPLE_INDIRECT,
                index(rest, 2),
                index(rest, 1),
                index(rest, 0),
            ];
            return Some(Self { indexes, depth: 4 });
        }
        None
    }

    /// The index in `i_block`, then that in each pointer block on the way.
    pub fn indexes(&self) -> &[u32] {
        &self.indexes[..self.depth]
    }
}

/// Pointers in a block.
pub const fn pointers_per_block(geometry: &Geometry) -> u32 {
    geometry.block.bytes_u32() / 4
}

/// Logical blocks that a pointer reaches: 1 for a pointer to data (`level` 0), those
/// of a whole pointer block for a pointer to one (`level` 1), and so on.
pub const fn blocks_below(level: u32, geometry: &Geometry) -> u64 {
    1 << ((geometry.block.bits() - 2) * level)
}

/// The logical block behind the last that a block map reaches.
pub const fn max_blocks(geometry: &Geometry) -> u64 {
    u32_as_u64(DIRECT)
        + blocks_below(1, geometry)
        + blocks_below(2, geometry)
        + blocks_below(3, geometry)
}

/// Pointers: `i_block`, or a pointer block.
#[derive(Clone, Copy, Debug)]
pub struct Pointers<'a> {
    raw: &'a [u8],
    geometry: &'a Geometry,
}

impl<'a> Pointers<'a> {
    /// Pointers in `raw`, any multiple of four bytes. Each is checked when it is asked for.
    #[inline]
    pub fn new(raw: &'a [u8], geometry: &'a Geometry) -> Self {
        Self { raw, geometry }
    }

    /// How many pointers there are.
    #[inline]
    pub fn count(&self) -> u32 {
        must_fit(self.raw.len() / 4)
    }

    /// The pointer at `index`; `None` is a hole.
    ///
    /// # Errors
    /// [`Corrupt::IndirectBlock`] when it points outside the volume.
    ///
    /// # Panics
    /// When there is no such pointer.
    #[inline]
    pub fn get(&self, index: u32) -> Result<Option<BlockNo>, Corrupt> {
        let block = BlockNo(read_u32le(self.raw, u32_as_usize(index) * 4).into());
        if block.0 == 0 {
            return Ok(None);
        }
        if !self.geometry.is_valid_range(block, 1) {
            return Err(Corrupt::IndirectBlock { index, block });
        }
        Ok(Some(block))
    }

    /// Returns the run of pointers from `index` on that are all holes, or name consecutive blocks:
    /// the first pointer, and the length, from 1 to `most`.
    ///
    /// # Errors
    /// As [`get`](Self::get), for the first pointer only: a later bad one ends the run.
    pub fn run(&self, index: u32, most: u32) -> Result<(Option<BlockNo>, u32), Corrupt> {
        let first = self.get(index)?;
        let most = most.min(self.count() - index);
        let mut length = 1;
        while length < most {
            let expected = first.map(|block| block.plus(length.into()));
            if self.get(index + length) != Ok(expected) {
                break;
            }
            length += 1;
        }
        Ok((first, length))
    }

    /// Checks every pointer.
    ///
    /// # Errors
    /// [`Corrupt::IndirectBlock`] for the first that points outside the volume.
    pub fn check(&self) -> Result<(), Corrupt> {
        (0..self.count()).try_for_each(|index| self.get(index).map(drop))
    }

    /// Whether all pointers are holes.
    pub fn is_empty(&self) -> bool {
        self.raw.iter().all(|&byte| byte == 0)
    }
}

/// Stores a pointer in a scratch copy of a pointer block or of `i_block`.
///
/// # Panics
/// When there is no such pointer, or the block's number needs more than 32 bits.
pub fn set_pointer(raw: &mut [u8], index: u32, block: Option<BlockNo>) {
    let block = block.map_or(0, |block| u32::try_from(block.0).expect("above 32 bits"));
    write_u32le(raw, u32_as_usize(index) * 4, block);
}
