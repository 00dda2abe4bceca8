//! Erase blocks: what each is used for, how many live pages it has, how often it was erased.
//!
//! Full blocks of data stand in lists, one for each number of live pages. Each list begins with the
//! block whose pages died longest ago. So the best victim for each number is the first of its list,
//! whatever the size of the part.

use std::collections::BTreeSet;

use stetfs_format::num::BlockAddr;
use stetfs_format::width::{must_fit, nearest_f64, u32_as_usize, usize_as_u64};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It holds nothing that counts, and is erased before it is programmed.
    Free,
    /// A free block that a durable list names as one of the next to be programmed.
    Pool,
    /// It is being programmed.
    Open,
    /// It holds data and is not programmed any further.
    Data,
    /// Its data is being moved elsewhere.
    Emptied,
    /// Map and log.
    Map,
    /// Anchors.
    Anchor,
    /// It must not be programmed or erased.
    Bad,
}

/// Marks the end of a list.
const END: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) used: Use,
    /// Live pages of data.
    pub(crate) live: u32,
    pub(crate) erases: u32,
    /// When it was opened, as a number of pages that the host had written.
    pub(crate) born: u64,
    /// Whether it holds data that the host was expected to overwrite soon.
    pub(crate) hot: bool,
    /// When a page in it died last, or when it became full; in pages like `born`.
    pub(crate) changed: u64,
    before: u32,
    behind: u32,
}

pub(crate) struct Blocks {
    all: Vec<Block>,
    /// First and last block of each list.
    lists: Vec<(u32, u32)>,
    /// Free blocks by erase count.
    free: BTreeSet<(u32, BlockAddr)>,
    /// Sum of the erase counts of blocks that are neither bad nor the anchors'; `good` is how many
    /// those are.
    erases: u64,
    good: u32,
}

impl Blocks {
    pub(crate) fn new(blocks: u32, pages_per_block: u32) -> Self {
        let block = Block {
            used: Use::Free,
            live: 0,
            erases: 0,
            born: 0,
            hot: false,
            changed: 0,
            before: END,
            behind: END,
        };
        Self {
            all: vec![block; u32_as_usize(blocks)],
            lists: vec![(END, END); u32_as_usize(pages_per_block) + 1],
            free: (0..blocks).map(|n| (0, BlockAddr(n))).collect(),
            erases: 0,
            good: blocks,
        }
    }

    pub(crate) fn get(&self, block: BlockAddr) -> &Block {
        &self.all[block.index()]
    }

