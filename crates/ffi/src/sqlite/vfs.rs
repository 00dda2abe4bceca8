//! The functions that SQLite calls for a VFS and its files, as calls of our traits.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libsqlite3_sys as ffi;

use super::below::BelowVfs;
use super::contract::{Failure, File, Files, Level, Opening, Result};
use super::kept::{Database, Journal, JournalFile, Slot};
use super::routines::Routines;

/// Longest path, in bytes.
const MAX_PATH: c_int = 1024;
/// Milliseconds from noon, 24 November 4714 BC, to 1970.
const JULIAN_EPOCH_MS: i64 = 210_866_760_000_000;

static ROUTINES: OnceLock<Routines> = OnceLock::new();

/// Returns SQLite's functions; `None` before a VFS was registered.
pub(super) fn routines() -> Option<&'static Routines> {
    ROUTINES.get()
}

/// Writes to SQLite's error log.
pub(super) fn log(text: &str) {
    if let (Some(routines), Ok(text)) = (routines(), CString::new(text)) {
        // SAFETY: a format with one string, and that string.
        unsafe { (routines.log)(ffi::SQLITE_WARNING, c"stetfs: %s".as_ptr(), text.as_ptr()) };
    }
}

/// The parts of a VFS of ours.
struct Registered {
    files: Box<dyn Files>,
    below: BelowVfs,
}

/// Registers a VFS for good, above the one that is the default now.
pub(super) fn register(
    routines: Routines,
    name: &'static CStr,
    make: &dyn Fn(BelowVfs) -> Box<dyn Files>,
) {
    let routines = ROUTINES.get_or_init(|| routines);
    // SAFETY: null asks for the default, which is there and stays.
    let below = unsafe { BelowVfs::new((routines.vfs_find)(null())) };
    let registered = Box::new(Registered {
        files: make(below),
        below,
    });
    let vfs = ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: c_int::try_from(size_of::<OsFile>()).expect("a few words"),
        mxPathname: MAX_PATH,
        pNext: null_mut(),
        zName: name.as_ptr(),
        pAppData: Box::into_raw(registered).cast(),
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
    let result = unsafe { (routines.vfs_register)(Box::into_raw(Box::new(vfs)), 0) };
    assert_eq!(result, ffi::SQLITE_OK, "SQLite is there");
}

/// An open file as SQLite has it, in memory of `szOsFile` bytes that SQLite provides.
#[repr(C)]
struct OsFile {
    base: ffi::sqlite3_file,
    handle: *mut Handle,
}

