//! A directory with one file, which is the device.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use stetfs_export::ByteDev;
use stetfs_media::MediaError;

use super::watchdog::Pulse;
use crate::control;

/// The file's name in its directory.
pub const FILE_NAME: &str = "device";

const FILE: INodeNo = INodeNo(2);

/// The largest request that the kernel sends: not more, so that each is answered soon, which is how the watchdog sees progress.
const MAX_REQUEST: u32 = 128 << 10;
/// Requests that the kernel may have under way at once.
const MAX_BACKGROUND: u16 = 64;
/// Nothing here changes.
const TTL: Duration = Duration::from_secs(365 * 86_400);
/// What statfs counts in; the size itself is exact in the file's attributes.
const STATFS_BLOCK: u32 = 512;

/// No pages of the file are kept by the kernel, and writes need not wait for each other.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

const CAPABILITIES: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

pub(super) struct ExportFs {
    dev: Arc<ByteDev>,
    source: PathBuf,
    dir: PathBuf,
    since: Instant,
    owner: (u32, u32),
    stats: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    pulse: Arc<Pulse>,
    /// What a read is answered from.
    buffer: Mutex<Vec<u8>>,
}

impl ExportFs {
    pub(super) fn new(
        dev: Arc<ByteDev>,
        source: &Path,
        dir: &Path,
        stats: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
        pulse: Arc<Pulse>,
    ) -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self {
            dev,
            source: source.to_owned(),
            dir: dir.to_owned(),
            since: Instant::now(),
            owner: (uid.as_raw(), gid.as_raw()),
            stats,
            pulse,
            // Not of zeros, which would be memory that is taken at the first use.
            buffer: Mutex::new(vec![0xff; MAX_REQUEST as usize]),
        }
    }

    fn attr(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, perm, nlink, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o755, 2, 0),
            FILE => (FileType::RegularFile, 0o600, 1, self.dev.size()),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.dev.sector_size().max(4096),
            flags: 0,
        })
    }

    fn stats_json(&self) -> String {
        let mut stats = (self.stats)();
        stats["server"] = serde_json::json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "image": self.source,
            "dir": self.dir,
            "uptime_s": self.since.elapsed().as_secs(),
            "threads": 1,
            "requests": self.pulse.served(),
        });
        stats.to_string()
    }
}

/// The errno of a request that failed, and a line in the log.
fn errno(error: &MediaError) -> Errno {
    tracing::error!("{error}");
    match error {
        MediaError::Io { source, .. } => Errno::from_i32(source.raw_os_error()),
        MediaError::PastEnd { .. } => Errno::ENOSPC,
        MediaError::ReadOnly { .. } => Errno::EROFS,
        _ => Errno::EIO,
    }
}

fn reply_empty(answer: Result<(), MediaError>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

impl Filesystem for ExportFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if let Err(missing) = config.add_capabilities(CAPABILITIES) {
            tracing::info!("this kernel's FUSE lacks {missing:?}");
            let _ = config.add_capabilities(CAPABILITIES.difference(missing));
        }
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attr(FILE) {
            Some(attr) if parent == INodeNo::ROOT && name == FILE_NAME => {
                reply.entry(&TTL, &attr, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Times may be set, to no effect; anything else stays as it is.
    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attr) = self.attr(ino) else {
            return reply.error(Errno::ENOENT);
        };
        let fixed = size.is_none_or(|size| size == attr.size);
        if fixed && mode.is_none() && uid.is_none() && gid.is_none() {
            reply.attr(&TTL, &attr);
        } else {
            reply.error(Errno::EPERM);
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), OPENED);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, FILE_NAME),
        ];
        for (at, (ino, kind, name)) in names.into_iter().enumerate().skip(offset as usize) {
            if reply.add(ino, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _busy = self.pulse.begin();
        let len = u64::from(size).min(self.dev.size().saturating_sub(offset)) as usize;
        let mut buffer = self.buffer.lock();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        match self.dev.read_at(offset, &mut buffer[..len]) {
            Ok(()) => reply.data(&buffer[..len]),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _busy = self.pulse.begin();
        match self.dev.write_at(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _busy = self.pulse.begin();
        reply_empty(self.dev.flush(), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _busy = self.pulse.begin();
        let answer = match mode {
            PUNCH => self.dev.discard(offset, length),
            // With or without KEEP_SIZE: the size is what it is.
            m if m & !libc::FALLOC_FL_KEEP_SIZE == libc::FALLOC_FL_ZERO_RANGE => {
                self.dev.write_zeros(offset, length)
            }
            // Room for all of it is there.
            0 | libc::FALLOC_FL_KEEP_SIZE if offset.saturating_add(length) <= self.dev.size() => {
                Ok(())
            }
            0 | libc::FALLOC_FL_KEEP_SIZE => return reply.error(Errno::ENOSPC),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        reply_empty(answer, reply);
    }

    /// Whether there are holes nobody is told: the kernel then answers that all is data.
    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.dev.size() / u64::from(STATFS_BLOCK);
        reply.statfs(blocks, 0, 0, 2, 0, STATFS_BLOCK, 255, STATFS_BLOCK);
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if name != control::STATS {
            return reply.error(Errno::ENODATA);
        }
        let stats = self.stats_json();
        match stats.len() as u32 {
            len if size == 0 => reply.size(len),
            len if len <= size => reply.data(stats.as_bytes()),
            _ => reply.error(Errno::ERANGE),
        }
    }
}
