//! Requests that wait until dirty pages are written, because what is left of the volume may be
//! what these need (`room.rs` says when).
//!
//! The thread of `aside.rs` does what they ask for, one after the other. So between the moment at
//! which the pages are written and the answer, nobody who has waited takes the same room.

use std::sync::Arc;

use rustix::io::Errno;
use stetfs::Caller;
use stetfs_format::InodeNo;

use crate::aside::{Pages, Place};
use crate::attr::{self, inode};
use crate::backend::Backend;
use crate::caller::caller;
use crate::errno::{Outcome, errno};
use crate::opens::How;
use crate::server::FsServer;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

impl<B: Backend> FsServer<B> {
    /// Attributes that are asked for through an open file: by a read at the end of a file, by a
    /// seek from there, and, when they may not be kept, by each write(2) into the page cache. So
    /// this is where a writer is told what its pages would be told too late.
    pub(crate) fn attributes_for_handle(
        self: &Arc<Self>,
        from: &InHeader,
        handle: u64,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let ino = inode(from.nodeid);
        if How::from_bits_truncate(handle).is_cached_writer() {
            self.check_cached_writer(ino)?;
            let c = caller(from);
            if self.opens.grows(ino) && self.room.is_tight_for(&c) {
                let (server, ticket) = (self.clone(), ticket());
                let pages = vec![Pages::all(from.nodeid)];
                self.aside.after_pages(pages, move || {
                    ticket.answer(server.let_write(&c, ino));
                });
                return Ok(Answered::Later);
            }
        }
        answer.record(&self.attributes_out(ino)?)?;
        Ok(Answered::Now)
    }

    /// Whether who writes this file through the page cache may go on.
    fn check_cached_writer(&self, ino: InodeNo) -> Outcome<()> {
        if let Some(errno) = self.opens.take_lost(ino) {
            return Err(errno);
        }
        self.fs.check_writable().map_err(|e| errno(&e))?;
        if self.opens.is_frozen(ino) {
            Err(Errno::PERM)
        } else {
            Ok(())
        }
    }

    /// The pages of a cached writer's file are written: its attributes, if there is room for what
    /// it may write next.
    fn let_write(&self, c: &Caller, ino: InodeNo) -> Outcome<abi::AttrOut> {
        self.check_cached_writer(ino)?;
        if !self.room.has_for_writers(c, self.opens.growing(), 0) {
            return Err(Errno::NOSPC);
        }
        self.room.note_dirtied();
        self.attributes_out(ino)
    }

    fn attributes_out(&self, ino: InodeNo) -> Outcome<abi::AttrOut> {
        let attr = attr::attr(&self.attributes(ino)?);
        Ok(abi::AttrOut::new(attr, self.keep_attributes(ino)))
    }

    /// How much of what dirty pages may need is taken by what needs blocks in this range, `each`
    /// byte so many; none if it takes nothing of that.
    pub(crate) fn takes_of_what_is_kept(
        &self,
        c: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        each: u64,
    ) -> Option<u64> {
        if !self.options.writeback
            || !self.room.is_kept_from(c, len.saturating_mul(each))
            || !self.opens.has_cached_writers()
        {
            return None;
        }
        let takes = self.fs.takes(ino, offset, len).ok()?.saturating_mul(each);
        (takes > 0 && self.room.is_kept_from(c, takes)).then_some(takes)
    }

    /// Has all dirty pages written that may need what is left. Then does the rest, if so much can
    /// be taken. Whoever has one of the kernel's slots waits in a place.
    pub(crate) fn when_settled(
        self: &Arc<Self>,
        c: Caller,
        takes: u64,
        place: Option<Place>,
        rest: impl FnOnce(&Self, Outcome<()>) + Send + 'static,
    ) {
        let pages = Pages::of_files(self.opens.watch_all());
        let server = self.clone();
        let dirtied = self.room.dirtied();
        self.aside.after_pages(pages, move || {
            server.room.settled(dirtied);
            let growing = server.opens.growing();
            let has_room = !server.room.is_kept_from(&c, takes)
                || server.room.has_for_writers(&c, growing, takes);
            rest(&server, if has_room { Ok(()) } else { Err(Errno::NOSPC) });
            drop(place);
        });
    }
}
