//! ext4 and JBD2 records: bytes to types and back, no I/O.
#![forbid(unsafe_code)]

pub mod num;

pub use num::{BlockNo, GroupNo, InodeNo, LBlock, Tid};
