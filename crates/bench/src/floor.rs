//! The floor: a file system behind the mount's own server that keeps everything in memory and
//! journals nothing.
//!
//! A call costs here what the server and the FUSE protocol cost. No file system behind the same
//! server can be faster, so the benchmarks of many small calls are compared with it. The floor is
//! one more [`Backend`] of `stetfs mount`'s server: it has the same transport, threads, mount
//! options and agreements with the kernel. For each call it does the least that is still correct.
//!
//! Invariants: a node stays in the table while it has a name, is open, or the kernel has not
//! forgotten it. Locks: a directory's names before a node's attributes; a directory's names before
//! those of a directory in it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use stetfs::clock::Clock;
use stetfs::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID};
use stetfs::{
    Attr, Caller, Change, DirEntry, Entry, Error, FallocateMode, MountOptions, Name, New,
    OpenFlags, RenameFlags, Result, SetAttr, SetTime, SetXattr, StatFs, Whence, WriteFlags,
};
use stetfs_format::inode::InodeFlags;
use stetfs_format::{InodeNo, Time};
use stetfs_fuse::Backend;

const ROOT: InodeNo = InodeNo(2);
/// The number of the first file beside the root directory.
const FIRST: u32 = 11;
const SHARDS: u32 = 64;
/// The room that it claims to have, in blocks. All of it is always free.
const BLOCKS: u64 = 4 << 20;
const BLOCK_SIZE: u32 = 4096;

/// Reads the clock that a volume uses.
fn now() -> Time {
    Clock::System.now()
}

#[derive(Default)]
struct Names {
    by_name: HashMap<Vec<u8>, (InodeNo, u64)>,
    by_cookie: BTreeMap<u64, Named>,
    next_cookie: u64,
    parent: InodeNo,
}

struct Named {
    name: Vec<u8>,
    ino: InodeNo,
    /// As in `d_type`.
    kind: u8,
}

impl Names {
    fn new(parent: InodeNo) -> Self {
        Self {
            next_cookie: 3,
            parent,
            ..Self::default()
        }
    }

    fn insert(&mut self, name: &[u8], node: &Node) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_name.insert(name.to_owned(), (node.ino, cookie));
        let named = Named {
            name: name.to_owned(),
            ino: node.ino,
            kind: node.kind,
        };
        self.by_cookie.insert(cookie, named);
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.by_name.remove(name) {
            self.by_cookie.remove(&cookie);
        }
    }

    fn get(&self, name: &[u8]) -> Option<InodeNo> {
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
    attr: Attr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Number of times that it is open.
    opens: u32,
    /// True if the kernel has forgotten it since it lost its last name.
    forgotten: bool,
}

impl Meta {
    fn is_dead(&self) -> bool {
        self.attr.nlink == 0 && self.opens == 0 && self.forgotten
    }

    fn set_size(&mut self, size: usize) {
        self.attr.size = size as u64;
        self.attr.blocks = self.attr.size.div_ceil(512);
    }

    fn change_links(&mut self, change: i32) {
        self.attr.nlink = self.attr.nlink.saturating_add_signed(change);
        self.attr.ctime = now();
    }
}

struct Node {
    ino: InodeNo,
    /// As in `d_type`.
    kind: u8,
    body: Body,
    meta: Mutex<Meta>,
}

impl Node {
    fn new(ino: InodeNo, body: Body, mode: u16, owner: (u32, u32), rdev: (u32, u32)) -> Self {
        let now = now();
        let attr = Attr {
            ino,
            generation: 0,
            mode,
            nlink: 1,
            uid: owner.0,
            gid: owner.1,
            rdev,
            size: match &body {
                Body::Link(target) => target.len() as u64,
                _ => 0,
            },
            blocks: 0,
            blksize: BLOCK_SIZE,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            flags: InodeFlags::empty(),
            projid: 0,
            version: 0,
        };
        let meta = Meta {
            attr,
            xattrs: BTreeMap::new(),
            opens: 0,
            forgotten: false,
        };
        Self {
            ino,
            kind: (mode >> 12) as u8,
            body,
            meta: Mutex::new(meta),
        }
    }

    fn names(&self) -> Result<&RwLock<Names>> {
        match &self.body {
            Body::Dir(names) => Ok(names),
            _ => Err(Error::NotDirectory),
        }
    }

