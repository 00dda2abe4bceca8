//! The contract between the transaction layer and the journaling schemes.
//!
//! A scheme receives whole transactions and makes them durable in its own way. It knows blocks,
//! their changed bytes and their classes. It never sees a handle or a mount, and of an inode only
//! the number.
//!
//! | verb | when | what it does |
//! |---|---|---|
//! | [`open`](Registration::make) | once | formats or recovers; returns its [`Terms`] |
//! | [`read`](Scheme::read) | a block is not in memory | returns the newest committed version, if home does not have it |
//! | [`before_write`](Cache::before_write) | a block changes for the first time in a transaction | returns where the transaction may change it: for schemes with a [`Cache`] |
//! | [`place`](Scheme::place) | the transaction is closed | chooses home or another place for each overwritten data block |
//! | [`commit`](Scheme::commit) | after that | makes the transaction durable |
//! | [`checkpoint`](Scheme::checkpoint) | in the background | brings committed blocks home |
//! | [`close`](Scheme::close) | once | leaves a plain ext4 image |
//!
//! | file | what it is |
//! |---|---|
//! | `about` | a scheme's description, before it is opened |
//! | `open` | the arguments and the result of opening it |
//! | `terms` | the terms to which it has agreed, once it is open |
//! | `recovery_case` | the cases that its recovery distinguishes |
//! | `trial` | the ways in which tests run it |
//! | `block` | transactions and their blocks |
//! | `scheme` | the verbs |
//! | `cache` | more verbs, for a scheme whose memory is the volume's cache |
//! | `ranges` | sets of bytes of a block |
//! | `error` | errors |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod about;
mod block;
mod cache;
mod error;
mod open;
mod ranges;
mod recovery_case;
mod scheme;
mod terms;
mod trial;

pub use about::{About, Beside, DataMode, InMemory, Jbd2Log, OptionAbout, SchemeOptions};
pub use block::{DirtyBlock, LoggedBlock, Origin, Snapshot};
pub use cache::{Cache, CacheStats, Spot};
pub use error::{Result, SchemeError};
pub use open::{LogExtent, OpenArgs, Opened, Parts, RecoveryReport, Registration};
pub use ranges::{Ranges, differing_bytes};
pub use recovery_case::RecoveryCase;
pub use scheme::{ActionCount, Backlog, Goal, Held, Placement, Scheme};
pub use terms::{DataPromise, Extents, Mark, Relocates, Terms, Wants};
pub use trial::{Ground, Trial};
