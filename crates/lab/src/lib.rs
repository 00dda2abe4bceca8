//! Proofs and measurements of stetfs: workload generators, an in-memory model, judges that are not
//! our code (e2fsck, the kernel), the power-cut harness, and the benchmarks.
#![forbid(unsafe_code)]

pub mod bench;
pub mod crash;
pub mod damage;
pub mod document;
pub mod experiment;
pub mod exploration;
pub mod explored;
pub mod floor;
pub mod host;
pub mod image;
pub mod mounted;
pub mod rng;
pub mod system;
pub mod workload;
pub mod world;
