//! Transactions and their blocks, as a scheme sees them.

use stetfs_format::{BlockNo, InodeNo, LBlock, Tid};
use stetfs_media::{BlockRef, Class};

use crate::cache::Spot;
use crate::ranges::Ranges;

/// A block as a transaction leaves it.
#[derive(Clone, Debug)]
pub struct LoggedBlock {
    /// Its home.
    pub home: BlockNo,
    /// What kind of block it is.
    pub class: Class,
    /// Its content at the end of the transaction.
    pub content: BlockRef,
    /// Its content before the transaction, if the scheme [wants](crate::Wants::base) that and the
    /// block had any.
    pub base: Option<BlockRef>,
    /// The bytes that the transaction changed, or the bytes that it wrote: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: Ranges,
    /// What its home was before the transaction.
    pub origin: Origin,
    /// For file data: it changes with its transaction or not at all, whatever the mode says of
    /// other data. Only where [`Terms::logs_marked`](crate::Terms::logs_marked) allows it.
    pub whole: bool,
    /// For file data: the file and the block of the file.
    pub owner: Option<(InodeNo, LBlock)>,
    /// The place where the scheme keeps it already
    /// ([`Cache::before_write`](crate::Cache::before_write)).
    pub spot: Option<Spot>,
}

/// What a block's home was before the transaction that changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The block's: an older content of it is there, or in the log.
    Old,
    /// Free, or nobody's: what lies there means nothing.
    Fresh,
    /// The same, and the block had another home: this transaction switched the file's mapping to
    /// this one.
    Relocated,
}

impl Origin {
    /// What lies at the home means nothing.
    pub fn is_new(self) -> bool {
        self != Self::Old
    }
}

/// A transaction, closed and complete.
#[derive(Debug)]
pub struct Snapshot {
    /// The transaction's number.
    pub tid: Tid,
    /// Changed metadata blocks, each once.
    pub meta: Vec<LoggedBlock>,
    /// Changed data blocks, each once.
    pub data: Vec<LoggedBlock>,
    /// Blocks that this transaction freed. Recovery must never replay an older version of them.
    /// None of them is in `meta` or `data`.
    pub revoked: Vec<BlockNo>,
    /// The time when the transaction was closed: seconds and nanoseconds since 1970.
    pub time: (u64, u32),
}

/// A dirty data block that has a home. The scheme decides whether it gets another one
/// ([`Scheme::place`](crate::Scheme::place)).
#[derive(Clone, Copy, Debug)]
pub struct DirtyBlock<'a> {
    /// The file that it belongs to.
    pub ino: InodeNo,
    /// Dirty blocks that have a home and follow each other in the file, this one among them.
    pub run: u32,
    /// Its present home.
    pub home: BlockNo,
    /// Its new content.
    pub content: &'a BlockRef,
    /// The bytes that changed, or the bytes that were written: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: &'a Ranges,
}
