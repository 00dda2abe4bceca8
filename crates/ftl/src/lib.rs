//! A flash translation layer with remap: a block device on a NAND part, whose sectors are the
//! part's pages.
//!
//! The idea of remapping is from "JFTL" (Lim, Choi, Park, HPCC 2007). The paper changes a table,
//! but does not say how that change becomes durable, nor whether to believe the spare area of a
//! remapped page. Here the whole list is one record of the map log, and a spare area counts only by
//! its age.
//!
//! A sector is a whole page, so that a write is one program and a remap one change of the table. If
//! a part's pages are larger than the blocks of a file system, `UnitNand` of stetfs-media divides
//! them into units of a block's size. The word page then means such a unit here.
//!
//! # Invariants
//!
//! 1. The newest change says where a logical page lies. A change is one of three things: a data
//!    page, by the logical page and the sequence number in its spare area; a run of a complete log
//!    record; or the map of the last checkpoint, which is older than everything else that counts.
//! 2. A page is never programmed twice between two erases, and a block that was open when the power
//!    went off is not programmed further.
//! 3. A block is erased only if a durable list (the *pool*) says that it will be programmed. The
//!    list takes a block only when it holds no live page and every change that made its pages dead
//!    is durable. So anything that an interrupted erase leaves in it is older than something
//!    durable. And everything newer than the checkpoint lies in listed blocks, so a mount reads
//!    only those.
//! 4. A block is erased immediately before it is programmed, in the same session: nobody needs to
//!    know whether an earlier erase was finished.
//! 5. A page with several owners is live until it has lost the last one. A moved page names one
//!    owner; the log has the others before the old page is erased.
//! 6. A page that may have been in flight at a cut is programmed again before anything relies on
//!    it.
//! 7. At any time enough blocks are free for a checkpoint, a log and the collection that frees
//!    others.
//!
//! # Order of writes
//!
//! - *Write*: the data page, then the map in memory. Durable with the page.
//! - *Write of several pages as a whole*: the pages one after the other, then the map in memory.
//!   Only the last page says that all of them count. Durable with the last page; until then the
//!   pages count as live.
//! - *Remap*: all parts of the record, then the map in memory. Durable with the last part; until
//!   then the journal's pages are live.
//! - *Trim*: the map in memory. The record follows with the next flush, before a block that the
//!   trim freed is listed, or with a checkpoint.
//! - *Garbage collection*: copies, then the record of further owners; then the victim may be listed
//!   and erased.
//! - *Checkpoint*: map pages, directory, anchor twice; then the blocks of the old map and log are
//!   free.
//! - *Mount*: anchor, newest page, checkpoint (`recovery.rs` has a table).
//!
//! # Files
//!
//! `shape.rs` decides what is exported and what is reserved; `flash.rs` has pages with their
//! records; `map.rs` the map and the reverse map; `blocks.rs` erase blocks and victims; `core.rs`
//! streams, the pool, blocks that go bad; `log.rs` the map log; `checkpoint.rs`, `anchors.rs` the
//! map on the part; `gc.rs` garbage collection; `atomic.rs` writes of several pages as a whole;
//! `wear.rs` wear levelling; `recovery.rs` mounting; `dev.rs` the block device; `inspect.rs`
//! inspection without changes.
//!
//! One lock is held for each request. The same requests on the same part give the same pages and
//! the same erases.
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

/// Bugs that can be planted in this layer and that its own tests find: these tests also judge what
/// no file system above asks for.
pub static PLANTED: &[Bug] = &[
    Bug::EarlyRelease,
    Bug::BelievedSpare,
    Bug::ForgottenSharer,
    Bug::SplitWrite,
];
