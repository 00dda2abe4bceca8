//! The floor: a FUSE file system that keeps everything in memory and journals nothing.
//!
//! What a call costs here is what the FUSE protocol itself costs; no file system behind the same
//! protocol can be faster, so the benchmarks of many small calls are stated against it. It is
//! mounted with the same session parameters as `stetfs mount` (threads, cloned descriptors,
//! writeback cache, timeouts, readdirplus, no permission checks of its own), and it does for each
//! call the least that is still correct.
//!
//! Invariants: a node stays in the table while it has a name or the kernel holds a lookup on it.
//! Locks: a directory's names before a node's attributes; of two directories the lower number
//! first.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, SessionACL, TimeOrNow, WriteFlags,
};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

/// The session parameters that change what the protocol costs. They are to be kept equal to those
/// of `stetfs mount`.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Worker threads of the session.
    pub threads: usize,
    /// Each worker reads its own clone of `/dev/fuse`.
    pub clone_fd: bool,
    /// The kernel keeps written pages and sends them later.
    pub writeback: bool,
    /// OPEN is answered ENOSYS once, so that the kernel stops sending OPEN and RELEASE.
    pub no_open: bool,
    /// How long the kernel may keep names and attributes.
    pub timeout: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            threads: 16,
            clone_fd: true,
            writeback: true,
            no_open: false,
            timeout: Duration::from_secs(86_400),
        }
    }
}

#[derive(Default)]
struct Names {
    by_name: HashMap<OsString, (u64, u64)>,
    by_cookie: BTreeMap<u64, (OsString, u64)>,
    next_cookie: u64,
    parent: u64,
}

impl Names {
    fn new(parent: u64) -> Self {
        Self {
            next_cookie: 3,
            parent,
            ..Self::default()
        }
    }

    fn insert(&mut self, name: &OsStr, ino: u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_name.insert(name.to_owned(), (ino, cookie));
        self.by_cookie.insert(cookie, (name.to_owned(), ino));
    }

    fn remove(&mut self, name: &OsStr) -> Option<u64> {
        let (ino, cookie) = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(ino)
    }

    fn get(&self, name: &OsStr) -> Option<u64> {
        self.by_name.get(name).map(|(ino, _)| *ino)
    }
}

enum Body {
    File(RwLock<Vec<u8>>),
    Dir(RwLock<Names>),
    Link(Vec<u8>),
    Special,
}

struct Meta {
    attr: FileAttr,
    lookups: u64,
    xattrs: BTreeMap<OsString, Vec<u8>>,
}

struct Node {
    ino: u64,
    body: Body,
    meta: Mutex<Meta>,
}

impl Node {
    fn names(&self) -> Result<&RwLock<Names>, Errno> {
        match &self.body {
            Body::Dir(names) => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn attr(&self) -> FileAttr {
        self.meta.lock().attr
    }

    fn touch(&self) {
        let now = SystemTime::now();
        let mut meta = self.meta.lock();
        meta.attr.mtime = now;
        meta.attr.ctime = now;
    }

    fn links(&self, change: i32) -> u32 {
        let mut meta = self.meta.lock();
        meta.attr.nlink = meta.attr.nlink.saturating_add_signed(change);
        meta.attr.ctime = SystemTime::now();
        meta.attr.nlink
    }
}

const SHARDS: u64 = 64;
const FH: FileHandle = FileHandle(0);
const GENERATION: Generation = Generation(0);

type Table = HashMap<u64, Arc<Node>>;

/// The file system of this module; give it to [`mount`].
pub struct Floor {
    shards: Vec<RwLock<Table>>,
    next: AtomicU64,
    tuning: Tuning,
}

/// Serves an empty floor file system on `dir` until it is unmounted.
///
/// # Errors
/// What mounting or the session reports.
pub fn mount(dir: &Path, tuning: Tuning) -> std::io::Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("floor".into()),
        MountOption::Subtype("floor".into()),
        MountOption::DefaultPermissions,
        MountOption::Suid,
        MountOption::Dev,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(tuning.threads);
    config.clone_fd = tuning.clone_fd;
    fuser::mount(Floor::new(tuning), dir, &config)
}

impl Floor {
    /// An empty file system with a root directory.
    pub fn new(tuning: Tuning) -> Self {
        let floor = Self {
            shards: (0..SHARDS).map(|_| RwLock::new(Table::new())).collect(),
            next: AtomicU64::new(1),
            tuning,
        };
        let root = floor.add(
            Body::Dir(RwLock::new(Names::new(1))),
            FileType::Directory,
            0o755,
            (0, 0),
            0,
        );
        root.links(1);
        floor
    }

