//! SQLite's own VFS and its files, behind our trait `File`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use libsqlite3_sys as ffi;

use super::contract::{Failure, File, Level, Result};

/// The VFS that was SQLite's default when ours were registered.
#[derive(Clone, Copy)]
pub(super) struct BelowVfs(*mut ffi::sqlite3_vfs);

// SAFETY: SQLite calls a VFS from any thread, and so may we; the structure is there for good.
unsafe impl Send for BelowVfs {}
// SAFETY: as above.
unsafe impl Sync for BelowVfs {}

impl BelowVfs {
    /// # Safety
    /// `vfs` is registered, and stays so.
    pub(super) const unsafe fn new(vfs: *mut ffi::sqlite3_vfs) -> Self {
        Self(vfs)
    }

    pub(super) const fn raw(self) -> *mut ffi::sqlite3_vfs {
        self.0
    }

    /// Opens a file. Returns it with the flags with which it was opened.
    ///
    /// # Safety
    /// `name` is null, or as SQLite gives it to xOpen, and stays until the file is closed.
    pub(super) unsafe fn open(
        self,
        name: ffi::sqlite3_filename,
        flags: c_int,
    ) -> Result<(BelowFile, c_int)> {
        // SAFETY: the VFS is there.
        let (open, bytes) = unsafe { ((*self.0).xOpen, (*self.0).szOsFile) };
        let open = open.ok_or(Failure::Other)?;
        let words = usize::try_from(bytes).unwrap_or(0).div_ceil(8);
        let mut memory = vec![0_u64; words].into_boxed_slice();
        let file: *mut ffi::sqlite3_file = memory.as_mut_ptr().cast();
        let mut opened = flags;
        // SAFETY: the memory has as many bytes as the VFS wants and is aligned for words; the name
        // is valid by the contract.
        let code = unsafe { open(self.0, name, file, flags, &mut opened) };
        let file = BelowFile {
            file,
            _memory: memory,
        };
        done(code)?;
        Ok((file, opened))
    }
}

/// An open file. The memory stays where it is when the box moves.
pub(super) struct BelowFile {
    file: *mut ffi::sqlite3_file,
    _memory: Box<[u64]>,
}

// SAFETY: SQLite uses a file from one thread at a time, whichever that is.
unsafe impl Send for BelowFile {}

fn done(code: c_int) -> Result<()> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(Failure::Code(code)),
    }
}

/// Translates the code of a lock: `false` if another connection holds it.
fn granted(code: c_int) -> Result<bool> {
    match code {
        ffi::SQLITE_BUSY => Ok(false),
        code => done(code).map(|()| true),
    }
}

/// Calls a method of the file, with the file as its first argument. A missing method fails.
macro_rules! call {
    ($below:expr, $method:ident $(, $argument:expr)*) => {{
        let file = $below.file;
        // SAFETY: the file is open, so its methods are there, and the arguments are as the
        // documentation of the method wants them: lengths are those of the memory.
        unsafe {
            match (*(*file).pMethods).$method {
                Some(method) => method(file $(, $argument)*),
                None => ffi::SQLITE_IOERR,
            }
        }
    }};
}

impl Drop for BelowFile {
    fn drop(&mut self) {
        // SAFETY: xOpen has set the methods, or null when it failed.
        if unsafe { !(*self.file).pMethods.is_null() } {
            call!(self, xClose);
        }
    }
}

fn length(len: usize) -> Result<c_int> {
    c_int::try_from(len).map_err(|_| Failure::Other)
}

impl File for BelowFile {
    /// Fails with SQLite's own code after a short read; the VFS has then filled the rest with
    /// zeros.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let len = length(out.len())?;
        let to = out.as_mut_ptr().cast();
        done(call!(self, xRead, to, len, offset.cast_signed()))?;
        Ok(out.len())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = length(bytes.len())?;
        let from = bytes.as_ptr().cast();
        match call!(self, xWrite, from, len, offset.cast_signed()) {
            ffi::SQLITE_FULL => Err(Failure::Full),
            code => done(code),
        }
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        done(call!(self, xTruncate, size.cast_signed()))
    }

    fn sync(&mut self, flags: c_int) -> Result<()> {
        done(call!(self, xSync, flags))
    }

    fn size(&mut self) -> Result<u64> {
        let mut size = 0;
        done(call!(self, xFileSize, &mut size))?;
        Ok(size.cast_unsigned())
    }

    fn lock(&mut self, level: Level) -> Result<bool> {
        granted(call!(self, xLock, level as c_int))
    }

    fn unlock(&mut self, level: Level) -> Result<()> {
        done(call!(self, xUnlock, level as c_int))
    }

    fn is_reserved(&mut self) -> Result<bool> {
        let mut is = 0;
        done(call!(self, xCheckReservedLock, &mut is))?;
        Ok(is != 0)
    }

    fn shm_map(&mut self, region: c_int, bytes: c_int, extend: bool) -> Result<*mut c_void> {
        let mut at: *mut c_void = null_mut();
        let out = (&raw mut at).cast();
        done(call!(
            self,
            xShmMap,
            region,
            bytes,
            c_int::from(extend),
            out
        ))?;
        Ok(at)
    }

    fn shm_lock(&mut self, first: c_int, count: c_int, flags: c_int) -> Result<bool> {
        granted(call!(self, xShmLock, first, count, flags))
    }

    fn shm_barrier(&mut self) {
        let file = self.file;
        // SAFETY: the file is open; SQLite asks for barriers of files that have shared memory.
        unsafe {
            if let Some(barrier) = (*(*file).pMethods).xShmBarrier {
                barrier(file);
            }
        }
    }

    fn shm_unmap(&mut self, delete: bool) -> Result<()> {
        done(call!(self, xShmUnmap, c_int::from(delete)))
    }

    fn characteristics(&mut self) -> c_int {
        call!(self, xDeviceCharacteristics)
    }

    fn sector_bytes(&mut self) -> c_int {
        call!(self, xSectorSize)
    }

    unsafe fn control(&mut self, operation: c_int, argument: *mut c_void) -> c_int {
        call!(self, xFileControl, operation, argument)
    }
}
