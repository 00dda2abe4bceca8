//! `stetfs tx`: a layer of overlayfs that is laid over the directory below it in one transaction.
//!
//! [`plan`] has the rules of what a layer means, `notes.rs` who else has changed something since
//! the layer began, `apply.rs` the transaction. This file is the two requests, by ioctl: BEGIN on a
//! file beside the layer, whose end is the layer's end, and LAY_OVER on the directory
//! (`crates/ffi/include/stetfs_ioctl.h`).
//!
//! The kernel has checked nothing of what a layer changes, so the volume does it, for who asks.

mod apply;
mod notes;
pub mod plan;

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs::{Caller, Kind};
use stetfs_format::InodeNo;

use crate::Backend;
use crate::attr::{inode, node};
use crate::caller::caller_with_groups;
use crate::errno::errno;
use crate::fs::{FsServer, Outcome};
use crate::groups::{Name, STETFS, new_name};
use crate::ioctl::{READ, WRITE, number};
use crate::opens::How;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Request, Ticket};
use apply::Told;
use notes::Notes;
use plan::{PLACE, TRASH, UPPER};

/// `STETFS_IOC_BEGIN_LAYER`.
pub(crate) const BEGIN_LAYER: u32 = number(READ, STETFS, 3, 16);
/// `STETFS_IOC_LAY_OVER`.
pub(crate) const LAY_OVER: u32 = number(WRITE | READ, STETFS, 4, 1024);
/// `struct stetfs_lay_over`.
const LAY_OVER_LEN: usize = 1024;

/// The layer that is under way.
struct Active {
    name: Name,
    /// The open file that it ends with.
    owner: (InodeNo, u64),
    notes: Notes,
}

/// At most one layer at a time.
#[derive(Default)]
pub(crate) struct Layer {
    active: Mutex<Option<Active>>,
    /// Mostly there is none, which nobody needs the lock to find out.
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

    /// Files are about to be changed by the commit of a group.
    pub(crate) fn note_files(&self, files: &[InodeNo]) {
        if self.is_active.load(Ordering::Acquire)
            && let Some(active) = &mut *self.active.lock()
        {
            files.iter().for_each(|ino| active.notes.file(*ino));
        }
    }

    /// An open file is closed.
    pub(crate) fn leave(&self, ino: InodeNo, handle: u64) {
        if !self.is_active.load(Ordering::Acquire) {
            return;
        }
        let mut active = self.active.lock();
        if active.as_ref().is_some_and(|a| a.owner == (ino, handle)) {
            *active = None;
            self.is_active.store(false, Ordering::Release);
        }
    }

    /// Fails unless a layer of that name is under way that ends with this file.
    fn check(&self, name: &Name, lock: InodeNo) -> Outcome<()> {
        let active = self.active.lock();
        let is_it = |active: &Active| active.name == *name && active.owner.0 == lock;
        match active.as_ref().is_some_and(is_it) {
            true => Ok(()),
            false => Err(Errno::CANCELED),
        }
    }

    /// Looks at what was noted.
    fn noted<T>(&self, look: impl FnOnce(&Notes) -> T) -> Outcome<T> {
        let active = self.active.lock();
        let active = active.as_ref().ok_or(Errno::CANCELED)?;
        Ok(look(&active.notes))
    }
}

/// The answer to LAY_OVER: the request's record, with the path of what was in the way.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Laid {
    out: abi::IoctlOut,
    what: [u8; LAY_OVER_LEN],
}

impl Laid {
    fn new(name: &Name, told: Result<(), Told>) -> Self {
        let mut laid = Self {
            out: abi::IoctlOut::default(),
            what: [0; LAY_OVER_LEN],
        };
        let (head, path) = laid.what.split_at_mut(name.len());
        head.copy_from_slice(name);
        if let Err(Told { errno, path: of }) = told {
            laid.out.result = -errno.raw_os_error();
            // The last byte stays 0.
            let room = path.len() - 1;
            let len = of.len().min(room);
            path[..len].copy_from_slice(&of[..len]);
        }
        laid
    }
}

/// Where a layer is, and where it goes.
struct Where {
    dir: InodeNo,
    place: InodeNo,
    upper: InodeNo,
    trash: InodeNo,
}

impl<B: Backend> FsServer<B> {
    /// A layer begins; gives its name.
    pub(crate) fn begin_layer(&self, ino: InodeNo, handle: u64) -> Outcome<Name> {
        if !How::from_bits_truncate(handle).contains(How::WRITES) {
            return Err(Errno::BADF);
        }
        self.check_groups()?;
        let name = new_name()?;
        let mut active = self.layer.active.lock();
        if active.is_some() {
            return Err(Errno::BUSY);
        }
        *active = Some(Active {
            name,
            owner: (ino, handle),
            notes: Notes::default(),
        });
        self.layer.is_active.store(true, Ordering::Release);
        Ok(name)
    }

    /// Lays the layer in this directory over it.
    pub(crate) fn lay_over(
        &self,
        header: &InHeader,
        data: &[u8],
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let name = *data.first_chunk().ok_or(Errno::INVAL)?;
        let c = Caller {
            checks: true,
            ..caller_with_groups(header)
        };
        let at = self.find_layer(&c, inode(header.nodeid), &name)?;
        let stale = match self.apply_layer(&c, &at) {
            Ok(stale) => stale,
            Err(told) => {
                tracing::debug!("a layer: {}: {}", told.path.escape_ascii(), told.errno);
                answer.record(&Laid::new(&name, Err(told)))?;
                return Ok(Answered::Now);
            }
        };
        // What the kernel knows of these names is wrong now. It may need workers to hear of it.
        let (ticket, notifier) = (ticket(), self.notifier.clone());
        let dirs = stale.dirs();
        self.aside.after_pages(dirs, &self.notifier, move || {
            if let Some(notifier) = notifier.get() {
                for (dir, name) in &stale.names {
                    notifier.name_changed(node(*dir), name);
                }
                for ino in &stale.files {
                    notifier.attributes_changed(node(*ino));
                }
            }
            ticket.answer(Ok(Laid::new(&name, Ok(()))));
        });
        Ok(Answered::Later)
    }

    /// The layer in this directory, if it is the caller's, and of that name.
    fn find_layer(&self, c: &Caller, dir: InodeNo, name: &Name) -> Outcome<Where> {
        let root = Caller::root();
        let find = |dir, name: &str| {
            let found = self.fs.lookup(&root, dir, name.as_bytes());
            found.map_err(|e| match e.kind() {
                Kind::NotFound => Errno::CANCELED,
                _ => errno(&e),
            })
        };
        let place = find(dir, PLACE)?;
        if !c.privileged && place.attr.uid != c.uid {
            return Err(Errno::PERM);
        }
        self.layer.check(name, find(place.ino, "lock")?.ino)?;
        Ok(Where {
            dir,
            place: place.ino,
            upper: find(place.ino, UPPER)?.ino,
            trash: find(place.ino, TRASH)?.ino,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!((BEGIN_LAYER, LAY_OVER), (0x8010_e703, 0xc400_e704));
    }
}
