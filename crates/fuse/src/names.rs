//! Requests about names: lookup, create, remove, rename, link, and reading directories.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use stetfs::{Attr, Caller, Change, Entry, Kind, New, RenameFlags};
use stetfs_format::InodeNo;
use stetfs_format::width::low16;

use crate::attr::ROOT;
use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::files::open_flags;
use crate::server::FsServer;
use crate::wire::Names;
use crate::wire::abi::{EntryOut, OpenOut};

/// The smallest inode number of an ordinary file (EXT4_GOOD_OLD_FIRST_INO). Below are the root and
/// the volume's own inodes.
const FIRST_INO: u32 = 11;

/// How many names a readdirplus fetches before it looks at their inodes.
const BATCH: usize = 64;

impl<B: Backend> FsServer<B> {
    /// Returns the entry of a name; `None` if there is none, which the kernel may remember too.
    ///
    /// The kernel's file handle code asks for `.` and `..` (`FUSE_EXPORT_SUPPORT`), for `.` also on
    /// files.
    pub(crate) fn look_up(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &OsStr,
    ) -> Outcome<Option<Entry>> {
        if name == "." {
            return self.entry_of(parent).map(Some);
        }
        match self.fs.lookup(c, parent, name.as_bytes()) {
            Ok(entry) => Ok(Some(entry)),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(errno(&e)),
        }
    }

