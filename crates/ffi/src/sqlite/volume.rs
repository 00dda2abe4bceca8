//! Files of a mounted volume, for SQLite.
//!
//! The calls are those of SQLite's own VFS for Unix: the first sync of a file that it created syncs
//! the directory too. A delete does so if SQLite asks for it, or if the volume has groups.
#![forbid(unsafe_code)]

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libsqlite3_sys as ffi;
use stetfs::{Caller, Change, Error, Fs, Group, Kind, OpenFlags, SetAttr};
use stetfs_format::InodeNo;

use super::contract::{Failure, File, Level, Result};
use super::locks::{Parties, Party};

/// The data that a call has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// No data.
    Nothing,
    /// Bytes read from a file.
    Read(u64),
    /// Bytes written to a file.
    Written(u64),
}

/// An observer of the calls of the library.
pub trait Watch: Send + Sync {
    /// Notes that `call` was made, and its result.
    fn called(&self, call: &'static str, result: Result<Moved, &Error>);
}

/// A volume and its observer.
#[derive(Clone)]
pub(super) struct Volume {
    pub(super) fs: Fs,
    pub(super) watch: Arc<dyn Watch>,
    /// True: transactions may be groups of writes, and deletes are durable at once. False: all is
    /// done as by SQLite's own VFS.
    pub(super) groups: bool,
    parties: Arc<Parties>,
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl Volume {
    pub(super) fn new(fs: Fs, watch: Arc<dyn Watch>, groups: bool) -> Self {
        Self {
            fs,
            watch,
            groups,
            parties: Arc::default(),
        }
    }

    /// Tells the observer of a call. Translates its error into SQLite's terms.
    fn called<T>(&self, call: &'static str, result: Result<T, Error>) -> Result<T> {
        self.moved(call, result, |_| Moved::Nothing)
    }

    fn moved<T>(
        &self,
        call: &'static str,
        result: Result<T, Error>,
        moved: impl FnOnce(&T) -> Moved,
    ) -> Result<T> {
        self.watch.called(call, result.as_ref().map(moved));
        result.map_err(|e| match e.kind() {
            Kind::NotFound => Failure::NotFound,
            Kind::NoSpace => Failure::Full,
            _ => Failure::Other,
        })
    }

    /// Splits a path into its directory and the name in it.
    fn parent<'p>(&self, path: &'p str) -> Result<(InodeNo, &'p [u8])> {
        if path.contains('/') {
            let found = self.fs.resolve_parent(&Caller::root(), path.as_bytes());
            let (dir, name) = self.called("lookup", found)?;
            Ok((dir.ino, name))
        } else {
            Ok((self.fs.root(), path.as_bytes()))
        }
    }

    fn find(&self, (dir, name): (InodeNo, &[u8])) -> Result<InodeNo> {
        let entry = self.fs.lookup(&Caller::root(), dir, name);
        Ok(self.called("lookup", entry)?.ino)
    }

    /// Opens a file for reading and writing, or for reading on a read-only volume. Returns the file
    /// and whether it can be written. `hold` is dropped last, after this value and the rest of the
    /// file.
    pub(super) fn open(
        self,
        path: &str,
        create: bool,
        hold: Box<dyn Any + Send>,
    ) -> Result<(VolumeFile, bool)> {
        let (ino, can_write, is_new) = self.open_or_create(path, create)?;
        let open = Open { volume: self, ino };
        let lock = open.volume.parties.join(open.ino);
        let file = VolumeFile {
            group: None,
            lock,
            open,
            is_new,
            _hold: hold,
        };
        Ok((file, can_write))
    }

    fn open_or_create(&self, path: &str, create: bool) -> Result<(InodeNo, bool, Option<InodeNo>)> {
        let caller = Caller::root();
        let at = self.parent(path)?;
        let (mut can_write, mut is_new) = (true, None);
        let ino = match self.find(at) {
            Ok(ino) => {
                let mut opened = self.fs.open(&caller, ino, READ_WRITE);
                if matches!(&opened, Err(e) if e.kind() == Kind::ReadOnly) {
                    can_write = false;
                    opened = self.fs.open(&caller, ino, OpenFlags::READ);
                }
                self.called("open", opened)?;
                ino
            }
            Err(Failure::NotFound) if create => {
                let flags = READ_WRITE | OpenFlags::EXCLUSIVE;
                let made = self.fs.create(&caller, at.0, at.1, 0o644, flags);
                if matches!(&made, Err(e) if e.kind() == Kind::Exists) {
                    // Another connection was faster.
                    return self.open_or_create(path, false);
                }
                is_new = Some(at.0);
                self.called("create", made)?.ino
            }
            Err(e) => return Err(e),
        };
        Ok((ino, can_write, is_new))
    }

    pub(super) fn delete(&self, path: &str, sync_directory: bool) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.called("unlink", self.fs.unlink(&Caller::root(), dir, name))?;
        // Deleting a journal is a commit. A volume that only SQLite uses dies with the process, so
        // the delete must be durable.
        if sync_directory || self.groups {
            self.called("fsync", self.fs.fsync(dir, false))
        } else {
            Ok(())
        }
    }

