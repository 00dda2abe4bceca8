//! Storage media, metered and recordable.
//!
//! Three contracts say what is durable when:
//!
//! - [`BlockDev`], sectors: [`FileDev`] on a file or block device, [`RamDev`] in memory, and
//!   [`SimDev`], whose power can be cut and whose requests can fail;
//! - [`Pmem`], bytes that keep their content: [`MappedPmem`] in a mapped file, and [`SimPmem`],
//!   whose power can be cut;
//! - [`Nand`], flash without a translation layer: [`NandSim`] in memory, [`NandFile`] in a file.
//!
//! Every access carries a [`Tag`], by which the [`Meter`] counts it. Simulated media share a
//! [`Clock`]. An [`Image`] holds the content of a medium, a [`BlockRef`] that of a block; both are
//! cheap to share.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod atomic;
mod block;
mod clock;
mod dev;
mod error;
mod file;
mod file_open;
mod image;
mod layer;
mod meter;
#[cfg(test)]
mod meter_test;
pub mod nand;
mod order;
mod overlay;
pub mod pmem;
mod pmem_dev;
mod ram;
mod range;
mod reflink;
mod remap;
pub mod sim;
mod sparse;
mod tag;

pub use atomic::AtomicWrite;
pub use block::{Block, BlockRef};
pub use clock::Clock;
pub use dev::{BlockDev, DISK_JUMP_BYTES, FLASH_JUMP_BYTES};
pub use error::{MediaError, Op};
pub use file::FileDev;
pub use file_open::{FileOptions, LockHolder, lock_holder, loop_backing_file, loop_whole_file};
pub use image::{Image, ImageFile};
pub use layer::{Layer, PmemLayer, Uncached};
pub use meter::{Meter, MeterSnapshot, Traffic};
pub use nand::{Nand, NandFile, NandSim};
pub use order::{Dirty, Durable, InFlight};
pub use overlay::Overlay;
pub use pmem::MappedPmem;
pub use pmem::contract::{Pmem, Survives};
pub use pmem_dev::PmemDev;
pub use ram::RamDev;
pub use range::Run;
pub use remap::{JournalCopy, Remap, RemapPair};
pub use rustix::io::Errno;
pub use sim::{SimDev, SimPmem};
pub use tag::{Cause, Class, Tag};
