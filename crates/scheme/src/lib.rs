//! What a journaling scheme is, and what it gets: the contract between the transaction layer and
//! the schemes.
//!
//! A scheme receives whole transactions and makes them durable in its own way. It knows blocks, the
//! bytes that changed in them, and the class of each. It never sees a handle or a mount, and of an
//! inode only the number.
//!
//! | verb | when | what it does |
//! |---|---|---|
//! | [`open`](Registration::make) | once | formats or recovers, says its [`Terms`] |
//! | [`read`](Scheme::read) | a block is not in memory | the newest committed version, if home has not got it |
//! | [`before_write`](Cache::before_write) | a block changes for the first time in a transaction | where the transaction may change it: for schemes with a [`Cache`] |
//! | [`place`](Scheme::place) | the transaction is closed | home, or another place, for each overwritten data block |
//! | [`commit`](Scheme::commit) | after that | makes the transaction durable |
//! | [`checkpoint`](Scheme::checkpoint) | in the background | brings committed blocks home |
//! | [`close`](Scheme::close) | once | a plain ext4 image |
//!
//! | file | what it is |
//! |---|---|
//! | `about` | what a scheme says of itself before it is opened |
//! | `open` | what it is opened with, and what that gives |
//! | `terms` | what it has agreed to, once it is open |
//! | `recovery_case` | the cases that its recovery distinguishes |
//! | `trial` | what is run with it |
//! | `block` | transactions and their blocks |
//! | `scheme` | the verbs |
//! | `cache` | what a scheme does besides whose memory is the volume's cache |
//! | `ranges` | which bytes of a block |
//! | `error` | what can go wrong |
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
