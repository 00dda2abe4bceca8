//! Writes of several pages as a whole.
//!
//! The pages are programmed one after the other, and only the last one says that all of them count.
//! If it can be read, the others were programmed before it. So a whole write needs no extra
//! program.

use stetfs_format::ftl::PageKind;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_media::{AtomicWrite, BlockDev, MediaError, Op, Run, Tag};
use stetfs_planted::{Bug, is_planted};

use crate::core::Core;
use crate::dev::Ftl;
use crate::error::{Stop, too_long};

/// A page to be written: its logical page, its content, its label.
pub(crate) type Page<'a> = (u32, &'a [u8], Tag);

impl Core {
    /// Returns how many pages can be written as a whole.
    ///
    /// Until such a write is complete, the old pages are live too. So the new ones must fit into
    /// blocks that are neither reserved nor needed for all live pages: even when no full block has
    /// a dead page, that many blocks are free beyond the ones that garbage collection keeps. And a
    /// mount must be able to log all of the pages.
    /// all of them.
    pub(crate) fn pages_max(&self) -> usize {
        let blocks = self.blocks.good().saturating_sub(self.shape.full_blocks());
        let pages = u32_as_usize(blocks.saturating_mul(self.geometry().pages_per_block));
        pages.min(self.shape.runs_max())
    }

    /// Writes logical pages, each at most once. On return all are durable; a cut before that leaves
    /// none. There are at most [`pages_max`](Self::pages_max) of them.
    pub(crate) fn write_whole(&mut self, pages: &[Page<'_>]) -> Result<(), Stop> {
        let blocks = pages
            .len()
            .div_ceil(u32_as_usize(self.geometry().pages_per_block));
        // One more, since each of two streams may end in a block that it has begun.
        self.make_room_for(must_fit::<_, u32>(blocks) + 1)?;
        let mut changes = Vec::with_capacity(pages.len());
        for (i, &(logical, data, tag)) in pages.iter().enumerate() {
            let kind = if is_planted(Bug::SplitWrite) {
                PageKind::Data
            } else if i + 1 < pages.len() {
                PageKind::Staged
            } else {
                PageKind::Last
            };
            let stream = self.stream_of(logical);
            let page = self.program(stream, kind, logical, data, tag)?;
            // Counted before the page is in the map: its block must not look free.
            let block = self.geometry().block_of(page);
            self.blocks.add_live(block);
            changes.push((logical, page.0));
        }
        self.assign_as(changes, true);
        Ok(())
    }
}

impl AtomicWrite for Ftl {
    fn max_sectors(&self) -> usize {
        self.state.lock().core.pages_max()
    }

    fn write_whole(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let mut pages: Vec<Page<'_>> = Vec::new();
        let mut len = 0;
        for run in runs {
            let (bytes, content) = self.pages_of(run.offset, &run.parts)?;
            pages.extend(content.map(|(page, data)| (page, data, run.tag)));
            len += bytes;
        }
        let at = runs.first().map_or(0, |run| run.offset);
        let failed = |stop: Stop| stop.into_media(Op::Write, at, len);
        let mut state = self.state.lock();
        if pages.len() > state.core.pages_max() {
            return Err(too_long(at, len));
        }
        if self.volatile_cache() {
            state.flush().map_err(failed)?;
        }
        state.core.write_whole(&pages).map_err(failed)
    }
}
