//! How delayed data joins the running transaction, whose commit places it: when somebody wants it
//! durable, when it is old, and when too much is delayed.

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
    /// Makes a file's delayed data part of the running transaction, or of several, one after the
    /// other. Once the newest transaction that has ever enlisted data of the file is durable, all
    /// data that was written before this call is durable.
    ///
    /// Must not be called with an open handle in the same thread: it may commit.
    pub fn enlist(self: &Arc<Self>, file: &Arc<FileData>) -> Result<()> {
        if !self.delays() {
            return Ok(());
        }
        let most_runs = (self.limits().blocks / 2).saturating_sub(FILE_CREDITS) / CREDITS_PER_RUN;
        let end = file.delayed_end();
        while let Some(end) = end {
            let runs = file.delayed_runs(end, BLOCKS_MAX, most_runs.max(1));
            if runs == 0 {
                break;
            }
            let credits = FILE_CREDITS + CREDITS_PER_RUN * runs;
            let handle = self.start_anyway(credits)?;
            handle.enlist(file, end, BLOCKS_MAX, runs, FILE_CREDITS)?;
        }
        Ok(())
    }

    /// [`enlist`](Self::enlist) of every file that has had delayed data for `age`.
    pub fn enlist_older(self: &Arc<Self>, age: Duration) -> Result<()> {
        let end = self.delayed().next();
        self.enlist_while(|number, delay| number < end && delay >= age)
    }

    /// Makes everything that was done before this call durable.
    pub fn sync(self: &Arc<Self>) -> Result<()> {
        self.enlist_older(Duration::ZERO)?;
        self.commit_running()
    }

    /// Enlists data if too much is delayed, before an operation that may delay more.
    pub(crate) fn relieve(self: &Arc<Self>) -> Result<()> {
        let Some(limits) = self.delay_limits() else {
            return Ok(());
        };
        let delayed = self.delayed();
        if delayed.blocks() <= limits.quiet() {
            return Ok(());
        }
        if !delayed.is_told.swap(true, Relaxed) {
            self.background().wake();
        }
        if delayed.blocks() > limits.blocks {
            self.enlist_down_to(limits.quiet())
        } else {
            Ok(())
        }
    }

    /// One round of the background: enlists data that is old, and enough of the rest that no
    /// operation has to do so itself.
    pub(crate) fn look_at_delayed(self: &Arc<Self>) -> Result<()> {
        let Some(limits) = self.delay_limits() else {
            return Ok(());
        };
        self.enlist_older(limits.age)?;
        self.delayed().is_told.store(false, Relaxed);
        if self.delayed().blocks() <= limits.quiet() {
            return Ok(());
        }
        self.enlist_down_to(limits.blocks / 2)?;
        self.commit_running()
    }

    fn enlist_down_to(self: &Arc<Self>, blocks: u32) -> Result<()> {
        self.enlist_while(|_, _| self.delayed().blocks() > blocks)
    }

    /// Enlists one file after another, the one whose data has been delayed longest first, while
    /// `is_due` says so of the number of its entry and of that time.
    fn enlist_while(self: &Arc<Self>, is_due: impl Fn(u64, Duration) -> bool) -> Result<()> {
        let mut from = 0;
        while let Some((number, ino, delay)) = self.delayed().oldest(from)
            && is_due(number, delay)
        {
            from = number + 1;
            if let Some(file) = self.file_if_any(ino) {
                self.enlist(&file)?;
            }
        }
        Ok(())
    }
}
