//! Transactions and the blocks that they change, above any journaling scheme.
//!
//! The words are JBD2's. An operation opens a [`Handle`], which joins the *running* transaction.
//! It changes metadata by [`Handle::write`], which names a block by its number, and file data by
//! [`Handle::write_data`], which names it by inode and logical block until the commit places it.
//! A commit closes the running transaction, asks the file system to place its data ([`Placer`]),
//! takes a snapshot of every changed block, lets the next transaction run, and hands the snapshot
//! to the [`Scheme`](stetfs_scheme::Scheme), which makes it durable.
//!
//! | file | what it is |
//! |---|---|
//! | `gate` | who may join, who must wait, who commits: the state machine alone |
//! | `page` | one cached block: its content, and what transactions have to do with it |
//! | `moves` | the moves that a cached block may make |
//! | `cache` | metadata blocks by block number |
//! | `file_data` | a file's data blocks, by logical block |
//! | `files` | all files with data in memory |
//! | `journal` | the journal itself: reading blocks, background work, closing |
//! | `handle` | the changes of one operation |
//! | `span` | several operations as one transaction |
//! | `background` | the thread that commits old transactions and runs checkpoints |
//! | `transaction` | the blocks that a transaction collects while it runs |
//! | `commit` | from the running transaction to the scheme |
//! | `overwrite` | how overwritten data becomes durable without a transaction |
//! | `delayed` | delayed data: new data that commits pass by |
//! | `enlist` | how delayed data joins a transaction |
//! | `placer` | what the file system does in a commit |
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod cache;
mod commit;
mod delayed;
mod enlist;
mod error;
mod file_data;
mod files;
mod gate;
mod gate_sync;
#[cfg(test)]
mod gate_tests;
mod handle;
mod journal;
mod moves;
mod overwrite;
mod pace;
mod page;
#[cfg(test)]
mod page_tests;
mod placer;
mod span;
mod stats;
mod transaction;

pub use error::{Broken, JournalError, Result};
pub use file_data::{FileData, Pending, PlaceReq, Wrote};
pub use handle::{CREDITS_PER_RUN, Handle, Old};
pub use journal::{Config, Journal};
pub use placer::Placer;
pub use span::Span;
pub use stats::JournalStats;
