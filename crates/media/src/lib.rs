//! Storage media, metered and recordable.
#![forbid(unsafe_code)]

mod block;

pub use block::{Block, BlockRef};
