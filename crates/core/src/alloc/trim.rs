//! Telling the device which blocks are free (FITRIM).
//!
//! A free run is out of the account and under an overlay while the device discards it. So nobody is
//! given a block that is about to lose its content, and no lock is held meanwhile. Blocks freed by
//! a transaction that is not durable are left alone: after a crash their old file needs them.

use std::ops::Range;

use stetfs_format::width::must_fit;
use stetfs_format::{BlockNo, GroupNo, Tid};

use super::bits::View;
use super::pins::Pins;
use super::{Alloc, Freed, Source};
use crate::error::Result;

/// How many blocks are discarded at a time, so that a writer does not find too many missing.
const CHUNK: u32 = 8192;

impl Alloc {
    /// Makes [`Alloc::discard_freed`] discard the blocks that are freed from now on.
    pub(crate) fn enable_discard(&mut self) {
        self.freed = Some(Freed::default());
    }

    /// Notes a freed run for [`Alloc::discard_freed`].
    pub(super) fn note_freed(&self, tid: Tid, start: BlockNo, count: u32) {
        if let Some(freed) = &self.freed {
            freed.lock().push_back((tid, start, count));
        }
    }

    /// Discards blocks that durable transactions freed and nobody has taken since. No handle may be
    /// open. A device that cannot discard is no error: nobody relies on it.
    pub(crate) fn discard_freed(&self) {
        let Some(freed) = &self.freed else {
            return;
        };
        let committed = self.journal.committed();
        loop {
            let (start, count) = {
                let mut freed = freed.lock();
                match freed.front() {
                    Some(&(tid, start, count)) if committed.is_at_or_after(tid) => {
                        freed.pop_front();
                        (start, count)
                    }
                    _ => return,
                }
            };
            if let Err(e) = self.trim(start.0..start.0 + u64::from(count), 1) {
                tracing::warn!("{count} blocks from {start} on were not discarded: {e}");
            }
        }
    }

    /// Discards the free runs of at least `min_len` blocks in `blocks`; returns how many blocks
    /// were discarded.
    ///
    /// # Errors
    /// An error of the device, `Unsupported` among them; damage found in a bitmap.
    pub(crate) fn trim(&self, blocks: Range<u64>, min_len: u64) -> Result<u64> {
        let start = blocks.start.max(self.geo.first_data_block().0);
        let end = blocks.end.min(self.geo.blocks_count);
        if start >= end {
            return Ok(0);
        }
        let min_len = u32::try_from(min_len.max(1)).unwrap_or(u32::MAX);
        let (first, mut from) = self.geo.group_of_block(BlockNo(start));
        let (last, last_bit) = self.geo.group_of_block(BlockNo(end - 1));
        let mut trimmed = 0;
        for g in (first.0..=last.0).map(GroupNo) {
            let to = if g == last {
                last_bit + 1
            } else {
                self.geo.group_blocks(g)
            };
            while let Some(run) = self.next_trim(g, from..to, min_len)? {
                from = run.end;
                trimmed += u64::from(run.end - run.start);
                let result = self.discard(g, run.clone());
                self.end_trim(g, run);
                result?;
            }
            from = 0;
        }
        Ok(trimmed)
    }

    /// Finds the next free run in `within` and keeps it from allocation.
    fn next_trim(
        &self,
        g: GroupNo,
        within: Range<u32>,
        min_len: u32,
    ) -> Result<Option<Range<u32>>> {
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        self.release_pins_of(g, state, self.journal.committed());
        let bitmap = self.block_bitmap(g, state)?;
        let bits = self.geo.group_blocks(g);
        let view = View::new(&bitmap, bits, state.overlays());
        let mut from = within.start;
        while let Some(start) = view.next_free(from..within.end) {
            let end = view.next_busy(start..within.end);
            from = end;
            let whole = view.next_busy(start..bits) - start;
            if whole < min_len {
                continue;
            }
            let want = (end - start).min(CHUNK);
            let got = self
                .space
                .take(want.into(), Source::Free { privileged: false });
            let got: u32 = must_fit(got);
            if got == 0 {
                return Ok(None);
            }
            let run = start..start + got;
            let pins = state.pins.get_or_insert_with(|| Box::new(Pins::new(bits)));
            pins.discard_begin(run.clone());
            self.free_blocks[g.index()].fetch_sub(got, std::sync::atomic::Ordering::Relaxed);
            return Ok(Some(run));
        }
        Ok(None)
    }

    fn end_trim(&self, g: GroupNo, run: Range<u32>) {
        let mut state = self.group(g).state.lock();
        let count = run.end - run.start;
        if let Some(pins) = &mut state.pins {
            pins.discard_end(run);
            if pins.is_empty() {
                state.pins = None;
            }
        }
        state.longest = u32::MAX;
        self.free_blocks[g.index()].fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        self.space
            .untake(count.into(), Source::Free { privileged: false });
    }

    fn discard(&self, g: GroupNo, run: Range<u32>) -> Result<()> {
        let start = self.geo.group_first_block(g).plus(run.start.into());
        let (size, blocks) = (self.geo.block, run.end - run.start);
        self.dev
            .discard(size.start_of(start), size.offset_of(blocks.into()))?;
        Ok(())
    }
}
