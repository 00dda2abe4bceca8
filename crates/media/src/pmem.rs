//! Byte-addressable persistent memory: the contract (`contract.rs`), a mapped file that fulfils it,
//! and types that enforce the order of writes.
//!
//! [`MappedPmem`] is real: a mapped file, on persistent memory or not.
//! [`SimPmem`](crate::sim::SimPmem) is simulated, and its power can be cut.

pub(crate) mod contract;
mod mapped;
mod order;

pub use contract::{LINE, Pmem, Survives, WORD};
pub use mapped::{MappedPmem, PmemOptions};
pub use order::{Dirty, Durable, InFlight};
