//! What has passed and what was saved.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counted since the device was opened. Blocks are the volume's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BelowStats {
    /// Transactions of the kernel's journal.
    pub transactions: u64,
    /// Transactions of changes that came outside of the journal.
    pub loose_transactions: u64,
    /// Bytes that the kernel wrote into its journal for these.
    pub journaled_bytes: u64,
    /// Blocks in these transactions.
    pub blocks: u64,
    /// Blocks that a transaction named and did not change.
    pub unchanged_blocks: u64,
    /// Bytes that changed in them.
    pub changed_bytes: u64,
    /// Blocks that the transactions allocated, so that nothing of value was there before.
    pub fresh_blocks: u64,
    /// Blocks that came home and had that content already: nothing was written.
    pub homes_saved: u64,
    /// Blocks that were written home as they came.
    pub homes_written: u64,
    /// Flushes that were asked for.
    pub flushes: u64,
    /// Those of them for which the medium had nothing to flush.
    pub flushes_saved: u64,
}

/// Where it is counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) transactions: AtomicU64,
    pub(crate) loose_transactions: AtomicU64,
    pub(crate) journaled_bytes: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) unchanged_blocks: AtomicU64,
    pub(crate) changed_bytes: AtomicU64,
    pub(crate) fresh_blocks: AtomicU64,
    pub(crate) homes_saved: AtomicU64,
    pub(crate) homes_written: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flushes_saved: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> BelowStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        BelowStats {
            transactions: get(&self.transactions),
            loose_transactions: get(&self.loose_transactions),
            journaled_bytes: get(&self.journaled_bytes),
            blocks: get(&self.blocks),
            unchanged_blocks: get(&self.unchanged_blocks),
            changed_bytes: get(&self.changed_bytes),
            fresh_blocks: get(&self.fresh_blocks),
            homes_saved: get(&self.homes_saved),
            homes_written: get(&self.homes_written),
            flushes: get(&self.flushes),
            flushes_saved: get(&self.flushes_saved),
        }
    }
}