    fn shard(&self, ino: u64) -> &RwLock<Table> {
        &self.shards[(ino % SHARDS) as usize]
    }

    fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.shard(ino.0)
            .read()
            .get(&ino.0)
            .cloned()
            .ok_or(Errno::ENOENT)
    }

    fn add(
        &self,
        body: Body,
        kind: FileType,
        perm: u32,
        owner: (u32, u32),
        rdev: u32,
    ) -> Arc<Node> {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now();
        let attr = FileAttr {
            ino: INodeNo(ino),
            size: if let Body::Link(target) = &body {
                target.len() as u64
            } else {
                0
            },
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm: (perm & 0o7777) as u16,
            nlink: 1,
            uid: owner.0,
            gid: owner.1,
            rdev,
            blksize: 4096,
            flags: 0,
        };
        let meta = Mutex::new(Meta {
            attr,
            lookups: 0,
            xattrs: BTreeMap::new(),
        });
        let node = Arc::new(Node { ino, body, meta });
        self.shard(ino).write().insert(ino, node.clone());
        node
    }

    fn forget_if_dead(&self, node: &Node) {
        let meta = node.meta.lock();
        if meta.lookups == 0 && meta.attr.nlink == 0 {
            drop(meta);
            self.shard(node.ino).write().remove(&node.ino);
        }
    }

    /// Links a fresh node under `name` and counts the kernel's lookup of it.
    fn link_new(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce() -> Arc<Node>,
    ) -> Result<FileAttr, Errno> {
        let dir = self.node(parent)?;
        let mut names = dir.names()?.write();
        if names.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let node = make();
        names.insert(name, node.ino);
        if let Body::Dir(own) = &node.body {
            own.write().parent = parent.0;
            node.links(1);
            dir.links(1);
        }
        drop(names);
        dir.touch();
        let mut meta = node.meta.lock();
        meta.lookups += 1;
        Ok(meta.attr)
    }

    fn unlink_name(&self, parent: INodeNo, name: &OsStr, want_dir: bool) -> Result<(), Errno> {
        let dir = self.node(parent)?;
        let mut names = dir.names()?.write();
        let node = self.node(INodeNo(names.get(name).ok_or(Errno::ENOENT)?))?;
        match (&node.body, want_dir) {
            (Body::Dir(own), true) => {
                if !own.read().by_name.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                node.links(-2);
                dir.links(-1);
            }
            (Body::Dir(_), false) => return Err(Errno::EISDIR),
            (_, true) => return Err(Errno::ENOTDIR),
            (_, false) => {
                node.links(-1);
            }
        }
        names.remove(name);
        drop(names);
        dir.touch();
        self.forget_if_dead(&node);
        Ok(())
    }

