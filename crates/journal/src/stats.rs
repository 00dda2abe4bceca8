//! Counters of the transaction layer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counters of a journal since it was opened, and its present use of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JournalStats {
    /// Handles started.
    pub handles: u64,
    /// Transactions handed to the scheme.
    pub commits: u64,
    /// Calls that waited for a commit by another thread (group commit).
    pub shared_commits: u64,
    /// Metadata blocks in those transactions.
    pub meta_blocks: u64,
    /// Data blocks in those transactions.
    pub data_blocks: u64,
    /// Data blocks that were overwritten and became durable without a transaction.
    pub overwritten_blocks: u64,
    /// Bytes that those transactions changed.
    pub changed_bytes: u64,
    /// Blocks revoked.
    pub revoked_blocks: u64,
    /// Data blocks dropped before they were ever written.
    pub dropped_blocks: u64,
    /// Checkpoints, including those within commits that the scheme counts (the log was full).
    pub checkpoints: u64,
    /// Bytes of cached blocks, dirty ones included.
    pub cached_bytes: u64,
    /// Bytes of blocks that the running transaction changed.
    pub dirty_bytes: u64,
    /// Bytes of delayed data blocks: new data that commits pass by.
    #[serde(rename = "waiting_bytes")]
    pub delayed_bytes: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> JournalStats {
                JournalStats { $($name: self.$name.load(Relaxed)),*, ..JournalStats::default() }
            }
        }
    };
}

counters!(
    handles,
    commits,
    shared_commits,
    meta_blocks,
    data_blocks,
    overwritten_blocks,
    changed_bytes,
    revoked_blocks,
    dropped_blocks,
    checkpoints
);

/// Adds without ordering: nothing depends on these numbers.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
