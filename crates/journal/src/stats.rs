//! Counters of the transaction layer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// What the journal has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JournalStats {
    /// Handles started.
    pub handles: u64,
    /// Transactions handed to the scheme.
    pub commits: u64,
    /// Waits for a commit that another thread made (group commit).
    pub shared_commits: u64,
    /// Metadata blocks in those transactions.
    pub meta_blocks: u64,
    /// Data blocks in those transactions.
    pub data_blocks: u64,
    /// Bytes that those transactions changed.
    pub changed_bytes: u64,
    /// Blocks revoked.
    pub revoked_blocks: u64,
    /// Data blocks dropped before they were ever written.
    pub dropped_blocks: u64,
    /// Checkpoints; of those that commits make since there is no room, the ones that the scheme
    /// counts.
    pub checkpoints: u64,
    /// Bytes of cached blocks, dirty ones included.
    pub cached_bytes: u64,
    /// Bytes of blocks that the running transaction changed.
    pub dirty_bytes: u64,
}

/// What a scheme's cache in persistent memory holds and has done since it was opened. Of blocks
/// all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// That it has room for.
    pub blocks: u64,
    /// That are in it.
    pub cached: u64,
    /// That are committed and not home: UBJ's frozen blocks.
    pub dirty: u64,
    /// Reads that it served.
    pub hits: u64,
    /// Those of dirty blocks.
    pub dirty_hits: u64,
    /// Reads that it did not serve.
    pub misses: u64,
    /// That had to make room.
    pub evictions: u64,
    /// Written home.
    pub written_home: u64,
    /// Copied because a commit could not change them where they were.
    pub cow_copies: u64,
    /// It stays as it is at unmount.
    pub keeps: bool,
}

impl CacheStats {
    /// What was done since `before`, and what is there now.
    pub fn since(self, before: &Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            dirty_hits: self.dirty_hits - before.dirty_hits,
            misses: self.misses - before.misses,
            evictions: self.evictions - before.evictions,
            written_home: self.written_home - before.written_home,
            cow_copies: self.cow_copies - before.cow_copies,
            ..self
        }
    }
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
    changed_bytes,
    revoked_blocks,
    dropped_blocks,
    checkpoints
);

/// Adds without ordering: these numbers are only looked at.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
