//! The file system's part of a commit: the only call from the journal upwards.

use stetfs_format::num::{BlockNo, InodeNo};

use crate::error::Result;
use crate::file_data::PlaceReq;
use crate::handle::Handle;

/// The file system's part of a commit: the only call from the journal upwards.
pub trait Placer: Send + Sync {
    /// Gives each of the blocks of `ino` (ascending) a home in `handle`'s transaction and appends
    /// it to `homes`.
    ///
    /// The commit calls it when no other handle is open. It may take inode *state* locks, but no
    /// lock that some thread holds across a wait. An error aborts the journal, so the file system
    /// reserves the space when the data is written.
    fn place(
        &self,
        handle: &Handle,
        ino: InodeNo,
        blocks: &[PlaceReq],
        homes: &mut Vec<BlockNo>,
    ) -> Result<()>;

    /// Writes changes that the file system has put off until the transaction closes, because many
    /// operations change the same bytes and only their last state counts. The commit calls it for
    /// every transaction, after all data is placed. The blocks must have joined the transaction
    /// before. An error aborts the journal.
    fn settle(&self, handle: &Handle) -> Result<()> {
        let _ = handle;
        Ok(())
    }
}
