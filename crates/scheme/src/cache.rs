//! A scheme whose persistent memory is the volume's cache.

use serde::Serialize;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::Class;

use crate::error::Result;

/// A scheme's own number for the place where it keeps a block that the running transaction changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot(pub u32);

/// What a scheme does besides whose persistent memory keeps what was read and committed. Called by
/// any thread.
pub trait Cache: Send + Sync {
    /// Reads a part of a block's newest committed version, from byte `offset` on. Returns false if
    /// the block is not in the cache.
    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool>;

    /// Offers a block that was read from home. Nobody changes the block during the call.
    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()>;

    /// A block is about to change for the first time in transaction `tid` (JBD2's
    /// `get_write_access`). A cache that lets the running transaction change blocks in place
    /// returns the place. `home` is given only if the content that is about to change is the one
    /// that [`read_part`](Self::read_part) returns: not for a fresh block, nor for one that a
    /// running commit takes. Must not wait.
    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let _ = (tid, home);
        None
    }

    /// In the block at `spot`, `len` bytes from `offset` on have changed; `content` is the whole
    /// block.
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

    /// What it holds and has done.
    fn stats(&self) -> CacheStats;
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
