//! What the file system does in a commit: the only call from the journal upwards.

use stetfs_format::num::{BlockNo, InodeNo};

use crate::error::Result;
use crate::file_data::PlaceReq;
use crate::handle::Handle;

/// The file system's part of a commit: the only call from the journal upwards.
pub trait Placer: Send + Sync {
    /// Gives each of the blocks of `ino` (ascending) a home in `handle`'s transaction and appends
    /// it to `homes`.
    ///
    /// Called when no other handle is open. May take inode *state* locks, never one that is held
    /// across a wait. An error aborts the journal, so space must have been reserved when the data
    /// was written.
    fn place(
        &self,
        handle: &Handle,
        ino: InodeNo,
        blocks: &[PlaceReq],
        homes: &mut Vec<BlockNo>,
    ) -> Result<()>;

    /// Writes what the file system has put off until the transaction closes: what many operations
    /// change and only the last state of which counts. Called for every transaction, after
    /// everything is placed. The blocks have joined the transaction before. An error aborts the
    /// journal.
    fn settle(&self, handle: &Handle) -> Result<()> {
        let _ = handle;
        Ok(())
    }
}
