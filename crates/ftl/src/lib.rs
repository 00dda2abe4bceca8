//! A flash translation layer with remap: a block device on a NAND part, whose sectors are the
//! part's pages.
//!
//! The idea of remapping is from "JFTL" (Lim, Choi, Park, HPCC 2007). The paper changes a table and
//! does not say how the change is made durable, nor what the spare area of a remapped page is
//! worth; here the whole list is a record of the map log, and the spare area counts by its age
//! only.
//!
//! A sector is a whole page, so that a write is one program and a remap one change of the table. A
//! part whose pages are larger than the blocks of a file system has to be shown in units of such a
//! block (`UnitNand` of stetfs-media), which then are what is called pages here.
//!
//! # Invariants
//!
//! 1. Where a logical page lies, the newest change says: a data page by the logical page and the
//!    sequence number in its spare area, a run of a complete log record, or the map of the last
//!    checkpoint, which is older than everything else that counts.
//! 2. A page is never programmed twice between two erases, and a block that was open when the power
//!    went off is not programmed further.
//! 3. A block is erased only if a durable list (the *pool*) says that it will be programmed. It is
//!    listed only when it holds no live page and every change that made its pages dead is durable.
//!    So whatever an interrupted erase leaves of it is older than something that is durable; and
//!    everything newer than the checkpoint lies in listed blocks, so a mount reads only those.
//! 4. A block is erased immediately before it is programmed, in the same session: nobody has to
//!    know whether an earlier erase was finished.
//! 5. Pages with several owners are live until the last one has gone. A moved page names one owner;
//!    the others are in the log before the old page is erased.
//! 6. A page that could be the one in flight at a cut is programmed again before anything relies on
//!    it.
//! 7. Enough blocks are free at any time for a checkpoint, a log and the collection that makes
//!    others free.
//!
//! # Order of writes
//!
//! - *Write*: the data page, then the map in memory. Durable with the page.
//! - *Write of several pages as a whole*: the pages one after the other, of which only the last one
//!   says that all of them count, then the map in memory. Durable with the last page; until then
//!   they count as live.
//! - *Remap*: all parts of the record, then the map in memory. Durable with the last part; before
//!   it the journal's pages are live.
//! - *Trim*: the map in memory; the record with the next flush, before a block that it freed is
//!   listed, or with a checkpoint.
//! - *Garbage collection*: copies, then the record with further owners, then the victim may be
//!   listed, then erased.
//! - *Checkpoint*: map pages, directory, anchor twice; then blocks of the old map and log are free.
//! - *Mount*: anchor, newest page, checkpoint (`recovery.rs`, as a table).
//!
//! # Files
//!
//! `shape.rs` what is exported and what is kept back; `flash.rs` pages with their records; `map.rs`
//! the map and the reverse map; `blocks.rs` erase blocks and victims; `core.rs` streams, the pool,
//! blocks that go bad; `log.rs` the map log; `checkpoint.rs`, `anchors.rs` the map on the part;
//! `gc.rs` garbage collection; `atomic.rs` writes of several pages as a whole; `wear.rs` wear
//! levelling; `recovery.rs` mounting; `dev.rs` the block device; `inspect.rs` looking without
//! touching.
//!
//! One lock is held for each request. Same requests, same part: same pages, same erases.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod anchors;
mod atomic;
mod blocks;
mod checkpoint;
mod core;
mod dev;
mod error;
mod flash;
mod gc;
mod inspect;
mod ledger;
mod log;
mod map;
mod recovery;
mod shape;
mod wear;

use stetfs_planted::Bug;

pub use self::core::FtlStats;
pub use dev::{Ftl, MountOptions};
pub use error::FtlError;
pub use inspect::{FtlCheck, FtlInfo, Inspection};
pub use recovery::MountReport;
pub use shape::FtlOptions;
pub use wear::Wear;

/// Bugs that can be planted in this layer and that its own tests find, which also see what no file
/// system above asks for.
pub static PLANTED: &[Bug] = &[
    Bug::EarlyRelease,
    Bug::BelievedSpare,
    Bug::ForgottenSharer,
    Bug::SplitWrite,
];