    fn get_mut(&mut self, block: BlockAddr) -> &mut Block {
        &mut self.all[block.index()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BlockAddr, &Block)> {
        (0..).map(BlockAddr).zip(&self.all)
    }

    /// How many blocks are neither bad nor the anchors'.
    pub(crate) fn good(&self) -> u32 {
        self.good
    }

    /// The mean of their erase counts, rounded down.
    pub(crate) fn mean_erases(&self) -> u32 {
        u32::try_from(self.erases / u64::from(self.good.max(1))).unwrap_or(u32::MAX)
    }

    pub(crate) fn free_count(&self) -> u32 {
        must_fit(self.free.len())
    }

    /// Changes the use of a block. `now` is the time in pages that the host has written.
    pub(crate) fn put_to(&mut self, block: BlockAddr, used: Use, now: u64) {
        let state = self.get(block).clone();
        if state.used == used {
            return;
        }
        match state.used {
            Use::Free => drop(self.free.remove(&(state.erases, block))),
            Use::Data => self.unlink(block),
            Use::Bad => unreachable!("erase block {block} is bad"),
            _ => {}
        }
        match used {
            Use::Free => {
                assert_eq!(state.live, 0, "live pages of free erase block {block}");
                self.free.insert((state.erases, block));
            }
            // The anchors' blocks were never counted.
            Use::Bad | Use::Anchor if state.used != Use::Anchor => {
                self.good -= 1;
                self.erases -= u64::from(state.erases);
            }
            _ => {}
        }
        let state = self.get_mut(block);
        state.used = used;
        if used == Use::Open {
            state.born = now;
        }
        if used == Use::Data {
            state.changed = now;
            self.link(block);
        }
    }

    /// Sets whether an open block takes hot data.
    pub(crate) fn set_hot(&mut self, block: BlockAddr, hot: bool) {
        self.get_mut(block).hot = hot;
    }

    /// Ends the programming of a block of data: it can be collected from now on, or is free at
    /// once.
    pub(crate) fn close(&mut self, block: BlockAddr, now: u64) {
        let used = if self.get(block).live == 0 {
            Use::Free
        } else {
            Use::Data
        };
        self.put_to(block, used, now);
    }

    /// Counts a page of the block that became live.
    pub(crate) fn add_live(&mut self, block: BlockAddr) {
        let state = self.get_mut(block);
        assert_ne!(state.used, Use::Data, "a full block gets live pages");
        state.live += 1;
    }

    /// Counts a page of the block that died. A full block without live pages becomes free.
    pub(crate) fn remove_live(&mut self, block: BlockAddr, now: u64) {
        let is_listed = self.get(block).used == Use::Data;
        if is_listed {
            self.unlink(block);
        }
        let state = self.get_mut(block);
        state.live -= 1;
        state.changed = now;
        if is_listed && state.live == 0 {
            state.used = Use::Free;
            let key = (state.erases, block);
            self.free.insert(key);
        } else if is_listed {
            self.link(block);
        }
    }

    /// Sets how often the block was erased.
    pub(crate) fn set_erases(&mut self, block: BlockAddr, erases: u32) {
        let state = self.get_mut(block);
        let (used, before) = (state.used, std::mem::replace(&mut state.erases, erases));
        if used == Use::Free && before != erases {
            self.free.remove(&(before, block));
            self.free.insert((erases, block));
        }
        if !matches!(used, Use::Bad | Use::Anchor) {
            self.erases = self.erases - u64::from(before) + u64::from(erases);
        }
    }

    /// Returns the free blocks to use next: three quarters are the least worn; one quarter, for
    /// data that will stay long, are the most worn.
    pub(crate) fn next_free(&self, count: usize) -> Vec<BlockAddr> {
        let count = count.min(self.free.len());
        let worn = self.free.iter().rev().take(count / 4);
        let fresh = self.free.iter().take(count - count / 4);
        fresh.chain(worn).map(|(_, block)| *block).collect()
    }

    /// Returns the block whose collection pays best, by cost-benefit: age * (1 - u) / 2u with the
    /// share u of live pages (Kawaguchi, Nishioka, Motoda, USENIX 1995). `None` if every page of
    /// every full block is live.
    pub(crate) fn victim(&self, now: u64) -> Option<BlockAddr> {
        let pages = self.lists.len() - 1;
        let mut best = None;
        let mut best_score = 0.0;
        for (live, (first, _)) in self.lists.iter().enumerate().take(pages).skip(1) {
            if *first == END {
                continue;
            }
            let age = now.saturating_sub(self.all[u32_as_usize(*first)].changed) + 1;
            let score = nearest_f64(age) * nearest_f64(usize_as_u64(pages - live))
                / nearest_f64(usize_as_u64(2 * live));
            if score > best_score {
                best_score = score;
                best = Some(BlockAddr(*first));
            }
        }
        best
    }

    /// Returns the full block with the fewest erases.
    pub(crate) fn least_erased(&self) -> Option<BlockAddr> {
        let data = self.iter().filter(|(_, block)| block.used == Use::Data);
        data.min_by_key(|(_, block)| block.erases)
            .map(|(block, _)| block)
    }

    fn link(&mut self, block: BlockAddr) {
        let live = u32_as_usize(self.get(block).live);
        let last = self.lists[live].1;
        let state = self.get_mut(block);
        (state.before, state.behind) = (last, END);
        if last == END {
            self.lists[live].0 = block.0;
        } else {
            self.all[u32_as_usize(last)].behind = block.0;
        }
        self.lists[live].1 = block.0;
    }

    fn unlink(&mut self, block: BlockAddr) {
        let Block {
            live,
            before,
            behind,
            ..
        } = *self.get(block);
        if before == END {
            self.lists[u32_as_usize(live)].0 = behind;
        } else {
            self.all[u32_as_usize(before)].behind = behind;
        }
        if behind == END {
            self.lists[u32_as_usize(live)].1 = before;
        } else {
            self.all[u32_as_usize(behind)].before = before;
        }
    }
}
