//! Storage media, metered and recordable.
//!
//! [`BlockDev`] is the contract; [`FileDev`] (a file or block device), [`RamDev`] (memory) fulfil it.
#![forbid(unsafe_code)]

mod block;
mod dev;
mod error;
mod file;
mod file_open;
mod meter;
mod ram;
mod tag;

pub use block::{Block, BlockRef};
pub use dev::BlockDev;
pub use error::{MediaError, Op};
pub use file::{FileDev, FileOptions};
pub use meter::{Meter, MeterSnapshot, Traffic};
pub use ram::RamDev;
pub use tag::{Cause, Class, Tag};
