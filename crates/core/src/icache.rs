//! Inodes in memory, bounded.
//!
//! Sixteen shards by number. Each keeps its inodes in a map and in a ring, over which a hand moves
//! (second chance). When the shard is full, the hand drops an inode that nobody holds, that is not
//! open, that has nothing delayed, and that was not used since the hand last passed. When an inode
//! is loaded again, its newest transaction is taken to be that of any dropped inode, so that
//! `fsync` never waits for too early a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashMap;
use stetfs_format::width::{must_fit_u32, u32_as_usize};
use stetfs_format::{InodeNo, Tid};
use stetfs_planted::{Bug, is_planted};
use stetfs_sync::Mutex;

use crate::error::Result;
use crate::inode::Inode;

const SHARDS: usize = 16;

/// The cache of inodes.
pub(crate) struct InodeCache {
    shards: [Mutex<Shard>; SHARDS],
    /// How many inodes one shard keeps when nobody holds them.
    capacity: usize,
    /// The newest transaction among dropped inodes.
    dropped: AtomicU32,
}

#[derive(Default)]
struct Shard {
    map: HashMap<InodeNo, Arc<Inode>>,
    /// The same inodes; each knows its index (`ring_at`).
    ring: Vec<Arc<Inode>>,
    hand: usize,
    /// How many inodes have left the shard.
    departures: u64,
}

impl InodeCache {
    /// Makes a cache of about `capacity` inodes; `committed` is the newest durable transaction.
    pub(crate) fn new(capacity: usize, committed: Tid) -> Self {
        Self {
            shards: Default::default(),
            capacity: capacity.div_ceil(SHARDS).max(4),
            dropped: AtomicU32::new(committed.0),
        }
    }

    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.shards[u32_as_usize(ino.0) % SHARDS]
    }

    /// The newest transaction that changed any dropped inode.
    pub(crate) fn newest_dropped(&self) -> Tid {
        Tid(self.dropped.load(Ordering::Relaxed))
    }

    /// Returns the inode if it is in memory.
    pub(crate) fn get(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        let shard = self.shard(ino).lock();
        let inode = shard.map.get(&ino)?;
        inode.referenced.store(true, Ordering::Relaxed);
        Some(inode.clone())
    }

    /// Whether the inode is in memory.
    pub(crate) fn has(&self, ino: InodeNo) -> bool {
        self.shard(ino).lock().map.contains_key(&ino)
    }

    /// Returns the inode, and loads it if it is not in memory. It loads without a lock, so that
    /// reading its block delays nobody. If an inode has left the shard meanwhile, the loaded one
    /// may be old, and is loaded again under the lock.
    pub(crate) fn get_or_load(
        &self,
        ino: InodeNo,
        load: impl Fn() -> Result<Inode>,
    ) -> Result<Arc<Inode>> {
        let departures = {
            let shard = self.shard(ino).lock();
            if let Some(inode) = shard.map.get(&ino) {
                inode.referenced.store(true, Ordering::Relaxed);
                return Ok(inode.clone());
            }
            shard.departures
        };
        let loaded = load()?;
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.map.get(&ino) {
            return Ok(inode.clone());
        }
        let unchanged = shard.departures == departures;
        let inode = Arc::new(if unchanged { loaded } else { load()? });
        self.add(&mut shard, inode.clone());
        Ok(inode)
    }

    /// Adds a new inode; it replaces one with the same number.
    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        self.add(&mut shard, inode);
    }

    /// Removes a freed inode.
    pub(crate) fn remove(&self, ino: InodeNo) {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.map.remove(&ino) {
            shard.leave_ring(&inode);
        }
    }

    /// How many inodes are in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }

    /// Every inode in memory.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>())
            .collect()
    }

    fn add(&self, shard: &mut Shard, inode: Arc<Inode>) {
        if shard.ring.len() >= self.capacity {
            self.make_room(shard);
        }
        if let Some(old) = shard.map.insert(inode.ino, inode.clone()) {
            shard.leave_ring(&old);
        }
        inode
            .ring_at
            .store(must_fit_u32(shard.ring.len()), Ordering::Relaxed);
        shard.ring.push(inode);
    }

    /// Moves the hand until there is room, at most 64 steps. The shard grows when all its inodes
    /// are in use, and shrinks again later.
    fn make_room(&self, shard: &mut Shard) {
        for _ in 0..(2 * shard.ring.len()).min(64) {
            if shard.ring.len() < self.capacity {
                return;
            }
            if shard.hand >= shard.ring.len() {
                shard.hand = 0;
            }
            let inode = &shard.ring[shard.hand];
            if is_held(inode) || inode.referenced.swap(false, Ordering::Relaxed) {
                shard.hand += 1;
                continue;
            }
            let inode = inode.clone();
            self.note_dropped(&inode);
            shard.map.remove(&inode.ino);
            shard.leave_ring(&inode);
        }
    }

    fn note_dropped(&self, inode: &Inode) {
        if is_planted(Bug::ForgottenInode) {
            return;
        }
        let tid = inode.wanted_tid(false);
        let _ = self
            .dropped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                tid.is_after(Tid(old)).then_some(tid.0)
            });
    }
}

impl Shard {
    fn leave_ring(&mut self, inode: &Inode) {
        self.departures += 1;
        let at = u32_as_usize(inode.ring_at.load(Ordering::Relaxed));
        self.ring.swap_remove(at);
        if let Some(moved) = self.ring.get(at) {
            moved.ring_at.store(must_fit_u32(at), Ordering::Relaxed);
        }
    }
}

/// The references of the cache itself: the map's and the ring's.
const OWN_REFERENCES: usize = 2;

/// Whether the inode must stay: it is in use, open, or has delayed data.
fn is_held(inode: &Arc<Inode>) -> bool {
    let is_ahead = || inode.state.try_read().is_none_or(|st| st.is_ahead());
    Arc::strong_count(inode) > OWN_REFERENCES
        || inode.opens.load(Ordering::Relaxed) > 0
        || is_ahead() && !is_planted(Bug::EvictedDelayed)
}
