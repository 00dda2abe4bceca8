//! The server: each request of the kernel becomes one operation of the volume.
//!
//! This file is the list of requests and how each is answered; what they do is in `names.rs`, `files.rs`,
//! `xattrs.rs` and `ioctl.rs`, in terms that are the same for any transport. Workers call in
//! parallel; nothing here is locked, the core locks what it must.
//!
//! What the kernel is told about itself, in `init` and with each answer, decides most of the speed:
//! - names and attributes may be kept for ever, also that a name does not exist: only the kernel changes the volume;
//! - FLUSH and OPENDIR are answered ENOSYS once and never come again (there is nothing to do for them);
//! - `HANDLE_KILLPRIV_V2`: without it every write is preceded by a GETXATTR for `security.capability`;
//! - the writeback cache makes small writes cheap; the kernel then owns size and times of files it has written;
//! - `POSIX_ACL` lets the kernel check ACLs from its own cache, `DONT_MASK` leaves the umask to us, because a default ACL
//!   overrides it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use serde::Serialize;
use stetfs::{Entry, Fs, SetAttr};

use crate::attr::{
    decode_rdev, entry_attr, file_attr, generation, negative, request_time, set_time,
};
use crate::caller::{caller, creator};
use crate::errno::errno;
use crate::files::{Opens, Seeker, open_flags};
use crate::options::FuseOptions;

/// The result of a request.
pub(crate) type Answer<T> = Result<T, Errno>;

/// The largest write that the kernel sends at once; it offers no more (`fs.fuse.max_pages_limit`).
const MAX_WRITE: u32 = 1 << 20;

/// Requests that the kernel may have under way in the background: readahead and write-back.
const MAX_BACKGROUND: u16 = 64;

/// What is always asked for; what a kernel lacks is done without.
const CAPABILITIES: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_HAS_IOCTL_DIR)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_ASYNC_DIO)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_CACHE_SYMLINKS);

/// What the kernel may do with every open file: keep its pages, and write directly from several threads.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// One mounted volume.
pub(crate) struct StetFs {
    pub(crate) fs: Fs,
    pub(crate) options: FuseOptions,
    pub(crate) opens: Arc<Opens>,
    pub(crate) seeker: Seeker,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// The user who runs the server.
    pub(crate) owner: u32,
    image: PathBuf,
    dir: PathBuf,
    since: Instant,
    requests: Requests,
}

macro_rules! requests {
    ($($name:ident),* $(,)?) => {
        /// How many requests of each kind came in.
        #[derive(Default, Serialize)]
        struct Requests {
            $(#[serde(serialize_with = "count")] $name: AtomicU64,)*
        }
    };
}

requests!(
    lookup,
    getattr,
    setattr,
    readlink,
    mknod,
    mkdir,
    symlink,
    link,
    unlink,
    rmdir,
    rename,
    create,
    open,
    release,
    read,
    write,
    fsync,
    readdir,
    readdirplus,
    statfs,
    getxattr,
    setxattr,
    listxattr,
    removexattr,
    fallocate,
    lseek,
    copy_file_range,
    ioctl,
);

fn count<S: serde::Serializer>(count: &AtomicU64, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(count.load(Ordering::Relaxed))
}

macro_rules! tally {
    ($self:ident, $name:ident) => {
        $self.requests.$name.fetch_add(1, Ordering::Relaxed)
    };
}

/// What `system.stetfs.stats` says beside the volume's own counters.
#[derive(Serialize)]
struct Server<'a> {
    pid: u32,
    version: &'static str,
    image: &'a Path,
    dir: &'a Path,
    uptime_s: u64,
    threads: usize,
    writeback: bool,
    requests: &'a Requests,
}

impl StetFs {
    pub(crate) fn new(
        fs: Fs,
        image: PathBuf,
        dir: PathBuf,
        options: FuseOptions,
        opens: Arc<Opens>,
    ) -> Self {
        Self {
            fs,
            options,
            opens,
            seeker: Seeker::default(),
            notifier: Arc::default(),
            owner: rustix::process::geteuid().as_raw(),
            image,
            dir,
            since: Instant::now(),
            requests: Requests::default(),
        }
    }

    /// Where the session puts the way to send the kernel notifications, once there is one.
    pub(crate) fn notifier_slot(&self) -> Arc<OnceLock<Notifier>> {
        self.notifier.clone()
    }

    /// All counters, as JSON: what the volume says, and `server`.
    pub(crate) fn stats_json(&self) -> Answer<String> {
        let server = Server {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            image: &self.image,
            dir: &self.dir,
            uptime_s: self.since.elapsed().as_secs(),
            threads: self.options.threads,
            writeback: self.options.writeback,
            requests: &self.requests,
        };
        let mut stats = serde_json::to_value(self.fs.stats()).map_err(|_| Errno::EIO)?;
        let server = serde_json::to_value(server).map_err(|_| Errno::EIO)?;
        match stats.as_object_mut() {
            Some(stats) => stats.insert("server".to_owned(), server),
            None => return Err(Errno::EIO),
        };
        Ok(stats.to_string())
    }

    /// An entry with everything the kernel may remember of it.
    fn reply_entry(&self, answer: Answer<Entry>, reply: ReplyEntry) {
        match answer {
            Ok(entry) => {
                // The root's entry carries FUSE's number for it, which `stat` must not show for long.
                let attr_timeout = if entry.ino == crate::attr::ROOT {
                    Duration::ZERO
                } else {
                    self.options.timeout
                };
                let (attr, generation) = (entry_attr(&entry.attr), generation(entry.generation));
                reply.entry_with_ttls(&attr_timeout, &self.options.timeout, &attr, generation);
            }
            Err(e) => reply.error(e),
        }
    }
}

