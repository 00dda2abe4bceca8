//! Going on after a death: doing once more what the log tells.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use stetfs::{Attr, Caller, Change, InUse, OpenFlags, SetAttr, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_format::width::{low16, u32_as_usize, usize_as_u64};

use super::answered::{appends, entry, note, opened, record};
use super::before::{Before, decode};
use super::log::Record;
use super::records::{self, Begun, Ended, Event};
use super::uses::Uses;
use crate::attr::inode;
use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::files::{fallocate_mode, open_flags, write_flags};
use crate::opens::How;
use crate::server::FsServer;
use crate::wire::abi::{self, WriteKind};
use crate::wire::{Answer, Request, What};

/// What was done once more.
#[derive(Debug, Clone, Copy, Default)]
struct Redone {
    /// Requests that the volume had lost.
    lost: u64,
    seen: u64,
}

/// The log, while it is carried out.
struct Work<'a, B> {
    server: &'a FsServer<B>,
    before: &'a Before,
    /// What is in use by now.
    uses: Uses,
    /// The requests under way at this point of the log.
    under_way: HashMap<u64, (Begun, Vec<u8>)>,
    /// Those that were done before their turn.
    early: Vec<u64>,
    redone: Redone,
}

impl<B: Backend> FsServer<B> {
    /// Does once more what the volume has lost, has in use what was, and makes that durable.
    /// Nobody is served yet.
    ///
    /// # Errors
    /// Something cannot be done once more: in words.
    pub(crate) fn go_on(&self, before: &Before) -> Result<(), String> {
        let mut work = Work {
            server: self,
            before,
            uses: Uses::default(),
            under_way: before.begun_at_start.clone(),
            early: Vec::new(),
            redone: Redone::default(),
        };
        work.begin();
        for (at, record) in before.records.iter().enumerate() {
            work.carry_out(at, record)?;
        }
        let Redone { lost, seen } = work.redone;
        tracing::info!("{lost} of the last {seen} requests were done once more");
        let end = self.settle_uses(before)?;
        self.fs
            .sync()
            .map_err(|e| format!("making it durable: {e}"))?;
        self.groups.begin_with(before.next_handle);
        let led = How::led(self.options.writeback);
        for (ino, one) in end.all() {
            for handle in &one.handles {
                self.opens
                    .opened(ino, How::from_bits_truncate(*handle), led);
            }
        }
        self.survive.goes_on_after(end, before);
        Ok(())
    }

    /// Has in use exactly what the kernel has. Returns that.
    fn settle_uses(&self, before: &Before) -> Result<Uses, String> {
        let mut end = before.end.clone();
        for (begun, _) in before.begun.values().filter(|(begun, _)| begun.victim != 0) {
            let ino = InodeNo(begun.victim);
            let Some(attr) = self.is_there(ino, begun.victim_generation) else {
                continue;
            };
            if attr.nlink == 0 {
                end.holds(ino, attr.generation);
            } else if end.get(ino).is_none() {
                // It was not removed.
                let _ = self.fs.release(ino);
            }
        }
        let all: Vec<InUse> = end.in_use().collect();
        let in_use = self.fs.use_again(&all);
        in_use.map_err(|e| format!("having in use what was: {e}"))?;
        Ok(end)
    }

    fn is_there(&self, ino: InodeNo, generation: u32) -> Option<Attr> {
        let attr = self.fs.getattr(ino).ok();
        attr.filter(|attr| attr.generation == generation)
    }
}

