//! How data that waits for a place past commits joins the running transaction, whose commit gives
//! it one: when somebody wants it durable, when it is old, and when too much waits.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::error::Result;
use crate::file_data::FileData;
use crate::handle::CREDITS_PER_RUN;
use crate::journal::Journal;

/// The most blocks that one handle enlists.
const BLOCKS_MAX: u32 = 1024;

/// Credits for a file besides those of its runs: its inode and the superblock.
const FILE_CREDITS: u32 = 2;

impl Journal {
    /// Makes what waits of a file part of the running transaction, or of several. When the newest
    /// one that any of it has ever joined in this way is durable, so is what had been written
    /// before the call.
    ///
    /// Must not be called with an open handle in the same thread: it may commit.
    pub fn enlist(self: &Arc<Self>, file: &Arc<FileData>) -> Result<()> {
        if !self.defers() {
            return Ok(());
        }
        let most_runs = (self.limits().blocks / 2).saturating_sub(FILE_CREDITS) / CREDITS_PER_RUN;
        let end = file.waiting_end();
        while let Some(end) = end {
            let runs = file.waiting_runs(end, BLOCKS_MAX, most_runs.max(1));
            if runs == 0 {
                break;
            }
            let credits = FILE_CREDITS + CREDITS_PER_RUN * runs;
            let handle = self.start_anyway(credits)?;
            handle.enlist(file, end, BLOCKS_MAX, runs, FILE_CREDITS)?;
        }
        Ok(())
    }

    /// [`enlist`](Self::enlist) of every file that has had something waiting for `age`.
    pub fn enlist_older(self: &Arc<Self>, age: Duration) -> Result<()> {
        let end = self.waiting().next();
        self.enlist_while(|number, has_waited| number < end && has_waited >= age)
    }

    /// Makes everything that was done before this call durable.
    pub fn sync(self: &Arc<Self>) -> Result<()> {
        self.enlist_older(Duration::ZERO)?;
        self.commit_running()
    }

    /// Has less wait when it is too much: before an operation that may add to it.
    pub(crate) fn relieve(self: &Arc<Self>) -> Result<()> {
        let Some(limits) = self.wait_limits() else {
            return Ok(());
        };
        let waiting = self.waiting();
        if waiting.blocks() <= limits.quiet() {
            return Ok(());
        }
        if !waiting.is_told.swap(true, Relaxed) {
            self.background().wake();
        }
        if waiting.blocks() > limits.blocks {
            self.enlist_down_to(limits.quiet())
        } else {
            Ok(())
        }
    }

    /// What the background does in a round: enlists what is old, and what is too much before
    /// anybody has to wait for that.
    pub(crate) fn look_at_waiting(self: &Arc<Self>) -> Result<()> {
        let Some(limits) = self.wait_limits() else {
            return Ok(());
        };
        self.enlist_older(limits.age)?;
        self.waiting().is_told.store(false, Relaxed);
        if self.waiting().blocks() <= limits.quiet() {
            return Ok(());
        }
        self.enlist_down_to(limits.blocks / 2)?;
        self.commit_running()
    }

    fn enlist_down_to(self: &Arc<Self>, blocks: u32) -> Result<()> {
        self.enlist_while(|_, _| self.waiting().blocks() > blocks)
    }

    /// Enlists one file after another, the one that has waited the longest first, as long as the
    /// number of its entry and how long that was say so.
    fn enlist_while(self: &Arc<Self>, is_due: impl Fn(u64, Duration) -> bool) -> Result<()> {
        let mut from = 0;
        while let Some((number, ino, has_waited)) = self.waiting().oldest(from)
            && is_due(number, has_waited)
        {
            from = number + 1;
            if let Some(file) = self.file_if_any(ino) {
                self.enlist(&file)?;
            }
        }
        Ok(())
    }
}
