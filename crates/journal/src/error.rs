//! Errors of the journal and of everything below it.

use std::sync::Arc;

use stetfs_format::BlockNo;
use stetfs_media::MediaError;
use stetfs_scheme::SchemeError;
use thiserror::Error;

/// The crate's result.
pub type Result<T, E = JournalError> = std::result::Result<T, E>;

/// An error of the transaction layer, or of a layer below it. Each thread that waited for a commit
/// gets a clone.
#[derive(Clone, Debug, Error)]
pub enum JournalError {
    /// The scheme failed, or a medium when the journal read from it.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// An earlier error stopped the journal: it writes nothing more, and changes that were not
    /// confirmed are lost.
    #[error("the journal was stopped by an earlier error: {0}")]
    Aborted(Arc<JournalError>),
    /// The file system was shut down on request.
    #[error("the file system was shut down")]
    Shutdown,
    /// The journal was opened read-only.
    #[error("the journal is read-only")]
    ReadOnly,
    /// A handle asked for more blocks than a transaction can ever hold.
    #[error("an operation needs {wanted} blocks in one transaction, the journal allows {limit}")]
    TooLarge {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks that the largest transaction may hold.
        limit: u32,
    },
    /// A block beyond the volume was asked for.
    #[error("block {block} is beyond the end of the volume ({blocks} blocks)")]
    BeyondVolume {
        /// The block.
        block: BlockNo,
        /// The volume's size in blocks.
        blocks: u64,
    },
    /// The file system could not place dirty data at a commit.
    #[error("placing the data of inode {ino} at commit failed: {why}")]
    Place {
        /// The inode.
        ino: u32,
        /// The file system's reason.
        why: String,
    },
    /// The file system cannot go on: it found damage, or is gone.
    #[error("the journal cannot be used: {0}")]
    Unusable(String),
}

/// Why an operation failed ([`Handle::end`](crate::Handle::end)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It found damage. Its changes so far become durable all the same if the volume
    /// [goes on](crate::Journal::go_on).
    ByDamage,
    /// A read or a write failed.
    ByFailure,
}

impl From<MediaError> for JournalError {
    fn from(error: MediaError) -> Self {
        SchemeError::from(error).into()
    }
}

impl From<stetfs_format::Corrupt> for JournalError {
    fn from(error: stetfs_format::Corrupt) -> Self {
        SchemeError::from(error).into()
    }
}
