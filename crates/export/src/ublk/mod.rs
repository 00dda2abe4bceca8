//! A block device of this machine, `/dev/ublkbN`, whose requests the kernel's driver `ublk_drv`
//! hands to this server.
//!
//! Between the kernel's block layer and the device there is one thread switch and no file system:
//! a loop device on a FUSE file goes through the page cache or direct I/O, FUSE, and a thread of
//! either side. The driver is in Linux since 6.0; what is used of it here, since 6.9. The exchange
//! itself is in `stetfs_sys::ublk`.
//!
//! | file | what it is |
//! |---|---|
//! | `device` | the device: made, shown, taken away |
//! | `request` | what each request does |
//! | `server` | the threads, and the end |
//!
//! # What holds
//!
//! - A flush covers every write that was answered before. A write with forced unit access is
//!   durable when it is answered.
//! - Requests run at the same time: a read does not wait for a flush.
//! - When the server is killed, its device is gone: requests that were under way and all later ones
//!   are errors. The driver could keep the device for another server (`UBLK_F_USER_RECOVERY`); but
//!   what a flush has not covered yet would be gone, and no user of the device would know.
//! - The data of a request is copied by system calls on `/dev/ublkcN` (`UBLK_F_USER_COPY`), so the
//!   kernel writes to no memory of this process.

mod device;
mod request;
mod server;

pub use device::UblkError;
pub use server::{Listener, Server, UblkStats};
