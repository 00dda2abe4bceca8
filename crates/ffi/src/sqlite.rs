//! Two virtual file systems (VFS) for SQLite (SQLite's `os.h`; "The SQLite OS Interface or VFS").
//!
//! They serve the SQLite that is linked in, or one that has loaded this library as an extension:
//!
//! - [`VFS`] opens databases in volumes that are not mounted (`images.rs`, `volume.rs`).
//! - [`MOUNT_VFS`] opens databases on a mount through SQLite's own VFS, and asks stetfs for groups
//!   of writes (`mount.rs`).
//!
//! `vfs.rs` translates C's calls into those of the traits in `contract.rs`. `kept.rs` keeps
//! rollback journals in memory where a group of writes takes their place. `locks.rs` has locks and
//! shared memory of connections in one process. `below.rs` is SQLite's own VFS behind our traits.
//! `extension.rs` is what `.load` calls.

mod below;
mod contract;
mod extension;
mod images;
mod kept;
mod locks;
mod mount;
mod routines;
mod vfs;
mod volume;

use std::ptr::null_mut;

use libsqlite3_sys as ffi;

pub use contract::{MOUNT_VFS, VFS};
pub use images::{Attached, attach};
pub use mount::register_mount_vfs;
pub use volume::{Moved, Watch};

/// Seeds the random numbers of the SQLite that is linked in. They go into the headers of journals:
/// equal runs write equal bytes only if they seed them, and if nothing else in the process uses
/// SQLite meanwhile.
pub fn seed_random(seed: u32) {
    // With 0, SQLite would take the seed from the machine.
    let seed = (seed | 1).cast_signed();
    let none: *mut ffi::sqlite3 = null_mut();
    // SAFETY: this control takes an int and a connection, which may be null, and keeps neither; it
    // may be called at any time.
    unsafe {
        ffi::sqlite3_test_control(ffi::SQLITE_TESTCTRL_PRNG_SEED, seed, none);
    }
}
