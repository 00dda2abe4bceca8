//! Databases on a mount: SQLite's own VFS, with groups of writes where the file can have them.
//!
//! A group takes F2FS's ioctls (`docs/ATOMIC.md`), and these need the descriptor that SQLite's VFS
//! has open. We learn it by putting a function of ours in the place of that VFS's open(2)
//! (xSetSystemCall).

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Once, OnceLock};

use libsqlite3_sys as ffi;
use stetfs_sys::file_ioctl::{
    abort_atomic_write, commit_atomic_write, has_atomic_writes, start_atomic_write,
};

use super::below::{BelowFile, BelowVfs};
use super::contract::{
    Failure, File, Files, Level, MOUNT_VFS, Opening, Result, as_the_file_below_does,
};
use super::routines::Routines;
use super::vfs;

type Open = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;

thread_local! {
    /// What the last open(2) of SQLite's VFS returned in this thread.
    static OPENED: Cell<RawFd> = const { Cell::new(-1) };
}

static SYSTEM_OPEN: OnceLock<Open> = OnceLock::new();

unsafe extern "C" fn open_and_note(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    let open = SYSTEM_OPEN.get().expect("set before this is");
    // SAFETY: it is what SQLite would have called, with the same arguments.
    let fd = unsafe { open(path, flags, mode) };
    OPENED.set(fd);
    fd
}

/// Registers the VFS called [`MOUNT_VFS`] with the SQLite that is linked in.
pub fn register_mount_vfs() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        vfs::register(Routines::linked(), MOUNT_VFS, &|below| {
            Box::new(OnMount::new(below))
        });
    });
}

/// The files of SQLite's own VFS.
pub(super) struct OnMount(BelowVfs);

impl OnMount {
    pub(super) fn new(below: BelowVfs) -> Self {
        let vfs = below.raw();
        let name = c"open".as_ptr();
        // SAFETY: the VFS is there. The functions are those of version 3 of a VFS, and the one
        // called "open" of SQLite's own for Unix has this signature (`os_unix.c`, `osOpen`).
        unsafe {
            let (get, set) = if (*vfs).iVersion >= 3 {
                ((*vfs).xGetSystemCall, (*vfs).xSetSystemCall)
            } else {
                (None, None)
            };
            if let (Some(get), Some(set)) = (get, set)
                && let Some(open) = get(vfs, name)
            {
                let open: Open = std::mem::transmute(open);
                let ours: unsafe extern "C" fn() = std::mem::transmute(open_and_note as Open);
                if SYSTEM_OPEN.set(open).is_ok() {
                    set(vfs, name, Some(ours));
                }
            }
        }
        Self(below)
    }
}

impl Files for OnMount {
    fn full_path(&self, name: &CStr) -> Result<CString> {
        let vfs = self.0.raw();
        // SAFETY: the VFS is there.
        let (full, max) = unsafe { ((*vfs).xFullPathname, (*vfs).mxPathname) };
        let full = full.ok_or(Failure::Other)?;
        let mut out = vec![0_u8; usize::try_from(max).unwrap_or(0) + 1];
        // SAFETY: the name is a string, and there is as much room as the VFS may want.
        let code = unsafe { full(vfs, name.as_ptr(), max + 1, out.as_mut_ptr().cast()) };
        // The code may say that the path goes through a symbolic link.
        if code != ffi::SQLITE_OK && code != ffi::SQLITE_OK_SYMLINK {
            return Err(Failure::Code(code));
        }
        let path = CStr::from_bytes_until_nul(&out).map_err(|_| Failure::Other)?;
        Ok(path.to_owned())
    }

    fn open(&self, how: &Opening) -> Result<(Box<dyn File>, c_int)> {
        OPENED.set(-1);
        // SAFETY: the name is what SQLite has given to xOpen of ours.
        let (file, flags) = unsafe { self.0.open(how.name, how.flags)? };
        if !how.has(ffi::SQLITE_OPEN_MAIN_DB) {
            return Ok((Box::new(file), flags));
        }
        let fd = OPENED.get();
        let mut file = MountFile {
            file,
            fd: (fd >= 0).then_some(fd),
            group: None,
            is_dirty: true,
        };
        if !file.fd().is_some_and(has_atomic_writes) {
            file.fd = None;
        } else {
            let mut none: ffi::sqlite3_int64 = 0;
            // SAFETY: the operation takes a pointer to such an integer.
            unsafe {
                let none = (&raw mut none).cast();
                file.file.control(ffi::SQLITE_FCNTL_MMAP_SIZE, none);
            }
        }
        Ok((Box::new(file), flags))
    }

