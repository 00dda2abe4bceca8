//! What the device knows of its blocks, under one lock that is never held while a medium works.

use hashbrown::HashMap;
use hashlink::LruCache;
use roaring::RoaringTreemap;
use std::sync::Arc;
use stetfs_media::BlockRef;

use crate::collect::{Collector, Head};
use crate::live::Live;
use crate::map::Map;

/// Contents of blocks by their numbers.
pub(crate) type Contents = HashMap<u64, BlockRef>;

/// What the device knows. A block's newest content is the first that is found in `held`, `loose`,
/// `committing`, `newest`, the scheme, and at home.
pub(crate) struct State {
    /// The journal.
    pub(crate) collector: Collector,
    /// What a replay of the kernel's log would write.
    pub(crate) live: Live,
    /// Homes that were written while a replay would undo it. They become changes when the log has
    /// the blocks no more, and count for nothing until then.
    pub(crate) held: Contents,
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
    /// Discarded and revoked blocks: what is there is undefined. A cache may show the revoked
    /// content again after a power cut.
    pub(crate) undefined: RoaringTreemap,
    /// Changes that came outside of the journal and become a transaction at the next flush or
    /// commit.
    pub(crate) loose: Contents,
    /// The blocks of the commit under way.
    pub(crate) committing: Arc<Contents>,
    /// Committed contents that are kept in memory.
    pub(crate) newest: LruCache<u64, BlockRef>,
    /// Digests of logged blocks whose content is kept no longer: enough to know it again.
    pub(crate) digests: HashMap<u64, Digest>,
}

/// Half of a BLAKE3 digest: nobody finds two contents with the same.
pub(crate) type Digest = [u8; 16];

/// Digests are kept of so many blocks.
const DIGESTS: usize = 1 << 20;

/// The digest of a content.
pub(crate) fn digest(content: &[u8]) -> Digest {
    let whole = blake3::hash(content);
    *whole.as_bytes().first_chunk().expect("32 bytes")
}

impl State {
    /// JBD2's superblock was written.
    pub(crate) fn head_written(&mut self, head: Head) {
        let tail = match head {
            Head::Tail(tid) => Some(tid),
            Head::Empty => None,
            Head::Another => {
                self.replayed();
                return;
            }
        };
        for block in self.live.begins(tail) {
            if let Some(content) = self.held.remove(&block) {
                self.loose.insert(block, content);
            }
        }
    }

    /// The machine above has crashed and comes back: what it finds is what a replay leaves.
    pub(crate) fn replayed(&mut self) {
        self.live = Live::default();
        self.held.clear();
    }

    /// Takes the changes that came outside of the journal. They stay visible.
    pub(crate) fn take_loose(&mut self) -> Contents {
        let loose = std::mem::take(&mut self.loose);
        self.committing = Arc::new(loose.clone());
        loose
    }

    /// The block was revoked: what the scheme and the kernel's log have of it is void.
    pub(crate) fn revoked(&mut self, block: u64) {
        self.logged.remove(block);
        self.undefined.insert(block);
        self.forget(block);
        self.live.forget(block);
        self.held.remove(&block);
    }

    /// The newest content of a block, if it is in memory.
    pub(crate) fn content(&mut self, block: u64) -> Option<BlockRef> {
        let changed = self.held.get(&block).or_else(|| self.loose.get(&block));
        let changed = changed.or_else(|| self.committing.get(&block));
        changed.or_else(|| self.newest.get(&block)).cloned()
    }

    /// Keeps a committed content in memory. Of the one that has to make room its digest stays.
    pub(crate) fn keep(&mut self, block: u64, content: BlockRef) {
        self.digests.remove(&block);
        if self.newest.len() == self.newest.capacity()
            && !self.newest.contains_key(&block)
            && let Some((oldest, content)) = self.newest.remove_lru()
            && self.logged.contains(oldest)
        {
            if self.digests.len() == DIGESTS {
                self.digests.clear();
            }
            self.digests.insert(oldest, digest(&content));
        }
        self.newest.insert(block, content);
    }

    /// Keeps nothing of a block any more.
    pub(crate) fn forget(&mut self, block: u64) {
        self.newest.remove(&block);
        self.digests.remove(&block);
    }

    /// Whether a block has this content, as far as memory can tell.
    pub(crate) fn is_known(&mut self, block: u64, content: &[u8]) -> bool {
        match self.content(block) {
            Some(newest) => newest[..] == *content,
            None => self
                .digests
                .get(&block)
                .is_some_and(|known| *known == digest(content)),
        }
    }

    /// Whether a power cut leaves what is at a block's home as it is.
    pub(crate) fn is_stable(&self, block: u64) -> bool {
        !self.unstable.contains(block) && !self.flushing.contains(block)
    }

    /// Whether nobody knows what is at a block's home, and the scheme has nothing of it either.
    pub(crate) fn is_undefined(&self, block: u64) -> bool {
        self.undefined.contains(block) && !self.logged.contains(block)
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
