//! What is known of the operation that is done once more.

use std::sync::atomic::{AtomicBool, Ordering};

use stetfs_format::{InodeNo, Time};
use stetfs_sync::Mutex;

use crate::types::Past;

/// The operation that is done once more at present, if any.
#[derive(Default)]
pub(crate) struct Redo {
    /// Readable without a lock.
    is_on: AtomicBool,
    past: Mutex<Option<Past>>,
}

impl Redo {
    /// Has operations be as this one was, until what is returned goes.
    pub(crate) fn begin(&self, past: Past) -> During<'_> {
        *self.past.lock() = Some(past);
        self.is_on.store(true, Ordering::Relaxed);
        During(self)
    }

    fn of<T>(&self, what: impl FnOnce(&Past) -> Option<T>) -> Option<T> {
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        self.past.lock().as_ref().and_then(what)
    }

    /// Returns when it was done.
    pub(crate) fn time(&self) -> Option<Time> {
        self.of(|past| Some(past.at))
    }

    /// Returns the inode that it made, and its generation.
    pub(crate) fn made(&self) -> Option<(InodeNo, u32)> {
        self.of(|past| past.made)
    }

    /// Returns the version that it left of a directory.
    pub(crate) fn version(&self, dir: InodeNo) -> Option<u64> {
        self.of(|past| past.changed.iter().find(|one| one.ino == dir)?.version)
    }
}

/// While an operation is done once more.
pub(crate) struct During<'a>(&'a Redo);

impl Drop for During<'_> {
    fn drop(&mut self) {
        self.0.is_on.store(false, Ordering::Relaxed);
        *self.0.past.lock() = None;
    }
}
