//! The functions of SQLite that we call: those of the SQLite that is linked in, or those in the
//! table of a SQLite that has loaded us (`sqlite3ext.h`).

use std::ffi::{c_char, c_int, c_void};

use libsqlite3_sys as ffi;

type Context = *mut ffi::sqlite3_context;
type Step = Option<unsafe extern "C" fn(Context, c_int, *mut *mut ffi::sqlite3_value)>;
type Final = Option<unsafe extern "C" fn(Context)>;
type Free = Option<unsafe extern "C" fn(*mut c_void)>;

/// The entry point of an extension, which SQLite calls for a connection.
type EntryPoint = unsafe extern "C" fn(
    *mut ffi::sqlite3,
    *mut *mut c_char,
    *const ffi::sqlite3_api_routines,
) -> c_int;

/// The first version of SQLite that has all the functions below.
const VERSION_MIN: c_int = 3_032_000;

/// Index of sqlite3_libversion_number() in the table.
const LIBVERSION_NUMBER: usize = 67;

macro_rules! routines {
    ($($name:ident = $linked:ident at $place:literal: $type:ty;)*) => {
        /// The functions, each with the contract of SQLite's documentation.
        #[derive(Clone, Copy)]
        pub(super) struct Routines {
            $(pub(super) $name: $type,)*
        }

        impl Routines {
            /// Returns the functions of the SQLite that is linked in.
            pub(super) fn linked() -> Self {
                Self { $($name: ffi::$linked,)* }
            }

            /// Returns the functions in a table; `None` if its SQLite is too old.
            ///
            /// # Safety
            /// The table is what SQLite has given to the entry point of an extension.
            pub(super) unsafe fn of(table: *const ffi::sqlite3_api_routines) -> Option<Self> {
                let table = table.cast::<*const c_void>();
                // SAFETY: the table begins with pointers to functions, and has had this one since
                // the first version that loads extensions.
                let version = unsafe {
                    let at = table.add(LIBVERSION_NUMBER);
                    (*at.cast::<unsafe extern "C" fn() -> c_int>())()
                };
                if version < VERSION_MIN {
                    return None;
                }
                // SAFETY: the table of this version has all the functions, with these types.
                unsafe { Some(Self { $($name: *table.add($place).cast::<$type>(),)* }) }
            }
        }
    };
}

// The number is the index in `struct sqlite3_api_routines`, which only grows at its end.
routines! {
    vfs_find = sqlite3_vfs_find at 141:
        unsafe extern "C" fn(*const c_char) -> *mut ffi::sqlite3_vfs;
    vfs_register = sqlite3_vfs_register at 142:
        unsafe extern "C" fn(*mut ffi::sqlite3_vfs, c_int) -> c_int;
    uri_parameter = sqlite3_uri_parameter at 189:
        unsafe extern "C" fn(ffi::sqlite3_filename, *const c_char) -> *const c_char;
    database_file_object = sqlite3_database_file_object at 251:
        unsafe extern "C" fn(*const c_char) -> *mut ffi::sqlite3_file;
    auto_extension = sqlite3_auto_extension at 192:
        unsafe extern "C" fn(Option<EntryPoint>) -> c_int;
    create_function = sqlite3_create_function_v2 at 162:
        unsafe extern "C" fn(
            *mut ffi::sqlite3, *const c_char, c_int, c_int, *mut c_void, Step, Step, Final, Free,
        ) -> c_int;
    result_text = sqlite3_result_text at 85:
        unsafe extern "C" fn(Context, *const c_char, c_int, Free);
    log = sqlite3_log at 167:
        unsafe extern "C" fn(c_int, *const c_char, ...);
}
