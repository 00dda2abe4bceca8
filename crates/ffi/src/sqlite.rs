//! Virtual file systems of SQLite (SQLite's `os.h`; "The SQLite OS Interface or VFS").
//!
//! Two are made of what is here, for the SQLite that is linked in or for one that has loaded this
//! as an extension. [`VFS`] opens databases in volumes without a mount (`images.rs`, `volume.rs`);
//! [`MOUNT_VFS`] is SQLite's own, but asks stetfs for groups of writes (`mount.rs`). `vfs.rs`
//! translates C's calls into those of the traits in `contract.rs`; `kept.rs` keeps rollback
//! journals back where a group of writes takes their place; `locks.rs` has locks and shared memory
//! of connections in one process; `below.rs` is SQLite's own VFS as one of ours; `extension.rs` is
//! what `.load` calls.

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

/// Begins SQLite's random numbers anew, of the SQLite that is linked in. They go into the headers
/// of journals, so whoever wants equal bytes in equal runs must seed them, and see to it that
/// nothing else in the process uses SQLite meanwhile.
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
