//! What was overwritten where it is becomes durable without its transaction.
//!
//! Where data goes home anyway (`data=ordered`, `data=writeback`), a file of which nothing but
//! that was changed needs no commit: its blocks are written home and flushed, as ext4's fsync
//! does, while others do the same with theirs, and what else the running transaction has is left
//! for its own commit.
//!
//! The blocks stay in the transaction until they are home. So nothing but the file's own state
//! (`file_data.rs`) keeps two versions of a block from being on their way at once: a commit that
//! has blocks of the file waits until nobody writes any of them home, as does who forgets them,
//! for then they may get another owner; and while a commit has some, nobody begins to.

use stetfs_format::width::usize_as_u64;

use crate::error::{JournalError, Result};
use crate::file_data::FileData;
use crate::journal::Journal;
use crate::stats::count;

impl Journal {
    /// Makes durable what was overwritten in a file, if that needs no commit and the file has
    /// nothing else to be made durable. False: nothing was done.
    ///
    /// # Errors
    /// Of the device; nothing can be written any more then.
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