    pub(super) fn exists(&self, path: &str) -> Result<bool> {
        let found = self.parent(path).and_then(|at| self.find(at));
        let ino = match found {
            Ok(ino) => ino,
            Err(Failure::NotFound) => return Ok(false),
            Err(e) => return Err(e),
        };
        Ok(self.called("stat", self.fs.getattr(ino))?.size > 0)
    }
}

/// An open inode.
struct Open {
    volume: Volume,
    ino: InodeNo,
}

impl Drop for Open {
    fn drop(&mut self) {
        // The next call meets an error of the volume too.
        let Self { volume, ino } = self;
        let _ = volume.called("release", volume.fs.release(*ino));
    }
}

/// An open file. Its fields are dropped in order: what is staged goes before the file is closed.
pub(super) struct VolumeFile {
    group: Option<Group>,
    /// Dropped before `open`: then another file may get the inode's number.
    lock: Party,
    open: Open,
    /// The directory in which opening created the file, until that is synced.
    is_new: Option<InodeNo>,
    _hold: Box<dyn Any + Send>,
}

impl File for VolumeFile {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let Open { volume, ino } = &self.open;
        let read = match &self.group {
            Some(group) => group.read(*ino, offset, out),
            None => volume.fs.read(*ino, offset, out),
        };
        volume.moved("read", read, |n| Moved::Read(*n as u64))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Open { volume, ino } = &self.open;
        let caller = Caller::root();
        if let Some(group) = &mut self.group {
            let staged = group.write(&caller, *ino, offset, bytes);
            return volume.moved("write", staged, |()| Moved::Written(bytes.len() as u64));
        }
        let (mut left, mut at) = (bytes, offset);
        while !left.is_empty() {
            let wrote = volume.fs.write(&caller, *ino, at, left);
            let n = volume.moved("write", wrote, |n| Moved::Written(*n as u64))?;
            (left, at) = (&left[n..], at + n as u64);
        }
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            through_handle: true,
            ..SetAttr::default()
        };
        let (Open { volume, ino }, caller) = (&self.open, Caller::root());
        let cut = match &mut self.group {
            Some(group) => group.change(&caller, &Change::SetAttr(*ino, &set)),
            None => volume.fs.setattr(&caller, *ino, &set),
        };
        volume.called("truncate", cut.map(drop))
    }

    fn sync(&mut self, _flags: c_int) -> Result<()> {
        let Open { volume, ino } = &self.open;
        volume.called("fsync", volume.fs.fsync(*ino, false))?;
        if let Some(dir) = self.is_new {
            volume.called("fsync", volume.fs.fsync(dir, false))?;
            self.is_new = None;
        }
        Ok(())
    }

    fn size(&mut self) -> Result<u64> {
        let Open { volume, ino } = &self.open;
        let size = match &self.group {
            Some(group) => group.size(*ino),
            None => volume.fs.getattr(*ino).map(|attr| attr.size),
        };
        volume.called("stat", size)
    }

    /// Declares that an overwrite leaves the bytes beside it alone, and that reads may be smaller
    /// than a page.
    fn characteristics(&mut self) -> c_int {
        ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE | ffi::SQLITE_IOCAP_SUBPAGE_READ
    }

    fn lock(&mut self, level: Level) -> Result<bool> {
        Ok(self.lock.lock(level))
    }

    fn unlock(&mut self, level: Level) -> Result<()> {
        self.lock.unlock(level);
        Ok(())
    }

    fn is_reserved(&mut self) -> Result<bool> {
        Ok(self.lock.is_reserved())
    }

    fn shm_map(&mut self, region: c_int, bytes: c_int, extend: bool) -> Result<*mut c_void> {
        self.lock.map(region, bytes, extend)
    }

    fn shm_lock(&mut self, first: c_int, count: c_int, flags: c_int) -> Result<bool> {
        Ok(self.lock.lock_memory(first, count, flags))
    }

    fn shm_barrier(&mut self) {
        self.lock.barrier();
    }

    fn shm_unmap(&mut self, _delete: bool) -> Result<()> {
        self.lock.unmap();
        Ok(())
    }

    fn can_group(&mut self) -> bool {
        let Open { volume, ino } = &self.open;
        volume.groups && volume.fs.can_group(*ino).unwrap_or(false)
    }

    fn begin_group(&mut self) -> Result<()> {
        self.group = Some(self.open.volume.fs.begin());
        Ok(())
    }

    fn commit_group(&mut self) -> Result<()> {
        let group = self.group.as_mut().ok_or(Failure::Other)?;
        let committed = group.commit_lazy(&Caller::root());
        self.open.volume.called("commit", committed)?;
        self.group = None;
        Ok(())
    }

    fn abort_group(&mut self) {
        self.group = None;
    }
}
