//! A virtual file system of SQLite whose files are given by a trait (SQLite's `os.h`; "The SQLite
//! OS Interface or VFS").
//!
//! There is one, [`VFS`], registered for good when the first [`Files`] are attached, because
//! connections keep its address. A database of attached files has the path that [`Attached::path`]
//! gives. When they have been detached, what a connection still does there fails.
//!
//! What SQLite is told: an overwrite of some bytes leaves those beside it alone, and less than a
//! page can be read, as its own VFS for Unix says. A database is locked by one connection at a
//! time, readers too. There is no shared memory, so that a write-ahead log needs
//! `locking_mode=EXCLUSIVE`; and no file without a name, so that temporary ones need
//! `temp_store=MEMORY`.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{self, ErrorKind};
use std::mem::size_of;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libsqlite3_sys as ffi;

/// The VFS's name.
pub const VFS: &CStr = c"stetfs";

/// Bytes of a path at most.
const MAX_PATH: c_int = 512;
/// What SQLite takes for the unit that a power cut may tear (`SQLITE_DEFAULT_SECTOR_SIZE`).
const SECTOR: c_int = 4096;
/// 24 November 4714 BC, noon, to 1970 in milliseconds.
const JULIAN_EPOCH_MS: i64 = 210_866_760_000_000;

/// A directory of files for SQLite. Names have no slash.
pub trait Files: Send + Sync {
    /// Opens a file; makes it if that is asked for.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and others.
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn File>>;

    /// Deletes a file; what has it open can go on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and others.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// Whether there is such a file, with something in it.
    ///
    /// # Errors
    /// That cannot be known.
    fn exists(&self, name: &str) -> io::Result<bool>;
}

/// An open file; dropping it closes it.
pub trait File: Send {
    /// Reads; how many bytes there were before the file's end.
    ///
    /// # Errors
    /// Of the medium, as all here.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::StorageFull`], and others.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes it so long.
    ///
    /// # Errors
    /// Of the medium.
    fn truncate(&mut self, size: u64) -> io::Result<()>;

    /// Returns when content, size and name are durable.
    ///
    /// # Errors
    /// Of the medium.
    fn sync(&mut self) -> io::Result<()>;

    /// Bytes.
    ///
    /// # Errors
    /// Of the medium.
    fn size(&mut self) -> io::Result<u64>;
}

/// Files that SQLite can reach as long as this lives.
pub struct Attached(u64);

/// Lets SQLite reach files.
pub fn attach(files: Arc<dyn Files>) -> Attached {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register);
    let mut table = table();
    table.newest += 1;
    let number = table.newest;
    table.attached.insert(number, files);
    Attached(number)
}

impl Attached {
    /// The path of a file, to be opened by the VFS called [`VFS`].
    pub fn path(&self, name: &str) -> String {
        format!("/{}/{name}", self.0)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        table().attached.remove(&self.0);
    }
}

/// Begins SQLite's random numbers anew. They go into the headers of journals, so whoever wants
/// equal bytes in equal runs must seed them, and see to it that nothing else in the process uses
/// SQLite meanwhile.
pub fn seed_random(seed: u32) {
    // 0 would mean that they are drawn from the machine.
    let seed = (seed | 1).cast_signed();
    let none: *mut ffi::sqlite3 = null_mut();
    // SAFETY: this control takes an int and a connection, which may be null, and keeps neither; it
    // may be called at any time.
    unsafe {
        ffi::sqlite3_test_control(ffi::SQLITE_TESTCTRL_PRNG_SEED, seed, none);
    }
}

/// What is attached, and who has locked what.
#[derive(Default)]
struct Table {
    newest: u64,
    attached: HashMap<u64, Arc<dyn Files>>,
    /// The handle that has a path locked.
    locks: HashMap<String, u64>,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of a path, and the name in them.
fn find(path: &str) -> io::Result<(Arc<dyn Files>, &str)> {
    let parts = path.strip_prefix('/').and_then(|rest| rest.split_once('/'));
    let (number, name) = parts.ok_or(ErrorKind::NotFound)?;
    let number: u64 = number.parse().map_err(|_| ErrorKind::NotFound)?;
    let files = table().attached.get(&number).cloned();
    Ok((files.ok_or(ErrorKind::NotFound)?, name))
}

/// An open file as SQLite has it: it gives the memory for it, of `szOsFile` bytes.
#[repr(C)]
struct OsFile {
    base: ffi::sqlite3_file,
    handle: *mut Handle,
}

struct Handle {
    file: Box<dyn File>,
    path: String,
    number: u64,
    is_locked: bool,
}

impl Handle {
    /// Whether nobody else has it locked.
    fn lock(&mut self) -> bool {
        let mut table = table();
        let owner = table.locks.entry(self.path.clone()).or_insert(self.number);
        self.is_locked = *owner == self.number;
        self.is_locked
    }

