//! Transactions and their blocks, as a scheme sees them.

use stetfs_format::{BlockNo, InodeNo, LBlock, Tid};
use stetfs_media::{BlockRef, Class};

use crate::cache::Spot;
use crate::ranges::Ranges;

/// A block as a transaction leaves it.
#[derive(Clone, Debug)]
pub struct LoggedBlock {
    /// Where it belongs.
    pub home: BlockNo,
    /// What it is.
    pub class: Class,
    /// Its content at the end of the transaction.
    pub content: BlockRef,
    /// Its content before the transaction, when the scheme [wants](crate::Wants::base) it and there
    /// was one.
    pub base: Option<BlockRef>,
    /// The bytes that the transaction changed, or those that it wrote to: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: Ranges,
    /// The block was free or a hole before: its old content means nothing.
    pub fresh: bool,
    /// For file data: whose.
    pub owner: Option<(InodeNo, LBlock)>,
    /// The home is new: the file's mapping was switched to it in this transaction.
    pub relocated: bool,
    /// Where the scheme has it already ([`Cache::before_write`](crate::Cache::before_write)).
    pub spot: Option<Spot>,
}

/// A transaction, closed and complete.
#[derive(Debug)]
pub struct Snapshot {
    /// Which transaction.
    pub tid: Tid,
    /// Changed metadata blocks, each once.
    pub meta: Vec<LoggedBlock>,
    /// Changed data blocks, each once.
    pub data: Vec<LoggedBlock>,
    /// Blocks freed in this transaction whose older versions must never be replayed; none of them
    /// is in `meta` or `data`.
    pub revoked: Vec<BlockNo>,
    /// When it was closed: seconds and nanoseconds since 1970.
    pub time: (u64, u32),
}

/// A dirty data block that has a home, as a scheme sees it that may want another one for it.
#[derive(Clone, Copy, Debug)]
pub struct DirtyBlock<'a> {
    /// Where it is now.
    pub home: BlockNo,
    /// Its new content.
    pub content: &'a BlockRef,
    /// The bytes that changed, or those that were written to: see
    /// [`Wants::changed_bytes`](crate::Wants::changed_bytes).
    pub ranges: &'a Ranges,
}
