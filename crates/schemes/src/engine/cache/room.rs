//! Making room in a cache, and writing its blocks home.

use std::sync::atomic::Ordering::Relaxed;

use hashbrown::hash_map::Entry as MapEntry;
use stetfs_format::BlockNo;
use stetfs_format::nvm_cache::EntryState;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_media::{Block, BlockRef, Cause, Class, Tag};

use super::{Cached, NvmCache, PIECE, Place, Pool, State};
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{Goal, Result};

/// A block on its way home.
struct DueCached {
    home: BlockNo,
    class: Class,
    place: Place,
    version: u32,
    content: Option<BlockRef>,
}

/// What the cache does with a block that is home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Stays,
    Goes,
}

impl NvmCache {
    /// Evicts blocks of a pool, about `want` of them; false if none could go.
    pub(super) fn evict(&self, pool: Pool, want: usize) -> Result<bool> {
        let _homing = self.homing.lock();
        let size = match pool {
            Pool::Data => self.region.geometry.data,
            Pool::Meta => self.region.geometry.meta,
        };
        let n = match self.batch {
            Some(batch) => batch.max(want),
            None => (u32_as_usize(size) / 64).min(PIECE).max(want),
        };
        let clean_only = self.evicts_clean_only && !is_planted(Bug::EvictedDirty);
        let mut victims = self.victims(pool, n, clean_only);
        if victims.is_empty() && clean_only {
            let due = self.victims(pool, self.batch.unwrap_or(PIECE).max(want), false);
            self.bring_home(due, Then::Stays)?;
            victims = self.victims(pool, n, true);
        }
        let gone = self.bring_home(victims, Then::Goes)?;
        self.counters
            .evictions
            .fetch_add(usize_as_u64(gone), Relaxed);
        Ok(gone > 0)
    }

    /// Returns up to `n` blocks of a pool that may go, the least used ones first.
    fn victims(&self, pool: Pool, n: usize, clean_only: bool) -> Vec<BlockNo> {
        let may_go = |cached: &Cached| {
            !cached.pinned
                && self.pool_of(cached.slot) == pool
                && !(clean_only && cached.state == State::Dirty)
        };
        let mut rooms = self.rooms.lock();
        let mut found = Vec::new();
        for is_fresh in [false, true] {
            while found.len() < n
                && let Some((used, home)) = rooms.victims[pool.index()].pop_front()
            {
                let map = self.shard(home).map.read();
                if map
                    .get(&home)
                    .is_some_and(|c| may_go(c) && c.used.load(Relaxed) == used)
                {
                    found.push(home);
                }
            }
            if !found.is_empty() || is_fresh {
                break;
            }
            let mut all = Vec::new();
            for shard in &self.shards {
                let map = shard.map.read();
                let its = map.iter().filter(|(_, cached)| may_go(cached));
                all.extend(its.map(|(home, cached)| (cached.used.load(Relaxed), *home)));
            }
            // More than are wanted, so that not every call searches the whole cache.
            let some = (all.len() / 8).max(n).max(64);
            if some < all.len() {
                all.select_nth_unstable(some);
                all.truncate(some);
            }
            all.sort_unstable();
            rooms.victims[pool.index()] = all.into();
        }
        found
    }

    /// Writes the dirty ones of these blocks home, durably, and notes it in the cache. Returns how
    /// many blocks have left the cache. The caller holds `homing`.
    fn bring_home(&self, homes: Vec<BlockNo>, then: Then) -> Result<usize> {
        let mut all = Vec::with_capacity(homes.len());
        let mut any_written = false;
        for homes in homes.chunks(PIECE) {
            let due = homes.iter().filter_map(|home| self.due(*home).transpose());
            let mut due = due.collect::<Result<Vec<_>>>()?;
            any_written |= self.write_due(&due, then)?;
            // Written contents need not stay in memory until all are written.
            due.iter_mut().for_each(|due| due.content = None);
            all.append(&mut due);
        }
        if any_written {
            self.pair.note_in_volume(Cause::Checkpoint)?;
            self.dev.flush(Cause::Checkpoint)?;
            self.pair.note_in_memory(Cause::Checkpoint)?;
        }
        // An old entry of one of these blocks must not outlive the new one on the medium.
        self.fence_and_free()?;
        self.are_home(&all, then)
    }

