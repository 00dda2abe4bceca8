//! Anchors: two slots, each a ring of blocks of the anchors' region. A slot programs each anchor
//! behind the one before it.
//!
//! Both slots hold every anchor. Each anchor is written to the first slot, then to the second, and
//! blocks are freed by it only when both have it. So bit errors in one slot lose nothing, and while
//! the first slot is written, the second still has the old anchor. After a mount each slot
//! continues in another block, because a page of its present block may be half programmed and look
//! erased.

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
    /// The anchors of a part; `is_bad` tells which blocks of the region are bad.
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

    /// Makes the slot of `block` continue behind that block.
    pub(crate) fn begin_behind(&mut self, block: BlockAddr) {
        for slot in &mut self.slots {
            if let Some(at) = slot.ring.iter().position(|b| *b == block) {
                slot.current = at;
            }
        }
    }
}

impl Slot {
    /// Returns the page to program next, or the block to erase before; `None` when all blocks have
    /// gone bad.
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

    /// Removes a block that has gone bad from the ring.
    pub(crate) fn remove(&mut self, block: BlockAddr, geometry: &NandGeometry) {
        let Some(at) = self.ring.iter().position(|b| *b == block) else {
            return;
        };
        self.ring.remove(at);
        if at == self.current {
            self.next = geometry.pages_per_block;
        }
        if at <= self.current {
            // The block behind the bad one becomes the next.
            let len = self.ring.len().max(1);
            self.current = (self.current + len - 1) % len;
        }
    }
}

/// The next step for writing an anchor.
pub(crate) enum Next {
    Page(PageNo),
    Erase(BlockAddr),
}
