//! Anchors: two slots, each a ring of blocks of the anchors' region, in which an anchor is written
//! behind the one before it.
//!
//! Every anchor is in both slots, the first one first, and counts for what is freed when both have
//! it; so bit errors in one are no loss, and a cut leaves the old anchor in the second slot while
//! the first is written. After a mount each slot begins with another block, because a page of the
//! present one may be half programmed and look erased.

use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_media::nand::NandGeometry;

use crate::shape::ANCHOR_BLOCKS;

pub(crate) struct Slot {
    ring: Vec<BlockAddr>,
    current: usize,
    next: u32,
}

pub(crate) struct Anchors {
    pub(crate) slots: [Slot; 2],
}

impl Anchors {
    /// On a part of which the blocks of the region that `is_bad` says are bad.
    pub(crate) fn new(geometry: NandGeometry, is_bad: impl Fn(BlockAddr) -> bool) -> Self {
        let slot = |parity| Slot {
            ring: (0..ANCHOR_BLOCKS)
                .filter(|block| block % 2 == parity)
                .map(BlockAddr)
                .filter(|block| !is_bad(*block))
                .collect(),
            current: 0,
            next: geometry.pages_per_block,
        };
        Self {
            slots: [slot(0), slot(1)],
        }
    }

    /// Lets the slot of `block` go on behind that block.
    pub(crate) fn begin_behind(&mut self, block: BlockAddr) {
        for slot in &mut self.slots {
            if let Some(at) = slot.ring.iter().position(|b| *b == block) {
                slot.current = at;
            }
        }
    }
}

impl Slot {
    /// The page to be programmed next, or the block to be erased before; none when all have gone
    /// bad.
    pub(crate) fn next(&self, geometry: &NandGeometry) -> Option<Next> {
        let block = *self.ring.get(self.current)?;
        if self.next < geometry.pages_per_block {
            return Some(Next::Page(geometry.page_at(block, self.next)));
        }
        Some(Next::Erase(self.ring[(self.current + 1) % self.ring.len()]))
    }

    pub(crate) fn programmed(&mut self) {
        self.next += 1;
    }

    pub(crate) fn erased(&mut self) {
        self.current = (self.current + 1) % self.ring.len();
        self.next = 0;
    }

    /// A block of the ring has gone bad.
    pub(crate) fn remove(&mut self, block: BlockAddr, geometry: &NandGeometry) {
        let Some(at) = self.ring.iter().position(|b| *b == block) else {
            return;
        };
        self.ring.remove(at);
        if at == self.current {
            self.next = geometry.pages_per_block;
        }
        if at <= self.current {
            // The one behind it is the next one.
            let len = self.ring.len().max(1);
            self.current = (self.current + len - 1) % len;
        }
    }
}

/// What is to be done for the next anchor.
pub(crate) enum Next {
    Page(PageNo),
    Erase(BlockAddr),
}
