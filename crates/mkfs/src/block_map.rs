//! The blocks in use, as runs, and the searches for free ones.
//!
//! A volume of 16 TiB has 2^32 blocks in 131,072 groups, and a new one uses a few runs of each; so
//! runs are kept, not bits. The searches are mke2fs's: where one begins, ends and wraps around
//! decides where everything lies.

use std::collections::BTreeMap;
use std::ops::Range;

/// The blocks in use.
#[derive(Clone, Debug)]
pub(crate) struct BlockMap {
    /// Start and end of each run; no two touch.
    runs: BTreeMap<u64, u64>,
    first: u64,
    count: u64,
}

impl BlockMap {
    /// All blocks from `first` up to `count` are free.
    pub(crate) fn new(first: u64, count: u64) -> Self {
        Self {
            runs: BTreeMap::new(),
            first,
            count,
        }
    }

    /// Marks a range as in use; parts of it may be already.
    pub(crate) fn mark(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        if len == 0 {
            return;
        }
        while let Some((&at, &until)) = self.runs.range(..=end).next_back()
            && until >= start
        {
            self.runs.remove(&at);
            start = start.min(at);
            end = end.max(until);
        }
        self.runs.insert(start, end);
    }

    /// The end of the run in use that covers `block`.
    fn used_until(&self, block: u64) -> Option<u64> {
        let (_, &end) = self.runs.range(..=block).next_back()?;
        (end > block).then_some(end)
    }

    /// Where the next run in use begins, at `block` or behind it.
    fn next_used(&self, block: u64) -> u64 {
        let next = self.runs.range(block..).next();
        next.map_or(u64::MAX, |(&start, _)| start)
    }

    /// The first block from `from` on, before `end`, that is free.
    pub(crate) fn first_free(&self, from: u64, end: u64) -> Option<u64> {
        let block = self.used_until(from).unwrap_or(from);
        (block < end).then_some(block)
    }

    /// The first of `len` free blocks, `from` or behind it, whether the volume has them or not.
    fn first_fit(&self, from: u64, len: u64) -> u64 {
        let mut block = from;
        loop {
            if let Some(end) = self.used_until(block) {
                block = end;
            }
            let used = self.next_used(block);
            if used - block >= len {
                return block;
            }
            block = used;
        }
    }

    /// A free block: the first from `goal` on, else the first of all. A goal outside the volume
    /// means its beginning.
    pub(crate) fn new_block(&self, goal: u64) -> Option<u64> {
        let goal = self.inside(goal);
        self.first_free(goal, self.count)
            .or_else(|| self.first_free(self.first, goal))
    }

    /// The first free blocks from `goal` on, else the first of all: at most `most` of them.
    pub(crate) fn new_range(&self, goal: u64, most: u64) -> Option<Range<u64>> {
        let start = self.new_block(goal)?;
        let end = self.next_used(start).min(start + most).min(self.count);
        Some(start..end)
    }

    fn inside(&self, goal: u64) -> u64 {
        if goal == 0 || goal >= self.count {
            self.first
        } else {
            goal
        }
    }

    /// The first of `len` free blocks, from `start` on up to but without `finish`. If `finish` is
    /// not behind `start`, the search goes on at the volume's beginning.
    pub(crate) fn free_run(&self, start: u64, finish: u64, len: u64) -> Option<u64> {
        let mut from = if start == 0 { self.first } else { start };
        // Where `len` blocks no longer fit.
        let limit = (self.count + 1).saturating_sub(len);
        let mut wrapped = false;
        loop {
            let stop = if finish > from { finish } else { u64::MAX };
            let found = self.first_fit(from, len);
            if found < stop.min(limit) {
                return Some(found);
            }
            if stop <= limit || finish > start || wrapped {
                return None;
            }
            from = self.first;
            wrapped = true;
        }
    }

    /// How many blocks of a range are in use.
    pub(crate) fn used_in(&self, range: &Range<u64>) -> u64 {
        self.used_runs(range.clone())
            .map(|run| run.end - run.start)
            .sum()
    }

    /// The runs in use in a range, cut off at its ends.
    pub(crate) fn used_runs(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.used_until(range.start).map(|end| (range.start, end));
        let others = self.runs.range(range.start..range.end);
        first
            .filter(|_| !self.runs.contains_key(&range.start))
            .into_iter()
            .chain(others.map(|(&start, &end)| (start, end)))
            .map(move |(start, end)| start..end.min(range.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of 40 blocks from 1 on with these runs in use.
    fn map(runs: &[Range<u64>]) -> BlockMap {
        let mut map = BlockMap::new(1, 40);
        for run in runs {
            map.mark(run.start, run.end - run.start);
        }
        map
    }

    #[test]
    fn runs_that_touch_become_one() {
        let map = map(&[5..8, 10..12, 8..10, 20..22, 3..30]);
        assert_eq!(map.runs.into_iter().collect::<Vec<_>>(), [(3, 30)]);
    }

    #[test]
    fn single_blocks() {
        let map = map(&[1..4, 10..40]);
        assert_eq!(map.new_block(0), Some(4));
        assert_eq!(map.new_block(7), Some(7));
        assert_eq!(map.new_block(12), Some(4), "wraps around");
        assert_eq!(map.new_range(5, 100), Some(5..10));
        assert_eq!(map.new_range(5, 2), Some(5..7));
        assert_eq!(map.used_in(&(2..12)), 4);
        assert_eq!(map.used_runs(2..12).collect::<Vec<_>>(), [2..4, 10..12]);
    }

    #[test]
    fn runs_end_before_finish_or_wrap() {
        let map = map(&[1..4, 10..20]);
        assert_eq!(map.free_run(1, 30, 6), Some(4));
        assert_eq!(map.free_run(1, 30, 7), Some(20));
        assert_eq!(map.free_run(1, 20, 7), None, "20 is the finish");
        assert_eq!(map.free_run(21, 39, 25), None, "does not fit");
        assert_eq!(map.free_run(36, 10, 6), Some(4), "wraps around");
        assert_eq!(map.free_run(36, 4, 6), None, "wraps and finishes");
    }
}
