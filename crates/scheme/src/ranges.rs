//! The byte ranges of a block that a transaction changed.

use smallvec::SmallVec;
use stetfs_format::width::{must_fit_u32, u32_as_usize};

/// The most ranges. If there are more, the two nearest become one, so that the cost of a block
/// stays bounded. Differential schemes may still compare contents inside a range.
const MOST: usize = 16;

/// Bytes that are compared at once: differences are found by words.
const WORD: usize = 8;
/// Words whose differences are one mask.
const WORDS: usize = 8;

/// Returns a mask of the words that differ, the first word in the lowest bit.
fn differing(before: &[[u8; WORD]], after: &[[u8; WORD]]) -> u8 {
    let differs = |(a, b): (&[u8; WORD], &[u8; WORD])| {
        u8::from(u64::from_ne_bytes(*a) != u64::from_ne_bytes(*b))
    };
    let bits = before.iter().zip(after).map(differs);
    bits.enumerate().fold(0, |mask, (i, bit)| mask | bit << i)
}

/// Returns the number of bytes in which two contents of the same length differ, by words of 8
/// bytes.
pub fn differing_bytes(before: &[u8], after: &[u8]) -> usize {
    let (before, after) = (before.as_chunks::<WORD>().0, after.as_chunks::<WORD>().0);
    let differ = before.iter().zip(after).filter(|(a, b)| a != b);
    differ.count() * WORD
}

/// Sorted, disjoint, non-adjacent byte ranges `[start, end)` of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(SmallVec<[(u32, u32); 4]>);

impl Ranges {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes `[0, len)`.
    pub fn whole(len: usize) -> Self {
        let mut ranges = Self::new();
        ranges.add(0, len);
        ranges
    }

    /// Adds `[offset, offset + len)`, and merges it with ranges that it overlaps or touches.
    pub fn add(&mut self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (must_fit_u32(offset), must_fit_u32(offset + len));
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

    /// Adds the words of 8 bytes in which `bytes`, written at `offset`, differ from the block's
    /// `content` so far.
    pub fn add_changes(&mut self, offset: usize, content: &[u8], bytes: &[u8]) {
        let end = offset + bytes.len();
        let first = offset.next_multiple_of(WORD).min(end);
        let last = (end / WORD * WORD).max(first);
        let before = &content[offset..end];
        let differs = |range: std::ops::Range<usize>| {
            let range = range.start - offset..range.end - offset;
            before[range.clone()] != bytes[range]
        };
        if differs(offset..first) {
            self.add(offset, first - offset);
        }
        let (before_words, _) = before[first - offset..last - offset].as_chunks::<WORD>();
        let (after_words, _) = bytes[first - offset..last - offset].as_chunks::<WORD>();
        // A run is added when it ends, not word by word.
        let (mut at, mut run) = (first, None);
        for (a, b) in before_words.chunks(WORDS).zip(after_words.chunks(WORDS)) {
            let mask = differing(a, b);
            let is_all = mask == u8::MAX >> (WORDS - a.len());
            match run {
                Some(_) if is_all => {}
                None if mask == 0 => {}
                _ => {
                    for i in 0..a.len() {
                        let word = at + i * WORD;
                        match (run, mask >> i & 1 == 1) {
                            (None, true) => run = Some(word),
                            (Some(start), false) => {
                                self.add(start, word - start);
                                run = None;
                            }
                            _ => {}
                        }
                    }
                }
            }
            at += a.len() * WORD;
        }
        if let Some(start) = run {
            self.add(start, last - start);
        }
        if differs(last..end) {
            self.add(last, end - last);
        }
    }

    /// Adds every byte of `other`.
    pub fn add_all(&mut self, other: &Self) {
        other.iter().for_each(|r| self.add(r.start, r.len()));
    }

    /// Returns the smallest ranges of whole units of `unit` bytes that include all these.
    pub fn widened(&self, unit: usize) -> Self {
        let mut wide = Self::new();
        for r in self.iter() {
            let start = r.start / unit * unit;
            wide.add(start, r.end.next_multiple_of(unit) - start);
        }
        wide
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Yields the ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.0
            .iter()
            .map(|&(start, end)| u32_as_usize(start)..u32_as_usize(end))
    }

    /// Returns the number of bytes in all ranges.
    pub fn bytes(&self) -> usize {
        self.iter().map(|r| r.len()).sum()
    }

    /// True when no byte is in the set.
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
        let mut changed = Ranges::new();
        changed.add_changes(2, &before, &after[2..22]);
        assert_eq!(changed.iter().collect::<Vec<_>>(), [2..8, 16..22]);
        assert_eq!(
            changed.widened(16).iter().collect::<Vec<_>>(),
            [Ranges::whole(32).iter().next().expect("one")]
        );
        let mut none = Ranges::new();
        none.add_changes(0, &after, &after);
        assert!(none.is_empty());
    }

    /// `add_changes` agrees with a comparison word by word, for every part of a block and
    /// differences near and far.
    #[test]
    fn what_changed_agrees_with_words_compared_one_by_one() {
        let before = [0u8; 256];
        for step in [8, 24, 72, 200] {
            let mut after = before;
            after.iter_mut().step_by(step).for_each(|b| *b = 1);
            after[64..160].fill(1);
            for start in 0..80 {
                for end in start..256 {
                    let mut changed = Ranges::new();
                    changed.add_changes(start, &before, &after[start..end]);
                    let mut expected = Ranges::new();
                    for word in (0..256).step_by(WORD) {
                        let (from, to) = (word.max(start), (word + WORD).min(end));
                        if from < to && before[from..to] != after[from..to] {
                            expected.add(from, to - from);
                        }
                    }
                    assert_eq!(changed, expected, "{start}..{end} every {step}");
                }
            }
        }
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
