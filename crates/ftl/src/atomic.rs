//! Writes of several pages as a whole.
//!
//! The pages are programmed where they stay, of a kind that says nothing of whose they are, and
//! behind them a record of the map log says it of all. So there is one program more than pages, and
//! one for each further part of the record.

use stetfs_format::ftl::PageKind;
use stetfs_format::num::PageNo;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_media::{AtomicWrite, BlockDev, Errno, MediaError, Op, Run, Tag};
use stetfs_planted::{Bug, is_planted};

use crate::core::{Core, Stream};
use crate::dev::Ftl;
use crate::error::Stop;
use crate::log::extend_runs;

/// A page to be written: its logical page, its content, what it is.
pub(crate) type Page<'a> = (u32, &'a [u8], Tag);

impl Core {
    /// Pages that can be written as a whole.
    ///
    /// Meanwhile the old ones are live too. When no full block has a dead page any more, as many
    /// blocks are free beside those that garbage collection keeps as these pages may take: those
    /// that are neither kept back nor full of what can be live. Each page may need a run.
    pub(crate) fn pages_max(&self) -> usize {
        let blocks = self.blocks.good().saturating_sub(self.shape.full_blocks());
        let pages = u32_as_usize(blocks.saturating_mul(self.geometry().pages_per_block));
        pages.min(self.shape.runs_max())
    }

    /// Writes logical pages, no one twice; all are durable when this returns, or a cut leaves none.
    /// They are at most [`pages_max`](Self::pages_max).
    pub(crate) fn write_whole(&mut self, pages: &[Page<'_>]) -> Result<(), Stop> {
        let blocks = pages
            .len()
            .div_ceil(u32_as_usize(self.geometry().pages_per_block));
        // One more: each of two streams may end in a block that it has begun.
        self.make_room_for(must_fit::<_, u32>(blocks) + 1)?;
        let kind = match is_planted(Bug::SplitWrite) {
            false => PageKind::Staged,
            true => PageKind::Data,
        };
        let mut changes = Vec::with_capacity(pages.len());
        // Those of a stream lie one behind the other.
        let is_hot = |page: &&Page<'_>| self.stream_of(page.0) == Stream::Hot;
        let (hot, cold): (Vec<_>, Vec<_>) = pages.iter().partition(is_hot);
        for (stream, pages) in [(Stream::Hot, hot), (Stream::Cold, cold)] {
            for &(logical, data, tag) in pages {
                let page = self.program(stream, kind, logical, data, tag)?;
                self.stage(page);
                changes.push((logical, page.0));
            }
        }
        let mut runs = Vec::new();
        for (logical, page) in &changes {
            extend_runs(&mut runs, *logical, *page);
        }
        let seq = self.take_seq();
        self.write_record(seq, &runs)?;
        self.assign(changes);
        Ok(())
    }

    /// Counts a page as live before it is in the map: its block must not be taken for free.
    fn stage(&mut self, page: PageNo) {
        let block = self.geometry().block_of(page);
        self.blocks.add_live(block);
        self.staged.insert(page.0);
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
            return Err(MediaError::Io {
                op: Op::Write,
                offset: at,
                len,
                source: Errno::TOOBIG,
            });
        }
        if self.volatile_cache() {
            state.flush().map_err(failed)?;
        }
        state.core.write_whole(&pages).map_err(failed)
    }
}