    fn data(&self) -> Result<&RwLock<Vec<u8>>> {
        match &self.body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    fn entry(&self) -> Entry {
        Entry::from(self.meta.lock().attr)
    }

    fn set(&self, set: &SetAttr) -> Result<()> {
        if let Some(size) = set.size {
            self.resize(size)?;
        }
        let now = now();
        let time = |set: Option<SetTime>, old| match set {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::At(time)) => time,
        };
        let mut meta = self.meta.lock();
        let attr = &mut meta.attr;
        if let Some(mode) = set.mode {
            attr.mode = attr.mode & S_IFMT | mode & !S_IFMT;
        }
        if set.kill_suid {
            attr.mode &= !(S_ISUID | S_ISGID);
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = time(set.atime, attr.atime);
        let mtime = if set.size.is_some() { now } else { attr.mtime };
        attr.mtime = time(set.mtime, mtime);
        attr.ctime = set.ctime.unwrap_or(now);
        Ok(())
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        // An ACL would have to be inherited.
        if name.starts_with(b"system.") {
            return Err(Error::NotSupported);
        }
        let xattrs = &mut self.meta.lock().xattrs;
        match (how, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Error::Exists),
            (SetXattr::Replace, false) => return Err(Error::NoData),
            _ => {}
        }
        xattrs.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn touch(&self) {
        let now = now();
        let mut meta = self.meta.lock();
        meta.attr.mtime = now;
        meta.attr.ctime = now;
    }

    fn links(&self, change: i32) {
        self.meta.lock().change_links(change);
    }

    fn resize(&self, size: u64) -> Result<()> {
        let size = usize::try_from(size).map_err(|_| Error::TooBig)?;
        let mut data = self.data()?.write();
        data.resize(size, 0);
        self.meta.lock().set_size(size);
        Ok(())
    }
}

type Table = HashMap<InodeNo, Arc<Node>>;

struct Nodes {
    shards: Vec<RwLock<Table>>,
    next: AtomicU32,
}

/// The file system of this module.
#[derive(Clone)]
pub struct Floor(Arc<Nodes>);

impl Default for Floor {
    fn default() -> Self {
        Self::new()
    }
}

impl Floor {
    /// Makes an empty file system with a root directory.
    pub fn new() -> Self {
        let floor = Self(Arc::new(Nodes {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            next: AtomicU32::new(FIRST),
        }));
        let body = Body::Dir(RwLock::new(Names::new(ROOT)));
        let root = floor.insert(Node::new(ROOT, body, S_IFDIR | 0o755, (0, 0), (0, 0)));
        root.links(1);
        floor
    }

    fn shard(&self, ino: InodeNo) -> &RwLock<Table> {
        &self.0.shards[(ino.0 % SHARDS) as usize]
    }

    fn node(&self, ino: InodeNo) -> Result<Arc<Node>> {
        let found = self.shard(ino).read().get(&ino).cloned();
        found.ok_or(Error::NotFound)
    }

    fn child(&self, dir: InodeNo, name: &[u8]) -> Result<Arc<Node>> {
        let dir = self.node(dir)?;
        let names = dir.names()?.read();
        let found = if name == b".." {
            Some(names.parent)
        } else {
            names.get(name)
        };
        self.node(found.ok_or(Error::NotFound)?)
    }

    fn insert(&self, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        self.shard(node.ino).write().insert(node.ino, node.clone());
        node
    }

    /// Makes a node with the caller's owner. `mode` includes the type.
    fn make(&self, c: &Caller, body: Body, mode: u16, rdev: (u32, u32)) -> Arc<Node> {
        let ino = InodeNo(self.0.next.fetch_add(1, Ordering::Relaxed));
        let mode = mode & !c.umask;
        self.insert(Node::new(ino, body, mode, (c.uid, c.gid), rdev))
    }

    fn remove_if_dead(&self, node: &Node, change: impl FnOnce(&mut Meta)) {
        let mut meta = node.meta.lock();
        change(&mut meta);
        if meta.is_dead() {
            drop(meta);
            self.shard(node.ino).write().remove(&node.ino);
        }
    }

