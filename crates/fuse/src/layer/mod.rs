//! `stetfs tx`: a layer of overlayfs that is laid over the directory below it in one transaction.
//!
//! [`plan`] has the rules of what a layer means, `notes.rs` who else has changed something since
//! the layer began, `apply.rs` the transaction. A layer that is not on the volume comes by
//! [`records`], from which `make.rs` makes it. This file is the requests, by ioctl: BEGIN on a file
//! beside the layer, whose end is the layer's end, and FILL and LAY_OVER on the directory
//! (`crates/ffi/include/stetfs_ioctl.h`).
//!
//! The kernel has checked nothing of what a layer changes, so the volume does it, for who asks.

mod apply;
mod make;
mod notes;
pub mod plan;
pub mod records;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs::{Caller, Kind};
use stetfs_format::InodeNo;
use stetfs_format::width::usize_as_u64;

use crate::Backend;
use crate::attr::{inode, node};
use crate::caller::{caller, caller_with_groups};
use crate::errno::errno;
use crate::fs::{FsServer, Outcome};
use crate::groups::{Name, STETFS, new_name};
use crate::ioctl::{READ, WRITE, number};
use crate::opens::How;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Request, Ticket};
use apply::Told;
use make::Making;
use notes::Notes;
use plan::{PLACE, TRASH, UPPER};

/// `STETFS_IOC_BEGIN_LAYER`.
pub(crate) const BEGIN_LAYER: u32 = number(READ, STETFS, 3, 16);
/// `STETFS_IOC_LAY_OVER`.
pub(crate) const LAY_OVER: u32 = number(WRITE | READ, STETFS, 4, 1024);
/// `struct stetfs_lay_over`.
const LAY_OVER_LEN: usize = 1024;
/// `STETFS_IOC_FILL_LAYER`: the same, and a batch of records.
pub(crate) const FILL_LAYER: u32 = number(WRITE | READ, STETFS, 5, 1024 + 15_344);

/// The layer that is under way.
struct Active {
    name: Name,
    /// The open file that it ends with.
    owner: (InodeNo, u64),
    notes: Notes,
    making: Arc<Mutex<Making>>,
}

impl Active {
    fn making(&self) -> Arc<Mutex<Making>> {
        Arc::clone(&self.making)
    }
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
        // What is being made of it is made before there can be another one.
        let _making = making.lock();
        *self.active.lock() = None;
        self.is_active.store(false, Ordering::Release);
    }

    /// What is made of the layer of that name. Fails unless it is under way and ends with this
    /// file.
    fn check(&self, name: &Name, lock: InodeNo) -> Outcome<Arc<Mutex<Making>>> {
        let active = self.active.lock();
        let is_it = |active: &&Active| active.name == *name && active.owner.0 == lock;
        let making = active.as_ref().filter(is_it).map(Active::making);
        making.ok_or(Errno::CANCELED)
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
    lock: InodeNo,
    making: Arc<Mutex<Making>>,
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
            making: Arc::default(),
        });
        self.layer.is_active.store(true, Ordering::Release);
        Ok(name)
    }

    /// Makes what a batch of records says in the layer in this directory.
    pub(crate) fn fill_layer(
        &self,
        header: &InHeader,
        data: &[u8],
        answer: &mut Answer<'_>,
    ) -> Outcome<()> {
        let name = *data.first_chunk().ok_or(Errno::INVAL)?;
        let batch = data.get(LAY_OVER_LEN..).ok_or(Errno::INVAL)?;
        let c = Caller {
            checks: true,
            ..match header.uid {
                // Whose groups do not matter.
                0 => caller(header),
                _ => caller_with_groups(header),
            }
        };
        let at = self.find_layer(&c, inode(header.nodeid), &name)?;
        if self.room.wants_a_look() {
            self.bell.ring();
        }
        if self.options.writeback && self.room.is_kept_from(&c, usize_as_u64(batch.len())) {
            return Err(Errno::NOSPC);
        }
        let mut making = at.making.lock();
        // It may have ended meanwhile.
        self.layer.check(&name, at.lock)?;
        let Err(e) = making.take(&self.fs, &c, &at, batch) else {
            if making.is_done() {
                // The kernel knows the layer's root from when it was empty.
                self.attributes_changed(at.upper);
            }
            return answer.record(&Laid::new(&name, Ok(())));
        };
        let (errno, path) = (errno(&e), making.path());
        tracing::debug!("a layer: {}: {e}", path.escape_ascii());
        answer.record(&Laid::new(&name, Err(Told { errno, path })))
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
        self.aside.after_pages(dirs, move || {
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
        let lock = find(place.ino, "lock")?.ino;
        Ok(Where {
            making: self.layer.check(name, lock)?,
            dir,
            lock,
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
        assert_eq!(FILL_LAYER, 0xfff0_e705);
        assert_eq!(LAY_OVER_LEN + records::BATCH_LEN, 0x3ff0);
    }
}
