//! What stands below a file system that is not ours: devices that understand the kernel's ext4 as
//! it writes.
//!
//! - [`Below`]: a journaling scheme under the kernel's ext4. It reads the transactions out of the
//!   journal that passes, and commits each by the scheme.
//! - [`Snoop`]: a layer on a device that can remap. It gives each home the page of its journal
//!   block instead of a second copy.
//!
//! | file | what it is |
//! |---|---|
//! | `log` | where the journal lies, and how its records look |
//! | `collect` | from blocks of the journal to transactions |
//! | `live` | what a replay of that log would write |
//! | `map` | what each block of the volume is, and what a transaction allocates and frees |
//! | `state` | what the device knows of its blocks |
//! | `core` | what the device and its thread share |
//! | `commit` | from the kernel's transactions to the scheme's |
//! | `superblock` | the superblock's two faces |
//! | `device` | requests; `read`: those that change nothing |
//! | `snoop/` | the remapping layer |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod collect;
mod commit;
mod core;
mod device;
mod error;
mod live;
mod log;
mod map;
mod read;
mod snoop;
mod state;
mod stats;
mod superblock;

pub use device::{Below, BelowOptions, WRITE_THROUGH};
pub use error::BelowError;
pub use snoop::{Snoop, SnoopError, SnoopStats, TABLE_BLOCKS};
pub use stats::BelowStats;

use stetfs_planted::Bug;

/// Bugs that can be planted here.
pub static PLANTED: &[Bug] = &[
    Bug::LateHomes,
    Bug::RacedRead,
    Bug::EarlierLife,
    Bug::ConfirmedLost,
];
