//! stetfs: a journaling file system on the ext4 on-disk format, as a library in your process.
//!
//! [`Fs::mount`] takes a device with an ext4 (or ext3) volume and returns an [`Fs`], whose methods
//! are the POSIX operations by inode number. Every change goes through a handle of the journal
//! (`stetfs_journal`), which makes each operation happen entirely or not at all, with every
//! journaling scheme.
//!
//! ```
//! # mod making { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/making/mod.rs")); }
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("disk.img");
//! # making::mke2fs(&path, 8)?;
//! use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_media};
//!
//! let options = MountOptions::default();
//! let (fs, _) = Fs::mount(open_media(&path, &options, false)?, options)?;
//! let me = Caller::root();
//! let file = fs.create(&me, fs.root(), b"hello", 0o644, OpenFlags::WRITE)?;
//! fs.write(&me, file.ino, 0, b"hello, world")?;
//! fs.fsync(file.ino, false)?; // from here on it survives a power cut
//! fs.release(file.ino)?;
//! fs.unmount()?; // and from here on the kernel and e2fsck read the image
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/durable.rs` is a whole program, with a crash in it.
//!
//! A tour, from the outside in:
//! - `fs.rs`, `open.rs`: the public operations; each is a few lines that call a module below.
//! - `mount/`, `options.rs`, `damage.rs`: mount, unmount, and what happens to a damaged volume.
//! - `namei.rs`, `dir.rs`, `htree.rs`, `readdir.rs`, `path.rs`: names.
//! - `file.rs`, `group.rs`, `truncate.rs`, `fallocate.rs`, `seek.rs`, `copy.rs`: contents.
//! - `attr.rs`, `xattr/`, `acl.rs`, `perm.rs`: attributes and permissions.
//! - `volume.rs`, `world.rs`, `inode.rs`, `icache.rs`: the state in memory, and its locks;
//!   `volume.rs` has the lock order.
//! - `alloc/`, `mapping/`, `place.rs`: which blocks hold what.
//! - `evict.rs`, `orphan.rs`: freeing files, also after a crash.
//! - `testing.rs`, `tests/`: images made by mke2fs, judged by e2fsck, debugfs and the kernel.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod acl;
mod alloc;
mod atomic;
mod attr;
mod blocks;
mod change;
mod changes;
pub mod clock;
mod copy;
mod damage;
mod device;
mod dir;
mod errno;
mod error;
mod evict;
mod fallocate;
mod file;
mod fs;
mod group;
mod held;
mod htree;
mod icache;
mod in_use;
mod inline;
mod inode;
mod mapping;
mod mount;
mod namei;
mod open;
mod options;
mod orphan;
mod path;
mod perm;
mod place;
mod readdir;
mod redo;
mod relocate;
mod scope;
mod seek;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod truncate;
mod types;
mod unfold;
mod volume;
mod world;
mod xattr;

pub use alloc::damage::Damage as AllocationDamage;
pub use alloc::space::ROOM_PER_BLOCK;
pub use change::{Change, Name, New};
pub use device::{Media, OpenError, open_device, open_media, open_overlay};
pub use error::{Error, Inconsistent, Kind, Result};
pub use fs::{Fs, NvmStats, Stats};
pub use group::Group;
pub use mapping::damage::Damage as MappingDamage;
pub use mount::MountReport;
pub use mount::alone::{Alone, close_alone, open_alone};
pub use mount::error::MountError;
pub use mount::forget::forget_private_log;
pub use mount::journal_area::{journal_extents, memory_record, private_log_owner};
pub use options::value::OptionError;
pub use options::{Atime, AtomicFiles, MountOptions, OnError};
pub use stetfs_sync::{Schedule, Scheduled};
pub use types::*;
