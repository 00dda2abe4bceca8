//! What SQLite asks of a VFS (`Files`) and of its files (`File`).

use std::ffi::{CStr, CString, c_int, c_void};

use libsqlite3_sys as ffi;

/// The unit in bytes that SQLite expects a power cut to tear (`SQLITE_DEFAULT_SECTOR_SIZE`).
const SECTOR: c_int = 4096;

/// The VFS for databases in volumes.
pub const VFS: &CStr = c"stetfs";
/// The VFS for databases on a mount.
pub const MOUNT_VFS: &CStr = c"stetfs-mount";

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NotFound,
    Full,
    /// Another process has the volume open.
    Busy,
    /// Any other reason: SQLite gets the code for a failure of this call.
    Other,
    /// A code from SQLite's own VFS.
    Code(c_int),
}

pub(super) type Result<T, E = Failure> = std::result::Result<T, E>;

/// How strongly a database is locked ("File Locking And Concurrency In SQLite Version 3").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

/// The files that a VFS offers.
pub(super) trait Files: Send + Sync {
    /// Returns the one full path of the file that `name` names.
    fn full_path(&self, name: &CStr) -> Result<CString>;

    /// Opens or creates a file. Returns it with the flags with which it was opened.
    fn open(&self, how: &Opening) -> Result<(Box<dyn File>, c_int)>;

    /// Deletes a file. Connections that have it open can go on.
    fn delete(&self, path: &str, sync_directory: bool) -> Result<()>;

    /// Returns whether the file exists and is not empty.
    fn exists(&self, path: &str) -> Result<bool>;
}

/// The arguments of xOpen.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) path: String,
    /// The path as SQLite gave it. SQLite keeps the string until the file is closed.
    pub(super) name: ffi::sqlite3_filename,
    /// `SQLITE_OPEN_...`
    pub(super) flags: c_int,
    /// The URI's parameter `options`.
    pub(super) options: Option<String>,
}

// SAFETY: only SQLite's own VFS reads `name`, and nothing changes the string.
unsafe impl Send for Opening {}

impl Opening {
    pub(super) const fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }
}

/// An open file; dropping it closes it.
pub(super) trait File: Send {
    /// Reads into `out`. Returns how many bytes it read: fewer only at the file's end.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// Writes all of `bytes`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    fn truncate(&mut self, size: u64) -> Result<()>;

    /// Makes content, size and name durable.
    fn sync(&mut self, flags: c_int) -> Result<()>;

    fn size(&mut self) -> Result<u64>;

    /// Returns flags `SQLITE_IOCAP_...`, without the one that declares groups.
    fn characteristics(&mut self) -> c_int;

    fn sector_bytes(&mut self) -> c_int {
        SECTOR
    }

    // SQLite calls the rest for databases only.

    /// Locks the database. False: another connection's lock forbids it.
    fn lock(&mut self, _level: Level) -> Result<bool> {
        Ok(true)
    }

    fn unlock(&mut self, _level: Level) -> Result<()> {
        Ok(())
    }

    /// Returns whether any connection has the database locked for writing.
    fn is_reserved(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Returns a region of the memory that all connections share; null if there is no such region.
    fn shm_map(&mut self, _region: c_int, _bytes: c_int, _extend: bool) -> Result<*mut c_void> {
        Err(Failure::Other)
    }

    /// Locks or unlocks slots of the shared memory. False: another connection's lock forbids it.
    /// `flags` are `SQLITE_SHM_...`.
    fn shm_lock(&mut self, _first: c_int, _count: c_int, _flags: c_int) -> Result<bool> {
        Err(Failure::Other)
    }

    fn shm_barrier(&mut self) {}

    fn shm_unmap(&mut self, _delete: bool) -> Result<()> {
        Ok(())
    }

    /// Returns whether several writes can be one transaction.
    fn can_group(&mut self) -> bool {
        false
    }

    /// Stages all writes from now on. Only this file sees them.
    fn begin_group(&mut self) -> Result<()> {
        Err(Failure::Other)
    }

    /// Commits what is staged. The next [`sync`](Self::sync) makes it durable. On failure it stays
    /// staged.
    fn commit_group(&mut self) -> Result<()> {
        Err(Failure::Other)
    }

    fn abort_group(&mut self) {}

    /// Ends a transaction, which is written completely. [`sync`](Self::sync) follows, if SQLite
    /// syncs at all. `is_one_of_several`: a super-journal commits it together with those of other
    /// databases.
    fn end_transaction(&mut self, _is_one_of_several: bool) -> Result<()> {
        Ok(())
    }

    /// Carries out any other operation of xFileControl.
    ///
    /// # Safety
    /// `argument` is what SQLite gave with `operation`.
    unsafe fn control(&mut self, _operation: c_int, _argument: *mut c_void) -> c_int {
        ffi::SQLITE_NOTFOUND
    }
}

/// The methods that a wrapper leaves to the file that it wraps, its field `file`.
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