    fn move_name(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(Errno::EINVAL);
        }
        let moved = self.node(INodeNo(
            self.node(from.0)?
                .names()?
                .read()
                .get(from.1)
                .ok_or(Errno::ENOENT)?,
        ))?;
        let existing = self.node(to.0)?.names()?.read().get(to.1);
        if let Some(ino) = existing {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            if ino == moved.ino {
                return Ok(());
            }
            let is_dir = matches!(self.node(INodeNo(ino))?.body, Body::Dir(_));
            self.unlink_name(to.0, to.1, is_dir)?;
        }
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        source.names()?.write().remove(from.1);
        target.names()?.write().insert(to.1, moved.ino);
        if let Body::Dir(own) = &moved.body {
            own.write().parent = to.0.0;
            source.links(-1);
            target.links(1);
        }
        source.touch();
        target.touch();
        Ok(())
    }

    fn resize(node: &Node, size: u64) -> Result<(), Errno> {
        let Body::File(data) = &node.body else {
            return Err(Errno::EISDIR);
        };
        data.write()
            .resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
        let mut meta = node.meta.lock();
        meta.attr.size = size;
        meta.attr.blocks = size.div_ceil(512);
        Ok(())
    }

    fn write_file(node: &Node, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let Body::File(data) = &node.body else {
            return Err(Errno::EISDIR);
        };
        let start = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        let end = start.checked_add(bytes.len()).ok_or(Errno::EFBIG)?;
        let mut data = data.write();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(bytes);
        let mut meta = node.meta.lock();
        meta.attr.size = data.len() as u64;
        meta.attr.blocks = meta.attr.size.div_ceil(512);
        Ok(())
    }

    /// Calls `add(ino, next cookie, name)` for each entry after `cookie` until it says "full".
    fn entries(
        &self,
        ino: INodeNo,
        cookie: u64,
        mut add: impl FnMut(u64, u64, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let dir = self.node(ino)?;
        let names = dir.names()?.read();
        if cookie < 1 && add(ino.0, 1, OsStr::new(".")) {
            return Ok(());
        }
        if cookie < 2 && add(names.parent, 2, OsStr::new("..")) {
            return Ok(());
        }
        for (at, (name, child)) in names.by_cookie.range(cookie.max(2) + 1..) {
            if add(*child, *at, name) {
                break;
            }
        }
        Ok(())
    }
}

