//! Operations through the library, without FUSE.

mod change;
mod front;
mod group;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::Media;
use stetfs::{
    Attr, Caller, Change, Error, FallocateMode, Fs, Group, Kind, MountOptions, MountReport,
    OpenFlags, Shutdown, Whence, WriteFlags,
};
use stetfs_format::inode::InodeFlags;
use stetfs_format::{InodeNo, Time};

use self::change::{Answer, S_IFDIR, S_IFMT, S_IFREG, Way};
use super::op::{Durable, Op, Payload, Reserve, SLOTS};
use super::sparse::PAGE;
use super::tree::{Facts, Pages, Tree, add_run, join, name_links, note_pages};
use super::{BASE, Moment, Outcome, Reply, Stat, World};

pub use self::front::{Direct, Front};

const S_IFLNK: u16 = 0o120_000;

/// The file that takes blocks from all others, in the root directory.
pub const FILLER: &[u8] = b"filler";

/// Files up to this many bytes are read whole.
const WHOLE: u64 = 64 << 20;

/// A volume mounted in this process.
pub struct Library {
    front: Arc<dyn Front>,
    media: Media,
    options: MountOptions,
    fs: Fs,
    base: String,
    caller: Caller,
    slots: [Option<InodeNo>; SLOTS as usize],
    group: Option<Group>,
    /// The other of two groups.
    other: Option<Group>,
}

/// A sync of one file or directory, or of everything; another thread can run it.
pub enum SyncOp {
    /// fsync and fdatasync.
    File {
        /// The mount.
        fs: Fs,
        /// The file or directory.
        ino: InodeNo,
        /// Whether to make durable only what is needed to read the content.
        datasync: bool,
    },
    /// sync.
    All(Fs),
    /// A commit, as the clock causes it.
    Commit(Fs),
    /// A commit; then everything goes home, or some blocks of a cache.
    Drain(Fs),
    /// Four drains in a row.
    Checkpoint(Fs),
}

impl SyncOp {
    /// Runs the sync; returns when it is durable.
    ///
    /// # Errors
    /// Those of the commit.
    pub fn run(self) -> Answer<()> {
        match self {
            Self::File { fs, ino, datasync } => fs.fsync(ino, datasync),
            Self::All(fs) => fs.sync(),
            Self::Commit(fs) => fs.commit(),
            Self::Drain(fs) => fs.drain_some().map(drop),
            Self::Checkpoint(fs) => checkpoint(&fs),
        }
    }
}

/// Drains four parts. Without a cache the first one brings everything home; of a cache each brings
/// some blocks.
fn checkpoint(fs: &Fs) -> Answer<()> {
    const PARTS: usize = 4;
    for _ in 0..PARTS {
        fs.drain_some()?;
    }
    Ok(())
}

impl Library {
    /// Mounts a volume and makes the base directory if it does not exist.
    ///
    /// # Errors
    /// Those of the mount, or of making the directory.
    pub fn mount(media: impl Into<Media>, options: MountOptions) -> Answer<(Self, MountReport)> {
        let (library, report) = Self::mount_as_it_is(media, options)?;
        library.make_base()?;
        Ok((library, report))
    }