impl<B: Backend> Work<'_, B> {
    /// Has in use what was where the log begins.
    fn begin(&mut self) {
        for (ino, one) in self.before.start.all() {
            if self.server.is_there(ino, one.generation).is_none() {
                continue;
            }
            for handle in &one.handles {
                self.uses.opened(ino, one.generation, *handle);
            }
            if one.is_held {
                self.uses.holds(ino, one.generation);
            }
        }
    }

    fn carry_out(&mut self, at: usize, record: &Record) -> Result<(), String> {
        match records::event(record).map_err(|e| e.to_string())? {
            Event::Start | Event::Bound(_) | Event::Synced(_) => {}
            Event::Began(begun, request) => {
                self.under_way
                    .insert(begun.unique, (begun, request.to_vec()));
            }
            Event::Done(ended, answer) => {
                self.under_way.remove(&ended.unique);
                if let (Ok(answer), Some(request)) = (answer, decode(&ended)) {
                    let is_durable = record.seq < self.before.durable;
                    self.ended(at, &request, &ended, answer, is_durable)?;
                }
            }
            Event::Released(one) => {
                let ino = InodeNo(one.ino);
                if self.uses.closes(ino, one.handle) == Some(one.generation) {
                    let done = self.server.fs.release(ino);
                    done.map_err(|e| format!("closing inode {ino}: {e}"))?;
                }
            }
            Event::Forgot(one) => {
                let ino = InodeNo(one.ino);
                if self.uses.forgets(ino) == Some(one.generation) {
                    let done = self.server.fs.forget(ino);
                    done.map_err(|e| format!("forgetting inode {ino}: {e}"))?;
                }
            }
        }
        Ok(())
    }

    /// Does a request once more, if the volume has lost it, and has in use what it has left so.
    fn ended(
        &mut self,
        at: usize,
        request: &Request<'_>,
        ended: &Ended<'_>,
        answer: &[u8],
        is_durable: bool,
    ) -> Result<(), String> {
        self.redone.seen += 1;
        let was_early = self.early.contains(&ended.unique);
        let is_redone = !is_durable && !was_early && self.redo(at, request, ended, answer)?;
        self.redone.lost += u64::from(is_redone);
        let fs = &self.server.fs;
        if let Some((ino, generation, _)) = opened(request, ended, answer) {
            // What was made is open.
            let is_open = is_redone && ended.past.made.is_some()
                || self.server.is_there(ino, generation).is_some()
                    && fs.open(&Caller::root(), ino, OpenFlags::READ).is_ok();
            if !is_open {
                return Ok(());
            }
        }
        note(&mut self.uses, request, ended, answer);
        Ok(())
    }

    /// Does a request once more. Returns whether the volume had lost it.
    fn redo(
        &mut self,
        at: usize,
        request: &Request<'_>,
        ended: &Ended<'_>,
        answer: &[u8],
    ) -> Result<bool, String> {
        if ended.past.made.is_none() && ended.past.changed.is_empty() {
            return Ok(false);
        }
        let is_of_content = ended.past.changed.iter().all(|one| one.version.is_none());
        let (mut has_made_way, mut has_synced) = (false, false);
        loop {
            let mut perform = || self.server.perform(request, ended, answer);
            let done = self.server.fs.redo(&ended.past, &mut perform);
            let done = done.map_err(|e| errno(&e)).and_then(Option::transpose);
            match done {
                Ok(redone) => return Ok(redone.is_some()),
                // Its number is in use by what was being removed meanwhile.
                Err(Errno::EXIST) if !std::mem::replace(&mut has_made_way, true) => {
                    self.make_way(at)?;
                }
                // What was removed gives its room when that is durable.
                Err(Errno::NOSPC) if !std::mem::replace(&mut has_synced, true) => {
                    self.server.fs.sync().map_err(|e| e.to_string())?;
                }
                // It was made immutable, or removed, later, and that is durable.
                Err(Errno::PERM | Errno::NOENT | Errno::STALE) if is_of_content => {
                    return Ok(false);
                }
                Err(errno) => {
                    return Err(format!(
                        "doing a request of kind {} on inode {} once more: {}",
                        request.header.opcode,
                        inode(request.header.nodeid),
                        io::Error::from(errno)
                    ));
                }
            }
        }
    }

    /// Does the removals that are under way at this point of the log.
    fn make_way(&mut self, at: usize) -> Result<(), String> {
        let under_way = self.under_way.clone();
        for (unique, (begun, bytes)) in under_way {
            let Ok(request) = Request::decode(&bytes) else {
                continue;
            };
            let removes = matches!(
                request.what,
                What::Unlink { .. } | What::RmDir { .. } | What::Rename { .. }
            );
            if !removes || self.early.contains(&unique) {
                continue;
            }
            self.early.push(unique);
            let mut later = self.before.records[at..].iter();
            let done = later.find_map(|record| match records::event(record) {
                Ok(Event::Done(ended, answer)) if ended.unique == unique => Some((ended, answer)),
                _ => None,
            });
            match done {
                Some((_, Err(_))) => {}
                Some((ended, Ok(answer))) => {
                    let Some(request) = decode(&ended) else {
                        continue;
                    };
                    self.redone.lost += u64::from(self.redo(at, &request, &ended, answer)?);
                }
                // It will be sent once more, and found done.
                None if !self.server.was_done(&request, &begun) => {
                    let mut room = [0; 256];
                    let mut answer = Answer::new(&mut room);
                    let header = &request.header;
                    let _ = self.server.answer_name(header, &request.what, &mut answer);
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl<B: Backend> FsServer<B> {
    /// Carries out a request as it was carried out then.
    fn perform(&self, request: &Request<'_>, ended: &Ended<'_>, answer: &[u8]) -> Outcome<()> {
        let header = &request.header;
        let ino = inode(header.nodeid);
        let core = |e: stetfs::Error| errno(&e);
        let mut room = [0; 512];
        let scratch = &mut Answer::new(&mut room);
        match request.what {
            What::Create(m, name) if ended.past.made.is_some() => {
                let c = self.creator(header, m.umask);
                let mode = low16(m.mode & 0o7777);
                // It was not there, or this would have opened it.
                let flags = open_flags(m.flags) | OpenFlags::EXCLUSIVE;
                let made = self.fs.create(&c, ino, name.as_bytes(), mode, flags);
                made.map(drop).map_err(core)
            }
            What::Create(m, _) => match entry(answer) {
                Some((ino, _)) => self.truncate_by_open(ino, m.flags),
                None => Ok(()),
            },
            What::Open(o) => self.truncate_by_open(ino, o.flags),
            What::TmpFile(m) => {
                let c = self.creator(header, m.umask);
                let mode = low16(m.mode & 0o7777);
                let made = self.fs.create_unnamed(&c, ino, mode, open_flags(m.flags));
                made.map(drop).map_err(core)
            }
            What::Write(from, data) => self.write_again(header, &from, data, ended, answer),
            What::FAllocate(from) => {
                let (c, mode) = (self.caller(header), fallocate_mode(&from)?);
                let done = self.fs.fallocate(&c, ino, mode, from.offset, from.length);
                done.map_err(core)
            }
            What::SetXattr { name, value, .. } => self.set_attribute(header, ino, name, value, 0),
            What::RemoveXattr { .. } => match self.answer_inode(header, &request.what, scratch) {
                Err(Errno::NODATA) => Ok(()),
                done => done,
            },
            What::SetAttr(_) => {
                self.answer_inode(header, &request.what, scratch)?;
                self.has_mode(ino, answer)
            }
            _ => self.answer_name(header, &request.what, scratch),
        }
    }

    /// Truncates a file if it was opened so.
    fn truncate_by_open(&self, ino: InodeNo, flags: i32) -> Outcome<()> {
        if flags & libc::O_TRUNC == 0 {
            return Ok(());
        }
        let opened = self.fs.open(&Caller::root(), ino, open_flags(flags));
        opened.map_err(|e| errno(&e))?;
        self.fs.release(ino).map_err(|e| errno(&e))
    }

    /// Writes what was written: as much as was, and where it was.
    fn write_again(
        &self,
        header: &abi::InHeader,
        from: &abi::WriteIn,
        data: &[u8],
        ended: &Ended<'_>,
        answer: &[u8],
    ) -> Outcome<()> {
        let written: abi::WriteOut = record(answer, 0).ok_or(Errno::IO)?;
        let data = data.get(..u32_as_usize(written.size)).ok_or(Errno::IO)?;
        let kind = WriteKind::from_bits_retain(from.write_flags);
        let mut flags = write_flags(kind, from.flags, self.options.writeback);
        flags.remove(WriteFlags::SYNC | WriteFlags::DATASYNC);
        let mut at = from.offset;
        if appends(from, self.options.writeback) {
            flags.remove(WriteFlags::APPEND);
            flags.insert(WriteFlags::AT_END);
            at = ended.before;
        }
        let (c, ino) = (self.caller(header), inode(header.nodeid));
        let mut done = 0;
        while done < data.len() {
            let at = at + usize_as_u64(done);
            let written = self.fs.write_with(&c, ino, at, &data[done..], flags);
            done += written.map_err(|e| errno(&e))?.1;
        }
        Ok(())
    }

    /// Gives a file the mode that it had then: the groups of a caller that is gone are not known.
    fn has_mode(&self, ino: InodeNo, answer: &[u8]) -> Outcome<()> {
        let was: abi::AttrOut = record(answer, 0).ok_or(Errno::IO)?;
        let mode = low16(was.attr.mode);
        if mode == 0 || self.attributes(ino)?.mode == mode {
            return Ok(());
        }
        let set = SetAttr {
            mode: Some(mode & 0o7777),
            ..SetAttr::default()
        };
        let changed = self.fs.change(&Caller::root(), &Change::SetAttr(ino, &set));
        changed.map(drop).map_err(|e| errno(&e))
    }
}