fn reply_empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

/// A value, or its size when the kernel asks for that with `size` 0.
fn reply_xattr(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(e) => reply.error(e),
    }
}

impl Filesystem for StetFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = CAPABILITIES;
        wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, self.options.writeback);
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.fs.options().acl);
        if let Err(missing) = config.add_capabilities(wanted) {
            tracing::info!("this kernel's FUSE lacks {missing:?}");
            let _ = config.add_capabilities(wanted.difference(missing));
        }
        // The kernel makes timestamps too (writeback cache): they must be as coarse as what is kept.
        let _ = config.set_time_granularity(self.fs.time_step());
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead(self.options.readahead) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        tally!(self, lookup);
        match self.look_up(&caller(req), parent, name) {
            Ok(Some(entry)) => self.reply_entry(Ok(entry), reply),
            Ok(None) => reply.entry(&self.options.timeout, &negative(), generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        tally!(self, getattr);
        match self.attributes(ino) {
            Ok(attr) => reply.attr(&self.options.timeout, &file_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        tally!(self, setattr);
        let set = SetAttr {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(request_time),
            through_handle: fh.is_some(),
            kill_suid: false,
        };
        let is_times_only = mode.is_none() && uid.is_none() && gid.is_none() && size.is_none();
        match self.set_attributes(&caller(req), ino, set) {
            Ok(attr) => reply.attr(&self.options.timeout, &file_attr(&attr)),
            // The kernel writes back the times of a file that has just lost its last name. There is
            // nothing left to keep them in, and an error would come out of the next syncfs.
            Err(Errno::ESTALE) if is_times_only => reply.attr(&Duration::ZERO, &negative()),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        tally!(self, readlink);
        match self.fs.readlink(crate::attr::inode(ino)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        tally!(self, mknod);
        let made = self.make(&creator(req, umask), parent, name, mode, decode_rdev(rdev));
        self.reply_entry(made, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        tally!(self, mkdir);
        let mode = mode & 0o7777 | libc::S_IFDIR;
        let made = self.make(&creator(req, umask), parent, name, mode, (0, 0));
        self.reply_entry(made, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        tally!(self, unlink);
        reply_empty(self.remove(&caller(req), parent, name, false), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        tally!(self, rmdir);
        reply_empty(self.remove(&caller(req), parent, name, true), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        tally!(self, symlink);
        let made = self.make_link(
            &caller(req),
            parent,
            link_name,
            target.as_os_str().as_bytes(),
        );
        self.reply_entry(made, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        tally!(self, rename);
        let moved = self.move_entry(
            &caller(req),
            (parent, name),
            (newparent, newname),
            flags.bits(),
        );
        reply_empty(moved, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        tally!(self, link);
        let made = self.add_link(&caller(req), ino, newparent, newname);
        self.reply_entry(made, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        tally!(self, open);
        match self.open_file(&caller(req), ino, flags.0) {
            Ok(handle) => reply.opened(handle, OPENED),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        tally!(self, create);
        match self.create_open(&creator(req, umask), parent, name, mode, open_flags(flags)) {
            Ok(entry) => {
                let (attr, generation) = (entry_attr(&entry.attr), generation(entry.generation));
                reply.created(
                    &self.options.timeout,
                    &attr,
                    generation,
                    FileHandle(0),
                    OPENED,
                );
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        tally!(self, read);
        self.read_file(ino, offset, size, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        tally!(self, write);
        match self.write_file(&caller(req), ino, offset, data, write_flags, flags.0) {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(e),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        tally!(self, release);
        reply_empty(self.release_file(ino, flags.0), reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        tally!(self, fsync);
        reply_empty(self.sync_file(ino, datasync), reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Directories are read by cookies that need no state; the kernel keeps what it has read.
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        tally!(self, readdir);
        match self.read_dir(ino, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        tally!(self, readdirplus);
        match self.read_dir_plus(ino, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        tally!(self, fsync);
        reply_empty(self.sync_file(ino, datasync), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        tally!(self, statfs);
        match self.fs.statfs() {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.files,
                s.files_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        tally!(self, setxattr);
        reply_empty(self.set_attribute(req, ino, name, value, flags), reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        tally!(self, getxattr);
        reply_xattr(self.get_attribute(&caller(req), ino, name), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        tally!(self, listxattr);
        reply_xattr(self.list_attributes(&caller(req), ino), size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        tally!(self, removexattr);
        reply_empty(self.remove_attribute(&caller(req), ino, name), reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        tally!(self, ioctl);
        match self.control_file(req, ino, cmd, in_data) {
            Ok(mut out) => {
                // Not padded: programs pass an int where the number says long, and would be written past.
                out.truncate(out_size as usize);
                reply.ioctl(0, &out);
            }
            Err(e) => reply.error(e),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        tally!(self, fallocate);
        reply_empty(
            self.allocate(&caller(req), ino, offset, length, mode),
            reply,
        );
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        tally!(self, lseek);
        self.seek(ino, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        tally!(self, copy_file_range);
        match self.copy(
            &caller(req),
            (ino_in, offset_in),
            (ino_out, offset_out),
            len,
        ) {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(e),
        }
    }
}
