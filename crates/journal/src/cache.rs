//! Metadata blocks by block number.
//!
//! Invariant: a buffer leaves the map only when it is clean and nobody else holds it, or when its
//! block was freed. So the holder of a buffer from the map may change it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use stetfs_format::BlockNo;
use stetfs_format::width::u64_as_usize;

use crate::page::Page;
use stetfs_sync::{Mutex, RwLock};

const SHARDS: usize = 64;

/// A metadata block; `None` until its content is read or given.
pub(crate) struct Buffer {
    pub(crate) home: BlockNo,
    pub(crate) page: Mutex<Option<Page>>,
}

/// The metadata blocks in memory.
pub(crate) struct Cache {
    shards: Vec<RwLock<HashMap<BlockNo, Arc<Buffer>>>>,
    buffers: AtomicUsize,
    hand: AtomicUsize,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            buffers: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
        }
    }

    fn shard(&self, block: BlockNo) -> &RwLock<HashMap<BlockNo, Arc<Buffer>>> {
        // Neighbours (bitmaps, tables, leaves) go to different shards.
        &self.shards[u64_as_usize(block.0) % SHARDS]
    }

    /// Returns the buffer of a block; makes an empty one if there is none.
    pub(crate) fn get(&self, block: BlockNo) -> Arc<Buffer> {
        let shard = self.shard(block);
        if let Some(buffer) = shard.read().get(&block) {
            return Arc::clone(buffer);
        }
        let mut map = shard.write();
        let buffer = map.entry(block).or_insert_with(|| {
            self.buffers.fetch_add(1, Relaxed);
            Arc::new(Buffer {
                home: block,
                page: Mutex::new(None),
            })
        });
        Arc::clone(buffer)
    }

    /// Drops the buffer of a freed block, with all changes in it.
    pub(crate) fn remove(&self, block: BlockNo) {
        if let Some(buffer) = self.shard(block).write().remove(&block) {
            self.buffers.fetch_sub(1, Relaxed);
            if let Some(page) = buffer.page.lock().take() {
                page.dropped();
            }
        }
    }

    /// Returns the number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.buffers.load(Relaxed)
    }

    /// Drops clean buffers that were not used since the last call passed them, until about `most`
    /// remain.
    pub(crate) fn evict(&self, most: usize) {
        // Two rounds: the first one clears the marks of use, the second one drops.
        for _ in 0..2 * SHARDS {
            if self.len() <= most {
                return;
            }
            let shard = &self.shards[self.hand.fetch_add(1, Relaxed) % SHARDS];
            let mut map = shard.write();
            let before = map.len();
            map.retain(|_, buffer| !(Arc::strong_count(buffer) == 1 && evictable(buffer)));
            self.buffers.fetch_sub(before - map.len(), Relaxed);
        }
    }
}

fn evictable(buffer: &Buffer) -> bool {
    match buffer.page.lock().as_mut() {
        None => true,
        Some(page) => page.may_go(),
    }
}
