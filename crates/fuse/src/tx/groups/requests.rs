//! The requests for groups.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use stetfs::{Caller, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_format::width::must_fit_u32;

use super::{Ask, Shared, State, ioctl_answer};
use crate::aside::Pages;
use crate::attr::{inode, node};
use crate::backend::{AtomicGroup, Backend};
use crate::errno::{Outcome, errno};
use crate::opens::{Hold, How};
use crate::server::FsServer;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

impl<B: Backend> FsServer<B> {
    /// Fails if the file system has no groups, with the error of one that does not know these
    /// requests.
    pub(crate) fn check_groups(&self) -> Outcome<()> {
        if self.fs.has_groups() {
            Ok(())
        } else {
            Err(Errno::NOTTY)
        }
    }

    /// Answers a request that needs a hold on the file: at once, or after its writers through the
    /// page cache have had a moment to close it.
    pub(crate) fn ask_for_group(
        &self,
        member: (InodeNo, u64),
        ask: Ask,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        self.check_groups()?;
        let (ino, handle) = member;
        if ask != Ask::Features {
            self.leave_lost(ino, handle);
        }
        // A group that is there already goes on, as with F2FS.
        let there = match ask {
            Ask::Start | Ask::Begin => self.groups.of(ino, handle),
            Ask::Features | Ask::Join(_) => None,
        };
        let told = match there {
            Some(there) => there.told(ask),
            None => match self.new_group(ino, handle) {
                Ok(group) => {
                    let groups = self.groups.clone();
                    let enter = move |hold| groups.enter(member, ask, group, hold);
                    if let Some(hold) = Hold::on(&self.opens, ino) {
                        enter(Some(hold))
                    } else {
                        let ticket = ticket();
                        let rest = move |hold| ticket.answer_bytes(enter(hold).map(ioctl_answer));
                        self.late.when_closed(&self.opens, ino, Box::new(rest));
                        return Ok(Answered::Later);
                    }
                }
                Err(_) if ask == Ask::Features => Ok(0_u32.to_ne_bytes().to_vec()),
                Err(e) => Err(e),
            },
        };
        answer.bytes(&ioctl_answer(told?))?;
        Ok(Answered::Now)
    }

    /// Makes a group for writes through this open file, if they can be staged.
    fn new_group(&self, ino: InodeNo, handle: u64) -> Outcome<Box<dyn AtomicGroup>> {
        let how = How::from_bits_truncate(handle);
        if !how.contains(How::WRITES) {
            return Err(Errno::BADF);
        }
        if !how.contains(How::LED) || !self.fs.can_group(ino) {
            return Err(Errno::NOTSUP);
        }
        self.fs.new_group().ok_or(Errno::NOTSUP)
    }

    /// Leaves an aborted group, if the open file is in one. A program that begins or joins another
    /// group knows that the first was aborted.
    fn leave_lost(&self, ino: InodeNo, handle: u64) {
        let Some(shared) = self.groups.of(ino, handle) else {
            return;
        };
        if matches!(*shared.state.lock(), State::Lost) {
            self.groups.leave((ino, handle), &shared);
        }
    }

    /// Commits a group. Without a group this is an fsync, as with F2FS. A group that cannot be
    /// committed stays.
    pub(crate) fn commit_group(
        &self,
        header: &InHeader,
        handle: u64,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        self.check_groups()?;
        let ino = inode(header.nodeid);
        let files = match self.groups.of(ino, handle) {
            Some(shared) => self.commit_shared(header, (ino, handle), &shared)?,
            None => None,
        };
        let Some(files) = files else {
            self.fs.fsync(ino, false).map_err(|e| errno(&e))?;
            answer.record(&abi::IoctlOut::default())?;
            return Ok(Answered::Now);
        };
        let pages = Pages::of_files(files);
        self.answer_when_dropped(&pages, abi::IoctlOut::default(), ticket, answer)
    }

