//! A stetfs volume as a mounted directory: the core's operations behind Linux' FUSE protocol.
//!
//! The stations of a mount:
//! - [`options`]: the words of `-o`.
//! - [`background`]: the command returns once the mount stands; the server goes on.
//! - [`mount`]: the mount itself, as root or by fusermount3; [`mountinfo`]: what is mounted.
//! - [`session`]: serving, signals, and leaving a clean image.
//! - [`wire`]: the FUSE protocol itself.
//! - `server.rs`: the state of a server. `fs.rs` and its parts (`names.rs`, `files.rs`,
//!   `xattrs.rs`, `ioctl.rs`): each request becomes one operation of a [`Backend`], which for a
//!   volume is one of [`stetfs::Fs`]. `attr.rs` translates numbers, `errno.rs` errors, `caller.rs`
//!   the caller.
//! - [`tx`]: transactions of a program or a command: groups and layers.
//! - [`companion`]: looks after the mount point when the server dies.
//! - [`mod@upgrade`]: hands a mount over to another program.
//! - `export/`: a block device as one file, for loop devices. It needs no volume of ours.
//! - [`control`]: statistics and commands through the mount; [`mod@umount`]: unmounting and waiting
//!   for the server.
//!
//! The kernel checks permissions (`default_permissions` is always on). It caches names, attributes
//! and pages for as long as it likes, since nothing else changes the volume. Of files the server
//! knows only how they are open (`opens.rs`), which the kernel may know (`known.rs`), and which are
//! in groups or under a layer ([`tx`]).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod aside;
mod attr;
mod caller;
mod connection;
mod errno;
mod export;
mod files;
mod freeze;
mod fs;
mod ioctl;
mod keeper;
mod known;
mod label;
mod late;
mod names;
mod opens;
mod pages;
mod room;
mod server;
mod settle;
mod status;
mod still;
mod survive;
mod writers;
mod xattrs;

pub mod backend;
pub mod background;
pub mod companion;
pub mod control;
pub mod mount;
pub mod mountinfo;
pub mod options;
pub mod question;
pub mod session;
pub mod system_log;
pub mod tx;
pub mod umount;
pub mod upgrade;
pub(crate) mod wire;
pub mod wrote;

pub use crate::ioctl::numbers::SHUTDOWN_WITH_MODE;
pub use crate::session::end::{Ended, SessionError};
pub use backend::Backend;
pub use companion::run_if_asked;
pub use control::{Command, command, freeze, query_stats, query_writers, upgrade};
pub use export::{ExportOptions, FILE_NAME, Resident, export, prepare_memory};
pub use mount::error::MountError;
pub use mount::{check_dir, inherited_session, is_in_private_namespace, remount};
pub use mountinfo::{FS_TYPE, FS_TYPE_BLOCK};
pub use options::{Allow, FuseOptions, OnBlock, Options, Transport, adjusts_libfuse};
pub use session::{Standing, prepare_process, serve, serve_in_succession};

pub use umount::{UmountError, umount, wait_for_release};
pub use upgrade::{Handed, Next, Succession};
pub use wire::to_switch_on_io_uring;