    /// Returns the entry of an inode whose number came from a file handle.
    fn entry_of(&self, ino: InodeNo) -> Outcome<Entry> {
        if ino != ROOT && ino.0 < FIRST_INO {
            return Err(Errno::STALE);
        }
        let attr = self.fs.getattr(ino).map_err(|e| match e.kind() {
            Kind::NotFound => Errno::STALE,
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
        parent: InodeNo,
        name: &OsStr,
        mode: u32,
        rdev: (u32, u32),
    ) -> Outcome<Entry> {
        let mode = low16(mode);
        let new = if stetfs::mode::is_dir(mode) {
            New::Directory(mode & 0o7777)
        } else {
            New::Node(mode, rdev)
        };
        let change = Change::Make((parent, name.as_bytes()), new);
        let made = self.change_in(c, parent, &change)?;
        self.writers.is_new(made.ino);
        Ok(Entry::from(made))
    }

    pub(crate) fn make_link(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &OsStr,
        target: &[u8],
    ) -> Outcome<Entry> {
        let change = Change::Make((parent, name.as_bytes()), New::Symlink(target));
        self.change_in(c, parent, &change).map(Entry::from)
    }

    pub(crate) fn create_open(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Outcome<(Entry, OpenOut)> {
        let (mode, how) = (low16(mode & 0o7777), open_flags(flags));
        let made = self.fs.create(c, parent, name.as_bytes(), mode, how);
        let entry = made.map_err(|e| errno(&e))?;
        self.settle(parent).inspect_err(|_| {
            // The caller does not get the file, so it will not close it.
            let _ = self.fs.release(entry.ino);
        })?;
        Ok((entry, self.note_open(entry.ino, flags)))
    }

    pub(crate) fn create_unnamed(
        &self,
        c: &Caller,
        parent: InodeNo,
        mode: u32,
        flags: i32,
    ) -> Outcome<(Entry, OpenOut)> {
        let (mode, how) = (low16(mode & 0o7777), open_flags(flags));
        let made = self.fs.create_unnamed(c, parent, mode, how);
        let entry = made.map_err(|e| errno(&e))?;
        Ok((entry, self.note_open(entry.ino, flags)))
    }

    pub(crate) fn add_link(
        &self,
        c: &Caller,
        ino: InodeNo,
        parent: InodeNo,
        name: &OsStr,
    ) -> Outcome<Entry> {
        let change = Change::Link(ino, (parent, name.as_bytes()));
        self.change_in(c, parent, &change).map(Entry::from)
    }

    pub(crate) fn remove(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &OsStr,
        directory: bool,
    ) -> Outcome<()> {
        let name = (parent, name.as_bytes());
        let change = if directory {
            Change::Rmdir(name)
        } else {
            Change::Unlink(name)
        };
        self.change_in(c, parent, &change).map(drop)
    }

    pub(crate) fn move_entry(
        &self,
        c: &Caller,
        (parent, name): (InodeNo, &OsStr),
        (new_parent, new_name): (InodeNo, &OsStr),
        flags: u32,
    ) -> Outcome<()> {
        let Some(flags) = RenameFlags::from_bits(flags) else {
            return Err(Errno::INVAL);
        };
        let (from, to) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        let change = Change::Rename(from, to, flags);
        self.change_in(c, new_parent, &change)?;
        if parent != new_parent {
            self.settle(parent)?;
        }
        Ok(())
    }

    /// Makes a change of names in a directory.
    fn change_in(&self, c: &Caller, dir: InodeNo, change: &Change<'_>) -> Outcome<Attr> {
        let attr = self.fs.change(c, change).map_err(|e| errno(&e))?;
        self.settle(dir)?;
        Ok(attr)
    }

    /// Makes changes in a directory durable, if the mount is `dirsync` or `sync`.
    fn settle(&self, dir: InodeNo) -> Outcome<()> {
        if self.options.dirsync || self.options.sync {
            self.fs.fsync(dir, false).map_err(|e| errno(&e))?;
        }
        Ok(())
    }

    pub(crate) fn read_dir(
        &self,
        dir: InodeNo,
        cookie: u64,
        names: &mut Names<'_, '_>,
    ) -> Outcome<()> {
        self.fs
            .readdir(dir, cookie, &mut |entry| {
                let what = (entry.ino.0.into(), entry.kind.into());
                names.add(None, what, entry.next, entry.name)
            })
            .map_err(|e| errno(&e))
    }

    /// Lists entries, with attributes for inodes that the kernel does not know. Names are fetched
    /// in batches first, so that no directory is locked while inodes are read.
    pub(crate) fn read_dir_plus(
        &self,
        dir: InodeNo,
        mut cookie: u64,
        names: &mut Names<'_, '_>,
    ) -> Outcome<()> {
        thread_local!(static FETCHED: RefCell<Batch> = RefCell::default());
        FETCHED.with_borrow_mut(|batch| {
            loop {
                batch.clear();
                self.fs
                    .readdir(dir, cookie, &mut |entry| {
                        batch.push(&entry, self.known.has(entry.ino))
                    })
                    .map_err(|e| errno(&e))?;
                let Some(last) = batch.entries.last() else {
                    return Ok(());
                };
                let (next, ended) = (last.next, batch.entries.len() < BATCH);
                if !self.add_plus(batch, names)? || ended {
                    return Ok(());
                }
                cookie = next;
            }
        })
    }

    /// Adds a batch of names to the answer. Returns whether there was room for all.
    fn add_plus(&self, batch: &mut Batch, names: &mut Names<'_, '_>) -> Outcome<bool> {
        let attrs = &mut batch.attrs;
        self.fs
            .getattrs(&batch.new, &mut |attr| attrs.push(attr))
            .map_err(|e| errno(&e))?;
        let mut attrs = attrs.drain(..);
        for found in &batch.entries {
            let name = &batch.names[found.name.clone()];
            let ino = found.ino;
            let has_room = match found.is_new.then(|| attrs.next()).flatten() {
                // The kernel uses only number and type.
                None => {
                    let what = (ino.0.into(), found.kind.into());
                    names.add(Some(&EntryOut::default()), what, found.next, name)
                }
                Some(Ok(attr)) => {
                    let generation = attr.generation;
                    let entry = self.entry_out(&Entry {
                        ino,
                        generation,
                        attr,
                    });
                    // The type comes from the attributes: entries have none in a directory without
                    // the feature `filetype`.
                    let what = (ino.0.into(), u32::from(attr.mode >> 12));
                    names.add(Some(&entry), what, found.next, name)
                }
                // Removed since its name was read.
                Some(Err(e)) if matches!(e.kind(), Kind::NotFound | Kind::Stale) => true,
                Some(Err(e)) => {
                    tracing::error!("{}: {e}", name.escape_ascii());
                    return Err(e.kind().errno());
                }
            };
            if !has_room {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Names fetched from a directory. Kept from request to request, so that nothing is allocated for
/// them.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<Found>,
    /// The inodes that the kernel does not know, in order.
    new: Vec<InodeNo>,
    attrs: Vec<stetfs::Result<Attr>>,
}

struct Found {
    ino: InodeNo,
    kind: u8,
    is_new: bool,
    next: u64,
    name: std::ops::Range<usize>,
}

impl Batch {
    fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
        self.new.clear();
        self.attrs.clear();
    }

    /// Adds a name. Returns whether there is room for more.
    fn push(&mut self, entry: &stetfs::DirEntry<'_>, is_known: bool) -> bool {
        let is_new = !is_known && entry.name != b"." && entry.name != b"..";
        if is_new {
            self.new.push(entry.ino);
        }
        let start = self.names.len();
        self.names.extend_from_slice(entry.name);
        self.entries.push(Found {
            ino: entry.ino,
            kind: entry.kind,
            is_new,
            next: entry.next,
            name: start..self.names.len(),
        });
        self.entries.len() < BATCH
    }
}
