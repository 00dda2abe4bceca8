//! NAND flash: the contract that a flash translation layer is written against, and simulated parts
//! that fulfil it.
//!
//! `contract.rs` has the rules. `device.rs` fulfils them: power, faults, time, counting. `cells.rs`
//! below it does what happens in the cells, on a store in memory (`sim.rs`) or in a file
//! (`file.rs`); both have one layout (`stetfs_format::nand`). `wear.rs` decides by chance what goes
//! wrong, `outcome.rs` and `tape.rs` are about power cuts, `parts.rs` has parts that exist.
//! `mtd.rs` is a real part behind Linux's MTD layer. `units.rs` lets several small pages share a
//! large one.
//!
//! The model leaves out: time as a cause of errors (retention), wrong bits in erased pages, pages
//! that share their cells (a cut destroys an *earlier* page of a multi-level part; a controller
//! prevents that with capacitors or by programming all pages of a word line together), and
//! operations on several planes at once.

mod cells;
mod contract;
mod device;
mod entry;
mod error;
mod file;
mod mtd;
mod outcome;
pub mod parts;
mod sim;
mod tape;
mod units;
mod wear;

#[cfg(test)]
mod tests;

pub use cells::Store;
pub use contract::{Corrected, Nand};
pub use device::NandDev;
pub use entry::NandEntry;
pub use error::NandError;
pub use file::{FileStore, NandFile, NandFileOptions};
pub use mtd::MtdNand;
pub use outcome::{Outcome, OutcomeSyntax};
pub use sim::{NandOptions, NandSim};
pub use stetfs_format::nand::{
    BlockCondition, NandBlock, NandCorrupt, NandEcc, NandGeometry, NandHeader, NandPart,
    NandTiming, NandWear, PageState,
};
pub use stetfs_format::num::{BlockAddr, PageNo};
pub use tape::{NandCrashPoint, NandCrashPoints, NandTape};
pub use units::UnitNand;