fn moment(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn kind_of(mode: u32) -> FileType {
    match mode & 0o170_000 {
        0o010_000 => FileType::NamedPipe,
        0o020_000 => FileType::CharDevice,
        0o060_000 => FileType::BlockDevice,
        0o140_000 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

impl Filesystem for Floor {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        if self.tuning.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if self.tuning.no_open {
            wanted |= InitFlags::FUSE_NO_OPEN_SUPPORT;
        }
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_readahead(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.node(parent).and_then(|dir| {
            let ino = dir.names()?.read().get(name).ok_or(Errno::ENOENT)?;
            let node = self.node(INodeNo(ino))?;
            let mut meta = node.meta.lock();
            meta.lookups += 1;
            Ok(meta.attr)
        });
        match found {
            Ok(attr) => reply.entry(&self.tuning.timeout, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, count: u64) {
        if let Ok(node) = self.node(ino) {
            let mut meta = node.meta.lock();
            meta.lookups = meta.lookups.saturating_sub(count);
            drop(meta);
            self.forget_if_dead(&node);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino) {
            Ok(node) => reply.attr(&self.tuning.timeout, &node.attr()),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let done = self.node(ino).and_then(|node| {
            if let Some(size) = size {
                Self::resize(&node, size)?;
            }
            let mut meta = node.meta.lock();
            let attr = &mut meta.attr;
            attr.perm = mode.map_or(attr.perm, |mode| (mode & 0o7777) as u16);
            attr.uid = uid.unwrap_or(attr.uid);
            attr.gid = gid.unwrap_or(attr.gid);
            attr.atime = atime.map_or(attr.atime, moment);
            attr.mtime = mtime.map_or(attr.mtime, moment);
            attr.ctime = ctime.unwrap_or_else(SystemTime::now);
            Ok(*attr)
        });
        match done {
            Ok(attr) => reply.attr(&self.tuning.timeout, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino).as_deref() {
            Ok(Node {
                body: Body::Link(target),
                ..
            }) => reply.data(target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(*error),
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
        let kind = kind_of(mode);
        let body = if kind == FileType::RegularFile {
            Body::File(RwLock::default())
        } else {
            Body::Special
        };
        let owner = (req.uid(), req.gid());
        match self.link_new(parent, name, || {
            self.add(body, kind, mode & !umask, owner, rdev)
        }) {
            Ok(attr) => reply.entry(&self.tuning.timeout, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
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
        let owner = (req.uid(), req.gid());
        let make = || {
            self.add(
                Body::Dir(RwLock::new(Names::new(0))),
                FileType::Directory,
                mode & !umask,
                owner,
                0,
            )
        };
        match self.link_new(parent, name, make) {
            Ok(attr) => reply.entry(&self.tuning.timeout, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.unlink_name(parent, name, false), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.unlink_name(parent, name, true), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let owner = (req.uid(), req.gid());
        let body = Body::Link(target.as_os_str().as_bytes().to_vec());
        match self.link_new(parent, name, || {
            self.add(body, FileType::Symlink, 0o777, owner, 0)
        }) {
            Ok(attr) => reply.entry(&self.tuning.timeout, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer(
            self.move_name((parent, name), (newparent, newname), flags),
            reply,
        );
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let done = self.node(ino).and_then(|node| {
            self.link_new(newparent, newname, || {
                node.links(1);
                node.clone()
            })
        });
        match done {
            Ok(attr) => reply.entry(&self.tuning.timeout, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.tuning.no_open {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FH, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
        }
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.node(ino).as_deref() {
            Ok(Node {
                body: Body::File(data),
                ..
            }) => {
                let data = data.read();
                let start = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(data.len());
                let end = start.saturating_add(size as usize).min(data.len());
                reply.data(&data[start..end]);
            }
            Ok(_) => reply.error(Errno::EISDIR),
            Err(error) => reply.error(*error),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self
            .node(ino)
            .and_then(|node| Self::write_file(&node, offset, data))
        {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
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

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // Answered, not ENOSYS: the floor pays for the call, as every real file system must.
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let done = self.entries(ino, offset, |child, cookie, name| {
            let kind = self
                .node(INodeNo(child))
                .map_or(FileType::RegularFile, |node| node.attr().kind);
            reply.add(INodeNo(child), cookie, kind, name)
        });
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
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
        let done = self.entries(ino, offset, |child, cookie, name| {
            let Ok(node) = self.node(INodeNo(child)) else {
                return false;
            };
            let attr = node.attr();
            let full = reply.add(
                INodeNo(child),
                cookie,
                name,
                &self.tuning.timeout,
                &attr,
                GENERATION,
            );
            if !full && name != "." && name != ".." {
                node.meta.lock().lookups += 1;
            }
            full
        });
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const BLOCKS: u64 = 4 << 20;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4096, 255, 4096);
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let done = self.node(ino).map(|node| {
            node.meta
                .lock()
                .xattrs
                .insert(name.to_owned(), value.to_vec());
        });
        answer(done, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = self.node(ino).and_then(|node| {
            node.meta
                .lock()
                .xattrs
                .get(name)
                .cloned()
                .ok_or(Errno::ENODATA)
        });
        sized(found, size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let found = self.node(ino).map(|node| {
            let meta = node.meta.lock();
            meta.xattrs
                .keys()
                .flat_map(|name| name.as_bytes().iter().copied().chain([0]))
                .collect()
        });
        sized(found, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.node(ino).and_then(|node| {
            node.meta
                .lock()
                .xattrs
                .remove(name)
                .map(drop)
                .ok_or(Errno::ENODATA)
        });
        answer(done, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let owner = (req.uid(), req.gid());
        let make = || {
            self.add(
                Body::File(RwLock::default()),
                FileType::RegularFile,
                mode & !umask,
                owner,
                0,
            )
        };
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        match self.link_new(parent, name, make) {
            Ok(attr) => reply.created(&self.tuning.timeout, &attr, GENERATION, FH, flags),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let done = self.node(ino).and_then(|node| {
            let size = node
                .attr()
                .size
                .max(offset.checked_add(length).ok_or(Errno::EFBIG)?);
            Self::resize(&node, size)
        });
        answer(done, reply);
    }
}

fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn sized(found: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match found {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(error),
    }
}
