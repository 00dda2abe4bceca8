//! Requests about names: lookup, create, remove, rename, link, and reading directories.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use stetfs::{Caller, Entry, Kind, OpenFlags, RenameFlags};
use stetfs_format::InodeNo;

use crate::attr::{dirent_type, entry_attr, generation, inode, negative};
use crate::errno::{errno, of_kind};
use crate::fs::{Answer, StetFs};

/// The smallest inode number that a file can have (EXT4_GOOD_OLD_FIRST_INO); below are the root and the volume's own.
const FIRST_INO: u32 = 11;

/// How many names a readdirplus fetches before it looks at their inodes.
const BATCH: usize = 64;

impl StetFs {
    /// The entry of a name; no entry when there is none, which the kernel may remember too.
    ///
    /// `.` and `..` are asked for by the kernel's file handle code (`FUSE_EXPORT_SUPPORT`), `.` also on files.
    pub(crate) fn look_up(
        &self,
        c: &Caller,
        parent: INodeNo,
        name: &OsStr,
    ) -> Answer<Option<Entry>> {
        let parent = inode(parent);
        if name == "." {
            return self.entry_of(parent).map(Some);
        }
        match self.fs.lookup(c, parent, name.as_bytes()) {
            Ok(entry) => Ok(Some(entry)),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(errno(&e)),
        }
    }

    /// The entry of an inode whose number came from a file handle.
    fn entry_of(&self, ino: InodeNo) -> Answer<Entry> {
        if ino != crate::attr::ROOT && ino.0 < FIRST_INO {
            return Err(Errno::ESTALE);
        }
        let attr = self.fs.getattr(ino).map_err(|e| match e.kind() {
            Kind::NotFound => Errno::ESTALE,
            _ => errno(&e),
        })?;
        Ok(Entry {
            ino,
            generation: attr.generation,
            attr,
        })
    }

    /// Makes a directory, a device, a pipe, a socket or, when `mode` says so, a plain file.
    pub(crate) fn make(
        &self,
        c: &Caller,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        rdev: (u32, u32),
    ) -> Answer<Entry> {
        let (parent, name) = (inode(parent), name.as_bytes());
        let mode = mode as u16;
        let made = if stetfs::mode::is_dir(mode) {
            self.fs.mkdir(c, parent, name, mode & 0o7777)
        } else {
            self.fs.mknod(c, parent, name, mode, rdev)
        };
        self.changed(parent, made)
    }

    pub(crate) fn make_link(
        &self,
        c: &Caller,
        parent: INodeNo,
        name: &OsStr,
        target: &[u8],
    ) -> Answer<Entry> {
        let parent = inode(parent);
        self.changed(parent, self.fs.symlink(c, parent, name.as_bytes(), target))
    }

