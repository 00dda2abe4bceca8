//! What can go wrong below the file system.

use std::sync::Arc;

use stetfs_format::BlockNo;
use stetfs_media::MediaError;
use thiserror::Error;

/// The crate's result.
pub type Result<T, E = JournalError> = std::result::Result<T, E>;

/// An error of the transaction layer or of a scheme. Cloned to everyone who waited for the same
/// commit.
#[derive(Clone, Debug, Error)]
pub enum JournalError {
    /// The medium failed.
    #[error(transparent)]
    Media(Arc<MediaError>),
    /// A record of the journal or of the volume is not valid.
    #[error(transparent)]
    Corrupt(Arc<stetfs_format::Corrupt>),
    /// An earlier error stopped the journal: nothing more is written, what was not yet confirmed is
    /// lost.
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
    /// The file system could not give dirty data its place at commit.
    #[error("placing the data of inode {ino} at commit failed: {why}")]
    Place {
        /// The inode.
        ino: u32,
        /// What the file system said.
        why: String,
    },
    /// The persistent memory beside the volume is missing, or is not the one that belongs to it.
    /// Nothing was written.
    #[error("the memory beside the volume: {0}")]
    Nvm(String),
    /// The journal area cannot be used.
    #[error("the journal cannot be used: {0}")]
    Unusable(String),
    /// No scheme has this name.
    #[error("no journaling scheme is called {0:?} (see `stetfs schemes`)")]
    UnknownScheme(String),
    /// The scheme does not have this option, or not with this value.
    #[error("scheme {scheme}: {why}")]
    SchemeOption {
        /// The scheme.
        scheme: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl From<MediaError> for JournalError {
    fn from(error: MediaError) -> Self {
        Self::Media(Arc::new(error))
    }
}

impl From<stetfs_format::Corrupt> for JournalError {
    fn from(error: stetfs_format::Corrupt) -> Self {
        Self::Corrupt(Arc::new(error))
    }
}
