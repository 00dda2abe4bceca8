//! The journaling schemes: one file each, all in the order of the contract's verbs
//! ([`stetfs_scheme`]), and the list of them. What several need is in `parts`.
//!
//! | file | what it is |
//! |---|---|
//! | `registry` | the list |
//! | `jbd2` | the kernel's block journal |
//! | `stet` | the papers' ideas put together |
//! | `shortcut` | Shortcut-JFS: a byte log in the volume's own memory |
//! | `jftl` | the block journal, remapped home |
//! | `dj` | Delta Journaling: deltas in NVRAM beside the volume |
//! | `ubj`, `tinca`, `spindle` | caches in NVM that are the journal |
//! | `null`, `relocate_all` | none, and one for tests |
//! | `template`, `shadow` | one to copy, and one that was made so: CONTRIBUTING.md, "Add a scheme" |
//! | `mapped_log` | what these two share |
//! | `delta` | differences of blocks, compressed |
//! | `engine/log/`, `engine/cache/` | the steps that the logs have in common, and the caches |
//! | `parts/` | the journal area, writing home, whose memory it is, checkpoints by time |
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