struct Handle {
    file: Box<dyn File>,
    /// For a database: its journal, which may stay in memory.
    journal: Option<Slot>,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
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
    xShmMap: Some(x_shm_map),
    xShmLock: Some(x_shm_lock),
    xShmBarrier: Some(x_shm_barrier),
    xShmUnmap: Some(x_shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Translates a result into SQLite's code. `otherwise` is for a failure without its own.
fn done(result: Result<()>, otherwise: c_int) -> c_int {
    match result {
        Ok(()) => ffi::SQLITE_OK,
        Err(Failure::Full) => ffi::SQLITE_FULL,
        Err(Failure::Busy) => ffi::SQLITE_BUSY,
        Err(Failure::Code(code)) => code,
        Err(Failure::NotFound | Failure::Other) => otherwise,
    }
}

/// Translates the result of a lock.
fn granted(result: Result<bool>, otherwise: c_int) -> c_int {
    match result {
        Ok(false) => ffi::SQLITE_BUSY,
        result => done(result.map(drop), otherwise),
    }
}

fn level(level: c_int) -> Level {
    match level {
        ffi::SQLITE_LOCK_NONE => Level::None,
        ffi::SQLITE_LOCK_SHARED => Level::Shared,
        ffi::SQLITE_LOCK_RESERVED => Level::Reserved,
        ffi::SQLITE_LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

/// # Safety
/// `vfs` is one that [`register`] has registered.
unsafe fn registered(vfs: *mut ffi::sqlite3_vfs) -> &'static Registered {
    // SAFETY: `register` has made it, and nobody frees it.
    unsafe { &*(*vfs).pAppData.cast() }
}

/// # Safety
/// `text` is null or a string that lives as long as the call.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by the contract.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// `file` is one that [`x_open`] has opened, and nobody else uses it: SQLite uses a file from one
/// thread at a time.
unsafe fn handle<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Handle {
    // SAFETY: by the contract it is an `OsFile`, whose handle `x_open` has made and only `x_close`
    // frees.
    unsafe { &mut *(*file.cast::<OsFile>()).handle }
}

// The functions that SQLite calls rely on what its documentation says of their arguments: pointers
// are valid for the call, lengths are those of the memory, a file is one that xOpen has opened and
// xClose has not closed, `name` is a string. A panic in them ends the process.

unsafe extern "C" fn x_open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let out = file.cast::<OsFile>();
    // SAFETY: SQLite gives `szOsFile` bytes, aligned for pointers. Without methods it takes the
    // file for not opened.
    unsafe { (*out).base.pMethods = null() };
    // SAFETY: the VFS is ours, and the name as SQLite gives it to xOpen.
    let opened = unsafe { open(registered(vfs), name, flags) };
    let (handle, flags) = match opened {
        Ok(opened) => opened,
        Err(e) => return done(Err(e), ffi::SQLITE_CANTOPEN),
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

/// # Safety
/// `name` is what SQLite has given to xOpen with these flags.
unsafe fn open(
    own: &'static Registered,
    name: ffi::sqlite3_filename,
    flags: c_int,
) -> Result<(Handle, c_int)> {
    if name.is_null() {
        // SAFETY: by the contract.
        let (file, flags) = unsafe { own.below.open(name, flags)? };
        return Ok((Handle::plain(Box::new(file)), flags));
    }
    // SAFETY: `name` is not null, so it is a string.
    let path = unsafe { string(name) }.ok_or(Failure::Other)?;
    let mut how = Opening {
        path: path.to_owned(),
        name,
        flags,
        options: None,
    };
    if how.has(ffi::SQLITE_OPEN_MAIN_DB) {
        // SAFETY: the name of a database that xOpen gets has the URI's parameters behind it.
        how.options = routines().and_then(|routines| unsafe {
            string((routines.uri_parameter)(name, c"options".as_ptr())).map(str::to_owned)
        });
        let (file, flags) = own.files.open(&how)?;
        return Ok((Handle::database(file), flags));
    }
    if how.has(ffi::SQLITE_OPEN_MAIN_JOURNAL) && how.has(ffi::SQLITE_OPEN_CREATE) {
        // SAFETY: it is the name of a journal.
        let database = unsafe { database_of(name) };
        let can_group = |handle: &mut Handle| handle.file.can_group();
        if let Some(database) = database
            && can_group(database)
            && !own.files.exists(path)?
            && let Some(slot) = &database.journal
        {
            let file = JournalFile::keep(slot, &*own.files, how);
            return Ok((Handle::plain(Box::new(file)), flags));
        }
    }
    let (file, flags) = own.files.open(&how)?;
    Ok((Handle::plain(file), flags))
}

/// Returns the database of a journal; `None` if its file is not ours.
///
/// # Safety
/// `name` is the name of a journal as SQLite gives it to xOpen.
unsafe fn database_of<'a>(name: ffi::sqlite3_filename) -> Option<&'a mut Handle> {
    let routines = routines()?;
    // SAFETY: for the name of a journal, SQLite returns the open file of its database.
    let file = unsafe { (routines.database_file_object)(name) };
    // SAFETY: the connection that opens a journal uses its database too, so nobody else does.
    unsafe {
        if !file.is_null() && std::ptr::eq((*file).pMethods, &METHODS) {
            Some(handle(file))
        } else {
            None
        }
    }
}

impl Handle {
    fn plain(file: Box<dyn File>) -> Self {
        Self {
            file,
            journal: None,
        }
    }

    fn database(file: Box<dyn File>) -> Self {
        let journal = Slot::new(Journal::None.into());
        Self {
            file: Box::new(Database::new(file, journal.clone())),
            journal: Some(journal),
        }
    }
}

unsafe extern "C" fn x_delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_directory: c_int,
) -> c_int {
    // SAFETY: the VFS is ours, `name` is a string.
    let (own, path) = unsafe { (registered(vfs), string(name)) };
    let deleted = match path {
        Some(path) => own.files.delete(path, sync_directory != 0),
        None => Err(Failure::Other),
    };
    match deleted {
        // The journal was in memory. Any other file is gone too, as SQLite wants.
        Err(Failure::NotFound) => ffi::SQLITE_OK,
        result => done(result, ffi::SQLITE_IOERR_DELETE),
    }
}

unsafe extern "C" fn x_access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: the VFS is ours, `name` is a string.
    let (own, path) = unsafe { (registered(vfs), string(name)) };
    let exists = match path {
        Some(path) => own.files.exists(path),
        None => Err(Failure::Other),
    };
    let exists = exists.map(|exists| {
        // SAFETY: `out` is one int.
        unsafe { *out = c_int::from(exists) };
    });
    done(exists, ffi::SQLITE_IOERR_ACCESS)
}

unsafe extern "C" fn x_full_pathname(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: the VFS is ours, `name` is a string.
    let full = unsafe { registered(vfs).files.full_path(CStr::from_ptr(name)) };
    let full = match full {
        Ok(full) => full,
        Err(e) => return done(Err(e), ffi::SQLITE_CANTOPEN),
    };
    let bytes = full.as_bytes_with_nul();
    if bytes.len() > length(room) {
        return ffi::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has `room` bytes, which is enough, and is not ours.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    ffi::SQLITE_OK
}

/// Opens no libraries.
unsafe extern "C" fn x_dl_open(_: *mut ffi::sqlite3_vfs, _: *const c_char) -> *mut c_void {
    null_mut()
}

unsafe extern "C" fn x_dl_error(_: *mut ffi::sqlite3_vfs, room: c_int, out: *mut c_char) {
    if room > 0 {
        // SAFETY: `out` has `room` bytes.
        unsafe { *out = 0 };
    }
}

/// Takes random bytes from the VFS below.
unsafe extern "C" fn x_randomness(
    vfs: *mut ffi::sqlite3_vfs,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: the VFS is ours, and the one below is there and gets what we got.
    unsafe {
        let below = registered(vfs).below.raw();
        (*below).xRandomness.map_or(0, |draw| draw(below, len, out))
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
        (*file).base.pMethods = null();
    }
    ffi::SQLITE_OK
}

/// Converts a length from SQLite, which is never negative.
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
        let out = slice::from_raw_parts_mut(out.cast::<u8>(), length(len));
        (handle(file), out)
    };
    match handle.file.read(offset.cast_unsigned(), out) {
        Ok(n) if n < out.len() => {
            // SQLite wants zeros where there was nothing.
            out[n..].fill(0);
            ffi::SQLITE_IOERR_SHORT_READ
        }
        result => done(result.map(drop), ffi::SQLITE_IOERR_READ),
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
        let bytes = slice::from_raw_parts(bytes.cast::<u8>(), length(len));
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

unsafe extern "C" fn x_sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: an open file.
    let handle = unsafe { handle(file) };
    done(handle.file.sync(flags), ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn x_file_size(
    file: *mut ffi::sqlite3_file,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file.
    let size = unsafe { handle(file) }.file.size().map(|size| {
        // SAFETY: `out` is one integer.
        unsafe { *out = size.cast_signed() };
    });
    done(size, ffi::SQLITE_IOERR_FSTAT)
}

unsafe extern "C" fn x_lock(file: *mut ffi::sqlite3_file, to: c_int) -> c_int {
    // SAFETY: an open file.
    let locked = unsafe { handle(file) }.file.lock(level(to));
    granted(locked, ffi::SQLITE_IOERR_LOCK)
}

unsafe extern "C" fn x_unlock(file: *mut ffi::sqlite3_file, to: c_int) -> c_int {
    // SAFETY: an open file.
    let unlocked = unsafe { handle(file) }.file.unlock(level(to));
    done(unlocked, ffi::SQLITE_IOERR_UNLOCK)
}

unsafe extern "C" fn x_check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: an open file.
    let is = unsafe { handle(file) }.file.is_reserved().map(|is| {
        // SAFETY: `out` is one int.
        unsafe { *out = c_int::from(is) };
    });
    done(is, ffi::SQLITE_IOERR_CHECKRESERVEDLOCK)
}

unsafe extern "C" fn x_file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: an open file.
    let file = unsafe { handle(file) }.file.as_mut();
    match operation {
        ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE => {
            done(file.begin_group(), ffi::SQLITE_IOERR_BEGIN_ATOMIC)
        }
        ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE => {
            done(file.commit_group(), ffi::SQLITE_IOERR_COMMIT_ATOMIC)
        }
        ffi::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE => {
            file.abort_group();
            ffi::SQLITE_OK
        }
        ffi::SQLITE_FCNTL_SYNC => {
            let ended = file.end_transaction(!argument.is_null());
            match ended {
                // SAFETY: the argument is SQLite's.
                Ok(()) => unsafe { file.control(operation, argument) },
                Err(e) => done(Err(e), ffi::SQLITE_IOERR_FSYNC),
            }
        }
        // SAFETY: the argument is SQLite's.
        _ => unsafe { file.control(operation, argument) },
    }
}

unsafe extern "C" fn x_sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: an open file.
    unsafe { handle(file) }.file.sector_bytes()
}

unsafe extern "C" fn x_device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: an open file.
    let file = unsafe { handle(file) }.file.as_mut();
    if file.can_group() {
        file.characteristics() | ffi::SQLITE_IOCAP_BATCH_ATOMIC
    } else {
        file.characteristics()
    }
}

unsafe extern "C" fn x_shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: an open file.
    let mapped = unsafe { handle(file) }
        .file
        .shm_map(region, bytes, extend != 0);
    let mapped = mapped.map(|at| {
        // SAFETY: `out` is one pointer.
        unsafe { *out = at };
    });
    done(mapped, ffi::SQLITE_IOERR_SHMMAP)
}

unsafe extern "C" fn x_shm_lock(
    file: *mut ffi::sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: an open file.
    let locked = unsafe { handle(file) }.file.shm_lock(first, count, flags);
    granted(locked, ffi::SQLITE_IOERR_SHMLOCK)
}

unsafe extern "C" fn x_shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: an open file.
    unsafe { handle(file) }.file.shm_barrier();
}

unsafe extern "C" fn x_shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    // SAFETY: an open file.
    let unmapped = unsafe { handle(file) }.file.shm_unmap(delete != 0);
    done(unmapped, ffi::SQLITE_IOERR_SHMMAP)
}
