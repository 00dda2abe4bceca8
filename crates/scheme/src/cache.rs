//! A scheme whose persistent memory is the volume's cache.

use serde::Serialize;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::Class;

use crate::error::Result;

/// A scheme's own number for the place where it keeps a block that the running transaction changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot(pub u32);

/// More verbs, for a scheme whose persistent memory keeps blocks that were read or committed. Any
/// thread calls them.
pub trait Cache: Send + Sync {
    /// Reads a part of a block's newest committed version, from byte `offset` on. Returns false if
    /// the block is not in the cache.
    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool>;

    /// Offers a block that was read from home. Nobody changes the block during the call.
    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()>;

    /// Notes that a block will change for the first time in transaction `tid` (JBD2's
    /// `get_write_access`). A cache that lets the running transaction change blocks in place
    /// returns the place. `home` is given only if [`read_part`](Self::read_part) returns the
    /// content that will change: not for a fresh block, nor for one in a commit under way. It must
    /// not wait.
    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let _ = (tid, home);
        None
    }

    /// Notes that `len` bytes from `offset` on have changed in the block at `spot`. `content` is
    /// the whole block.
    fn after_write(
        &self,
        spot: Spot,
        class: Class,
        offset: usize,
        len: usize,
        content: &[u8],
    ) -> Result<()> {
        let _ = (spot, class, offset, len, content);
        Ok(())
    }

    /// Returns its counters.
    fn stats(&self) -> CacheStats;
}

/// Counters of a scheme's cache in persistent memory, since it was opened. All are numbers of
/// blocks or of reads of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// Blocks that it has room for.
    pub blocks: u64,
    /// Blocks in it.
    pub cached: u64,
    /// Blocks that are committed and not home; in UBJ the frozen ones.
    pub dirty: u64,
    /// Reads that it served.
    pub hits: u64,
    /// Reads of dirty blocks that it served.
    pub dirty_hits: u64,
    /// Reads that it did not serve.
    pub misses: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Blocks written home.
    pub written_home: u64,
    /// Blocks copied, because a commit could not change them where they were.
    pub cow_copies: u64,
    /// An unmount leaves the cache as it is.
    pub keeps: bool,
}

impl CacheStats {
    /// Returns the events since `before`, and the present state.
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
