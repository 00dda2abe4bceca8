//! Compares the bitmaps and free counts with what the inodes and directories use.

use stetfs_format::group::init_block_bitmap;
use stetfs_format::width::u32_as_usize;
use stetfs_format::{BlockNo, GroupFlags, GroupNo, InodeNo, Place};

use crate::finding::Fault;
use crate::state::{Check, Record};

/// A run of bits in which a bitmap differs from what it should be.
struct Difference {
    first: u32,
    last: u32,
    /// Whether the bitmap says that they are in use.
    is_marked: bool,
}

impl Check<'_> {
    pub(crate) fn check_bitmaps(&mut self) {
        let (mut blocks, mut inodes) = (0, 0);
        let mut bitmap = std::mem::take(&mut self.s.block);
        let mut expected = std::mem::take(&mut self.s.nodes[0]);
        for g in (0..self.g.groups_count).map(GroupNo) {
            blocks += u64::from(self.check_block_bitmap(g, &mut bitmap));
            inodes += self.check_inode_bitmap(g, &mut bitmap, &mut expected);
        }
        self.s.block = bitmap;
        self.s.nodes[0] = expected;
        let (stored, counted) = (self.sb.free_blocks_count, blocks);
        if stored != counted {
            self.push(Place::Superblock, Fault::FreeBlocks { stored, counted });
        }
        let (stored, counted) = (self.sb.free_inodes_count, inodes);
        if stored != counted {
            self.push(Place::Superblock, Fault::FreeInodes { stored, counted });
        }
    }

    /// Checks a group's block bitmap. Returns the number of blocks that it says are free.
    fn check_block_bitmap(&mut self, g: GroupNo, bitmap: &mut [u8]) -> u32 {
        let place = Place::Group(g);
        let desc = self.s.groups[g.index()];
        let flags = self.group_flags(g.0);
        let count = self.g.group_blocks(g);
        if flags.contains(GroupFlags::BLOCK_UNINIT) {
            init_block_bitmap(bitmap, g, &desc, &self.g);
        } else {
            if !self.read(desc.block_bitmap, bitmap) {
                return desc.free_blocks_count;
            }
            if let Err(corrupt) = desc.check_block_bitmap(bitmap, g, &self.g) {
                self.push(place, corrupt);
            }
            if !is_all_set(bitmap, count) {
                self.push(place, Fault::BlockBitmapPadding);
            }
        }
        let expected = self.s.claims.of_group(g.0, &self.g);
        if !is_equal(bitmap, expected, count) {
            let differences = differences(bitmap, expected, count);
            let start = self.g.group_first_block(g);
            for run in differences {
                let first = BlockNo(start.0 + u64::from(run.first));
                let last = BlockNo(start.0 + u64::from(run.last));
                let fault = if run.is_marked {
                    Fault::BlocksNotUsed { first, last }
                } else {
                    Fault::BlocksNotMarked { first, last }
                };
                self.push(place, fault);
            }
        }
        let (stored, counted) = (desc.free_blocks_count, zeros(bitmap, count));
        if stored != counted {
            self.push(place, Fault::GroupFreeBlocks { stored, counted });
        }
        counted
    }

    /// Checks a group's inode bitmap. Returns the number of inodes that it says are free.
    fn check_inode_bitmap(&mut self, g: GroupNo, bitmap: &mut [u8], expected: &mut [u8]) -> u32 {
        let place = Place::Group(g);
        let desc = self.s.groups[g.index()];
        let count = self.g.inodes_per_group;
        if self.group_flags(g.0).contains(GroupFlags::INODE_UNINIT) {
            bitmap.fill(0);
        } else {
            if !self.read(desc.inode_bitmap, bitmap) {
                return desc.free_inodes_count;
            }
            if let Err(corrupt) = desc.check_inode_bitmap(bitmap, g, &self.g) {
                self.push(place, corrupt);
            }
            if !is_all_set(bitmap, count) {
                self.push(place, Fault::InodeBitmapPadding);
            }
        }
        let at = g.index();
        let records =
            &self.s.records[u32_as_usize(self.s.bases[at])..u32_as_usize(self.s.bases[at + 1])];
        expected.fill(0);
        let mut directories = 0;
        for (i, record) in records.iter().enumerate() {
            expected[i / 8] |= u8::from(record.is_used()) << (i % 8);
            let is_marked = bitmap[i / 8] & 1 << (i % 8) != 0;
            directories += u32::from(is_marked && record.kind == Record::DIRECTORY);
        }
        if !is_equal(bitmap, expected, count) {
            for run in differences(bitmap, expected, count) {
                let first = self.g.inode_at(g, run.first);
                let last = InodeNo(first.0 + run.last - run.first);
                let fault = if run.is_marked {
                    Fault::InodesNotUsed { first, last }
                } else {
                    Fault::InodesNotMarked { first, last }
                };
                self.push(place, fault);
            }
        }
        let (stored, counted) = (desc.free_inodes_count, zeros(bitmap, count));
        if stored != counted {
            self.push(place, Fault::GroupFreeInodes { stored, counted });
        }
        let stored = desc.used_dirs_count;
        if stored != directories {
            let counted = directories;
            self.push(place, Fault::GroupDirectories { stored, counted });
        }
        counted
    }
}

