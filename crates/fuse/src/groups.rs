//! Groups of writes through a mount: F2FS's ioctls for atomic writes, which SQLite knows.
//!
//! (When it was built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE`.) Between START and COMMIT, what is
//! written through the open file is staged; COMMIT makes it one durable transaction; ABORT, or
//! closing the file, also by dying, forgets it.
//!
//! Numbers and the bit of the features are those of `linux/f2fs.h` and F2FS's `f2fs.h`. ABORT is
//! what F2FS calls `F2FS_IOC_ABORT_ATOMIC_WRITE`, and called ABORT_VOLATILE_WRITE before.
//!
//! Only a file whose writes come here as they are made can have a group: one that is marked atomic,
//! or was opened with O_DIRECT. Pages of the kernel's cache belong to all who have the file open.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs::{Caller, Group, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_format::width::usize_as_u64;

use crate::Backend;
use crate::aside::Pages;
use crate::attr::inode;
use crate::caller::caller;
use crate::errno::errno;
use crate::fs::{FsServer, Outcome};
use crate::ioctl::{READ, number};
use crate::opens::How;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

const F2FS: u8 = 0xf5;
/// `F2FS_IOC_START_ATOMIC_WRITE`.
const START: u32 = number(0, F2FS, 1, 0);
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
const COMMIT: u32 = number(0, F2FS, 2, 0);
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
const ABORT: u32 = number(0, F2FS, 5, 0);
/// `F2FS_IOC_GET_FEATURES`.
const GET_FEATURES: u32 = number(READ, F2FS, 12, 4);
/// `F2FS_FEATURE_ATOMIC_WRITE`.
const ATOMIC_WRITE: u32 = 0x0004;

/// A group that several workers get at.
type Shared = Arc<Mutex<Group>>;

/// The groups of open files.
#[derive(Default)]
pub(crate) struct Groups {
    /// By inode and file handle.
    open: Mutex<HashMap<(InodeNo, u64), Shared>>,
    /// How many there are: mostly none, which nobody needs the lock to find out.
    count: AtomicUsize,
    /// The number of the next open file.
    next: AtomicU64,
}

impl Groups {
    /// A file handle that no other open file has.
    pub(crate) fn handle(&self, how: How) -> u64 {
        how.numbered(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn of(&self, ino: InodeNo, handle: u64) -> Option<Shared> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.open.lock().get(&(ino, handle)).cloned(),
        }
    }

    fn start(&self, ino: InodeNo, handle: u64, group: Group) {
        let mut open = self.open.lock();
        open.entry((ino, handle))
            .or_insert_with(|| Arc::new(Mutex::new(group)));
        self.count.store(open.len(), Ordering::Release);
    }

    /// Takes a group from its file; dropping it aborts it.
    fn take(&self, ino: InodeNo, handle: u64) -> Option<Shared> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut open = self.open.lock();
        let group = open.remove(&(ino, handle));
        self.count.store(open.len(), Ordering::Release);
        group
    }
}

