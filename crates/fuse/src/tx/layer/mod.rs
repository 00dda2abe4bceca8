//! `stetfs tx`: lays a layer of overlayfs over the directory below it in one transaction.
//!
//! [`plan`] has the rules of what a layer means. `notes.rs` notes who else has changed something
//! since the layer began. `apply.rs` makes the transaction. A layer that is not on the volume comes
//! as [`records`], from which `make.rs` makes it. This file has the ioctls
//! (`crates/ffi/include/stetfs_ioctl.h`): BEGIN on a file beside the layer, whose end is the
//! layer's end, and FILL and LAY_OVER on the directory.
//!
//! The kernel has not checked permissions for a layer's changes, so the volume does, for the
//! caller.

mod apply;
mod make;
mod notes;
pub mod plan;
pub mod records;
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs_format::InodeNo;

use crate::errno::Outcome;
use crate::ioctl::numbers::{READ, WRITE, number};
use crate::tx::groups::{Name, STETFS};
use crate::wire::Request;
use make::Making;
use notes::Notes;

/// `STETFS_IOC_BEGIN_LAYER`.
pub(crate) const BEGIN_LAYER: u32 = number(READ, STETFS, 3, 16);
/// `STETFS_IOC_LAY_OVER`.
pub(crate) const LAY_OVER: u32 = number(WRITE | READ, STETFS, 4, 1024);
/// `struct stetfs_lay_over`.
const LAY_OVER_LEN: usize = 1024;
/// `STETFS_IOC_FILL_LAYER`: the same record, and a batch of records.
pub(crate) const FILL_LAYER: u32 = number(WRITE | READ, STETFS, 5, 1024 + 15_344);

/// The layer that is under way.
struct Active {
    name: Name,
    /// The open file whose close ends the layer.
    owner: (InodeNo, u64),
    notes: Notes,
    making: Arc<Mutex<Making>>,
}

impl Active {
    fn making(&self) -> Arc<Mutex<Making>> {
        Arc::clone(&self.making)
    }
}

/// The layer that is under way; at most one at a time.
#[derive(Default)]
pub(crate) struct Layer {
    active: Mutex<Option<Active>>,
    /// Mostly false, and reading it needs no lock.
    is_active: AtomicBool,
}

impl Layer {
    /// Notes what a request is about to change.
    pub(crate) fn note(&self, request: &Request<'_>) {
        if self.is_active.load(Ordering::Acquire)
            && let Some(active) = &mut *self.active.lock()
        {
            active.notes.note(request);
        }
    }

    /// Notes files that the commit of a group is about to change.
    pub(crate) fn note_files(&self, files: &[InodeNo]) {
        if self.is_active.load(Ordering::Acquire)
            && let Some(active) = &mut *self.active.lock()
        {
            files.iter().for_each(|ino| active.notes.file(*ino));
        }
    }

    /// Returns whether there is a layer.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_active.load(Ordering::Acquire)
    }

    /// Ends the layer if the closed file is the one that it ends with.
    pub(crate) fn leave(&self, ino: InodeNo, handle: u64) {
        if !self.is_under_way() {
            return;
        }
        let is_owner = |active: &&Active| active.owner == (ino, handle);
        let making = self
            .active
            .lock()
            .as_ref()
            .filter(is_owner)
            .map(Active::making);
        let Some(making) = making else {
            return;
        };
        // Wait for records that are being carried out, before there can be another layer.
        let _making = making.lock();
        *self.active.lock() = None;
        self.is_active.store(false, Ordering::Release);
    }

    /// Returns the layer of that name as made so far. Fails unless it is under way and ends with
    /// this file.
    fn check(&self, name: &Name, lock: InodeNo) -> Outcome<Arc<Mutex<Making>>> {
        let active = self.active.lock();
        let is_it = |active: &&Active| active.name == *name && active.owner.0 == lock;
        let making = active.as_ref().filter(is_it).map(Active::making);
        making.ok_or(Errno::CANCELED)
    }

    /// Looks at the notes. Fails if no layer is under way.
    fn noted<T>(&self, look: impl FnOnce(&Notes) -> T) -> Outcome<T> {
        let active = self.active.lock();
        let active = active.as_ref().ok_or(Errno::CANCELED)?;
        Ok(look(&active.notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!((BEGIN_LAYER, LAY_OVER), (0x8010_e703, 0xc400_e704));
        assert_eq!(FILL_LAYER, 0xfff0_e705);
        assert_eq!(LAY_OVER_LEN + records::BATCH_LEN, 0x3ff0);
    }
}
