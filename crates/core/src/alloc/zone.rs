//! Where the volume's own structures lie: superblock copies, descriptors and the blocks reserved
//! for them, bitmaps, inode tables.
//!
//! A file that maps such a block, or frees one, is damage (the kernel's `block_validity`, always on
//! here). The ranges are sorted and merged: with `flex_bg` there are a handful for 16 groups.

use std::ops::Range;

use stetfs_format::{BlockNo, Geometry, GroupNo};

/// Sorted, disjoint, merged ranges of block numbers.
#[derive(Debug, Default)]
pub(crate) struct SystemZone {
    ranges: Vec<Range<u64>>,
}

impl SystemZone {
    /// Returns the zone of a volume, from its geometry and the places that each descriptor names
    /// (block bitmap, inode bitmap, inode table), with the block of the multiple-mount protection.
    pub(crate) fn new(
        geo: &Geometry,
        located: impl Iterator<Item = (GroupNo, [BlockNo; 3])>,
        mmp: Option<BlockNo>,
    ) -> Self {
        // A mount has checked that this block is in the volume; a reader may not have.
        let mut ranges: Vec<_> = mmp
            .filter(|block| geo.is_valid_range(*block, 1))
            .map(|block| block.0..block.0 + 1)
            .into_iter()
            .collect();
        for (g, [block_bitmap, inode_bitmap, inode_table]) in located {
            let first = geo.group_first_block(g).0;
            let base = u64::from(geo.base_meta_blocks(g).min(geo.group_blocks(g)));
            ranges.push(first..first + base);
            ranges.push(block_bitmap.0..block_bitmap.0 + 1);
            ranges.push(inode_bitmap.0..inode_bitmap.0 + 1);
            ranges.push(inode_table.0..inode_table.0 + u64::from(geo.inode_table_blocks()));
            if ranges.len() > 4096 && ranges.len() == ranges.capacity() {
                ranges = merged(ranges);
            }
        }
        Self {
            ranges: merged(ranges),
        }
    }

    /// Whether any of `count` blocks from `start` on is in the zone.
    pub(crate) fn overlaps(&self, start: BlockNo, count: u64) -> bool {
        let end = start.0.saturating_add(count);
        let after = self.ranges.partition_point(|r| r.end <= start.0);
        self.ranges.get(after).is_some_and(|r| r.start < end)
    }

    /// Returns the parts of the zone that lie in `within`.
    pub(crate) fn parts(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let from = self.ranges.partition_point(|r| r.end <= within.start);
        self.ranges[from..]
            .iter()
            .take_while(move |r| r.start < within.end)
            .map(move |r| r.start.max(within.start)..r.end.min(within.end))
    }

    /// Returns the number of blocks in the zone: what `statfs` calls overhead, without the journal.
    pub(crate) fn blocks(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }
}

fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|r| r.start < r.end);
    ranges.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in ranges {
        match out.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_found() {
        let zone = SystemZone {
            ranges: merged(vec![20..30, 1..4, 4..6, 25..40, 9..9]),
        };
        assert_eq!(zone.ranges, [1..6, 20..40]);
        assert_eq!(zone.blocks(), 25);
        for (start, count, hit) in [
            (0, 1, false),
            (0, 2, true),
            (5, 1, true),
            (6, 14, false),
            (6, 15, true),
            (39, 9, true),
            (40, 9, false),
            (0, u64::MAX, true),
        ] {
            assert_eq!(zone.overlaps(BlockNo(start), count), hit, "{start} {count}");
        }
        assert_eq!(zone.parts(3..25).collect::<Vec<_>>(), [3..6, 20..25]);
    }
}