    /// Gives a name to a node that `make` makes or finds.
    fn add_name(
        &self,
        (dir, name): Name<'_>,
        make: impl FnOnce() -> Arc<Node>,
    ) -> Result<Arc<Node>> {
        let dir = self.node(dir)?;
        let mut names = dir.names()?.write();
        if names.get(name).is_some() {
            return Err(Error::Exists);
        }
        let node = make();
        names.insert(name, &node);
        if let Body::Dir(own) = &node.body {
            own.write().parent = dir.ino;
            node.links(1);
            dir.links(1);
        }
        drop(names);
        dir.touch();
        Ok(node)
    }

    fn remove_name(&self, (dir, name): Name<'_>, want_dir: bool) -> Result<Arc<Node>> {
        let dir = self.node(dir)?;
        let mut names = dir.names()?.write();
        let node = self.node(names.get(name).ok_or(Error::NotFound)?)?;
        match (&node.body, want_dir) {
            (Body::Dir(own), true) => {
                if !own.read().by_name.is_empty() {
                    return Err(Error::NotEmpty);
                }
                node.links(-2);
                dir.links(-1);
            }
            (Body::Dir(_), false) => return Err(Error::IsDirectory),
            (_, true) => return Err(Error::NotDirectory),
            (_, false) => node.links(-1),
        }
        names.remove(name);
        drop(names);
        dir.touch();
        Ok(node)
    }

    /// Makes a new file of any kind, with the caller's owner.
    fn make_new(&self, c: &Caller, dir: InodeNo, new: New<'_>) -> Arc<Node> {
        match new {
            New::File(mode) => self.make(c, Body::File(RwLock::default()), S_IFREG | mode, (0, 0)),
            New::Directory(mode) => {
                let body = Body::Dir(RwLock::new(Names::new(dir)));
                self.make(c, body, S_IFDIR | mode, (0, 0))
            }
            New::Symlink(target) => {
                let unmasked = Caller {
                    umask: 0,
                    ..c.clone()
                };
                self.make(
                    &unmasked,
                    Body::Link(target.to_owned()),
                    S_IFLNK | 0o777,
                    (0, 0),
                )
            }
            New::Node(mode, rdev) => match mode & S_IFMT {
                // Without a type it is a regular file.
                0 | S_IFREG => self.make_new(c, dir, New::File(mode)),
                _ => self.make(c, Body::Special, mode, rdev),
            },
        }
    }

    fn rename(
        &self,
        (dir, name): Name<'_>,
        (new_dir, new_name): Name<'_>,
        flags: RenameFlags,
    ) -> Result<Arc<Node>> {
        if !(flags - RenameFlags::NOREPLACE).is_empty() {
            return Err(Error::Invalid);
        }
        let moved = self.child(dir, name)?;
        let (source, target) = (self.node(dir)?, self.node(new_dir)?);
        let existing = target.names()?.read().get(new_name);
        if let Some(ino) = existing {
            if flags.contains(RenameFlags::NOREPLACE) {
                return Err(Error::Exists);
            }
            if ino == moved.ino {
                return Ok(moved);
            }
            self.remove_name((new_dir, new_name), self.node(ino)?.is_dir())?;
        }
        source.names()?.write().remove(name);
        target.names()?.write().insert(new_name, &moved);
        if let Body::Dir(own) = &moved.body {
            own.write().parent = new_dir;
            source.links(-1);
            target.links(1);
        }
        source.touch();
        target.touch();
        Ok(moved)
    }
}

impl Backend for Floor {
    fn memory(&self) -> u64 {
        // The same as for a volume, so that requests are as large.
        MountOptions::default().memory
    }

    /// True, so that the kernel asks for ACLs as it does on a volume; it learns that there are
    /// none.
    fn has_acls(&self) -> bool {
        true
    }

    fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        let node = match *change {
            Change::Make(name, new) => self.add_name(name, || self.make_new(c, name.0, new))?,
            Change::Link(ino, name) => {
                let node = self.node(ino)?;
                self.add_name(name, || {
                    node.links(1);
                    node
                })?
            }
            Change::Unlink(name) => self.remove_name(name, false)?,
            Change::Rmdir(name) => self.remove_name(name, true)?,
            Change::Rename(from, to, flags) => self.rename(from, to, flags)?,
            Change::SetAttr(ino, set) => {
                let node = self.node(ino)?;
                node.set(set)?;
                node
            }
            Change::SetXattr(ino, name, value, how) => {
                let node = self.node(ino)?;
                node.set_xattr(name, value, how)?;
                node
            }
            Change::RemoveXattr(ino, name) => {
                let node = self.node(ino)?;
                let removed = node.meta.lock().xattrs.remove(name);
                removed.ok_or(Error::NoData)?;
                node
            }
            Change::SetFlags(..) | Change::SetGeneration(..) => return Err(Error::NotSupported),
        };
        let meta = node.meta.lock();
        Ok(meta.attr)
    }