    fn unlock(&mut self) {
        if std::mem::take(&mut self.is_locked) {
            table().locks.remove(&self.path);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.unlock();
    }
}

fn register() {
    let vfs = ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: c_int::try_from(size_of::<OsFile>()).expect("a few words"),
        mxPathname: MAX_PATH,
        pNext: null_mut(),
        zName: VFS.as_ptr(),
        pAppData: null_mut(),
        xOpen: Some(x_open),
        xDelete: Some(x_delete),
        xAccess: Some(x_access),
        xFullPathname: Some(x_full_pathname),
        xDlOpen: Some(x_dl_open),
        xDlError: Some(x_dl_error),
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(x_randomness),
        xSleep: Some(x_sleep),
        xCurrentTime: None,
        xGetLastError: None,
        xCurrentTimeInt64: Some(x_current_time),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: the structure is never freed, as SQLite wants it, and every function in it has the
    // signature and keeps the contract of its place; those left out are called only after others
    // that never succeed here (xDlSym, xDlClose), or not with this version.
    let result = unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0) };
    assert_eq!(result, ffi::SQLITE_OK, "SQLite is there");
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(x_close),
    xRead: Some(x_read),
    xWrite: Some(x_write),
    xTruncate: Some(x_truncate),
    xSync: Some(x_sync),
    xFileSize: Some(x_file_size),
    xLock: Some(x_lock),
    xUnlock: Some(x_unlock),
    xCheckReservedLock: Some(x_check_reserved_lock),
    xFileControl: Some(x_file_control),
    xSectorSize: Some(x_sector_size),
    xDeviceCharacteristics: Some(x_device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// SQLite's code for what went wrong.
fn code(error: &io::Error, otherwise: c_int) -> c_int {
    match error.kind() {
        ErrorKind::StorageFull => ffi::SQLITE_FULL,
        _ => otherwise,
    }
}

fn done(result: io::Result<()>, otherwise: c_int) -> c_int {
    result.map_or_else(|e| code(&e, otherwise), |()| ffi::SQLITE_OK)
}

/// # Safety
/// `name` is null or a string that lives as long as the call.
unsafe fn path<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// # Safety
/// `file` is one that [`x_open`] has opened, and nobody else uses it: SQLite uses a file from one
/// thread at a time.
unsafe fn handle<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Handle {
    // SAFETY: by the contract it is an `OsFile`, whose handle `x_open` has made and only `x_close`
    // frees.
    unsafe { &mut *(*file.cast::<OsFile>()).handle }
}

// Of the functions that SQLite calls, each relies on what its documentation says of the arguments:
// pointers are valid for the call, lengths are those of the memory, a file is one that xOpen has
// opened and xClose has not closed, `name` is a string. A panic in them ends the process.

unsafe extern "C" fn x_open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let out = file.cast::<OsFile>();
    // SAFETY: SQLite gives `szOsFile` bytes, aligned for pointers. Without methods it takes the
    // file for not opened.
    unsafe { (*out).base.pMethods = std::ptr::null() };
    // SAFETY: `name` is null or a string.
    let Some(path) = (unsafe { path(name) }) else {
        return ffi::SQLITE_CANTOPEN;
    };
    let may_create = flags & ffi::SQLITE_OPEN_CREATE != 0;
    let opened = find(path).and_then(|(files, name)| files.open(name, may_create));
    let opened = match opened {
        Ok(opened) => opened,
        Err(e) => return code(&e, ffi::SQLITE_CANTOPEN),
    };
    let mut table = table();
    table.newest += 1;
    let handle = Handle {
        file: opened,
        path: path.to_owned(),
        number: table.newest,
        is_locked: false,
    };
    // SAFETY: as above; `out_flags` is null or one int.
    unsafe {
        (*out).handle = Box::into_raw(Box::new(handle));
        (*out).base.pMethods = &METHODS;
        if !out_flags.is_null() {
            *out_flags = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_delete(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _sync_directory: c_int,
) -> c_int {
    // SAFETY: `name` is a string.
    let Some(path) = (unsafe { path(name) }) else {
        return ffi::SQLITE_IOERR_DELETE;
    };
    match find(path).and_then(|(files, name)| files.delete(name)) {
        Err(e) if e.kind() == ErrorKind::NotFound => ffi::SQLITE_IOERR_DELETE_NOENT,
        result => done(result, ffi::SQLITE_IOERR_DELETE),
    }
}

unsafe extern "C" fn x_access(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: `name` is a string.
    let Some(path) = (unsafe { path(name) }) else {
        return ffi::SQLITE_IOERR_ACCESS;
    };
    match find(path).and_then(|(files, name)| files.exists(name)) {
        Ok(exists) => {
            // SAFETY: `out` is one int.
            unsafe { *out = c_int::from(exists) };
            ffi::SQLITE_OK
        }
        Err(_) => ffi::SQLITE_IOERR_ACCESS,
    }
}

unsafe extern "C" fn x_full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: `name` is a string.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if bytes.len() > length(room) {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has `room` bytes, which is enough, and is not `name`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    ffi::SQLITE_OK
}

/// No libraries come from here.
unsafe extern "C" fn x_dl_open(_: *mut ffi::sqlite3_vfs, _: *const c_char) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn x_dl_error(_: *mut ffi::sqlite3_vfs, room: c_int, out: *mut c_char) {
    if room > 0 {
        // SAFETY: `out` has `room` bytes.
        unsafe { *out = 0 };
    }
}

/// SQLite asks only its default VFS, which this is not; it has this machine's randomness.
unsafe extern "C" fn x_randomness(_: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) -> c_int {
    // SAFETY: the default VFS is there, with a function for this, and gets what we got.
    unsafe {
        let default = ffi::sqlite3_vfs_find(std::ptr::null());
        (*default)
            .xRandomness
            .map_or(0, |draw| draw(default, len, out))
    }
}

unsafe extern "C" fn x_sleep(_: *mut ffi::sqlite3_vfs, us: c_int) -> c_int {
    std::thread::sleep(Duration::from_micros(u64::try_from(us).unwrap_or(0)));
    us
}

unsafe extern "C" fn x_current_time(
    _: *mut ffi::sqlite3_vfs,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0));
    // SAFETY: `out` is one integer.
    unsafe { *out = JULIAN_EPOCH_MS + ms };
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_close(file: *mut ffi::sqlite3_file) -> c_int {
    let file = file.cast::<OsFile>();
    // SAFETY: `x_open` has made the handle, and SQLite does not use the file any more.
    unsafe {
        drop(Box::from_raw((*file).handle));
        (*file).base.pMethods = std::ptr::null();
    }
    ffi::SQLITE_OK
}

/// A length that SQLite gives: none of its buffers has fewer than 0 bytes.
fn length(len: c_int) -> usize {
    usize::try_from(len).unwrap_or(0)
}

unsafe extern "C" fn x_read(
    file: *mut ffi::sqlite3_file,
    out: *mut c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file; `out` has `len` bytes, which SQLite has made or written before.
    let (handle, out) = unsafe {
        let out = std::slice::from_raw_parts_mut(out.cast::<u8>(), length(len));
        (handle(file), out)
    };
    match handle.file.read(offset.cast_unsigned(), out) {
        Ok(n) if n == out.len() => ffi::SQLITE_OK,
        Ok(n) => {
            // SQLite wants zeros where there was nothing.
            out[n..].fill(0);
            ffi::SQLITE_IOERR_SHORT_READ
        }
        Err(_) => ffi::SQLITE_IOERR_READ,
    }
}

unsafe extern "C" fn x_write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    len: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file; `bytes` has `len` bytes.
    let (handle, bytes) = unsafe {
        let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length(len));
        (handle(file), bytes)
    };
    let result = handle.file.write(offset.cast_unsigned(), bytes);
    done(result, ffi::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn x_truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: an open file.
    let handle = unsafe { handle(file) };
    let result = handle.file.truncate(size.cast_unsigned());
    done(result, ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn x_sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: an open file.
    let handle = unsafe { handle(file) };
    done(handle.file.sync(), ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn x_file_size(
    file: *mut ffi::sqlite3_file,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file.
    let handle = unsafe { handle(file) };
    match handle.file.size() {
        Ok(size) => {
            // SAFETY: `out` is one integer.
            unsafe { *out = size.cast_signed() };
            ffi::SQLITE_OK
        }
        Err(_) => ffi::SQLITE_IOERR_FSTAT,
    }
}

unsafe extern "C" fn x_lock(file: *mut ffi::sqlite3_file, _level: c_int) -> c_int {
    // SAFETY: an open file.
    match unsafe { handle(file) }.lock() {
        true => ffi::SQLITE_OK,
        false => ffi::SQLITE_BUSY,
    }
}

unsafe extern "C" fn x_unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    if level == ffi::SQLITE_LOCK_NONE {
        // SAFETY: an open file.
        unsafe { handle(file) }.unlock();
    }
    ffi::SQLITE_OK
}

/// Whoever asks has it locked himself, so nobody else has.
unsafe extern "C" fn x_check_reserved_lock(_: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: `out` is one int.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn x_file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn x_sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    SECTOR
}

unsafe extern "C" fn x_device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE | ffi::SQLITE_IOCAP_SUBPAGE_READ
}