impl<B: Backend> FsServer<B> {
    /// Does what an ioctl asks of the group of an open file; `None` for other ioctls.
    pub(crate) fn control_group(
        &self,
        header: &InHeader,
        from: &abi::IoctlIn,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Option<Outcome<Answered>> {
        let (ino, handle) = (inode(header.nodeid), from.fh);
        let done = match from.cmd {
            GET_FEATURES => {
                let features = match self.can_group(ino, handle) {
                    true => ATOMIC_WRITE,
                    false => 0,
                };
                let done = answer.record(&abi::IoctlOut::default());
                return Some(
                    done.and_then(|()| answer.bytes(&features.to_ne_bytes()))
                        .map(|()| Answered::Now),
                );
            }
            START => self.start_group(ino, handle),
            COMMIT => self.commit_group(&caller(header), ino, handle),
            ABORT => {
                self.forget_group(ino, handle);
                Ok(())
            }
            _ => return None,
        };
        if let Err(e) = done {
            return Some(Err(e));
        }
        // What others have read through the page cache is old now.
        if from.cmd == COMMIT && self.opens.is_cached(ino) {
            let (pages, ticket) = (Pages::all(header.nodeid), ticket());
            self.aside
                .after_pages(vec![pages], &self.notifier, move || {
                    ticket.answer(Ok(abi::IoctlOut::default()));
                });
            return Some(Ok(Answered::Later));
        }
        let done = answer.record(&abi::IoctlOut::default());
        Some(done.map(|()| Answered::Now))
    }

    /// Whether what is written through this open file can be staged.
    fn can_group(&self, ino: InodeNo, handle: u64) -> bool {
        let how = How::from_bits_truncate(handle);
        how.contains(How::WRITES | How::DIRECT) && self.fs.can_group(ino)
    }

    /// A group that is there already goes on, as F2FS has it.
    fn start_group(&self, ino: InodeNo, handle: u64) -> Outcome<()> {
        if !How::from_bits_truncate(handle).contains(How::WRITES) {
            return Err(Errno::BADF);
        }
        let group = self.fs.begin_group().ok_or(Errno::NOTTY)?;
        if !self.can_group(ino, handle) {
            return Err(Errno::NOTSUP);
        }
        self.groups.start(ino, handle, group);
        Ok(())
    }

    /// Without a group it is an fsync, as F2FS has it. One that cannot be committed stays.
    fn commit_group(&self, c: &Caller, ino: InodeNo, handle: u64) -> Outcome<()> {
        let Some(group) = self.groups.of(ino, handle) else {
            return self.sync_file(ino, false);
        };
        group.lock().commit(c).map_err(|e| {
            tracing::debug!("committing a group of writes to inode {ino}: {e}");
            errno(&e)
        })?;
        self.forget_group(ino, handle);
        self.attributes_changed(ino);
        Ok(())
    }

    /// Nothing that is staged through this open file happens.
    pub(crate) fn forget_group(&self, ino: InodeNo, handle: u64) {
        if let Some(group) = self.groups.take(ino, handle) {
            group.lock().abort();
            self.attributes_changed(ino);
        }
    }

    /// Reads what the owner of a group sees, if this is one.
    pub(crate) fn read_group(
        &self,
        ino: InodeNo,
        from: &abi::ReadIn,
        out: &mut [u8],
    ) -> Option<Outcome<usize>> {
        let group = self.groups.of(ino, from.fh)?;
        let read = group.lock().read(ino, from.offset, out);
        Some(read.map_err(|e| errno(&e)))
    }

    /// Stages a write, if the open file has a group.
    pub(crate) fn write_group(
        &self,
        c: &Caller,
        ino: InodeNo,
        from: &abi::WriteIn,
        data: &[u8],
        flags: WriteFlags,
    ) -> Option<Outcome<u32>> {
        let group = self.groups.of(ino, from.fh)?;
        let mut group = group.lock();
        let at = match flags.contains(WriteFlags::APPEND) {
            true => group.size(ino),
            false => Ok(from.offset),
        };
        let staged = at.and_then(|at| group.write(c, ino, at, data));
        debug_assert_eq!(u64::from(from.size), usize_as_u64(data.len()));
        Some(staged.map(|()| from.size).map_err(|e| errno(&e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_f2fs() {
        // From linux/f2fs.h, computed by the C compiler on x86-64.
        assert_eq!((START, COMMIT, ABORT), (0xf501, 0xf502, 0xf505));
        assert_eq!(GET_FEATURES, 0x8004_f50c);
    }

    #[test]
    fn handles_differ_and_say_how_a_file_was_opened() {
        let groups = Groups::default();
        let how = How::WRITES | How::DIRECT;
        let (a, b) = (groups.handle(how), groups.handle(how));
        assert_ne!(a, b);
        assert_eq!([a, b].map(How::from_bits_truncate), [how, how]);
    }
}
