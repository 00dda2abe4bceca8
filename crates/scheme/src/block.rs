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
    /// The kind of block.
    pub class: Class,
    /// Its content at the end of the transaction.
    pub content: BlockRef,
    /// Its content before the transaction, if the scheme [wants](crate::Wants::base) that and the
    /// block had any.
    pub base: Option<BlockRef>,
    /// The bytes that the transaction changed, or the bytes that it wrote: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: Ranges,
    /// The state of its home before the transaction.
    pub origin: Origin,
    /// For file data: the block changes with its transaction or not at all, whatever the mode
    /// promises for other data. Set only where [`Terms::logs_marked`](crate::Terms::logs_marked)
    /// allows it.
    pub whole: bool,
    /// For file data: the file and the block of the file.
    pub owner: Option<(InodeNo, LBlock)>,
    /// The place where the scheme keeps it already
    /// ([`Cache::before_write`](crate::Cache::before_write)).
    pub spot: Option<Spot>,
}

/// The state of a block's home before the transaction that changed the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The block's own: home or the log has an older content of it.
    Old,
    /// Free: its content does not count.
    Fresh,
    /// Free, while the block had another home: this transaction has switched the file's mapping to
    /// this home.
    Relocated,
}

impl Origin {
    /// True when the old content of the home does not count.
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
    /// The number of consecutive dirty blocks of the file that have a home, this one included.
    pub run: u32,
    /// Its present home.
    pub home: BlockNo,
    /// Its new content.
    pub content: &'a BlockRef,
    /// The bytes that changed, or the bytes that were written: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: &'a Ranges,
}
