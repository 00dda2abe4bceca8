//! Requests that wait until dirty pages are written, because both may need the room that is left
//! (`room.rs` says when).
//!
//! The thread of `aside.rs` carries them out one after the other. So no two of them take the same
//! room between the writing of the pages and the answer.

use std::sync::Arc;

use rustix::io::Errno;
use stetfs::Caller;
use stetfs_format::InodeNo;

use crate::aside::{Pages, Place};
use crate::attr::{self, inode};
use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::opens::How;
use crate::server::FsServer;
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

impl<B: Backend> FsServer<B> {
    /// Answers a request for attributes through an open file. The kernel sends one for a read at
    /// the end of a file, for a seek from there and, while it may not keep the attributes, for each
    /// write(2) into the page cache. So a writer is told here what would come too late when its
    /// pages are written.
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
            let c = self.caller(from);
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

    /// Fails if a writer of this file through the page cache may not go on.
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

    /// Returns the attributes if there is room for what the writer may write next. Called when the
    /// pages of its file are written.
    fn let_write(&self, c: &Caller, ino: InodeNo) -> Outcome<abi::AttrOut> {
        self.check_cached_writer(ino)?;
        self.releases.with_room(|| {
            let has_room = self.room.has_for_writers(c, self.opens.growing(), 0);
            has_room.then_some(()).ok_or(Errno::NOSPC)
        })?;
        self.room.note_dirtied();
        self.attributes_out(ino)
    }

    fn attributes_out(&self, ino: InodeNo) -> Outcome<abi::AttrOut> {
        let attr = attr::attr(&self.attributes(ino)?);
        Ok(abi::AttrOut::new(attr, self.keep_attributes(ino)))
    }

    /// Returns how many bytes a request takes of the room that dirty pages may need: `each` bytes
    /// for every new byte in the range. `None` if it takes nothing of that room.
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

    /// Has all dirty pages written that may need the room that is left. Then calls `rest`, with an
    /// error if `takes` bytes cannot be taken. A request that has one of the kernel's slots waits
    /// in a `place`.
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
            let has_room = server.releases.with_room(|| {
                let growing = server.opens.growing();
                let has_room = !server.room.is_kept_from(&c, takes)
                    || server.room.has_for_writers(&c, growing, takes);
                has_room.then_some(()).ok_or(Errno::NOSPC)
            });
            rest(&server, has_room);
            drop(place);
        });
    }
}