    fn lookup(&self, _c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry> {
        Ok(self.child(dir, name)?.entry())
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        match &self.node(ino)?.body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Error::Invalid),
        }
    }

    fn create(
        &self,
        c: &Caller,
        dir: InodeNo,
        name: &[u8],
        mode: u16,
        _flags: OpenFlags,
    ) -> Result<Entry> {
        let make = || self.make_new(c, dir, New::File(mode));
        let node = self.add_name((dir, name), make)?;
        node.meta.lock().opens += 1;
        Ok(node.entry())
    }

    fn readdir(
        &self,
        dir: InodeNo,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(dir)?;
        let names = node.names()?.read();
        let dots = [(dir, 1, &b"."[..]), (names.parent, 2, b"..")];
        let dots = dots.into_iter().map(|(ino, next, name)| DirEntry {
            ino,
            next,
            kind: (S_IFDIR >> 12) as u8,
            name,
        });
        let after = names.by_cookie.range(cookie.max(2) + 1..);
        let entries = after.map(|(next, named)| DirEntry {
            ino: named.ino,
            next: *next,
            kind: named.kind,
            name: &named.name,
        });
        for entry in dots.filter(|dot| dot.next > cookie).chain(entries) {
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        Ok(self.node(ino)?.meta.lock().attr)
    }

    fn getxattr(&self, _c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let found = node.meta.lock().xattrs.get(name).cloned();
        found.ok_or(Error::NoData)
    }

    fn listxattr(&self, _c: &Caller, ino: InodeNo) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let meta = node.meta.lock();
        let names = meta.xattrs.keys();
        Ok(names
            .flat_map(|name| name.iter().copied().chain([0]))
            .collect())
    }

    fn open(&self, _c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()> {
        let node = self.node(ino)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            node.resize(0)?;
            node.touch();
        }
        node.meta.lock().opens += 1;
        Ok(())
    }

    fn release(&self, ino: InodeNo) -> Result<()> {
        let node = self.node(ino)?;
        self.remove_if_dead(&node, |meta| meta.opens = meta.opens.saturating_sub(1));
        Ok(())
    }

    /// May run before the last close, although the kernel asked for that earlier.
    fn forget(&self, ino: InodeNo) -> Result<()> {
        let node = self.node(ino)?;
        self.remove_if_dead(&node, |meta| meta.forgotten = meta.attr.nlink == 0);
        Ok(())
    }

    fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let data = node.data()?.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = data.get(start..).unwrap_or_default();
        let n = there.len().min(out.len());
        out[..n].copy_from_slice(&there[..n]);
        Ok(n)
    }

    fn write_with(
        &self,
        _c: &Caller,
        ino: InodeNo,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(u64, usize)> {
        let node = self.node(ino)?;
        let mut data = node.data()?.write();
        let start = if flags.contains(WriteFlags::APPEND) {
            data.len()
        } else {
            usize::try_from(offset).map_err(|_| Error::TooBig)?
        };
        let end = start.checked_add(bytes.len()).ok_or(Error::TooBig)?;
        if data.len() < end {
            data.resize(end, 0);
        }
        data[start..end].copy_from_slice(bytes);
        let mut meta = node.meta.lock();
        meta.set_size(data.len());
        if !flags.contains(WriteFlags::CACHED) {
            let now = now();
            meta.attr.mtime = now;
            meta.attr.ctime = now;
        }
        if flags.contains(WriteFlags::KILL_SUID) {
            meta.attr.mode &= !(S_ISUID | S_ISGID);
        }
        Ok((start as u64, bytes.len()))
    }

    fn fallocate(
        &self,
        _c: &Caller,
        ino: InodeNo,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if !mode.is_empty() {
            return Err(Error::NotSupported);
        }
        let node = self.node(ino)?;
        let end = offset.checked_add(len).ok_or(Error::TooBig)?;
        let size = node.meta.lock().attr.size;
        node.resize(size.max(end))
    }

    /// There are no holes.
    fn seek(&self, ino: InodeNo, offset: u64, whence: Whence) -> Result<u64> {
        let size = self.getattr(ino)?.size;
        match whence {
            _ if offset >= size => Err(Error::NoSuchDevice),
            Whence::Data => Ok(offset),
            Whence::Hole => Ok(size),
        }
    }

    /// Answered and not refused, so that the floor pays for the call as every real file system
    /// must.
    fn fsync(&self, _ino: InodeNo, _datasync: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: BLOCK_SIZE,
            blocks: BLOCKS,
            blocks_free: BLOCKS,
            blocks_available: BLOCKS,
            files: BLOCKS,
            files_free: BLOCKS,
            name_max: 255,
            uuid: [0; 16],
        })
    }

    fn room(&self, _c: &Caller) -> u64 {
        BLOCKS * u64::from(BLOCK_SIZE)
    }

    fn stats(&self) -> impl Serialize {
        let nodes: usize = self.0.shards.iter().map(|s| s.read().len()).sum();
        serde_json::json!({ "nodes": nodes })
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(floor: &Floor) -> usize {
        floor.0.shards.iter().map(|s| s.read().len()).sum()
    }

    fn names(floor: &Floor, dir: InodeNo, cookie: u64) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let each = &mut |entry: DirEntry<'_>| {
            names.push(entry.name.to_owned());
            true
        };
        floor.readdir(dir, cookie, each).unwrap();
        names
    }

    #[test]
    fn a_removed_file_stays_while_it_is_open() {
        let (floor, c) = (Floor::new(), Caller::root());
        let made = floor.create(&c, ROOT, b"f", 0o644, OpenFlags::WRITE);
        let ino = made.unwrap().ino;
        let write = |at, bytes| floor.write_with(&c, ino, at, bytes, WriteFlags::empty());
        assert_eq!(write(3, b"abc").unwrap(), (3, 3));
        floor.change(&c, &Change::Unlink((ROOT, b"f"))).unwrap();
        // The close and the forget may come in either order.
        floor.forget(ino).unwrap();
        let mut read = [9; 8];
        assert_eq!(floor.read(ino, 0, &mut read).unwrap(), 6);
        assert_eq!(read[..6], *b"\0\0\0abc");
        floor.release(ino).unwrap();
        assert_eq!(nodes(&floor), 1);
        let made = floor.change(&c, &Change::Make((ROOT, b"d"), New::Directory(0o755)));
        let ino = made.unwrap().ino;
        floor.change(&c, &Change::Rmdir((ROOT, b"d"))).unwrap();
        assert_eq!(floor.getattr(ino).unwrap().nlink, 0);
        floor.forget(ino).unwrap();
        assert!(matches!(floor.getattr(ino), Err(Error::NotFound)));
    }

    #[test]
    fn names_move_and_are_listed_from_any_of_them_on() {
        let (floor, c) = (Floor::new(), Caller::root());
        let made = floor.change(&c, &Change::Make((ROOT, b"dir"), New::Directory(0o755)));
        let dir = made.unwrap().ino;
        for name in [b"a", b"b"] {
            let link = Change::Make((ROOT, name), New::Symlink(b"target"));
            floor.change(&c, &link).unwrap();
        }
        let mv = |from, name: &[u8], to, new: &[u8]| {
            let none = RenameFlags::empty();
            floor.change(&c, &Change::Rename((from, name), (to, new), none))
        };
        mv(ROOT, b"a", ROOT, b"b").unwrap();
        mv(ROOT, b"b", dir, b"c").unwrap();
        assert!(matches!(
            floor.change(&c, &Change::Rmdir((ROOT, b"dir"))),
            Err(Error::NotEmpty)
        ));
        assert_eq!(names(&floor, ROOT, 0), [&b"."[..], b"..", b"dir"]);
        assert_eq!(names(&floor, dir, 1), [&b".."[..], b"c"]);
        let up = floor.lookup(&c, dir, b"..").unwrap();
        assert_eq!((up.ino, up.attr.nlink), (ROOT, 3));
    }
}