/// A mask of the valid bits in the last byte of `count` bits.
fn last_mask(count: u32) -> u8 {
    match count % 8 {
        0 => 0xff,
        bits => !(0xff << bits),
    }
}

fn is_equal(a: &[u8], b: &[u8], count: u32) -> bool {
    let (whole, rest) = (u32_as_usize(count) / 8, count % 8);
    a[..whole] == b[..whole] && (rest == 0 || (a[whole] ^ b[whole]) & last_mask(count) == 0)
}

fn zeros(bitmap: &[u8], count: u32) -> u32 {
    let (whole, rest) = (u32_as_usize(count) / 8, count % 8);
    let mut words = bitmap[..whole].chunks_exact(8);
    let mut ones: u32 = 0;
    for word in &mut words {
        ones += u64::from_le_bytes(word.try_into().unwrap_or_default()).count_ones();
    }
    ones += words
        .remainder()
        .iter()
        .map(|byte| byte.count_ones())
        .sum::<u32>();
    if rest != 0 {
        ones += (bitmap[whole] & last_mask(count)).count_ones();
    }
    count - ones
}

/// Whether all bits from `from` on are set.
fn is_all_set(bitmap: &[u8], from: u32) -> bool {
    let Some((byte, others)) = bitmap[u32_as_usize(from) / 8..].split_first() else {
        return true;
    };
    let before = !(0xff << (from % 8));
    byte | before == 0xff && others.iter().all(|&byte| byte == 0xff)
}

/// Returns the runs in which two different bitmaps differ.
fn differences(bitmap: &[u8], expected: &[u8], count: u32) -> Vec<Difference> {
    let bit = |bits: &[u8], i: u32| bits[u32_as_usize(i) / 8] & 1 << (i % 8) != 0;
    let mut found: Vec<Difference> = Vec::new();
    for i in 0..count {
        let is_marked = bit(bitmap, i);
        if is_marked == bit(expected, i) {
            continue;
        }
        match found.last_mut() {
            Some(run) if run.last + 1 == i && run.is_marked == is_marked => run.last = i,
            _ => found.push(Difference {
                first: i,
                last: i,
                is_marked,
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 20;

    fn bits(bitmap: &[u8]) -> Vec<bool> {
        (0..bitmap.len() * 8)
            .map(|i| bitmap[i / 8] & 1 << (i % 8) != 0)
            .collect()
    }

    /// Bitmaps with one run of bits set, for every run.
    fn bitmaps() -> impl Iterator<Item = [u8; BYTES]> {
        (0..BYTES * 8).flat_map(|start| {
            (start..=BYTES * 8).map(move |end| {
                let mut bitmap = [0; BYTES];
                (start..end).for_each(|i| bitmap[i / 8] |= 1 << (i % 8));
                bitmap
            })
        })
    }

    #[test]
    fn bits_are_counted_one_by_one() {
        for bitmap in bitmaps() {
            let bits = bits(&bitmap);
            for count in [0, 1, 7, 8, 63, 64, 65, 128, 131, 159, 160] {
                let (counted, rest) = bits.split_at(count);
                let free = counted.iter().filter(|&&bit| !bit).count();
                assert_eq!(zeros(&bitmap, count as u32), free as u32, "{bitmap:x?}");
                let is_set = rest.iter().all(|&bit| bit);
                assert_eq!(is_all_set(&bitmap, count as u32), is_set, "{bitmap:x?}");
            }
        }
    }

    #[test]
    fn differences_are_runs_of_bits() {
        let expected = [0x0f; BYTES];
        for bitmap in bitmaps().step_by(17) {
            for count in [8, 100, 160] {
                let ours = &bits(&bitmap)[..count];
                let others = &bits(&expected)[..count];
                assert_eq!(is_equal(&bitmap, &expected, count as u32), ours == others);
                let mut mended = ours.to_vec();
                for run in differences(&bitmap, &expected, count as u32) {
                    for i in run.first..=run.last {
                        assert_eq!(mended[i as usize], run.is_marked);
                        mended[i as usize] = !run.is_marked;
                    }
                }
                assert_eq!(mended, others);
            }
        }
    }
}
