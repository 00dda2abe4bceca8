//! Benchmarks: the same workloads on several systems, interleaved, with medians and ratios.
//!
//! [`systems`] makes and mounts what is measured, [`rows`] are the workloads on a mount point, with
//! those of the lab among them;
//! [`ageing`] is what overwrites make of a file there, [`scale`] what many files, open files and
//! clients make of a volume; [`library`] has the rows without a mount,
//! [`databases`] those of SQLite among them. [`report`] keeps samples and
//! prints them beside each other. [`floor`] is a file system that keeps everything in memory,
//! behind the server that mounts volumes: what FUSE itself costs.

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
