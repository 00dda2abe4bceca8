//! Benchmarks: the same workloads on several systems, interleaved, with medians and ratios.
//!
//! [`systems`] makes and mounts what is measured, [`rows`] are the workloads on a mount point,
//! [`library`] has the rows without a mount; [`report`] keeps samples and prints them beside each
//! other.

pub mod library;
pub mod report;
pub mod rows;
pub mod systems;
