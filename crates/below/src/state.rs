//! What the device knows of its blocks, under one lock that is never held while a medium works.

use hashbrown::HashMap;
use hashlink::LruCache;
use roaring::RoaringTreemap;
use std::sync::Arc;
use stetfs_media::BlockRef;

use crate::collect::Collector;
use crate::map::Map;

/// Contents of blocks by their numbers.
pub(crate) type Contents = HashMap<u64, BlockRef>;

/// What the device knows. A block's newest content is the first that is found in `loose`,
/// `committing`, `newest`, the scheme, and at home.
pub(crate) struct State {
    /// The journal.
    pub(crate) collector: Collector,
    /// The layout of the volume.
    pub(crate) map: Map,
    /// Blocks that the scheme has committed and nobody has revoked since. Its recovery may write
    /// them home, so from now on they change by its transactions only.
    pub(crate) logged: RoaringTreemap,
    /// Blocks that were written home and not flushed since: a power cut may bring back what was
    /// there before.
    pub(crate) unstable: RoaringTreemap,
    /// The same of blocks that the flush under way makes stable.
    pub(crate) flushing: RoaringTreemap,
    /// Discarded blocks: what is there is undefined.
    pub(crate) undefined: RoaringTreemap,
    /// Changes that came outside of the journal and become a transaction at the next flush or
    /// commit.
    pub(crate) loose: Contents,
    /// The blocks of the commit under way.
    pub(crate) committing: Arc<Contents>,
    /// Committed contents that are kept in memory.
    pub(crate) newest: LruCache<u64, BlockRef>,
}

impl State {
    /// The newest content of a block that is committed or about to be, if it is in memory.
    pub(crate) fn committed(&mut self, block: u64) -> Option<BlockRef> {
        let changed = self.committing.get(&block);
        changed.or_else(|| self.newest.get(&block)).cloned()
    }

    /// The newest content of a block, if it is in memory.
    pub(crate) fn newest(&mut self, block: u64) -> Option<BlockRef> {
        let changed = self.loose.get(&block).cloned();
        changed.or_else(|| self.committed(block))
    }

    /// Whether a power cut leaves what is at a block's home as it is.
    pub(crate) fn is_stable(&self, block: u64) -> bool {
        ![&self.unstable, &self.flushing, &self.undefined]
            .iter()
            .any(|set| set.contains(block))
    }

    /// Blocks were discarded at their homes.
    pub(crate) fn discarded(&mut self, blocks: std::ops::Range<u64>) {
        self.undefined.insert_range(blocks);
    }

    /// Blocks were written home, without a transaction.
    pub(crate) fn written_home(&mut self, blocks: std::ops::Range<u64>) {
        self.undefined.remove_range(blocks.clone());
        self.unstable.insert_range(blocks);
    }
}