    /// Makes the base directory if it does not exist.
    ///
    /// # Errors
    /// Those of making it.
    pub fn make_base(&self) -> Answer<()> {
        let (fs, caller) = (&self.fs, &self.caller);
        match fs.mkdir(caller, fs.root(), BASE.as_bytes(), 0o755) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), Kind::Exists | Kind::ReadOnly) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Mounts a volume without making anything.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn mount_as_it_is(
        media: impl Into<Media>,
        options: MountOptions,
    ) -> Answer<(Self, MountReport)> {
        Self::mount_behind(Arc::new(Direct), media.into(), options)
    }

    /// Does the same with something between the media and the file system.
    ///
    /// # Errors
    /// Those of the front, or of the mount.
    pub fn mount_behind(
        front: Arc<dyn Front>,
        media: Media,
        options: MountOptions,
    ) -> Answer<(Self, MountReport)> {
        let (fs, report) = front::mount(&*front, &media, &options)?;
        let library = Self {
            front,
            media,
            options,
            fs,
            base: BASE.to_owned(),
            caller: Caller::root(),
            slots: [None; SLOTS as usize],
            group: None,
            other: None,
        };
        Ok((library, report))
    }

    /// The mount.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Sets the mount's clock if it is one that stands still.
    pub fn set_time(&self, (sec, nsec): Moment) {
        let ns = sec * 1_000_000_000 + i64::from(nsec);
        self.options.clock.set(ns.max(0) as u64);
    }

    /// Closes the slots and unmounts. Groups may still be open; they are dropped afterwards.
    /// # Errors
    /// Those of the unmount.
    pub fn unmount(&mut self) -> Answer<()> {
        self.close_all();
        let unmounted = self.fs.unmount();
        (self.group, self.other) = (None, None);
        unmounted?;
        self.front.close()
    }

    /// Returns another user of the same mount, with its own slots and its own directory in the
    /// root.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub fn share(&self, name: &str) -> Answer<Self> {
        let above = self
            .fs
            .mkdir(&self.caller, self.fs.root(), name.as_bytes(), 0o755)?;
        self.fs
            .mkdir(&self.caller, above.ino, BASE.as_bytes(), 0o755)?;
        let mut shared = self.again();
        shared.base = format!("{name}/{BASE}");
        Ok(shared)
    }

    /// Returns another user of the same directory, with its own slots.
    pub fn again(&self) -> Self {
        Self {
            front: self.front.clone(),
            media: self.media.clone(),
            options: self.options.clone(),
            fs: self.fs.clone(),
            base: self.base.clone(),
            caller: self.caller.clone(),
            slots: [None; SLOTS as usize],
            group: None,
            other: None,
        }
    }

    /// Closes every slot.
    pub fn close_all(&mut self) {
        (0..SLOTS).for_each(|slot| drop(self.close(slot)));
    }

    fn full(&self, path: &str) -> Vec<u8> {
        format!("/{}/{path}", self.base).into_bytes()
    }

    fn find(&self, path: &str, follow: bool) -> Answer<Attr> {
        Ok(self
            .fs
            .resolve(&self.caller, &self.full(path), follow)?
            .attr)
    }

    /// Returns the directory and the last name of a path.
    fn parent(&self, path: &str) -> Answer<(InodeNo, Vec<u8>)> {
        let full = self.full(path);
        let (dir, name) = self.fs.resolve_parent(&self.caller, &full)?;
        Ok((dir.ino, name.to_vec()))
    }

    fn close(&mut self, slot: u8) -> Answer<()> {
        match self.slots[usize::from(slot)].take() {
            Some(ino) => self.fs.release(ino),
            None => Err(Error::BadFile),
        }
    }

    fn slot(&self, slot: u8) -> Answer<InodeNo> {
        self.slots[usize::from(slot)].ok_or(Error::BadFile)
    }

    /// Checks that a file of this type can be opened for reading and writing.
    fn check_regular(attr: &Attr) -> Answer<()> {
        match attr.mode & S_IFMT {
            S_IFREG => Ok(()),
            S_IFDIR => Err(Error::IsDirectory),
            _ => Err(Error::NoSuchDevice),
        }
    }

    /// Does `open(O_CREAT)` and close. The library leaves it to its caller (in the kernel, the VFS)
    /// to follow a dangling link to the place where the file is to be made.
    fn create(&self, path: &str, mode: u16, exclusive: bool) -> Answer<()> {
        const ACCESS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
        let flags = if exclusive {
            ACCESS | OpenFlags::EXCLUSIVE
        } else {
            ACCESS
        };
        let mut path = path.to_owned();
        for _ in 0..=40 {
            let (dir, name) = self.parent(&path)?;
            match self.fs.lookup(&self.caller, dir, &name) {
                Ok(found) if !exclusive && found.attr.mode & S_IFMT == S_IFLNK => {
                    let target = self.fs.readlink(found.ino)?;
                    let above = path.rfind('/').map_or("", |i| &path[..=i]);
                    path = format!("{above}{}", String::from_utf8_lossy(&target));
                }
                Ok(found) if !exclusive => {
                    Self::check_regular(&found.attr)?;
                    self.fs.open(&self.caller, found.ino, flags)?;
                    return self.fs.release(found.ino);
                }
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => {
                    let made = self.fs.create(&self.caller, dir, &name, mode, flags)?;
                    return self.fs.release(made.ino);
                }
            }
        }
        Err(Error::Loop)
    }

    fn open(&mut self, slot: u8, path: &str, truncate: bool) -> Answer<()> {
        drop(self.close(slot));
        let attr = self.find(path, true)?;
        Self::check_regular(&attr)?;
        let cut = if truncate {
            OpenFlags::TRUNCATE
        } else {
            OpenFlags::empty()
        };
        self.fs.open(
            &self.caller,
            attr.ino,
            OpenFlags::READ | OpenFlags::WRITE | cut,
        )?;
        self.slots[usize::from(slot)] = Some(attr.ino);
        Ok(())
    }

    fn tmpfile(&mut self, slot: u8, path: &str, mode: u16) -> Answer<()> {
        drop(self.close(slot));
        let dir = self.find(path, true)?.ino;
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = self.fs.create_unnamed(&self.caller, dir, mode, flags)?;
        self.slots[usize::from(slot)] = Some(made.ino);
        Ok(())
    }

    fn write(&self, slot: u8, offset: u64, payload: Payload, durable: Durable) -> Answer<Reply> {
        let ino = self.slot(slot)?;
        let flags = match durable {
            Durable::No => WriteFlags::empty(),
            Durable::Data => WriteFlags::DATASYNC,
            Durable::All => WriteFlags::SYNC,
        };
        let bytes = payload.bytes();
        let (_, n) = self
            .fs
            .write_with(&self.caller, ino, offset, &bytes, flags)?;
        Ok(Reply::Count(n))
    }

    fn read(&self, slot: u8, offset: u64, len: u32) -> Answer<Reply> {
        let mut out = vec![0; len as usize];
        let n = self.fs.read(self.slot(slot)?, offset, &mut out)?;
        out.truncate(n);
        Ok(Reply::Bytes(out))
    }

    fn fallocate(&self, slot: u8, how: Reserve, offset: u64, len: u64) -> Answer<()> {
        let keep = FallocateMode::KEEP_SIZE;
        let mode = match how {
            Reserve::Plain => FallocateMode::empty(),
            Reserve::KeepSize => keep,
            Reserve::Punch => FallocateMode::PUNCH_HOLE | keep,
            Reserve::Zero => FallocateMode::ZERO_RANGE,
            Reserve::ZeroKeepSize => FallocateMode::ZERO_RANGE | keep,
        };
        self.fs
            .fallocate(&self.caller, self.slot(slot)?, mode, offset, len)
    }

    /// Lists names and types, a few at a time so that cookies are used.
    fn list(&self, dir: InodeNo) -> Answer<Vec<(Vec<u8>, u8)>> {
        const AT_A_TIME: usize = 7;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut taken = 0;
            self.fs.readdir(dir, cookie, &mut |entry| {
                if taken == AT_A_TIME {
                    return false;
                }
                taken += 1;
                cookie = entry.next;
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name.to_vec(), entry.kind));
                }
                true
            })?;
            if taken == 0 {
                break;
            }
        }
        names.sort();
        Ok(names)
    }

    fn readdir(&self, path: &str) -> Answer<Reply> {
        let attr = self.find(path, true)?;
        if !attr.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(Reply::Names(self.list(attr.ino)?))
    }

    fn list_xattr(&self, path: &str) -> Answer<Reply> {
        let list = self
            .fs
            .listxattr(&self.caller, self.find(path, false)?.ino)?;
        let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
        let mut names: Vec<_> = names.map(|n| (n.to_vec(), 0)).collect();
        names.sort();
        Ok(Reply::Names(names))
    }

    /// Returns the sync that an operation asks for, so that another thread can run it; `None` for
    /// other operations.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn sync_op(&self, op: &Op) -> Option<Answer<SyncOp>> {
        let of = |ino: Answer<InodeNo>, datasync| {
            let fs = self.fs.clone();
            ino.map(|ino| SyncOp::File { fs, ino, datasync })
        };
        Some(match op {
            Op::Fsync { slot } => of(self.slot(*slot), false),
            Op::Fdatasync { slot } => of(self.slot(*slot), true),
            Op::FsyncDir { path } => of(self.directory(path), false),
            Op::Sync => Ok(SyncOp::All(self.fs.clone())),
            Op::Commit => Ok(SyncOp::Commit(self.fs.clone())),
            Op::Checkpoint => Ok(SyncOp::Checkpoint(self.fs.clone())),
            _ => return None,
        })
    }

    /// Returns what a mount sometimes does in the background.
    pub fn drain(&self) -> SyncOp {
        SyncOp::Drain(self.fs.clone())
    }

    fn directory(&self, path: &str) -> Answer<InodeNo> {
        let attr = self.find(path, true)?;
        if attr.is_dir() {
            Ok(attr.ino)
        } else {
            Err(Error::NotDirectory)
        }
    }

    fn remount(&mut self) -> Answer<()> {
        self.unmount()?;
        self.fs = front::mount(&*self.front, &self.media, &self.options)?.0;
        Ok(())
    }

    /// Makes everything durable and then mounts again as after a power cut.
    fn crash(&mut self) -> Answer<()> {
        self.fs.sync()?;
        self.fs.shutdown(&self.caller, Shutdown::NoLogFlush)?;
        self.slots = Default::default();
        (self.group, self.other) = (None, None);
        self.front.crash();
        self.fs = front::mount(&*self.front, &self.media, &self.options)?.0;
        Ok(())
    }

    /// Returns how many blocks can still be promised to files, at most: those that are free and not
    /// kept for maps.
    ///
    /// # Errors
    /// Those of statfs.
    pub fn room(&self) -> Answer<u64> {
        let block = u64::from(self.fs.statfs()?.block_size);
        Ok(self.fs.room(&self.caller) / block)
    }

    /// Makes [`FILLER`] so long that there is [`room`](Self::room) for so many blocks, or for a few
    /// more.
    ///
    /// # Errors
    /// Those of making it longer or shorter.
    pub fn fill(&mut self, room: u64) -> Answer<()> {
        let (fs, caller) = (&self.fs, &self.caller);
        let file = match fs.lookup(caller, fs.root(), FILLER) {
            Err(error) if error.kind() == Kind::NotFound => {
                let made = fs.create(caller, fs.root(), FILLER, 0o600, OpenFlags::WRITE)?;
                fs.release(made.ino)?;
                made
            }
            found => found?,
        };
        let block = u64::from(fs.statfs()?.block_size);
        let size = fs.getattr(file.ino)?.size.next_multiple_of(block);
        let free = self.room()?;
        if free < room {
            let less = (room - free) * block;
            let shorter = size.saturating_sub(less);
            return self.resize(file.ino, shorter, false);
        }
        // A block of the map may need the last of the room.
        for more in (0..=free - room).rev() {
            let mode = FallocateMode::empty();
            match fs.fallocate(caller, file.ino, mode, size, more * block) {
                Err(error) if error.kind() == Kind::NoSpace => {}
                _ if more == 0 => break,
                done => return done,
            }
        }
        Ok(())
    }

    fn mark(&self, path: &str, on: bool) -> Answer<()> {
        let ino = self.find(path, false)?.ino;
        let mut flags = self.fs.get_flags(ino)?;
        flags.set(InodeFlags::JOURNAL_DATA, on);
        self.fs.set_flags(&self.caller, ino, flags)
    }

    /// Writes pages that were stored to, as a kernel does, up to the end of the file.
    fn store(&self, slot: u8, offset: u64, payload: Payload) -> Answer<Reply> {
        let ino = self.slot(slot)?;
        let size = self.fs.getattr(ino)?.size;
        let end = (offset + u64::from(payload.len)).min(size);
        if end <= offset {
            return Ok(Reply::Count(0));
        }
        let len = (end - offset) as usize;
        let first = offset - offset % PAGE;
        let stop = end.next_multiple_of(PAGE).min(size);
        let mut pages = vec![0; (stop - first) as usize];
        self.fs.read(ino, first, &mut pages)?;
        let at = (offset - first) as usize;
        pages[at..at + len].copy_from_slice(&payload.bytes()[..len]);
        self.fs
            .write_with(&self.caller, ino, first, &pages, WriteFlags::CACHED)?;
        Ok(Reply::Count(len))
    }

    fn other_op(&mut self, op: &Op) -> Answer<Reply> {
        let done = match op {
            Op::Create {
                path,
                mode,
                exclusive,
            } => self.create(path, *mode, *exclusive),
            Op::LinkSlot { slot, new } => {
                let ino = self.slot(*slot)?;
                self.link(ino, new)
            }
            Op::Open {
                slot,
                path,
                truncate,
            } => self.open(*slot, path, *truncate),
            Op::Tmpfile { slot, path, mode } => self.tmpfile(*slot, path, *mode),
            Op::Close { slot } => self.close(*slot),
            Op::Write {
                slot,
                offset,
                payload,
                durable,
            } => return self.write(*slot, *offset, *payload, *durable),
            Op::Append { slot, payload } => {
                let ino = self.slot(*slot)?;
                return Ok(Reply::Count(
                    self.fs.append(&self.caller, ino, &payload.bytes())?.1,
                ));
            }
            Op::Read { slot, offset, len } => return self.read(*slot, *offset, *len),
            Op::GroupRead { slot, offset, len } => {
                return self.read_staged(*slot, *offset, *len);
            }
            Op::GroupDo(op) => return self.group_do(op),
            Op::Ftruncate { slot, size } => {
                let ino = self.slot(*slot)?;
                self.resize(ino, *size, true)
            }
            Op::Fallocate {
                slot,
                how,
                offset,
                len,
            } => self.fallocate(*slot, *how, *offset, *len),
            Op::GetXattr { path, name } => {
                let ino = self.find(path, false)?.ino;
                return Ok(Reply::Bytes(self.fs.getxattr(
                    &self.caller,
                    ino,
                    name.as_bytes(),
                )?));
            }
            Op::ListXattr { path } => return self.list_xattr(path),
            Op::Stat { path } => return Ok(Reply::Stat(stat(&self.find(path, false)?))),
            Op::Readlink { path } => {
                return Ok(Reply::Bytes(self.fs.readlink(self.find(path, false)?.ino)?));
            }
            Op::Readdir { path } => return self.readdir(path),
            Op::Expire => self.fs.expire(),
            Op::Fill { room } => self.fill(u64::from(*room)),
            Op::Remount => self.remount(),
            Op::Crash => self.crash(),
            Op::Clock(_) => Ok(()),
            Op::Mark { path, on } => self.mark(path, *on),
            Op::Store {
                slot,
                offset,
                payload,
            } => return self.store(*slot, *offset, *payload),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => {
                let (from, to) = (self.slot(*from)?, self.slot(*to)?);
                let ranges = ((from, *from_offset), (to, *to_offset));
                let n = self
                    .fs
                    .copy_range(&self.caller, ranges.0, ranges.1, u64::from(*len))?;
                return Ok(Reply::Count(n as usize));
            }
            _ => match self.sync_op(op) {
                Some(sync) => sync?.run(),
                None => unreachable!("done by the caller"),
            },
        };
        done.map(|()| Reply::Done)
    }

    /// Returns the tree below the base directory.
    ///
    /// # Errors
    /// Anything that cannot be read.
    pub fn tree(&self) -> Result<Tree> {
        let top = self
            .fs
            .resolve(&self.caller, format!("/{}", self.base).as_bytes(), false)
            .context("the base directory")?;
        let (mut tree, mut inodes) = (Tree::new(), BTreeMap::new());
        let mut todo = vec![(Vec::new(), top.ino)];
        while let Some((path, ino)) = todo.pop() {
            let facts = self
                .facts(ino)
                .with_context(|| format!("inode {ino}, {}", path.escape_ascii()))?;
            if facts.mode & u32::from(S_IFMT) == u32::from(S_IFDIR) {
                for (name, _) in self.list(ino)? {
                    let child = self.fs.lookup(&self.caller, ino, &name)?;
                    todo.push((join(&path, &name), child.ino));
                }
            }
            inodes.insert(path.clone(), u64::from(ino.0));
            tree.insert(path, facts);
        }
        name_links(&mut tree, &inodes);
        Ok(tree)
    }

    /// Returns the bytes of a page of the file at a path of [`tree`](Self::tree), up to the end of
    /// the file.
    ///
    /// # Errors
    /// The page cannot be read.
    pub fn page(&self, path: &[u8], index: u64) -> Result<Vec<u8>> {
        let full = [b"/", self.base.as_bytes(), b"/", path].concat();
        let ino = self.fs.resolve(&self.caller, &full, false)?.ino;
        let mut out = vec![0; PAGE as usize];
        let n = self.fs.read(ino, index * PAGE, &mut out)?;
        out.truncate(n);
        Ok(out)
    }

    fn facts(&self, ino: InodeNo) -> Result<Facts> {
        let attr = self.fs.getattr(ino)?;
        let seen = stat(&attr);
        let mut xattrs = BTreeMap::new();
        for name in self
            .fs
            .listxattr(&self.caller, ino)?
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
        {
            xattrs.insert(name.to_vec(), self.fs.getxattr(&self.caller, ino, name)?);
        }
        let time = |t: Time| Some((t.sec, t.nsec));
        Ok(Facts {
            mode: seen.mode,
            uid: seen.uid,
            gid: seen.gid,
            nlink: seen.nlink,
            device: attr.rdev,
            size: seen.size,
            target: if attr.mode & S_IFMT == S_IFLNK {
                Some(self.fs.readlink(ino)?)
            } else {
                None
            },
            pages: if attr.mode & S_IFMT == S_IFREG {
                self.pages(ino, attr.size)?
            } else {
                Pages::new()
            },
            xattrs,
            same_as: Vec::new(),
            atime: time(attr.atime),
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
            btime: time(attr.crtime).filter(|time| time.0 != 0),
            blocks: match attr.mode & S_IFMT {
                S_IFREG => Some(self.blocks(ino)?),
                _ => None,
            },
        })
    }

    /// Returns the runs of blocks of a file, delayed ones included.
    fn blocks(&self, ino: InodeNo) -> Result<Vec<(u64, u64)>> {
        let block = u64::from(self.fs.statfs()?.block_size);
        let mut runs = Vec::new();
        self.fs.fiemap(ino, 0, u64::MAX, &mut |extent| {
            let (first, len) = (extent.logical / block, extent.length.div_ceil(block));
            add_run(&mut runs, first, len);
            true
        })?;
        Ok(runs)
    }

    fn pages(&self, ino: InodeNo, size: u64) -> Result<Pages> {
        let mut pages = Pages::new();
        let mut buffer = vec![0; size.min(1 << 20) as usize];
        let mut at = 0;
        while at < size {
            let mut end = size;
            if size > WHOLE {
                let start = match self.fs.seek(ino, at, Whence::Data) {
                    Ok(start) => start.max(at),
                    Err(error) if error.kind() == Kind::NoSuchDevice => break,
                    Err(error) => return Err(error.into()),
                };
                end = self
                    .fs
                    .seek(ino, start, Whence::Hole)?
                    .clamp(start + 1, size);
                at = start - start % PAGE;
            }
            let stop = end.next_multiple_of(PAGE).min(size);
            while at < stop {
                let want = (buffer.len() as u64).min(stop - at) as usize;
                let n = self.fs.read(ino, at, &mut buffer[..want])?;
                anyhow::ensure!(n == want, "{n} of {want} bytes were read at {at} of {size}");
                note_pages(&mut pages, at / PAGE, &buffer[..want]);
                at += want as u64;
            }
        }
        Ok(pages)
    }
}

fn stat(attr: &Attr) -> Stat {
    let sized = matches!(attr.mode & S_IFMT, S_IFREG | S_IFLNK);
    Stat {
        mode: u32::from(attr.mode),
        uid: attr.uid,
        gid: attr.gid,
        nlink: u64::from(attr.nlink),
        size: if sized { attr.size } else { 0 },
    }
}

impl Way for Library {
    fn at(&mut self, path: &str, follow: bool) -> Answer<Attr> {
        self.find(path, follow)
    }

    fn place(&mut self, path: &str) -> Answer<(InodeNo, Vec<u8>)> {
        self.parent(path)
    }

    fn change(&mut self, change: &Change<'_>) -> Answer<()> {
        self.fs.change(&self.caller, change).map(drop)
    }
}

impl World for Library {
    fn name(&self) -> String {
        format!("stetfs {} {:?}", self.options.scheme, self.options.data)
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        let done = Way::apply(self, op).transpose();
        let done = match done.or_else(|| self.group_op(op)) {
            Some(done) => done.map(|()| Reply::Done),
            None => self.other_op(op),
        };
        done.map_err(|error| error.kind().errno())
    }
}
