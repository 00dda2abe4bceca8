//! Requests about contents and attributes: open, read, write, truncate, allocate, seek, copy.

use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use stetfs::{Attr, Caller, Change, FallocateMode, OpenFlags, Whence, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_format::width::{must_fit_u32, u32_as_usize, usize_as_u64};

use crate::aside::Pages;
use crate::attr::{ROOT, inode, node, set_attr, statx};
use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::opens::How;
use crate::server::FsServer;
use crate::wire::abi::{self, InHeader, Opened, Set, WriteKind};
use crate::wire::{Answer, Answered, Ticket};

/// What the kernel may do with every open file: keep its pages, and write to it directly from
/// several threads.
const OPENED: Opened = Opened::KEEP_CACHE.union(Opened::PARALLEL_DIRECT_WRITES);

/// The flag of an open for execution (the kernel's `__FMODE_EXEC`).
const FMODE_EXEC: i32 = 0x20;

/// The most bytes that one request copies, so that it ends soon. The caller asks again for the
/// rest.
const COPY_MAX: u64 = 256 << 20;

/// Returns those of open(2)'s flags that the core needs.
pub(crate) fn open_flags(flags: i32) -> OpenFlags {
    let mut out = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenFlags::WRITE,
        libc::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    out.set(OpenFlags::APPEND, flags & libc::O_APPEND != 0);
    out.set(OpenFlags::TRUNCATE, flags & libc::O_TRUNC != 0);
    out.set(OpenFlags::EXCLUSIVE, flags & libc::O_EXCL != 0);
    out.set(OpenFlags::EXEC, flags & FMODE_EXEC != 0);
    out
}

/// Returns how a write is to be done.
///
/// With a writeback cache the kernel keeps the file's length and times. It has chosen the offset of
/// an append, and the core must take that as it is. It sets no flags for the write of pages.
/// Without a writeback cache the core appends by itself. `O_SYNC` does not count for pages from the
/// cache: the kernel sends an FSYNC after them.
pub(crate) fn write_flags(kind: WriteKind, flags: i32, writeback: bool) -> WriteFlags {
    let mut out = WriteFlags::empty();
    if kind.contains(WriteKind::CACHE) {
        out |= WriteFlags::CACHED;
    } else {
        if flags & libc::O_APPEND != 0 {
            out |= if writeback {
                WriteFlags::AT_END
            } else {
                WriteFlags::APPEND
            };
        }
        if flags & libc::O_SYNC == libc::O_SYNC {
            out |= WriteFlags::SYNC;
        } else if flags & libc::O_DSYNC != 0 {
            out |= WriteFlags::DATASYNC;
        }
    }
    out.set(
        WriteFlags::KILL_SUID,
        kind.contains(WriteKind::KILL_SUIDGID),
    );
    out
}

/// Returns what fallocate(2) is asked to do.
pub(crate) fn fallocate_mode(from: &abi::FAllocateIn) -> Outcome<FallocateMode> {
    let mode = u32::try_from(from.mode).ok();
    mode.and_then(FallocateMode::from_bits).ok_or(Errno::NOTSUP)
}

impl<B: Backend> FsServer<B> {
    pub(crate) fn attributes(&self, ino: InodeNo) -> Outcome<Attr> {
        self.fs.getattr(ino).map_err(|e| errno(&e))
    }

    pub(crate) fn statx(&self, ino: InodeNo) -> Outcome<abi::StatXOut> {
        let keep = self.keep_attributes(ino);
        Ok(abi::StatXOut {
            attr_valid: keep.as_secs(),
            attr_valid_nsec: keep.subsec_nanos(),
            stat: statx(&self.attributes(ino)?, self.fs.has_birth_times()),
            ..abi::StatXOut::default()
        })
    }

    /// Changes attributes. The kernel has checked permissions. After cached writes the kernel also
    /// sends times of its own. `None`: they are for a file that has just lost its last name.
    /// Nothing is left to keep them in, and an error would come out of the next syncfs.
    pub(crate) fn set_attributes(
        &self,
        c: &Caller,
        ino: InodeNo,
        to: &abi::SetAttrIn,
    ) -> Outcome<Option<Attr>> {
        let set = set_attr(to);
        let changed = self.fs.change(c, &Change::SetAttr(ino, &set));
        let attr = match changed.map_err(|e| errno(&e)) {
            Err(Errno::STALE) if is_of_times(to) => return Ok(None),
            other => other?,
        };
        if self.options.sync && (set.size.is_some() || set.ctime.is_none()) {
            self.fs.fsync(ino, false).map_err(|e| errno(&e))?;
        }
        Ok(Some(attr))
    }

    pub(crate) fn open_file(
        &self,
        from: &InHeader,
        ino: InodeNo,
        flags: i32,
    ) -> Outcome<abi::OpenOut> {
        let open = |c: &Caller| {
            self.fs
                .open(c, ino, open_flags(flags))
                .map_err(|e| errno(&e))
        };
        if flags & libc::O_TRUNC != 0 {
            self.losing_privileges(from, &[ino], open)?;
        } else {
            open(&self.caller(from))?;
        }
        Ok(self.note_open(ino, flags))
    }

    /// Counts an open file. Returns how the kernel may treat it.
    pub(crate) fn note_open(&self, ino: InodeNo, flags: i32) -> abi::OpenOut {
        let mut how = How::empty();
        how.set(How::WRITES, flags & libc::O_ACCMODE != libc::O_RDONLY);
        how.set(How::DIRECT, flags & libc::O_DIRECT != 0);
        let mut opened = OPENED;
        // Pages that were read before become stale by an asynchronous direct write, since nobody
        // tells the kernel of it.
        opened.set(Opened::KEEP_CACHE, flags & libc::O_DIRECT == 0);
        let led = How::led(self.options.writeback);
        let is_short = self.options.writeback && how.is_cached_writer() && self.room.is_short();
        if is_short || self.is_direct(ino, how) {
            how |= led;
        }
        let how = self.opens.opened(ino, how, led);
        opened.set(Opened::DIRECT_IO, how.contains(How::LED));
        abi::OpenOut {
            fh: self.groups.handle(how),
            open_flags: opened.bits(),
            backing_id: 0,
        }
    }

    /// Returns whether each write(2) must be a request of its own, which pages in the cache are
    /// not. This is so for a file that is marked (chattr +j) or synchronous (+S), and for one that
    /// can have groups if it is opened with O_DIRECT, whatever fcntl(2) sets later. Readers and
    /// memory maps use the cache all the same.
    fn is_direct(&self, ino: InodeNo, how: How) -> bool {
        how.contains(How::WRITES)
            && (self.fs.is_atomic(ino)
                || self.fs.is_synchronous(ino)
                || how.contains(How::DIRECT) && self.fs.can_group(ino))
    }

    pub(crate) fn release_file(&self, ino: InodeNo, handle: u64) -> Outcome<()> {
        let _release = self.releases.begin();
        self.leave_group(ino, handle);
        self.layer.leave(ino, handle);
        let how = How::from_bits_truncate(handle);
        self.opens.closed(ino, how);
        if how.contains(How::WRITES) {
            self.fs.writer_closes(ino);
        }
        self.fs.release(ino).map_err(|e| errno(&e))
    }

    /// Calls `op`, which may clear set-user-ID and set-group-ID, and tells the kernel if so.
    pub(crate) fn losing_privileges<T>(
        &self,
        from: &InHeader,
        inodes: &[InodeNo],
        op: impl FnOnce(&Caller) -> Outcome<T>,
    ) -> Outcome<T> {
        use stetfs::mode::{S_ISGID, S_ISUID, S_IXGRP};
        let mode = |ino: &InodeNo| self.fs.getattr(*ino).map_or(0, |attr| attr.mode);
        let before: SmallVec<[_; 1]> = inodes.iter().map(|ino| (*ino, mode(ino))).collect();
        // Set-group-ID without execution stays if the caller is a member of the group.
        let depends = |(_, mode): &(_, u16)| mode & (S_ISGID | S_IXGRP) == S_ISGID;
        let c = if before.iter().any(depends) {
            self.caller_with_groups(from)
        } else {
            self.caller(from)
        };
        let done = op(&c)?;
        for (ino, mode) in before {
            if mode & (S_ISUID | S_ISGID) != 0 {
                self.attributes_changed(ino);
            }
        }
        Ok(done)
    }

    /// Makes the kernel ask for an inode's attributes before it uses them again.
    pub(crate) fn attributes_changed(&self, ino: InodeNo) {
        if let Some(notifier) = self.notifier.get() {
            notifier.attributes_changed(node(ino));
        }
    }

    /// Reads a file straight into the answer.
    pub(crate) fn read_file(
        &self,
        ino: InodeNo,
        from: &abi::ReadIn,
        answer: &mut Answer<'_>,
    ) -> Outcome<()> {
        let is_direct = How::from_bits_truncate(from.fh).contains(How::DIRECT);
        let for_cache = from.read_flags & abi::READ_LOCKOWNER == 0;
        if is_direct && for_cache {
            self.opens.is_mapped(ino);
        }
        answer.fill(u32_as_usize(from.size), |room| {
            // Only the group's owner sees what is staged, and everybody sees the page cache.
            if !for_cache && let Some(read) = self.read_group(ino, from, room) {
                return read;
            }
            self.fs.read(ino, from.offset, room).map_err(|e| errno(&e))
        })
    }

    /// Writes pages from the kernel's cache, or data straight from a caller.
    pub(crate) fn write_file(
        self: &Arc<Self>,
        header: &InHeader,
        from: &abi::WriteIn,
        data: &[u8],
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let (c, node) = (&self.caller(header), header.nodeid);
        if self.room.wants_a_look() {
            self.bell.ring();
        }
        let kind = WriteKind::from_bits_retain(from.write_flags);
        let flags = write_flags(kind, from.flags, self.options.writeback);
        if kind.contains(WriteKind::CACHE) {
            self.write_pages(c, node, from.offset, data, flags)?;
            answer.record(&written(from.size))?;
            return Ok(Answered::Now);
        }
        let ino = inode(node);
        let is_staged = self.groups.has(ino, from.fh);
        let each = if is_staged { stetfs::ROOM_PER_BLOCK } else { 1 };
        let range = (from.offset, from.size.into());
        if let Some(takes) = self.takes_of_what_is_kept(c, ino, range, each) {
            let place = self.aside.place().filter(|_| !is_staged);
            let (place, ticket) = (place.ok_or(Errno::NOSPC)?, ticket());
            let (header, from, data) = (*header, *from, data.to_vec());
            let rest = move |server: &Self, has_room: Outcome<()>| {
                let done = has_room.and_then(|()| {
                    let write = || server.write_straight(&header, &from, &data);
                    let size = server.releases.with_room(write)?;
                    if let Some(notifier) = server.notifier.get() {
                        let pages = Pages::written(&header, &from, size);
                        notifier.content_changed(pages.node, pages.offset, pages.len);
                    }
                    Ok(written(size))
                });
                ticket.answer(done);
            };
            self.when_settled(c.clone(), takes, Some(place), rest);
            return Ok(Answered::Later);
        }
        if let Some(staged) = self.write_group(c, ino, from, data, flags) {
            answer.record(&written(staged?))?;
            return Ok(Answered::Now);
        }
        let size = self.write_straight(header, from, data)?;
        if How::from_bits_truncate(from.fh).contains(How::DIRECT)
            && let Some(cached) = self.cached(&[Pages::written(header, from, size)])
        {
            // A write that no call waits for (io_submit(2), io_uring) has one of the kernel's
            // slots.
            if let Some(place) = self.aside.place() {
                let ticket = ticket();
                self.aside.after_pages(cached, move || {
                    ticket.answer(Ok(written(size)));
                    drop(place);
                });
                return Ok(Answered::Later);
            }
            self.aside.soon(cached);
        }
        answer.record(&written(size))?;
        Ok(Answered::Now)
    }

    /// Writes data straight from a caller to the volume. Returns how many bytes.
    fn write_straight(&self, header: &InHeader, from: &abi::WriteIn, data: &[u8]) -> Outcome<u32> {
        let ino = inode(header.nodeid);
        let kind = WriteKind::from_bits_retain(from.write_flags);
        let mut flags = write_flags(kind, from.flags, self.options.writeback);
        // The kernel turns a short answer into EIO where no call waits for it.
        flags.set(WriteFlags::WHOLE, from.flags & libc::O_DIRECT != 0);
        let write = |c: &Caller| {
            let written = self.fs.write_with(c, ino, from.offset, data, flags);
            written.map(|(_, n)| must_fit_u32(n)).map_err(|e| errno(&e))
        };
        if kind.contains(WriteKind::KILL_SUIDGID) {
            self.losing_privileges(header, &[ino], write)
        } else {
            write(&self.caller(header))
        }
    }

    /// Answers after the kernel has dropped these pages, which others may have read through the
    /// page cache. (The kernel drops them by itself for direct writes that it waits for, but not
    /// for those of io_submit(2).)
    pub(crate) fn answer_when_dropped<T: bytemuck::Pod + Send>(
        &self,
        pages: &[Pages],
        record: T,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let Some(cached) = self.cached(pages) else {
            answer.record(&record)?;
            return Ok(Answered::Now);
        };
        let ticket = ticket();
        self.aside
            .after_pages(cached, move || ticket.answer(Ok(record)));
        Ok(Answered::Later)
    }

    /// Returns those of the pages that the kernel may have; `None` if it has none.
    fn cached(&self, pages: &[Pages]) -> Option<Vec<Pages>> {
        let is_cached = |pages: &&Pages| self.opens.is_cached(inode(pages.node));
        let cached: Vec<_> = pages.iter().filter(is_cached).copied().collect();
        (!cached.is_empty()).then_some(cached)
    }

    /// Writes pages from the page cache: all of them, since the kernel ignores how much was
    /// written. Pages that find no room are dropped from the page cache.
    fn write_pages(
        &self,
        c: &Caller,
        node: u64,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Outcome<()> {
        let ino = inode(node);
        let blocks = || self.fs.getattr(ino).map_or(0, |attr| attr.blocks);
        let before = self.room.is_short().then(blocks);
        let mut done = 0;
        while done < data.len() {
            let at = offset + usize_as_u64(done);
            let written = self.releases.with_room(|| {
                let written = self.fs.write_with(c, ino, at, &data[done..], flags);
                written.map_err(|e| errno(&e))
            });
            match written {
                Ok((_, n)) => done += n,
                Err(errno) => {
                    let pages = Pages {
                        node,
                        offset: at.cast_signed(),
                        len: usize_as_u64(data.len() - done).cast_signed(),
                    };
                    self.opens.lost(ino, errno);
                    self.aside.soon(vec![pages]);
                    return Err(errno);
                }
            }
        }
        if before.is_some_and(|before| blocks() > before) {
            self.opens.grew(ino);
        }
        Ok(())
    }

    /// Makes a file or directory durable; for the root directory, everything. For that, the kernel
    /// first sends the cached pages of open files: by itself it sends only those of files that it
    /// syncs or closes.
    pub(crate) fn sync_file(
        &self,
        ino: InodeNo,
        datasync: bool,
        ticket: &dyn Fn() -> Ticket,
    ) -> Outcome<Answered> {
        if ino != ROOT {
            self.fs.fsync(ino, datasync).map_err(|e| errno(&e))?;
            return Ok(Answered::Now);
        }
        let written = if self.options.writeback {
            self.opens.watch_all()
        } else {
            Vec::new()
        };
        if written.is_empty() {
            self.fs.fsync_root(datasync).map_err(|e| errno(&e))?;
            return Ok(Answered::Now);
        }
        let (fs, ticket) = (self.fs.clone(), ticket());
        self.aside.after_pages(Pages::of_files(written), move || {
            let done = fs.fsync_root(datasync).map_err(|e| errno(&e));
            ticket.answer_bytes(done.map(|()| Vec::new()));
        });
        Ok(Answered::Later)
    }

    /// Preallocates, punches holes, zeroes ranges.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        header: &InHeader,
        from: &abi::FAllocateIn,
        ticket: &dyn Fn() -> Ticket,
    ) -> Outcome<Answered> {
        let (c, ino) = (self.caller(header), inode(header.nodeid));
        let mode = fallocate_mode(from)?;
        let range = (from.offset, from.length);
        let takes = if mode.contains(FallocateMode::PUNCH_HOLE) {
            None
        } else {
            self.takes_of_what_is_kept(&c, ino, range, 1)
        };
        if let Some(takes) = takes {
            let (header, ticket) = (*header, ticket());
            self.when_settled(c, takes, None, move |server, has_room| {
                let now = || server.allocate_now(&header, mode, range);
                let done = has_room.and_then(|()| server.releases.with_room(now));
                ticket.answer_bytes(done.map(|()| Vec::new()));
            });
            return Ok(Answered::Later);
        }
        self.allocate_now(header, mode, range)?;
        Ok(Answered::Now)
    }

    fn allocate_now(
        &self,
        from: &InHeader,
        mode: FallocateMode,
        (offset, len): (u64, u64),
    ) -> Outcome<()> {
        let ino = inode(from.nodeid);
        self.losing_privileges(from, &[ino], |c| {
            let done = self.fs.fallocate(c, ino, mode, offset, len);
            done.map_err(|e| errno(&e))
        })?;
        if self.options.sync {
            self.fs.fsync(ino, false).map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    /// Answers SEEK_DATA and SEEK_HOLE.
    ///
    /// The kernel does not send its dirty pages before it asks. So while somebody has the file open
    /// for writing, they are fetched first. That needs workers to answer, so no worker may wait for
    /// it.
    pub(crate) fn seek(
        &self,
        node: u64,
        from: &abi::LSeekIn,
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        if self.options.writeback && self.opens.has_cached_writer(inode(node)) {
            let (fs, from, ticket) = (self.fs.clone(), *from, ticket());
            self.aside.after_pages(vec![Pages::all(node)], move || {
                ticket.answer(find(&fs, node, &from));
            });
            return Ok(Answered::Later);
        }
        answer.record(&find(&self.fs, node, from)?)?;
        Ok(Answered::Now)
    }

    /// Copies a range between two inodes. Returns how many bytes.
    pub(crate) fn copy(&self, header: &InHeader, how: &abi::CopyFileRangeIn) -> Outcome<u64> {
        let from = (inode(header.nodeid), how.off_in);
        let to = (inode(how.nodeid_out), how.off_out);
        self.losing_privileges(header, &[to.0], |c| {
            let len = how.len.min(COPY_MAX);
            let copied = self.fs.copy_range(c, from, to, len);
            copied.map_err(|e| errno(&e))
        })
    }
}

/// Makes the answer to a write of `size` bytes.
fn written(size: u32) -> abi::WriteOut {
    abi::WriteOut { size, padding: 0 }
}

/// Returns whether a SETATTR changes only times.
fn is_of_times(to: &abi::SetAttrIn) -> bool {
    !Set::from_bits_retain(to.valid).intersects(Set::MODE | Set::UID | Set::GID | Set::SIZE)
}

/// Finds the next data or hole.
fn find(fs: &impl Backend, node: u64, from: &abi::LSeekIn) -> Outcome<abi::LSeekOut> {
    let whence = match from.whence {
        libc::SEEK_DATA => Whence::Data,
        libc::SEEK_HOLE => Whence::Hole,
        _ => return Err(Errno::INVAL),
    };
    let offset = u64::try_from(from.offset).map_err(|_| Errno::NXIO)?;
    let found = fs.seek(inode(node), offset, whence);
    let offset = found.map_err(|e| errno(&e))?;
    Ok(abi::LSeekOut { offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_open() {
        assert_eq!(open_flags(libc::O_RDONLY), OpenFlags::READ);
        assert_eq!(
            open_flags(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC),
            OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::TRUNCATE
        );
        assert_eq!(
            open_flags(libc::O_RDWR | libc::O_EXCL),
            OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCLUSIVE
        );
    }

    #[test]
    fn flags_of_writes() {
        let (none, cached) = (WriteKind::empty(), WriteKind::CACHE);
        assert_eq!(write_flags(none, libc::O_SYNC, true), WriteFlags::SYNC);
        assert_eq!(write_flags(none, libc::O_DSYNC, true), WriteFlags::DATASYNC);
        assert_eq!(write_flags(cached, libc::O_SYNC, true), WriteFlags::CACHED);
        assert_eq!(write_flags(none, libc::O_APPEND, false), WriteFlags::APPEND);
        assert_eq!(write_flags(none, libc::O_APPEND, true), WriteFlags::AT_END);
        let kill = WriteKind::KILL_SUIDGID;
        assert_eq!(write_flags(kill, 0, true), WriteFlags::KILL_SUID);
    }
}
