//! How the serving of a mount ends, and the events by which its threads report it.

use std::io;
use std::thread;
use std::time::Duration;

use crate::mount::error::MountError;

/// How a served mount ended. The volume is clean in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Somebody unmounted it.
    Unmounted,
    /// This signal ended it.
    Signal(i32),
    /// This signal ended it while files were open; their owners get errors now.
    Cut(i32),
}

/// Why a mount could not be made, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The transport that was asked for does not work here.
    #[error("transport=uring: {0}")]
    Transport(String),
    /// The mount cannot survive its server, or nobody can go on with it.
    #[error("survive: {0}")]
    Survive(String),
    /// The kernel and this server did not agree, or the device failed.
    #[error("the FUSE session failed: {0}")]
    Session(io::Error),
    /// Signals cannot be caught.
    #[error("catching signals: {0}")]
    Signals(io::Error),
    /// The caller's `ready` failed.
    #[error("going to the background: {0}")]
    Ready(io::Error),
    /// The volume could not be closed: what was not durable yet may be lost. The next mount
    /// recovers the journal.
    #[error("closing the volume: {0}")]
    Close(stetfs::Error),
    /// The device that was exported could not be flushed at the end.
    #[error("flushing the device: {0}")]
    Flush(stetfs_media::MediaError),
    /// The watchdog of an export has aborted the connection.
    #[error("a request was stuck for {} s; the connection was aborted", .0.as_secs_f32())]
    Stuck(Duration),
}

/// The events that the waiting thread receives.
pub(crate) enum Event {
    Signal(i32),
    Over(io::Result<()>),
    /// The last user of an exported file has closed it.
    Closed,
    /// A request has made no progress for this long, and the connection is aborted.
    Stuck(Duration),
}

/// Starts a thread of the session.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(SessionError::Session)
}