    /// Commits a group. Returns the files that it changed; `None` if it had been committed already.
    fn commit_shared(
        &self,
        header: &InHeader,
        member: (InodeNo, u64),
        shared: &Arc<Shared>,
    ) -> Outcome<Option<Vec<InodeNo>>> {
        // Writes to the group wait until the commit is over, so that none gets lost in it.
        let mut state = shared.state.lock();
        let group = match &mut *state {
            State::Open(group) => group,
            State::Done => return Ok(None),
            State::Lost => {
                self.groups.leave(member, shared);
                return Err(Errno::CANCELED);
            }
        };
        let files = group.files();
        self.layer.note_files(&files);
        self.losing_privileges(header, &files, |c| {
            group.commit(c).map_err(|e| {
                tracing::debug!("committing a group of writes to inodes {files:?}: {e}");
                errno(&e)
            })
        })?;
        self.groups
            .change(|members| members.retain(|_, member| !Arc::ptr_eq(&member.group, shared)));
        *state = State::Done;
        self.tell_of(&files);
        Ok(Some(files))
    }

    /// Aborts this open file's group: drops what is staged in it.
    pub(crate) fn abort_group(&self, ino: InodeNo, handle: u64) {
        if let Some(member) = self.groups.change(|members| members.remove(&(ino, handle))) {
            self.lose(&member.group);
        }
    }

    /// Takes a closed file out of its group. If it has begun the group, aborts it.
    pub(crate) fn leave_group(&self, ino: InodeNo, handle: u64) {
        if self.groups.count.load(Ordering::Acquire) == 0 {
            return;
        }
        match self.groups.change(|members| members.remove(&(ino, handle))) {
            Some(member) if member.has_begun => self.lose(&member.group),
            _ => {}
        }
    }

    fn lose(&self, shared: &Shared) {
        let mut state = shared.state.lock();
        if let State::Open(group) = &*state {
            let files = group.files();
            *state = State::Lost;
            self.tell_of(&files);
        }
    }

    /// Makes the kernel ask for the attributes of a group's files anew.
    fn tell_of(&self, files: &[InodeNo]) {
        for ino in files {
            // The kernel keeps an inode until the file's close is answered. An inode that nobody
            // has open may be on its way out of the kernel, which then waits for its pages, and so
            // for workers.
            if self.opens.is_open(*ino) {
                self.attributes_changed(*ino)
            } else {
                self.aside.soon(vec![Pages::none(node(*ino))])
            }
        }
    }

    /// Reads as the owner of a group sees the file; `None` without a group.
    pub(crate) fn read_group(
        &self,
        ino: InodeNo,
        from: &abi::ReadIn,
        out: &mut [u8],
    ) -> Option<Outcome<usize>> {
        let shared = self.groups.of(ino, from.fh)?;
        match &*shared.state.lock() {
            State::Open(group) => {
                let read = group.read(ino, from.offset, out);
                Some(read.map_err(|e| errno(&e)))
            }
            State::Done | State::Lost => None,
        }
    }

    /// Stages a write; `None` if the open file has no group.
    pub(crate) fn write_group(
        &self,
        c: &Caller,
        ino: InodeNo,
        from: &abi::WriteIn,
        data: &[u8],
        flags: WriteFlags,
    ) -> Option<Outcome<u32>> {
        let shared = self.groups.of(ino, from.fh)?;
        let mut state = shared.state.lock();
        let group = match &mut *state {
            State::Open(group) => group,
            State::Done => return None,
            State::Lost => return Some(Err(Errno::CANCELED)),
        };
        let at = if flags.contains(WriteFlags::APPEND) {
            group.size(ino)
        } else {
            Ok(from.offset)
        };
        let staged = at.and_then(|at| group.write(c, ino, at, data));
        let size = must_fit_u32(data.len());
        Some(staged.map(|()| size).map_err(|e| errno(&e)))
    }
}
