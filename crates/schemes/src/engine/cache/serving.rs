//! The verbs of a scheme on a cache. The cache does most of them here; the scheme does the others.

use stetfs_format::{BlockNo, Tid};
use stetfs_media::Class;

use super::NvmCache;
use stetfs_scheme::{
    Backlog, Cache, CacheStats, Goal, Held, LoggedBlock, Result, Scheme, Snapshot, Spot,
};

/// A scheme's part of each verb, in the order of [`Scheme`].
pub(crate) trait OnCache: Send + Sync {
    fn cache(&self) -> &NvmCache;

    /// [`Cache::before_write`].
    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let _ = (tid, home);
        None
    }

    /// [`Cache::after_write`].
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

    /// Makes the blocks of a transaction durable: data, then metadata. There is at least one.
    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()>;

    /// Lets go of blocks that transactions have changed and not committed: of those up to `up_to`,
    /// which are durable, or of all.
    fn let_go(&self, up_to: Option<Tid>) -> Result<()> {
        let _ = up_to;
        Ok(())
    }

    /// [`Scheme::backlog`].
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    /// [`Scheme::checkpoint`].
    fn checkpoint(&self, goal: Goal) -> Result<()> {
        self.cache().checkpoint(goal)
    }
}

/// A scheme on a cache.
pub(crate) struct Serving<S>(pub(crate) S);

impl<S: OnCache> Scheme for Serving<S> {
    fn read(&self, block: BlockNo) -> Result<Held> {
        self.0.cache().read(block)
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.0.cache().holds_any(start, count)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks: Vec<&LoggedBlock> = txn.data.iter().chain(&txn.meta).collect();
        if blocks.is_empty() {
            self.0.cache().finish(&[], &[], &[], &txn.revoked)
        } else {
            self.0.commit(txn, &blocks)?
        }
        self.0.let_go(Some(txn.tid))
    }

    fn backlog(&self) -> Backlog {
        self.0.backlog()
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        self.0.checkpoint(goal)
    }

    fn close(&self) -> Result<()> {
        self.0.let_go(None)?;
        self.0.cache().close()
    }

    fn cache(&self) -> Option<&dyn Cache> {
        Some(self)
    }
}

impl<S: OnCache> Cache for Serving<S> {
    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool> {
        self.0.cache().read_part(block, offset, out)
    }

    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()> {
        self.0.cache().fill(block, class, content)
    }

    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        self.0.before_write(tid, home)
    }

    fn after_write(
        &self,
        spot: Spot,
        class: Class,
        offset: usize,
        len: usize,
        content: &[u8],
    ) -> Result<()> {
        self.0.after_write(spot, class, offset, len, content)
    }

    fn stats(&self) -> CacheStats {
        self.0.cache().stats()
    }
}
