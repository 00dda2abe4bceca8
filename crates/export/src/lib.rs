//! Layers between one of our block devices and stock systems that use it: the kernel's ext4 on a
//! loop device, QEMU, NBD clients.
//!
//! - [`ByteDev`] takes requests of any alignment, as files and NBD have them, for a device with
//!   sectors.
//! - [`nbd`] serves it to NBD clients, [`vhost_user`] to virtual machines that share their memory,
//!   [`ublk`] to this machine.
//! - [`Watched`] tells when the device stops answering.
//!
//! `stetfs-fuse` stands above and brings the requests of a file: one file in a directory.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod bytes;
pub mod nbd;
mod socket;
#[cfg(test)]
mod testing;
mod todo;
pub mod ublk;
pub mod vhost_user;
mod watch;

pub use bytes::{ByteDev, errno};
pub use socket::SocketError;
pub use watch::{Watch, Watched};
