//! Requests about contents and attributes: open, read, write, truncate, allocate, seek, copy.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;

use fuser::{
    Errno, FileHandle, INodeNo, Notifier, ReplyData, ReplyLseek, WriteFlags as FuseWriteFlags,
};
use parking_lot::Mutex;
use stetfs::{Attr, Caller, FallocateMode, Fs, OpenFlags, SetAttr, Whence, WriteFlags};
use stetfs_format::InodeNo;

use crate::attr::{ROOT, inode};
use crate::errno::errno;
use crate::fs::{Answer, StetFs};

/// Set in the flags of an open for execution (the kernel's `__FMODE_EXEC`).
const FMODE_EXEC: i32 = 0x20;

/// What of open(2)'s flags the core cares for.
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

/// How a write is to be done.
///
/// With a writeback cache the kernel holds the file's length and times: it has chosen the offset of an append, and the
/// core must take it as it is. Without one the core appends by itself. `O_SYNC` of pages from the cache is none of the write's
/// business: the kernel sends an FSYNC after them.
fn write_flags(from: FuseWriteFlags, flags: i32, writeback: bool) -> WriteFlags {
    let mut out = WriteFlags::empty();
    if from.contains(FuseWriteFlags::FUSE_WRITE_CACHE) {
        out |= WriteFlags::CACHED;
    } else {
        if flags & libc::O_APPEND != 0 {
            out |= if writeback {
                WriteFlags::CACHED
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
        from.contains(FuseWriteFlags::FUSE_WRITE_KILL_SUIDGID),
    );
    out
}

impl StetFs {
    pub(crate) fn attributes(&self, ino: INodeNo) -> Answer<Attr> {
        self.fs.getattr(inode(ino)).map_err(|e| errno(&e))
    }

    /// Changes attributes. The kernel has checked who may; it also sends times of its own here, when it has cached
    /// writes.
    pub(crate) fn set_attributes(
        &self,
        c: &Caller,
        ino: INodeNo,
        mut set: SetAttr,
    ) -> Answer<Attr> {
        let ino = inode(ino);
        // The kernel says FATTR_KILL_SUIDGID when a truncating caller lacks CAP_FSETID; fuser does not pass it on.
        set.kill_suid = set.size.is_some() && !c.privileged;
        let attr = self.fs.setattr(c, ino, &set).map_err(|e| errno(&e))?;
        if self.options.sync && (set.size.is_some() || set.ctime.is_none()) {
            self.fs.fsync(ino, false).map_err(|e| errno(&e))?;
        }
        Ok(attr)
    }

    pub(crate) fn open_file(&self, c: &Caller, ino: INodeNo, flags: i32) -> Answer<FileHandle> {
        let (ino, flags) = (inode(ino), open_flags(flags));
        self.fs.open(c, ino, flags).map_err(|e| errno(&e))?;
        self.opens.opened(ino, flags);
        Ok(FileHandle(0))
    }

    pub(crate) fn release_file(&self, ino: INodeNo, flags: i32) -> Answer<()> {
        let ino = inode(ino);
        self.opens.closed(ino, open_flags(flags));
        self.fs.release(ino).map_err(|e| errno(&e))
    }

    /// Reads into a buffer that the worker keeps, and answers from it.
    pub(crate) fn read_file(&self, ino: INodeNo, offset: u64, size: u32, reply: ReplyData) {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.fs.read(inode(ino), offset, &mut buffer[..size]) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    pub(crate) fn write_file(
        &self,
        c: &Caller,
        ino: INodeNo,
        offset: u64,
        data: &[u8],
        from: FuseWriteFlags,
        flags: i32,
    ) -> Answer<u32> {
        let written = self.fs.write_with(
            c,
            inode(ino),
            offset,
            data,
            write_flags(from, flags, self.options.writeback),
        );
        written.map(|(_, n)| n as u32).map_err(|e| errno(&e))
    }

    /// Makes a file durable; everything, when it is the root directory: the kernel never passes `syncfs` on to a
    /// plain FUSE mount, so that `sync DIR` is the way to say it.
    pub(crate) fn sync_file(&self, ino: INodeNo, datasync: bool) -> Answer<()> {
        let ino = inode(ino);
        let done = if ino == ROOT {
            self.fs.sync()
        } else {
            self.fs.fsync(ino, datasync)
        };
        done.map_err(|e| errno(&e))
    }

    pub(crate) fn allocate(
        &self,
        c: &Caller,
        ino: INodeNo,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Answer<()> {
        let mode = u32::try_from(mode)
            .ok()
            .and_then(FallocateMode::from_bits)
            .ok_or(Errno::ENOTSUP)?;
        let ino = inode(ino);
        self.fs
            .fallocate(c, ino, mode, offset, len)
            .map_err(|e| errno(&e))?;
        if self.options.sync {
            self.fs.fsync(ino, false).map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    /// Answers where the next data or hole is.
    ///
    /// The kernel does not send its dirty pages before it asks. While somebody has the file open for writing, they
    /// are therefore fetched first, which takes workers that answer; so that is not done by a worker.
    pub(crate) fn seek(&self, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = Seek {
            ino,
            offset,
            whence,
            reply,
        };
        if self.options.writeback && self.opens.written(inode(ino)) {
            self.seeker.send(seek, &self.fs, &self.notifier);
        } else {
            seek.answer(&self.fs);
        }
    }

    pub(crate) fn copy(
        &self,
        c: &Caller,
        (from, from_offset): (INodeNo, u64),
        (to, to_offset): (INodeNo, u64),
        len: u64,
    ) -> Answer<u32> {
        // The answer has 32 bits.
        let len = len.min(u64::from(u32::MAX) & !0xfff);
        let copied = self
            .fs
            .copy_range(c, (inode(from), from_offset), (inode(to), to_offset), len);
        copied.map(|n| n as u32).map_err(|e| errno(&e))
    }
}

/// A request for the next data or hole.
struct Seek {
    ino: INodeNo,
    offset: i64,
    whence: i32,
    reply: ReplyLseek,
}

impl Seek {
    fn answer(self, fs: &Fs) {
        match self.find(fs) {
            Ok(found) => self.reply.offset(found),
            Err(e) => self.reply.error(e),
        }
    }

    fn find(&self, fs: &Fs) -> Answer<i64> {
        let whence = match self.whence {
            libc::SEEK_DATA => Whence::Data,
            libc::SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(self.offset).map_err(|_| Errno::ENXIO)?;
        let found = fs
            .seek(inode(self.ino), offset, whence)
            .map_err(|e| errno(&e))?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    }
}

/// The thread that makes the kernel send a file's dirty pages before a seek in it is answered; started when it
/// is first needed.
#[derive(Default)]
pub(crate) struct Seeker(OnceLock<mpsc::Sender<Seek>>);

impl Seeker {
    fn send(&self, seek: Seek, fs: &Fs, notifier: &Arc<OnceLock<Notifier>>) {
        let queue = self.0.get_or_init(|| {
            let (send, seeks) = mpsc::channel::<Seek>();
            let (fs, notifier) = (fs.clone(), notifier.clone());
            let body = move || {
                for seek in seeks {
                    fetch_dirty_pages(&notifier, seek.ino);
                    seek.answer(&fs);
                }
            };
            if let Err(e) = thread::Builder::new().name("seeks".to_owned()).spawn(body) {
                tracing::error!("no thread for seeks: {e}");
            }
            send
        });
        if let Err(mpsc::SendError(seek)) = queue.send(seek) {
            seek.answer(fs);
        }
    }
}

/// Invalidating a page makes the kernel write it first.
fn fetch_dirty_pages(notifier: &OnceLock<Notifier>, ino: INodeNo) {
    if let Some(notifier) = notifier.get()
        && let Err(e) = notifier.inval_inode(ino, 0, 0)
    {
        tracing::debug!("fetching the dirty pages of inode {}: {e}", ino.0);
    }
}

/// How often each file is open, and how often for writing.
///
/// The core counts too; this is for what the core cannot know: files that the kernel never closed, because its
/// last RELEASE requests are thrown away with the connection when a mount ends.
#[derive(Default)]
pub(crate) struct Opens {
    shards: [Mutex<HashMap<InodeNo, Open>>; 16],
}

#[derive(Clone, Copy, Default)]
struct Open {
    all: u32,
    writing: u32,
}

impl Opens {
    fn shard(&self, ino: InodeNo) -> &Mutex<HashMap<InodeNo, Open>> {
        &self.shards[ino.0 as usize % self.shards.len()]
    }

    pub(crate) fn opened(&self, ino: InodeNo, flags: OpenFlags) {
        let mut shard = self.shard(ino).lock();
        let open = shard.entry(ino).or_default();
        open.all += 1;
        open.writing += u32::from(flags.contains(OpenFlags::WRITE));
    }

    fn closed(&self, ino: InodeNo, flags: OpenFlags) {
        let mut shard = self.shard(ino).lock();
        if let Some(open) = shard.get_mut(&ino) {
            open.all -= 1;
            open.writing = open
                .writing
                .saturating_sub(u32::from(flags.contains(OpenFlags::WRITE)));
            if open.all == 0 {
                shard.remove(&ino);
            }
        }
    }

    fn written(&self, ino: InodeNo) -> bool {
        self.shard(ino)
            .lock()
            .get(&ino)
            .is_some_and(|open| open.writing > 0)
    }

    /// Closes what is still open, so that the volume can be closed; gives how many files that were.
    pub(crate) fn close_all(&self, fs: &Fs) -> usize {
        let mut files = 0;
        for shard in &self.shards {
            for (ino, open) in shard.lock().drain() {
                files += 1;
                for _ in 0..open.all {
                    if let Err(e) = fs.release(ino) {
                        tracing::warn!("closing inode {}: {e}", ino.0);
                    }
                }
            }
        }
        files
    }
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
        let (none, cached) = (FuseWriteFlags::empty(), FuseWriteFlags::FUSE_WRITE_CACHE);
        assert_eq!(write_flags(none, libc::O_SYNC, true), WriteFlags::SYNC);
        assert_eq!(write_flags(none, libc::O_DSYNC, true), WriteFlags::DATASYNC);
        assert_eq!(write_flags(cached, libc::O_SYNC, true), WriteFlags::CACHED);
        assert_eq!(write_flags(none, libc::O_APPEND, false), WriteFlags::APPEND);
        assert_eq!(write_flags(none, libc::O_APPEND, true), WriteFlags::CACHED);
        let kill = FuseWriteFlags::FUSE_WRITE_KILL_SUIDGID;
        assert_eq!(write_flags(kill, 0, true), WriteFlags::KILL_SUID);
    }

    #[test]
    fn writers_are_counted() {
        let opens = Opens::default();
        let (ino, rw) = (InodeNo(12), OpenFlags::READ | OpenFlags::WRITE);
        opens.opened(ino, OpenFlags::READ);
        assert!(!opens.written(ino));
        opens.opened(ino, rw);
        opens.opened(ino, rw);
        opens.closed(ino, rw);
        assert!(opens.written(ino));
        opens.closed(ino, rw);
        assert!(!opens.written(ino));
        opens.closed(ino, rw);
    }
}
