//! The verbs of a scheme on a cache: those that are the cache's are here, the others each scheme's.

use stetfs_format::{BlockNo, Tid};
use stetfs_media::Class;

use super::Cache;
use crate::error::Result;
use crate::scheme::{About, DataPromise, Goal, Held, LoggedBlock, Scheme, Snapshot, Spot};
use crate::stats::CacheStats;

/// What a scheme adds to its cache, in the order of [`Scheme`].
pub(in crate::schemes) trait OnCache: Send + Sync {
    fn about(&self) -> &'static About;

    fn cache(&self) -> &Cache;

    /// [`Scheme::changes_wanted`].
    fn changes_wanted(&self) -> usize {
        0
    }

    /// [`Scheme::before_write`].
    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let _ = (tid, home);
        None
    }

    /// [`Scheme::after_write`].
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

    /// Makes the blocks of a transaction durable, of which there are some: data, then metadata.
    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()>;

    /// Transactions up to this one are durable, or all of them: nobody wants any more what they
    /// changed and did not commit.
    fn let_go(&self, up_to: Option<Tid>) -> Result<()> {
        let _ = up_to;
        Ok(())
    }

    /// [`Scheme::wants_checkpoint`].
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// [`Scheme::checkpoint`].
    fn checkpoint(&self, goal: Goal) -> Result<()> {
        self.cache().checkpoint(goal)
    }
}

impl<S: OnCache> Scheme for S {
    fn about(&self) -> &'static About {
        OnCache::about(self)
    }

    fn data_promise(&self) -> DataPromise {
        DataPromise::Atomic
    }

    fn max_transaction(&self) -> u32 {
        self.cache().max_transaction()
    }

    fn logs_data(&self) -> bool {
        true
    }

    fn changes_wanted(&self) -> usize {
        OnCache::changes_wanted(self)
    }

    fn keeps(&self) -> bool {
        self.cache().keeps()
    }

    fn cache_stats(&self) -> Option<CacheStats> {
        Some(self.cache().stats())
    }

    fn read(&self, block: BlockNo) -> Result<Held> {
        self.cache().read(block)
    }

    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool> {
        self.cache().read_part(block, offset, out)
    }

    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()> {
        self.cache().fill(block, class, content)
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.cache().holds_any(start, count)
    }

    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        OnCache::before_write(self, tid, home)
    }

    fn after_write(
        &self,
        spot: Spot,
        class: Class,
        offset: usize,
        len: usize,
        content: &[u8],
    ) -> Result<()> {
        OnCache::after_write(self, spot, class, offset, len, content)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks: Vec<&LoggedBlock> = txn.data.iter().chain(&txn.meta).collect();
        match blocks.is_empty() {
            true => self.cache().finish(&[], &[], &[], &txn.revoked),
            false => OnCache::commit(self, txn, &blocks)?,
        }
        self.let_go(Some(txn.tid))
    }

    fn wants_checkpoint(&self) -> bool {
        OnCache::wants_checkpoint(self)
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        OnCache::checkpoint(self, goal)
    }

    fn close(&self) -> Result<()> {
        self.let_go(None)?;
        self.cache().close()
    }
}