    /// Writes the dirty ones of these blocks home; false if there were none.
    fn write_due(&self, due: &[DueCached], then: Then) -> Result<bool> {
        let dirty = due.iter().filter_map(|due| {
            Some(Write {
                home: due.home,
                class: due.class,
                content: due.content.as_ref()?,
            })
        });
        let writes: Vec<_> = dirty.collect();
        if writes.is_empty() || then == Then::Goes && is_planted(Bug::EvictedDirty) {
            return Ok(false);
        }
        let n = usize_as_u64(writes.len());
        self.counters.written_home.fetch_add(n, Relaxed);
        write_home(&*self.dev, self.block_size, Cause::Checkpoint, writes)?;
        Ok(true)
    }

    /// Returns a block with its content if that must be written home; `None`: it may not go now.
    fn due(&self, home: BlockNo) -> Result<Option<DueCached>> {
        let map = self.shard(home).map.read();
        let Some(cached) = map.get(&home).filter(|cached| !cached.pinned) else {
            return Ok(None);
        };
        let mut due = DueCached {
            home,
            class: cached.class,
            place: Place {
                entry: cached.entry,
                slot: cached.slot,
            },
            version: cached.version,
            content: None,
        };
        if cached.state == State::Dirty {
            let mut content = Block::zeroed(self.block_size.bytes());
            let tag = Tag::new(cached.class, Cause::Checkpoint);
            self.region.read(cached.slot, 0, content.bytes_mut(), tag)?;
            due.content = Some(content.into());
        }
        Ok(Some(due))
    }

    /// Notes in the entries that blocks are home, except for those that were changed since. Returns
    /// how many blocks have left the cache.
    fn are_home(&self, due: &[DueCached], then: Then) -> Result<usize> {
        let mut gone = Vec::new();
        for due in due {
            let mut map = self.shard(due.home).map.write();
            let MapEntry::Occupied(cached) = map.entry(due.home) else {
                continue;
            };
            if cached.get().pinned || cached.get().version != due.version {
                continue;
            }
            let state = match then {
                Then::Stays => Some(EntryState::clean(due.place.slot)),
                Then::Goes => None,
            };
            let tag = Tag::new(due.class, Cause::Checkpoint);
            self.region.store_state(due.place.entry, state, tag)?;
            if then == Then::Goes {
                let cached = cached.remove();
                self.cached.fetch_sub(1, Relaxed);
                if cached.state == State::Dirty {
                    self.dirty.fetch_sub(1, Relaxed);
                }
                gone.push(due.place);
            }
        }
        if then == Then::Stays || !is_planted(Bug::EarlyRoom) {
            self.region.fence(Cause::Checkpoint)?;
        }
        if then == Then::Stays {
            self.are_clean(due);
        }
        let mut rooms = self.rooms.lock();
        for place in &gone {
            self.give_back(&mut rooms, *place);
        }
        // The fence above was for these too.
        Ok(gone.len())
    }

    /// Treats blocks as clean, after this is durable in their entries.
    fn are_clean(&self, due: &[DueCached]) {
        for due in due {
            let mut map = self.shard(due.home).map.write();
            if let Some(cached) = map.get_mut(&due.home)
                && cached.version == due.version
                && !cached.pinned
                && cached.state == State::Dirty
            {
                cached.state = State::Clean;
                self.dirty.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Writes dirty blocks home, which stay in the cache, clean.
    pub(crate) fn checkpoint(&self, goal: Goal) -> Result<()> {
        let most = match goal {
            Goal::Some => PIECE,
            Goal::Background | Goal::All => usize::MAX,
        };
        let _homing = self.homing.lock();
        let mut due = Vec::new();
        for shard in &self.shards {
            let map = shard.map.read();
            let dirty = map
                .iter()
                .filter(|(_, c)| c.state == State::Dirty && !c.pinned);
            due.extend(dirty.map(|(home, _)| *home));
        }
        due.sort_unstable();
        due.truncate(most);
        self.bring_home(due, Then::Stays)?;
        Ok(())
    }
}
