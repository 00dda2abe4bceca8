//! Benchmarks: the same workloads on several systems, by turns, with medians and ratios.
//!
//! - [`systems`] makes and mounts what is measured.
//! - [`rows`] are the workloads on a mount point, those of the lab among them.
//! - [`ageing`] measures what overwrites do to a file there, [`scale`] what many files, open files
//!   and clients do to a volume.
//! - [`library`] has the rows without a mount, [`databases`] those of SQLite among them.
//! - [`report`] keeps samples and prints them side by side.
//! - [`floor`] is a file system that keeps everything in memory, behind the server that mounts
//!   volumes: it shows what FUSE itself costs.

#![forbid(unsafe_code)]

pub mod ageing;
mod applications;
pub mod databases;
pub mod done;
pub mod floor;
pub mod library;
pub mod report;
pub mod rows;
pub mod scale;
pub mod systems;
