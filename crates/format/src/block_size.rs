//! The size of a block, and conversions between blocks and bytes.

use std::ops::Range;

use crate::num::BlockNo;
use crate::width::{low32, u32_as_usize, u64_as_usize, usize_as_u64};

/// A size in bytes that is a power of two, so that nothing here divides. It is the size of the
/// volume's blocks, or of pages and chunks elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    bits: u32,
}

/// The part of a range of bytes that lies in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The block.
    pub block: u64,
    /// Where in the block it begins.
    pub within: usize,
    /// Where in the range it begins.
    pub done: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Piece {
    /// Its bytes, counted in the block.
    #[inline]
    pub const fn in_block(&self) -> Range<usize> {
        self.within..self.within + self.len
    }

    /// Its bytes, counted in the range.
    #[inline]
    pub const fn in_range(&self) -> Range<usize> {
        self.done..self.done + self.len
    }
}

impl BlockSize {
    /// 2^`bits` bytes.
    ///
    /// # Panics
    /// When that does not fit in 32 bits.
    #[inline]
    pub const fn of_bits(bits: u32) -> Self {
        assert!(bits < 32, "a block of less than 4 GiB");
        Self { bits }
    }

    /// `bytes` bytes.
    ///
    /// # Panics
    /// When that is no power of two, or does not fit in 32 bits.
    #[inline]
    pub const fn of(bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a power of two");
        Self::of_bits(bytes.trailing_zeros())
    }

    /// The binary logarithm.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// Bytes of a block.
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.bits
    }

    /// Bytes of a block, as `u32`.
    #[inline]
    pub const fn bytes_u32(self) -> u32 {
        1 << self.bits
    }

    /// Bytes that `blocks` blocks take in memory.
    #[inline]
    pub const fn bytes_of(self, blocks: u32) -> usize {
        u32_as_usize(blocks) << self.bits
    }

    /// Bytes that `blocks` blocks take on a medium: also where the block of this number begins.
    #[inline]
    pub const fn offset_of(self, blocks: u64) -> u64 {
        blocks << self.bits
    }

    /// Sectors of 512 bytes in `blocks` blocks. A block must have at least one.
    #[inline]
    pub const fn sectors_of(self, blocks: u64) -> u64 {
        blocks << (self.bits - 9)
    }

    /// The first byte of a block of the volume.
    #[inline]
    pub const fn start_of(self, block: BlockNo) -> u64 {
        self.offset_of(block.0)
    }

    /// The block that holds byte `at`: how many whole blocks are before that.
    #[inline]
    pub const fn block_of(self, at: u64) -> u64 {
        at >> self.bits
    }

    /// Where in its block byte `at` lies.
    #[inline]
    pub const fn within(self, at: u64) -> usize {
        u64_as_usize(at) & (self.bytes() - 1)
    }

    /// The block that holds byte `at`, and where in it that lies.
    #[inline]
    pub const fn split(self, at: u64) -> (u64, usize) {
        (self.block_of(at), self.within(at))
    }

    /// How many blocks `bytes` bytes fill, the last one perhaps in part.
    #[inline]
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        let whole = self.block_of(bytes);
        if self.within(bytes) == 0 {
            whole
        } else {
            whole + 1
        }
    }

    /// How many blocks are touched by the `len` bytes from byte `within` of a block on.
    ///
    /// # Panics
    /// When they are 2^32 or more.
    #[inline]
    pub const fn touched(self, within: usize, len: usize) -> u32 {
        let blocks = self.blocks_for(usize_as_u64(within + len));
        assert!(blocks >> 32 == 0, "blocks of a range in memory");
        low32(blocks)
    }

    /// The blocks that a range of bytes touches.
    #[inline]
    pub const fn span(self, at: u64, len: u64) -> Range<u64> {
        self.block_of(at)..self.blocks_for(at + len)
    }

    /// The parts, by block, of the `len` bytes from `at` on.
    #[inline]
    pub fn pieces(self, at: u64, len: usize) -> impl Iterator<Item = Piece> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let (block, within) = self.split(at + usize_as_u64(done));
            let n = (self.bytes() - within).min(len - done);
            let piece = Piece {
                block,
                within,
                done,
                len: n,
            };
            done += n;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_division_says() {
        for bits in [0, 9, 10, 12, 31] {
            let size = BlockSize::of_bits(bits);
            let bytes = usize_as_u64(size.bytes());
            assert_eq!(BlockSize::of(size.bytes()), size);
            for at in [0, 1, 511, 512, 1023, 4096, 4097, 1 << 40, (1 << 40) + 77] {
                assert_eq!(size.split(at), (at / bytes, u64_as_usize(at % bytes)));
                assert_eq!(size.blocks_for(at), at.div_ceil(bytes));
                assert_eq!(size.span(at, 100), at / bytes..(at + 100).div_ceil(bytes));
                assert_eq!(size.start_of(BlockNo(7)), 7 * bytes);
            }
        }
        assert_eq!(BlockSize::of(1024).touched(1023, 2), 2);
        assert_eq!(BlockSize::of(1024).touched(0, 1024), 1);
        assert_eq!(BlockSize::of(1024).bytes_of(3), 3072);
    }

    #[test]
    #[should_panic = "a power of two"]
    fn no_other_sizes() {
        BlockSize::of(1536);
    }

    #[test]
    fn pieces_are_the_whole_range() {
        let size = BlockSize::of(16);
        let whole: Vec<_> = (0..100u8).collect();
        for at in 0..40 {
            for len in 0..60 {
                let mut copy = vec![0; len];
                for piece in size.pieces(usize_as_u64(at), len) {
                    assert!(piece.len > 0 && piece.in_block().end <= 16);
                    let block = &whole[u64_as_usize(size.offset_of(piece.block))..];
                    copy[piece.in_range()].copy_from_slice(&block[piece.in_block()]);
                }
                assert_eq!(copy, whole[at..at + len]);
            }
        }
    }
}
