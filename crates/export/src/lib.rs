//! Layers between one of our block devices and stock systems that use it: the kernel's ext4 on a
//! loop device, QEMU, NBD clients.
//!
//! - [`ByteDev`] takes requests of any alignment, as files and NBD have them, for a device with
//!   sectors;
//! - [`Snoop`] reads the kernel's journal as it passes and remaps home what was logged.
//!
//! `stetfs-fuse` stands above and brings the requests, with one file in a directory.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod bytes;
mod snoop;

pub use bytes::ByteDev;
pub use snoop::{Snoop, SnoopError, SnoopStats, TABLE_BLOCKS};