    fn delete(&self, path: &str, sync_directory: bool) -> Result<()> {
        let path = CString::new(path).map_err(|_| Failure::Other)?;
        let vfs = self.0.raw();
        // SAFETY: the VFS is there, and the path is a string.
        let code = unsafe {
            let delete = (*vfs).xDelete.ok_or(Failure::Other)?;
            delete(vfs, path.as_ptr(), c_int::from(sync_directory))
        };
        match code {
            ffi::SQLITE_OK => Ok(()),
            ffi::SQLITE_IOERR_DELETE_NOENT => Err(Failure::NotFound),
            code => Err(Failure::Code(code)),
        }
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let path = CString::new(path).map_err(|_| Failure::Other)?;
        let (vfs, mut is) = (self.0.raw(), 0);
        // SAFETY: the VFS is there, and the path is a string.
        let code = unsafe {
            let access = (*vfs).xAccess.ok_or(Failure::Other)?;
            access(vfs, path.as_ptr(), ffi::SQLITE_ACCESS_EXISTS, &mut is)
        };
        match code {
            ffi::SQLITE_OK => Ok(is != 0),
            code => Err(Failure::Code(code)),
        }
    }
}

/// A database on a mount.
struct MountFile {
    file: BelowFile,
    /// The descriptor; `None` if the file cannot have groups.
    fd: Option<RawFd>,
    group: Option<Staged>,
    /// True if something was written since the last sync or commit.
    is_dirty: bool,
}

/// What a group does to the file's size, which the mount need not tell.
struct Staged {
    /// The file's length before the group, in bytes.
    size: u64,
    /// Where the last staged write ends, in bytes.
    end: u64,
}

impl MountFile {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: SQLite's VFS has it open as long as the file.
        self.fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl File for MountFile {
    as_the_file_below_does!();

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.file.read(offset, out)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.is_dirty = true;
        self.file.write(offset, bytes)?;
        if let Some(Staged { end, .. }) = &mut self.group {
            *end = (*end).max(offset + bytes.len() as u64);
        }
        Ok(())
    }

    /// Fails in a group: a mount stages writes only.
    fn truncate(&mut self, size: u64) -> Result<()> {
        if self.group.is_some() {
            return Err(Failure::Other);
        }
        self.is_dirty = true;
        self.file.truncate(size)
    }

    /// Does nothing after the commit of a group, which is durable.
    fn sync(&mut self, flags: c_int) -> Result<()> {
        if self.is_dirty {
            self.file.sync(flags)?;
            self.is_dirty = self.fd.is_none();
        }
        Ok(())
    }

    fn size(&mut self) -> Result<u64> {
        let end = self.group.as_ref().map_or(0, |staged| staged.end);
        Ok(self.file.size()?.max(end))
    }

    fn unlock(&mut self, level: Level) -> Result<()> {
        self.file.unlock(level)
    }

    fn can_group(&mut self) -> bool {
        self.fd.is_some()
    }

    fn begin_group(&mut self) -> Result<()> {
        let size = self.file.size()?;
        let fd = self.fd().ok_or(Failure::Other)?;
        start_atomic_write(fd).map_err(|_| Failure::Other)?;
        self.group = Some(Staged { size, end: 0 });
        Ok(())
    }

    fn commit_group(&mut self) -> Result<()> {
        let fd = self.fd().ok_or(Failure::Other)?;
        commit_atomic_write(fd).map_err(|_| Failure::Other)?;
        self.group = None;
        self.is_dirty = false;
        Ok(())
    }

    /// Aborts the group. With a writeback cache the kernel believes that the file has grown; a
    /// truncate corrects that. Nobody else changes the size: SQLite has the database locked.
    fn abort_group(&mut self) {
        // The ioctl fails if there is no group.
        let _ = self.fd().map(abort_atomic_write);
        if let Some(Staged { size, end }) = self.group.take()
            && end > size
        {
            let _ = self.file.truncate(size);
        }
    }

    unsafe fn control(&mut self, operation: c_int, argument: *mut c_void) -> c_int {
        // A memory map does not show what is staged, and making the file longer is in no group.
        let is_of_maps = [ffi::SQLITE_FCNTL_MMAP_SIZE, ffi::SQLITE_FCNTL_SIZE_HINT];
        if self.fd.is_some() && is_of_maps.contains(&operation) {
            return ffi::SQLITE_NOTFOUND;
        }
        // SAFETY: by the contract.
        unsafe { self.file.control(operation, argument) }
    }
}
