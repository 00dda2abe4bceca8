//! The journaling schemes, one file each, and their registry. Each file has the order of the
//! contract's verbs ([`stetfs_scheme`]), and its header the same sections: source, commit,
//! checkpoint, deviations, recovery.
//!
//! | file | what it is |
//! |---|---|
//! | `registry` | the list of schemes |
//! | `jbd2` | the kernel's block journal |
//! | `stet` | the papers' ideas put together |
//! | `shortcut` | Shortcut-JFS: a byte log in the volume's own memory |
//! | `jftl` | the block journal, remapped home |
//! | `dj` | Delta Journaling: deltas in NVRAM beside the volume |
//! | `ubj`, `tinca`, `spindle` | caches in NVM that are the journal |
//! | `null`, `relocate_all` | no journal; a scheme for tests |
//! | `template`, `shadow` | a scheme to copy, and one that was made from it: CONTRIBUTING.md, "Add a scheme" |
//! | `mapped_log` | the parts that these two share |
//! | `delta` | differences of blocks, compressed |
//! | `engine/log/`, `engine/cache/` | the common steps of the logs, and of the caches |
//! | `parts/` | the journal area, rings and records; writing home; the pair of volume and memory; checkpoints by time |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

pub mod delta;
mod dj;
mod engine;
mod jbd2;
mod jftl;
#[cfg(feature = "testing")]
mod mapped_log;
mod null;
mod parts;
mod registry;
#[cfg(feature = "testing")]
mod relocate_all;
#[cfg(feature = "testing")]
mod shadow;
mod shortcut;
mod spindle;
mod stet;
#[cfg(feature = "testing")]
mod template;
mod tinca;
mod ubj;

pub use registry::{SCHEMES, find, find_option, for_use};
