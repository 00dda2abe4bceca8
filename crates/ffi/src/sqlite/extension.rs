//! The entry point that `.load` and sqlite3_load_extension() call.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::Once;

use libsqlite3_sys as ffi;

use super::contract::{MOUNT_VFS, VFS};
use super::images::{self, Images};
use super::mount::OnMount;
use super::routines::Routines;
use super::vfs;

/// Registers both VFS for good. Adds the SQL function `stetfs_error()` to this connection and to
/// all that are opened later: it says why the last image could not be opened, or why the last call
/// of a volume failed.
///
/// # Safety
/// SQLite calls it, as it calls the entry point of any extension.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sqlite3_extension_init(
    connection: *mut ffi::sqlite3,
    message: *mut *mut c_char,
    table: *const ffi::sqlite3_api_routines,
) -> c_int {
    static REGISTERED: Once = Once::new();
    // SAFETY: SQLite gives its table.
    let Some(routines) = (unsafe { Routines::of(table) }) else {
        return ffi::SQLITE_ERROR;
    };
    REGISTERED.call_once(|| {
        vfs::register(routines, VFS, &|_| Box::new(Images));
        vfs::register(routines, MOUNT_VFS, &|below| Box::new(OnMount::new(below)));
        // SAFETY: SQLite calls an automatic extension with the arguments of an entry point, as its
        // documentation says, and this library stays. If SQLite has no memory for it, later
        // connections lack the function.
        unsafe { (routines.auto_extension)(Some(add_function)) };
    });
    // SAFETY: the arguments are SQLite's.
    match unsafe { add_function(connection, message, table) } {
        ffi::SQLITE_OK => ffi::SQLITE_OK_LOAD_PERMANENTLY,
        code => code,
    }
}

unsafe extern "C" fn add_function(
    connection: *mut ffi::sqlite3,
    _message: *mut *mut c_char,
    _table: *const ffi::sqlite3_api_routines,
) -> c_int {
    let Some(routines) = vfs::routines() else {
        return ffi::SQLITE_ERROR;
    };
    let name = c"stetfs_error".as_ptr();
    // SAFETY: the connection is open, the name is a string, and the function is one of SQL without
    // arguments.
    unsafe {
        let create = routines.create_function;
        let (utf8, none) = (ffi::SQLITE_UTF8, null_mut());
        create(
            connection,
            name,
            0,
            utf8,
            none,
            Some(error),
            None,
            None,
            None,
        )
    }
}

unsafe extern "C" fn error(
    context: *mut ffi::sqlite3_context,
    _: c_int,
    _: *mut *mut ffi::sqlite3_value,
) {
    // Without a result SQL gets NULL.
    if let (Some(routines), Some(text)) = (vfs::routines(), images::trouble()) {
        let length = c_int::try_from(text.len()).unwrap_or(0);
        // SAFETY: the context is SQLite's for this call; the text has `length` bytes, and SQLite
        // copies them before the call returns.
        unsafe {
            let text = text.as_ptr().cast();
            (routines.result_text)(context, text, length, ffi::SQLITE_TRANSIENT());
        }
    }
}
