//! Errors of a scheme.

use std::sync::Arc;

use stetfs_media::MediaError;
use thiserror::Error;

/// The crate's result.
pub type Result<T, E = SchemeError> = std::result::Result<T, E>;

/// An error of a scheme. Each thread that waited for a commit gets a clone.
#[derive(Clone, Debug, Error)]
pub enum SchemeError {
    /// A medium failed.
    #[error(transparent)]
    Media(Arc<MediaError>),
    /// A record of the journal or of the volume is not valid.
    #[error(transparent)]
    Corrupt(Arc<stetfs_format::Corrupt>),
    /// The persistent memory beside the volume is missing, or is not the one that belongs to it.
    /// Nothing was written.
    #[error("the memory beside the volume: {0}")]
    Nvm(String),
    /// The scheme cannot be used on this volume, or its log cannot.
    #[error("the journal cannot be used: {0}")]
    Unusable(String),
    /// No scheme has this name.
    #[error("no journaling scheme is called {0:?} (see `stetfs schemes`)")]
    Unknown(String),
    /// The scheme does not have this option, or not with this value.
    #[error("scheme {scheme}: {why}")]
    Option {
        /// The scheme.
        scheme: &'static str,
        /// The reason.
        why: String,
    },
}

impl From<MediaError> for SchemeError {
    fn from(error: MediaError) -> Self {
        Self::Media(Arc::new(error))
    }
}

impl From<stetfs_format::Corrupt> for SchemeError {
    fn from(error: stetfs_format::Corrupt) -> Self {
        Self::Corrupt(Arc::new(error))
    }
}
