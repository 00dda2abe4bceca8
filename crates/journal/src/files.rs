//! All files with data in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use stetfs_format::InodeNo;
use stetfs_format::width::{u32_as_usize, u64_as_usize};
use stetfs_sync::Mutex;

use crate::delayed::Delayed;
use crate::file_data::{FileData, Shared};

const SHARDS: usize = 64;

/// All files with blocks in memory.
pub(crate) struct Files {
    shards: Vec<Mutex<FileShard>>,
    shared: Arc<Shared>,
    hand: AtomicUsize,
}

#[derive(Default)]
struct FileShard {
    map: HashMap<InodeNo, Arc<FileData>>,
    sweep_at: usize,
}

impl FileShard {
    /// Forgets unused files without blocks.
    fn sweep(&mut self) {
        self.map
            .retain(|_, file| Arc::strong_count(file) > 1 || !file.is_empty());
        self.sweep_at = (2 * self.map.len()).max(256);
    }
}

impl Files {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shared: Arc::default(),
            hand: Default::default(),
        }
    }

    /// Returns the blocks of a file: the same object as long as anybody uses it or it has blocks.
    pub(crate) fn get(&self, ino: InodeNo) -> Arc<FileData> {
        let mut shard = self.shards[u32_as_usize(ino.0) % SHARDS].lock();
        if shard.map.len() > shard.sweep_at.max(256) {
            shard.sweep();
        }
        let new = || Arc::new(FileData::new(ino, Arc::clone(&self.shared)));
        Arc::clone(shard.map.entry(ino).or_insert_with(new))
    }

    /// Returns the blocks of a file; `None` if nothing of it is in memory.
    pub(crate) fn get_if_any(&self, ino: InodeNo) -> Option<Arc<FileData>> {
        let shard = self.shards[u32_as_usize(ino.0) % SHARDS].lock();
        shard.map.get(&ino).cloned()
    }

    /// Returns the list of files with delayed data.
    pub(crate) fn delayed(&self) -> &Delayed {
        &self.shared.delayed
    }

    /// Returns the number of cached blocks.
    pub(crate) fn len(&self) -> usize {
        u64_as_usize(self.shared.cached.load(Relaxed).max(0).cast_unsigned())
    }

    /// Drops clean blocks that were not used lately, until about `most` blocks remain.
    pub(crate) fn evict(&self, most: usize) {
        for _ in 0..2 * SHARDS {
            if self.len() <= most {
                return;
            }
            let mut files: Vec<_> = {
                let mut shard = self.shards[self.hand.fetch_add(1, Relaxed) % SHARDS].lock();
                shard.sweep();
                shard.map.values().cloned().collect()
            };
            // Sorted, so that equal runs evict equal blocks.
            files.sort_unstable_by_key(|file| file.ino());
            for file in files {
                file.evict(self.len().saturating_sub(most));
            }
        }
    }
}
