//! Garbage collection: it moves the live pages of a block elsewhere, which frees the block.
//!
//! - It chooses victims by cost-benefit (`blocks.rs`), and collects as long as fewer blocks are
//!   free than a checkpoint, a log and the moving itself may need. There is always a victim,
//!   because the exported pages are so few that full blocks contain dead pages (`shape.rs`).
//! - Hot and cold data lie in different blocks, and moved pages in blocks of their own. A page that
//!   the host overwrites is hot if its old version lived no longer than blocks of hot data do on
//!   average, judged by the age of the old version's block (Wang and others, FAST 2022).
//! - An unreadable page is not forgotten: a page that records the loss takes its place, and reading
//!   it stays an error.
//! - A moved page names its first owner in its spare area, and the log notes only the further
//!   owners: a copy is newer than any earlier record of its owner's place.

use stetfs_format::ftl::PageKind;
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_planted::{Bug, is_planted};

use crate::blocks::Use;
use crate::core::{Core, GC_TAG, Stream};
use crate::error::Stop;

impl Core {
    /// Returns the stream for a write to `logical`: hot if the host will probably overwrite it
    /// soon.
    pub(crate) fn stream_of(&self, logical: u32) -> Stream {
        let Some(old) = self.map.place(logical) else {
            return Stream::Cold;
        };
        let born = self.blocks.get(self.geometry().block_of(old)).born;
        if self.now().saturating_sub(born) < self.lifespan.0 {
            Stream::Hot
        } else {
            Stream::Cold
        }
    }

    /// Does what is due before a write: saves the data of bad blocks, frees blocks, makes a
    /// checkpoint, levels wear.
    pub(crate) fn make_room(&mut self) -> Result<(), Stop> {
        self.make_room_for(0)
    }

    /// Does the same, and frees `blocks` more blocks than are always free.
    pub(crate) fn make_room_for(&mut self, blocks: u32) -> Result<(), Stop> {
        if let Some(stop) = &self.stopped {
            return Err(stop.clone());
        }
        while let Some(block) = self.retired.pop() {
            self.empty(block)?;
        }
        if self.blocks.good() < self.shape.least_good_blocks() {
            return Err(self.stop(Stop::WornOut));
        }
        self.collect(self.shape.low_blocks + blocks)?;
        if self.is_checkpoint_due() {
            self.checkpoint()?;
        }
        self.level_wear()
    }

    /// Frees blocks until `least` are free.
    fn collect(&mut self, least: u32) -> Result<(), Stop> {
        let mut last_resort = true;
        while self.free_blocks() < least {
            if let Some(victim) = self.blocks.victim(self.now()) {
                self.collect_block(victim)?;
                if self.is_checkpoint_due() {
                    self.checkpoint()?;
                }
            } else if std::mem::take(&mut last_resort) {
                // A checkpoint frees blocks of the map and the log.
                self.checkpoint()?;
            } else {
                return Err(self.stop(Stop::WornOut));
            }
        }
        Ok(())
    }

    /// Moves the live pages of a full block elsewhere, which frees it.
    pub(crate) fn collect_block(&mut self, block: BlockAddr) -> Result<(), Stop> {
        let now = self.now();
        self.blocks.put_to(block, Use::Emptied, now);
        self.empty(block)?;
        self.blocks.put_to(block, Use::Free, now);
        Ok(())
    }

    /// Moves the live pages of a block elsewhere.
    fn empty(&mut self, block: BlockAddr) -> Result<(), Stop> {
        for index in 0..self.geometry().pages_per_block {
            if self.blocks.get(block).live == 0 {
                break;
            }
            self.move_page(self.geometry().page_at(block, index))?;
        }
        Ok(())
    }

    /// Moves a page elsewhere, if it is live.
    pub(crate) fn move_page(&mut self, page: PageNo) -> Result<(), Stop> {
        if !self.map.is_live(page) {
            return Ok(());
        }
        let first = self.map.owners(page)[0];
        let mut data = std::mem::take(&mut self.copy);
        let read = self.flash.read(page, &mut data, GC_TAG);
        let found = read.map_err(|e| self.fail(e))?;
        let kind = match found.record().map(|record| record.kind) {
            Some(kind) if kind.is_content() => PageKind::Data,
            _ => PageKind::Lost,
        };
        let named = match found.record() {
            Some(record) if is_planted(Bug::BelievedSpare) => record.index,
            _ => first,
        };
        let to = self.program(Stream::Moved, kind, named, &data, GC_TAG);
        self.copy = data;
        let to = to?;
        let owners = self.map.move_page(page, to);
        let now = self.now();
        self.blocks.add_live(self.geometry().block_of(to));
        self.blocks.remove_live(self.geometry().block_of(page), now);
        for owner in &owners {
            self.table.touch(self.shape.map_page_of(*owner));
        }
        for owner in &owners[1..] {
            if is_planted(Bug::ForgottenSharer) {
                self.map.load_place(*owner, page.0);
                continue;
            }
            self.note(*owner, to.0, 1)?;
        }
        Ok(())
    }
}
