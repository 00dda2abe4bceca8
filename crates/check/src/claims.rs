//! The blocks that owners have claimed so far. In the end the claims must equal the block bitmaps,
//! and no block may be claimed twice.

use stetfs_format::width::{u32_as_usize, u64_as_usize};
use stetfs_format::{BlockNo, Geometry};

/// A bit per block, in the order of the disk's bitmaps; each group's part is in whole bytes.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    bits: Vec<u8>,
    first: u64,
    blocks: u64,
    claimed: u64,
    repeated: u64,
}

/// Blocks of a claim that were already claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    pub(crate) first: BlockNo,
    pub(crate) count: u64,
}

impl Claims {
    pub(crate) fn reset(&mut self, geometry: &Geometry) {
        self.first = geometry.first_data_block().0;
        self.blocks = geometry.blocks_count - self.first;
        let bytes = u64::from(geometry.groups_count) * u64::from(geometry.blocks_per_group) / 8;
        self.bits.clear();
        self.bits.resize(u64_as_usize(bytes), 0);
        (self.claimed, self.repeated) = (0, 0);
    }

    /// How many blocks are claimed.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Whether so many claims were repeated that no more are accepted: damage must not cost more
    /// than the volume's size.
    pub(crate) fn overwhelmed(&self) -> bool {
        self.repeated > self.blocks
    }

    /// The part of group `g`: what its bitmap should be, except for the padding.
    pub(crate) fn of_group(&self, g: u32, geometry: &Geometry) -> &[u8] {
        let bytes = u32_as_usize(geometry.blocks_per_group) / 8;
        &self.bits[u32_as_usize(g) * bytes..][..bytes]
    }

    /// Claims `count` blocks from `start` on, all inside the volume. Returns the blocks that were
    /// already claimed, if any.
    pub(crate) fn claim(&mut self, start: BlockNo, count: u64) -> Option<Repeated> {
        if self.overwhelmed() {
            self.repeated += count;
            return Some(Repeated {
                first: start,
                count,
            });
        }
        let from = start.0 - self.first;
        let to = from + count;
        let (first_byte, last_byte) = (u64_as_usize(from / 8), u64_as_usize((to - 1) / 8));
        let first_mask = 0xff_u8 << (from % 8);
        let last_mask = 0xff_u8 >> (7 - (to - 1) % 8);
        let free = if first_byte == last_byte {
            let mask = first_mask & last_mask;
            let byte = &mut self.bits[first_byte];
            let free = *byte & mask == 0;
            if free {
                *byte |= mask;
            }
            free
        } else {
            let bytes = &mut self.bits[first_byte..=last_byte];
            let inner = bytes.len() - 1;
            let free = bytes[0] & first_mask == 0
                && bytes[inner] & last_mask == 0
                && bytes[1..inner].iter().all(|&byte| byte == 0);
            if free {
                bytes[0] |= first_mask;
                bytes[inner] |= last_mask;
                bytes[1..inner].fill(0xff);
            }
            free
        };
        if free {
            self.claimed += count;
            return None;
        }
        self.claim_one_by_one(from, to)
    }

    fn claim_one_by_one(&mut self, from: u64, to: u64) -> Option<Repeated> {
        let mut repeated: Option<Repeated> = None;
        for index in from..to {
            let (byte, bit) = (u64_as_usize(index / 8), 1 << (index % 8));
            if self.bits[byte] & bit == 0 {
                self.bits[byte] |= bit;
                self.claimed += 1;
            } else {
                let first = BlockNo(self.first + index);
                repeated.get_or_insert(Repeated { first, count: 0 }).count += 1;
            }
        }
        self.repeated += repeated.map_or(0, |repeated| repeated.count);
        repeated
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn claims(blocks: u64) -> Claims {
        Claims {
            bits: vec![0; blocks.div_ceil(8) as usize],
            first: 1,
            blocks,
            ..Claims::default()
        }
    }

    /// Claims every pair of ranges of a small volume, and compares the result with a set.
    #[test]
    fn ranges_are_claimed_as_by_a_set() {
        const BLOCKS: u64 = 27;
        let ranges = || (1..=BLOCKS).flat_map(|a| (1..=BLOCKS + 1 - a).map(move |n| (a, n)));
        for (a, n) in ranges() {
            for (b, m) in ranges() {
                let mut claims = claims(BLOCKS);
                assert_eq!(claims.claim(BlockNo(a), n), None);
                let held: BTreeSet<u64> = (a..a + n).collect();
                let repeated: Vec<u64> = (b..b + m).filter(|block| held.contains(block)).collect();
                let expected = repeated.first().map(|&first| Repeated {
                    first: BlockNo(first),
                    count: repeated.len() as u64,
                });
                assert_eq!(claims.claim(BlockNo(b), m), expected, "{a}+{n}, {b}+{m}");
                let held: BTreeSet<u64> = held.into_iter().chain(b..b + m).collect();
                let bits = (1..=BLOCKS).filter(|block| {
                    let at = (block - 1) as usize;
                    claims.bits[at / 8] & 1 << (at % 8) != 0
                });
                assert!(bits.eq(held.iter().copied()), "{a}+{n}, {b}+{m}");
                assert_eq!(claims.claimed(), held.len() as u64);
            }
        }
    }

    #[test]
    fn claims_end_when_more_are_repeated_than_there_are_blocks() {
        let mut claims = claims(16);
        assert_eq!(claims.claim(BlockNo(1), 8), None);
        claims.claim(BlockNo(1), 8);
        claims.claim(BlockNo(1), 8);
        assert!(!claims.overwhelmed());
        claims.claim(BlockNo(1), 1);
        assert!(claims.overwhelmed());
        assert!(
            claims.claim(BlockNo(10), 1).is_some(),
            "nothing more is new"
        );
    }
}
