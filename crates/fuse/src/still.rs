//! Stopping a mount for a moment, with everything committed and nothing under way: to hand it over
//! (`upgrade.rs`), or to have its image copied (`freeze.rs`).

mod stop;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::wire::{Channel, Gate, Link};

/// Why a mount is not stopped: the errno for the caller, and words.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Errno, pub(crate) String);

impl Refused {
    pub(crate) fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self(errno, why.into())
    }
}

/// A mount that stands still. Dropping it lets the mount go on.
pub(crate) struct Still(Arc<Gate>);

impl Drop for Still {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// What stops a mount.
#[derive(Default)]
pub(crate) struct Stopping {
    /// The connection, once there is one.
    link: OnceLock<Link>,
    is_under_way: AtomicBool,
    refused: Mutex<Option<String>>,
}

/// Somebody who waits until a mount was stopped.
pub(crate) struct Asked {
    pub(crate) channel: Arc<Channel>,
    pub(crate) unique: u64,
}

impl Stopping {
    /// Notes the connection.
    pub(crate) fn note(&self, link: &Link) {
        let _ = self.link.set(link.clone());
    }

    /// Returns why the mount was not stopped last.
    pub(crate) fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }
}
