//! The byte ranges of a block that a transaction changed.

use smallvec::SmallVec;

/// Ranges kept apart; beyond this many the two nearest are made one, so that the cost of a block stays
/// bounded. Differential schemes may still compare contents inside a range.
const MOST: usize = 16;

/// Bytes that are compared at once.
const WORD: usize = 8;

/// Tells for each word that a range touches, or the part of it in the range, where it begins and whether it differs.
fn for_words(
    range: &std::ops::Range<usize>,
    before: &[u8],
    after: &[u8],
    mut each: impl FnMut(usize, bool),
) {
    let first = range.start.next_multiple_of(WORD).min(range.end);
    let last = (range.end / WORD * WORD).max(first);
    if range.start < first {
        each(
            range.start,
            before[range.start..first] != after[range.start..first],
        );
    }
    let (before_words, _) = before[first..last].as_chunks::<WORD>();
    let (after_words, _) = after[first..last].as_chunks::<WORD>();
    for (i, (a, b)) in before_words.iter().zip(after_words).enumerate() {
        each(
            first + i * WORD,
            u64::from_ne_bytes(*a) != u64::from_ne_bytes(*b),
        );
    }
    if last < range.end {
        each(last, before[last..range.end] != after[last..range.end]);
    }
}

/// Sorted, disjoint, non-adjacent byte ranges `[start, end)` of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(SmallVec<[(u32, u32); 4]>);

impl Ranges {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes `[0, len)`.
    pub fn whole(len: usize) -> Self {
        let mut ranges = Self::new();
        ranges.add(0, len);
        ranges
    }

    /// Adds `[offset, offset + len)`, merging it with what it overlaps or touches.
    pub fn add(&mut self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (offset as u32, (offset + len) as u32);
        let first = self.0.partition_point(|r| r.1 < start);
        let last = first + self.0[first..].partition_point(|r| r.0 <= end);
        if first < last {
            start = start.min(self.0[first].0);
            end = end.max(self.0[last - 1].1);
            self.0[first] = (start, end);
            self.0.drain(first + 1..last);
        } else {
            self.0.insert(first, (start, end));
            if self.0.len() > MOST {
                self.merge_nearest();
            }
        }
    }

    fn merge_nearest(&mut self) {
        let gap = |i: usize| self.0[i + 1].0 - self.0[i].1;
        if let Some(i) = (0..self.0.len() - 1).min_by_key(|&i| gap(i)) {
            self.0[i].1 = self.0[i + 1].1;
            self.0.remove(i + 1);
        }
    }

    /// Those of these bytes that differ between two contents of the block, by words of 8 bytes.
    pub fn changed(&self, before: &[u8], after: &[u8]) -> Self {
        let mut changed = Self::new();
        for range in self.iter() {
            // A run is added when it ends, not word by word.
            let mut run = None;
            for_words(&range, before, after, |at, differs| match (run, differs) {
                (None, true) => run = Some(at),
                (Some(start), false) => {
                    changed.add(start, at - start);
                    run = None;
                }
                _ => {}
            });
            if let Some(start) = run {
                changed.add(start, range.end - start);
            }
        }
        changed
    }

    /// Adds every byte of `other`.
    pub fn add_all(&mut self, other: &Self) {
        other.iter().for_each(|r| self.add(r.start, r.len()));
    }

    /// The smallest ranges of whole units of `unit` bytes that hold all these.
    pub fn widened(&self, unit: usize) -> Self {
        let mut wide = Self::new();
        for r in self.iter() {
            let start = r.start / unit * unit;
            wide.add(start, r.end.next_multiple_of(unit) - start);
        }
        wide
    }

    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.0
            .iter()
            .map(|&(start, end)| start as usize..end as usize)
    }

    /// The number of bytes in all ranges.
    pub fn bytes(&self) -> usize {
        self.iter().map(|r| r.len()).sum()
    }

    /// No byte changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_bitmap_until_it_must_merge() {
        let mut seed = 1u32;
        let mut next = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % n
        };
        for _ in 0..2_000 {
            let mut ranges = Ranges::new();
            let mut map = [false; 256];
            for _ in 0..next(12) {
                let (start, len) = (next(250) as usize, next(6) as usize);
                ranges.add(start, len);
                map[start..start + len].fill(true);
            }
            let mut got = [false; 256];
            let mut previous_end = None;
            for r in ranges.iter() {
                assert!(previous_end.is_none_or(|end| end < r.start), "{ranges:?}");
                previous_end = Some(r.end);
                got[r].fill(true);
            }
            assert_eq!(map, got, "{ranges:?}");
        }
    }

    #[test]
    fn what_changed_is_found_by_words_inside_the_ranges() {
        let before = [0u8; 64];
        let mut after = before;
        (after[3], after[20], after[40]) = (1, 1, 1);
        let mut ranges = Ranges::new();
        ranges.add(2, 20);
        let changed = ranges.changed(&before, &after);
        assert_eq!(changed.iter().collect::<Vec<_>>(), [2..8, 16..22]);
        assert_eq!(
            changed.widened(16).iter().collect::<Vec<_>>(),
            [Ranges::whole(32).iter().next().expect("one")]
        );
        assert!(ranges.changed(&after, &after).is_empty());
    }

    #[test]
    fn stays_bounded_and_covers_everything() {
        let mut ranges = Ranges::new();
        for i in 0..100 {
            ranges.add(i * 40, 3);
        }
        assert!(ranges.0.len() <= MOST);
        for i in 0..100 {
            assert!(
                ranges
                    .iter()
                    .any(|r| r.start <= i * 40 && i * 40 + 3 <= r.end)
            );
        }
    }
}
