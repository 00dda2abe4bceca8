//! The papers' experiments: systems side by side on simulated media, with the papers' own
//! workloads, and a verdict on each of the papers' claims. `stetfs-lab` (`stetfs lab`) is this
//! crate with a command line.
#![forbid(unsafe_code)]

pub mod cell;
pub mod claims;
pub mod experiment;
pub mod figure;
pub mod ground;
pub mod kernel;
pub mod page;
pub mod system;
pub mod text;
pub mod workload;
