//! Why the device cannot be opened, or has stopped.

use stetfs_format::{Corrupt, Tid};
use stetfs_media::MediaError;
use stetfs_scheme::SchemeError;

/// Why the device cannot be opened, or has stopped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BelowError {
    /// There is no journal that can be followed.
    #[error("the volume has no journal to follow")]
    NoJournal,
    /// Something that the kernel wrote into its journal is not what JBD2's format says.
    #[error("the kernel's journal cannot be followed: {0}")]
    Journal(#[from] Corrupt),
    /// A commit block has come whose transaction has not: its blocks went to a device that died
    /// with them. To answer would be to say that it is durable.
    #[error(
        "the kernel commits transaction {tid}, whose blocks another server had, which is gone: \
            unmount, and mount again"
    )]
    Lost {
        /// The transaction.
        tid: Tid,
    },
    /// The superblock was overwritten with something that is none, or with that of another volume.
    #[error(
        "the volume's superblock was overwritten{}: unmount, end the server, and begin anew",
        why.as_ref()
            .map_or_else(|| " by another volume's".to_owned(), |why| format!(" ({why})"))
    )]
    Overwritten {
        /// What is wrong with it; none: it is another volume's.
        why: Option<Corrupt>,
    },
    /// The medium.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The scheme.
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    /// Opening or closing the volume.
    #[error(transparent)]
    Volume(#[from] stetfs::Error),
}
