//! How overwritten data becomes durable without a commit of its transaction.
//!
//! Where data goes home anyway (`data=ordered`, `data=writeback`), an fsync of a file in which only
//! data was overwritten needs no commit. As ext4's fsync does, it writes the file's blocks home and
//! flushes, while other threads do the same for other files. Everything else in the running
//! transaction is left to its own commit.
//!
//! The blocks stay in the transaction until they are home. Only the file's own state
//! (`file_data.rs`) keeps two versions of a block from being on their way home at once:
//! - a commit that has blocks of the file waits until nobody writes any of them home;
//! - a truncation waits as well, because the blocks may get another owner then;
//! - nobody begins to write blocks home while a commit has blocks of the file.

use stetfs_format::width::usize_as_u64;

use crate::error::{JournalError, Result};
use crate::file_data::FileData;
use crate::journal::Journal;
use crate::stats::count;

impl Journal {
    /// Makes a file's overwritten data durable, if this needs no commit and the file has no other
    /// change that is not durable. Returns false if it did nothing.
    ///
    /// # Errors
    /// The device's error, which stops the journal.
    pub fn overwrite(&self, file: &FileData) -> Result<bool> {
        if !self.terms().overwrites_home() {
            return Ok(false);
        }
        let _alone = file.no_home_writes();
        let Some(found) = file.overwritten() else {
            return Ok(false);
        };
        if let Some(error) = self.stopped() {
            return Err(error);
        }
        let written = self.served().scheme.overwrite(&found.blocks);
        let written = written.map_err(JournalError::from);
        if !written.inspect_err(|error| self.abort(error.clone()))? {
            return Ok(false);
        }
        let clean = file.overwritten_home(&found);
        self.gate().unpin(found.tid, clean);
        let blocks = usize_as_u64(found.blocks.len());
        count(&self.counters().overwritten_blocks, blocks);
        Ok(true)
    }
}
