//! What SQLite asks of a virtual file system and its files, as traits; what goes to and fro.

use std::ffi::{CStr, CString, c_int, c_void};

use libsqlite3_sys as ffi;

/// What SQLite takes for the unit that a power cut may tear (`SQLITE_DEFAULT_SECTOR_SIZE`).
const SECTOR: c_int = 4096;

/// The VFS for databases in volumes.
pub const VFS: &CStr = c"stetfs";
/// The VFS for databases on a mount.
pub const MOUNT_VFS: &CStr = c"stetfs-mount";

/// Why SQLite's wish was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NotFound,
    Full,
    /// Another process has it.
    Busy,
    /// What the call itself says when it fails.
    Other,
    /// SQLite's own code.
    Code(c_int),
}

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// How far a database is locked ("File Locking And Concurrency In SQLite Version 3").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

/// Where files are.
pub(super) trait Files: Send + Sync {
    /// The one path of what `name` names.
    fn full_path(&self, name: &CStr) -> Result<CString>;

    /// Opens a file, or makes it; also the flags with which it was opened.
    fn open(&self, how: &Opening) -> Result<(Box<dyn File>, c_int)>;

    /// Deletes a file; what has it open can go on.
    fn delete(&self, path: &str, sync_directory: bool) -> Result<()>;

    /// Whether there is such a file, with something in it.
    fn exists(&self, path: &str) -> Result<bool>;
}

/// What SQLite opens.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) path: String,
    /// The same as SQLite gave it, which keeps it until the file is closed.
    pub(super) name: ffi::sqlite3_filename,
    /// `SQLITE_OPEN_...`
    pub(super) flags: c_int,
    /// The URI's parameter `options`.
    pub(super) options: Option<String>,
}

// SAFETY: `name` is read by SQLite's own VFS alone, and nothing changes the string.
unsafe impl Send for Opening {}

impl Opening {
    pub(super) const fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }
}

/// An open file; dropping it closes it.
pub(super) trait File: Send {
    /// Reads; how many bytes there were before the file's end.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Writes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    fn truncate(&mut self, size: u64) -> Result<()>;

    /// Returns when content, size and name are durable.
    fn sync(&mut self, flags: c_int) -> Result<()>;

    fn size(&mut self) -> Result<u64>;

    /// `SQLITE_IOCAP_...`, without that of groups.
    fn characteristics(&mut self) -> c_int;

    fn sector_bytes(&mut self) -> c_int {
        SECTOR
    }

    // What SQLite asks of databases alone.

    /// False when others stand in the way.
    fn lock(&mut self, _level: Level) -> Result<bool> {
        Ok(true)
    }

    fn unlock(&mut self, _level: Level) -> Result<()> {
        Ok(())
    }

    /// Whether any connection has it locked for writing.
    fn is_reserved(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Memory that all connections share; null for a region that there is not.
    fn shm_map(&mut self, _region: c_int, _bytes: c_int, _extend: bool) -> Result<*mut c_void> {
        Err(Failure::Other)
    }

    /// False when others stand in the way. `flags` are `SQLITE_SHM_...`.
    fn shm_lock(&mut self, _first: c_int, _count: c_int, _flags: c_int) -> Result<bool> {
        Err(Failure::Other)
    }

    fn shm_barrier(&mut self) {}

    fn shm_unmap(&mut self, _delete: bool) -> Result<()> {
        Ok(())
    }

    /// Whether several writes can be one transaction.
    fn can_group(&mut self) -> bool {
        false
    }

    /// What is written from now on is staged, and seen through this file alone.
    fn begin_group(&mut self) -> Result<()> {
        Err(Failure::Other)
    }

    /// Makes what is staged happen; durable with the next [`sync`](Self::sync). On failure it stays
    /// staged.
    fn commit_group(&mut self) -> Result<()> {
        Err(Failure::Other)
    }

    fn abort_group(&mut self) {}

    /// All of a transaction is written, and [`sync`](Self::sync) follows, if SQLite syncs at all.
    /// `is_one_of_several`: a super-journal makes it one with those of other databases.
    fn end_transaction(&mut self, _is_one_of_several: bool) -> Result<()> {
        Ok(())
    }

    /// What SQLite asks besides.
    ///
    /// # Safety
    /// `argument` is what SQLite gave with `operation`.
    unsafe fn control(&mut self, _operation: c_int, _argument: *mut c_void) -> c_int {
        ffi::SQLITE_NOTFOUND
    }
}

/// What a file that stands before another one, its field `file`, leaves to that.
macro_rules! as_the_file_below_does {
    () => {
        fn lock(&mut self, level: Level) -> Result<bool> {
            self.file.lock(level)
        }

        fn is_reserved(&mut self) -> Result<bool> {
            self.file.is_reserved()
        }

        fn shm_map(&mut self, region: c_int, bytes: c_int, extend: bool) -> Result<*mut c_void> {
            self.file.shm_map(region, bytes, extend)
        }

        fn shm_lock(&mut self, first: c_int, count: c_int, flags: c_int) -> Result<bool> {
            self.file.shm_lock(first, count, flags)
        }

        fn shm_barrier(&mut self) {
            self.file.shm_barrier();
        }

        fn shm_unmap(&mut self, delete: bool) -> Result<()> {
            self.file.shm_unmap(delete)
        }

        fn characteristics(&mut self) -> c_int {
            self.file.characteristics()
        }

        fn sector_bytes(&mut self) -> c_int {
            self.file.sector_bytes()
        }
    };
}
pub(super) use as_the_file_below_does;
