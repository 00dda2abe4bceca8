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
use stetfs_format::width::must_fit_u32;

use crate::Backend;
use crate::aside::Pages;
use crate::attr::inode;
use crate::errno::errno;
use crate::fs::{FsServer, Outcome};
use crate::ioctl::{READ, number};
use crate::opens::How;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

const F2FS: u8 = 0xf5;
/// `F2FS_IOC_START_ATOMIC_WRITE`.
pub(crate) const START: u32 = number(0, F2FS, 1, 0);
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
pub(crate) const COMMIT: u32 = number(0, F2FS, 2, 0);
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
pub(crate) const ABORT: u32 = number(0, F2FS, 5, 0);
/// `F2FS_IOC_GET_FEATURES`.
pub(crate) const GET_FEATURES: u32 = number(READ, F2FS, 12, 4);
/// `F2FS_FEATURE_ATOMIC_WRITE`.
const ATOMIC_WRITE: u32 = 0x0004;

/// The group of an open file, which several workers get at; none when it is over. A worker who had
/// found it before then does what it came for the ordinary way.
type Slot = Arc<Mutex<Option<Group>>>;

/// The groups of open files.
#[derive(Default)]
pub(crate) struct Groups {
    /// By inode and file handle.
    open: Mutex<HashMap<(InodeNo, u64), Slot>>,
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

    fn of(&self, ino: InodeNo, handle: u64) -> Option<Slot> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.open.lock().get(&(ino, handle)).cloned(),
        }
    }

    fn start(&self, ino: InodeNo, handle: u64, group: Group) {
        let mut open = self.open.lock();
        open.entry((ino, handle))
            .or_insert_with(|| Arc::new(Mutex::new(Some(group))));
        self.count.store(open.len(), Ordering::Release);
    }

    /// From now on the open file has none, and can start another.
    fn take(&self, ino: InodeNo, handle: u64) -> Option<Slot> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut open = self.open.lock();
        let slot = open.remove(&(ino, handle));
        self.count.store(open.len(), Ordering::Release);
        slot
    }
}

impl<B: Backend> FsServer<B> {
    /// What `F2FS_IOC_GET_FEATURES` answers.
    pub(crate) fn features(&self, ino: InodeNo, handle: u64) -> u32 {
        match self.new_group(ino, handle) {
            Some(_) => ATOMIC_WRITE,
            None => 0,
        }
    }

    /// A group for what is written through this open file, if that can be staged.
    fn new_group(&self, ino: InodeNo, handle: u64) -> Option<Group> {
        let how = How::from_bits_truncate(handle);
        let can = how.contains(How::WRITES | How::DIRECT);
        can.then(|| self.fs.begin_group(ino)).flatten()
    }

    /// A group that is there already goes on, as F2FS has it.
    pub(crate) fn start_group(&self, ino: InodeNo, handle: u64) -> Outcome<()> {
        if !How::from_bits_truncate(handle).contains(How::WRITES) {
            return Err(Errno::BADF);
        }
        let group = self.new_group(ino, handle).ok_or(Errno::NOTSUP)?;
        self.groups.start(ino, handle, group);
        Ok(())
    }

    /// Without a group it is an fsync, as F2FS has it. One that cannot be committed stays.
    pub(crate) fn commit_group(
        &self,
        header: &InHeader,
        handle: u64,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let (ino, done) = (inode(header.nodeid), abi::IoctlOut::default());
        let slot = self.groups.of(ino, handle).unwrap_or_default();
        // Until it is over, writes through this open file wait: none of them gets lost in it.
        let mut slot = slot.lock();
        let Some(group) = &mut *slot else {
            self.sync_file(ino, false)?;
            answer.record(&done)?;
            return Ok(Answered::Now);
        };
        self.losing_privileges(header, ino, |c| {
            group.commit(c).map_err(|e| {
                tracing::debug!("committing a group of writes to inode {ino}: {e}");
                errno(&e)
            })
        })?;
        self.groups.take(ino, handle);
        *slot = None;
        self.attributes_changed(ino);
        let pages = Pages::all(header.nodeid);
        self.answer_when_dropped(pages, done, ticket, answer)
    }

    /// Nothing that is staged through this open file happens.
    pub(crate) fn forget_group(&self, ino: InodeNo, handle: u64) {
        if let Some(slot) = self.groups.take(ino, handle) {
            *slot.lock() = None;
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
        let slot = self.groups.of(ino, from.fh)?;
        let read = slot.lock().as_ref()?.read(ino, from.offset, out);
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
        let slot = self.groups.of(ino, from.fh)?;
        let mut slot = slot.lock();
        let group = slot.as_mut()?;
        let at = match flags.contains(WriteFlags::APPEND) {
            true => group.size(ino),
            false => Ok(from.offset),
        };
        let staged = at.and_then(|at| group.write(c, ino, at, data));
        let size = must_fit_u32(data.len());
        Some(staged.map(|()| size).map_err(|e| errno(&e)))
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