    pub(crate) fn create_open(
        &self,
        c: &Caller,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Entry> {
        let parent = inode(parent);
        let made = self
            .fs
            .create(c, parent, name.as_bytes(), (mode & 0o7777) as u16, flags);
        let entry = self.changed(parent, made)?;
        self.opens.opened(entry.ino, flags);
        Ok(entry)
    }

    pub(crate) fn add_link(
        &self,
        c: &Caller,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
    ) -> Answer<Entry> {
        let parent = inode(parent);
        self.changed(parent, self.fs.link(c, inode(ino), parent, name.as_bytes()))
    }

    pub(crate) fn remove(
        &self,
        c: &Caller,
        parent: INodeNo,
        name: &OsStr,
        directory: bool,
    ) -> Answer<()> {
        let (parent, name) = (inode(parent), name.as_bytes());
        let removed = if directory {
            self.fs.rmdir(c, parent, name)
        } else {
            self.fs.unlink(c, parent, name)
        };
        self.changed(parent, removed)
    }

    pub(crate) fn move_entry(
        &self,
        c: &Caller,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: u32,
    ) -> Answer<()> {
        let Some(flags) = RenameFlags::from_bits(flags) else {
            return Err(Errno::EINVAL);
        };
        let (parent, new_parent) = (inode(parent), inode(new_parent));
        let moved = self.fs.rename(
            c,
            parent,
            name.as_bytes(),
            new_parent,
            new_name.as_bytes(),
            flags,
        );
        if parent != new_parent {
            self.changed(parent, Ok(()))?;
        }
        self.changed(new_parent, moved)
    }

    /// The answer to a change of a directory; durable first when the mount is `dirsync` or `sync`.
    fn changed<T>(&self, dir: InodeNo, done: stetfs::Result<T>) -> Answer<T> {
        let value = done.map_err(|e| errno(&e))?;
        if self.options.dirsync || self.options.sync {
            self.fs.fsync(dir, false).map_err(|e| errno(&e))?;
        }
        Ok(value)
    }

    pub(crate) fn read_dir(
        &self,
        dir: INodeNo,
        cookie: u64,
        reply: &mut ReplyDirectory,
    ) -> Answer<()> {
        self.fs
            .readdir(inode(dir), cookie, &mut |entry| {
                let number = INodeNo(u64::from(entry.ino.0));
                !reply.add(
                    number,
                    entry.next,
                    dirent_type(entry.kind),
                    OsStr::from_bytes(entry.name),
                )
            })
            .map_err(|e| errno(&e))
    }

    /// Entries with attributes. Names are fetched in batches first, so that no directory is locked while inodes are
    /// read.
    pub(crate) fn read_dir_plus(
        &self,
        dir: INodeNo,
        mut cookie: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Answer<()> {
        thread_local!(static NAMES: RefCell<Batch> = RefCell::default());
        NAMES.with_borrow_mut(|batch| {
            loop {
                batch.clear();
                self.fs
                    .readdir(inode(dir), cookie, &mut |entry| batch.push(&entry))
                    .map_err(|e| errno(&e))?;
                let Some(last) = batch.entries.last() else {
                    return Ok(());
                };
                let (next, ended) = (last.next, batch.entries.len() < BATCH);
                for found in &batch.entries {
                    let name = OsStr::from_bytes(&batch.names[found.name.clone()]);
                    if self.add_plus(found, name, reply)? {
                        return Ok(());
                    }
                }
                if ended {
                    return Ok(());
                }
                cookie = next;
            }
        })
    }

    /// Whether the reply is full.
    fn add_plus(
        &self,
        found: &Found,
        name: &OsStr,
        reply: &mut ReplyDirectoryPlus,
    ) -> Answer<bool> {
        if name == "." || name == ".." {
            // The kernel takes number and type of these, and nothing else.
            let attr = FileAttr {
                ino: INodeNo(u64::from(found.ino.0)),
                kind: FileType::Directory,
                ..negative()
            };
            return Ok(reply.add(
                attr.ino,
                found.next,
                name,
                &self.options.timeout,
                &attr,
                generation(0),
            ));
        }
        match self.fs.getattr(found.ino) {
            Ok(attr) => {
                let file_attr = entry_attr(&attr);
                let generation = generation(attr.generation);
                Ok(reply.add(
                    file_attr.ino,
                    found.next,
                    name,
                    &self.options.timeout,
                    &file_attr,
                    generation,
                ))
            }
            // Removed since its name was read.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Stale) => Ok(false),
            Err(e) => {
                tracing::error!("{}: {e}", name.display());
                Err(of_kind(e.kind()))
            }
        }
    }
}

/// Names fetched from a directory, kept over requests so that nothing is allocated for them.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<Found>,
}

struct Found {
    ino: InodeNo,
    next: u64,
    name: std::ops::Range<usize>,
}

impl Batch {
    fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
    }

    /// Whether there is room for more.
    fn push(&mut self, entry: &stetfs::DirEntry<'_>) -> bool {
        let start = self.names.len();
        self.names.extend_from_slice(entry.name);
        let name = start..self.names.len();
        self.entries.push(Found {
            ino: entry.ino,
            next: entry.next,
            name,
        });
        self.entries.len() < BATCH
    }
}
