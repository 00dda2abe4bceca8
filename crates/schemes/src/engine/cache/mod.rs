//! The engine of the caches: the common part of UBJ, Tinca and Spindle. The cache of the volume's
//! blocks is in persistent memory, and is the journal too.
//!
//! Each scheme decides where a new version of a block goes, what commits it, and how recovery
//! undoes a transaction ([`serving::OnCache`]). The engine knows in ordinary memory which blocks
//! are in the cache, serves reads, takes in blocks that were read from home, makes room, and writes
//! home.
//!
//! - A block is *clean* (home has the same content), *dirty* (committed, and home has other
//!   content) or *dead* (freed: home need not have it). A block that a transaction is changing is
//!   *pinned*: it is neither evicted nor marked.
//! - When no room is left, a few blocks go at a time: those used least recently, in a pool for
//!   metadata those used least often. Dirty ones go home first. Their entries are freed on the
//!   medium and fenced before anything is stored in their place.
//! - Only one thread writes home at a time, so that an older version never lands on a newer one.
//!
//! Locks, in this order: `homing`, `rooms`, a shard. Only `homing` is held during a read or write
//! of the device.

mod region;
mod room;
pub(crate) mod serving;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;
use stetfs_format::nvm_cache::{CachePlan, Entry, EntryState};
use stetfs_format::nvm_pair::{PairState, RegionHeader, RegionState};
use stetfs_format::private_log::Tail;
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, BlockSize, Corrupt, Tid};
use stetfs_media::pmem::Dirty as Body;
use stetfs_media::{Block, BlockDev, Cause, Class, Pmem, Tag};

use self::region::BEYOND;
pub(crate) use self::region::{CacheRegion, LEFT};
use crate::parts::area::JournalArea;
use crate::parts::owner::{self, Claim, Look, Pair};
use stetfs_scheme::{
    About, CacheStats, Goal, Held, OpenArgs, OptionAbout, RecoveryReport, Result, SchemeError,
    SchemeOptions, Terms,
};
use stetfs_sync::{Mutex, RwLock};

pub(crate) static KEEP_CACHE: OptionAbout = OptionAbout {
    name: "keep-cache",
    syntax: "on|off",
    default: "off",
    what: "leave the cache as it is at unmount, for a later mount with the same scheme; nobody \
        else can use the volume until then",
};

const SHARDS: usize = 64;

pub(crate) static BATCH: OptionAbout = OptionAbout {
    name: "batch",
    syntax: "auto|BLOCKS",
    default: "auto",
    what: "how many blocks leave the cache together when it is full; auto: a 64th of them, 1,024 \
        at most",
};

/// Blocks that are loaded and written home at a time.
const PIECE: usize = 1024;

/// The relation of a cached block to its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Clean,
    Dirty,
    /// The block was freed.
    Dead,
}

/// A block in the cache.
struct Cached {
    entry: u32,
    slot: u32,
    class: Class,
    state: State,
    /// A number that each commit of the block changes.
    version: u32,
    pinned: bool,
    /// The time of its last use, or the number of its uses: see [`Pool`].
    used: AtomicU64,
}

#[derive(Default)]
struct Shard {
    map: RwLock<HashMap<BlockNo, Cached>>,
    hits: AtomicU64,
    dirty_hits: AtomicU64,
}

/// A pool of blocks of the cache, with its own rule for which blocks go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// For data: the least recently used.
    Data,
    /// For metadata: the least often used.
    Meta,
}

impl Pool {
    /// Returns its index in arrays with one element per pool.
    const fn index(self) -> usize {
        match self {
            Self::Data => 0,
            Self::Meta => 1,
        }
    }
}

/// The free entries and blocks, and the next victims.
#[derive(Default)]
struct Rooms {
    entries: Vec<u32>,
    slots: [Vec<u32>; 2],
    /// Places that become free with the next fence.
    awaiting_fence: Vec<Place>,
    victims: [VecDeque<(u64, BlockNo)>; 2],
}

/// An entry and the block that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) entry: u32,
    pub(crate) slot: u32,
}

/// The entries and blocks that a commit may fill.
#[derive(Default)]
pub(crate) struct Reserved {
    pub(crate) entries: Vec<u32>,
    slots: [Vec<u32>; 2],
}

impl Reserved {
    /// Takes a reserved block, from that pool if it has one left.
    pub(crate) fn slot(&mut self, pool: Pool) -> u32 {
        let [data, meta] = &mut self.slots;
        let slot = match pool {
            Pool::Data => data.pop().or_else(|| meta.pop()),
            Pool::Meta => meta.pop().or_else(|| data.pop()),
        };
        slot.expect("it was reserved")
    }

    pub(crate) fn entry(&mut self) -> u32 {
        self.entries.pop().expect("it was reserved")
    }
}

/// A block as a commit finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) place: Place,
    pub(crate) state: State,
}

/// A block as a commit leaves it.
pub(crate) struct Changed {
    pub(crate) home: BlockNo,
    pub(crate) class: Class,
    pub(crate) place: Place,
}

#[derive(Default)]
struct Counters {
    misses: AtomicU64,
    evictions: AtomicU64,
    written_home: AtomicU64,
    cow_copies: AtomicU64,
}

pub(crate) struct NvmCache {
    pub(crate) pair: Pair,
    pub(crate) region: CacheRegion,
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) block_size: BlockSize,
    blocks: u64,
    /// The least number of blocks that leave together; `None`: a share of their pool.
    batch: Option<usize>,
    /// Dirty blocks are written home and stay: only clean ones are evicted.
    evicts_clean_only: bool,
    keeps: bool,
    writable: bool,
    shards: Vec<Shard>,
    rooms: Mutex<Rooms>,
    homing: Mutex<()>,
    /// A clock that counts blocks and commits that came in.
    tick: AtomicU64,
    cached: AtomicUsize,
    dirty: AtomicUsize,
    counters: Counters,
}

/// Returns the value of `batch=`; `None` for `auto`.
fn batch(about: &'static About, options: &SchemeOptions) -> Result<Option<usize>> {
    let blocks = match options.value(&BATCH) {
        "auto" => return Ok(None),
        blocks => blocks.parse().ok().filter(|blocks| *blocks > 0),
    };
    Ok(Some(blocks.ok_or_else(|| options.wrong(about, &BATCH))?))
}

/// A region of such a cache, as `owner` looks at it.
struct Contents<'a> {
    pmem: &'a Arc<dyn Pmem>,
    block_size: BlockSize,
    plan: CachePlan,
    newest: fn(&CacheRegion) -> Result<Tid>,
}

impl Contents<'_> {
    fn region(&self, header: &RegionHeader) -> Result<CacheRegion> {
        let geometry = CacheRegion::divided(&**self.pmem, self.block_size, self.plan)?;
        Ok(CacheRegion::new(self.pmem.clone(), geometry, header))
    }
}

impl Look for Contents<'_> {
    fn newest(&self, header: &RegionHeader, _: &RegionState) -> Result<Tid> {
        (self.newest)(&self.region(header)?)
    }

    fn holds_any(&self, header: &RegionHeader, _: &RegionState) -> Result<bool> {
        // A region that cannot be read may have committed content.
        let Ok(region) = self.region(header) else {
            return Ok(true);
        };
        let mut any = false;
        region.entries(|_, entry| {
            any |= entry.state.is_dirty;
            Ok(())
        })?;
        Ok(any)
    }
}

impl NvmCache {
    /// Opens the region that belongs to the volume, or begins one. If a region was left, `recover`
    /// repairs it, [adopts](Self::adopt) the entries that count, and returns where the scheme goes
    /// on. Its second argument is true when an unmount kept the cache. `newest` finds the newest
    /// transaction of a region.
    pub(crate) fn open<T>(
        about: &'static About,
        args: &OpenArgs,
        plan: CachePlan,
        evicts_clean_only: bool,
        newest: fn(&CacheRegion) -> Result<Tid>,
        recover: fn(&Self, bool) -> Result<T>,
    ) -> Result<(Self, Option<T>, RecoveryReport)> {
        let keeps = args.options.switch(about, &KEEP_CACHE)?;
        let batch = batch(about, &args.options)?;
        let pmem = owner::memory(about, args)?;
        let area = JournalArea::new(args.dev.clone(), args.block_size, args.log.clone());
        let look = Contents {
            pmem: &pmem,
            block_size: args.block_size,
            plan,
            newest,
        };
        let claim = owner::claim(about, args, &area, &pmem, &look)?;
        let (pair, region, is_left) = match claim {
            Claim::New(pair) => {
                let geometry = CacheRegion::plan(&*pmem, args.block_size, plan)?;
                let region = CacheRegion::new(pmem, geometry, &pair.header);
                if args.writable {
                    let tail = Tail::from_word(0);
                    pair.begin(args.has_private_log, tail, Tid(0), || region.prepare())?;
                }
                (pair, region, false)
            }
            Claim::Left(pair) => {
                let geometry = CacheRegion::divided(&*pmem, args.block_size, plan)?;
                let region = CacheRegion::new(pmem, geometry, &pair.header);
                (pair, region, true)
            }
        };
        let cache = Self {
            pair,
            region,
            dev: args.dev.clone(),
            block_size: args.block_size,
            blocks: args.blocks,
            batch,
            evicts_clean_only,
            keeps,
            writable: args.writable,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            rooms: Mutex::default(),
            homing: Mutex::new(()),
            tick: AtomicU64::new(1),
            cached: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            counters: Counters::default(),
        };
        let mut report = RecoveryReport::default();
        if !is_left {
            cache.start();
            return Ok((cache, None, report));
        }
        // All entries are checked before anything is written.
        cache.entries(|_, _| Ok(()))?;
        cache.pair.resume()?;
        let is_kept = cache.pair.is_kept;
        report.was_needed = !is_kept;
        let left = recover(&cache, is_kept)?;
        cache.start_with_adopted()?;
        Ok((cache, Some(left), report))
    }

    /// Calls `each` for every entry of the region that is not free: for recovery.
    pub(crate) fn entries(&self, mut each: impl FnMut(u32, Entry) -> Result<()>) -> Result<()> {
        self.region.entries(|n, entry| {
            if entry.home.0 >= self.blocks {
                BEYOND.reached();
                return Err(Corrupt::NvmCache("an entry names a block beyond the volume").into());
            }
            each(n, entry)
        })
    }

    /// Takes the block of an entry into the cache: for recovery.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: another entry has the same block.
    pub(crate) fn adopt(&self, entry: u32, found: Entry) -> Result<()> {
        if found.state.slot >= self.region.geometry.blocks() {
            BEYOND.reached();
            return Err(Corrupt::NvmCache("an entry names a block beyond the cache").into());
        }
        let mut map = self.shard(found.home).map.write();
        let MapEntry::Vacant(vacant) = map.entry(found.home) else {
            return Err(Corrupt::NvmCache("two entries have the same block").into());
        };
        let EntryState { slot, is_dirty, .. } = found.state;
        vacant.insert(Cached {
            entry,
            slot,
            class: match self.pool_of(slot) {
                Pool::Data => Class::Data,
                // The exact class is not noted.
                Pool::Meta => Class::InodeTable,
            },
            state: if is_dirty { State::Dirty } else { State::Clean },
            version: 0,
            pinned: false,
            used: AtomicU64::new(0),
        });
        self.cached.fetch_add(1, Relaxed);
        self.dirty.fetch_add(usize::from(is_dirty), Relaxed);
        Ok(())
    }

    /// Makes all entries and blocks free that recovery has not adopted. From here on the cache can
    /// be used.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: two entries name the same block of the cache.
    fn start_with_adopted(&self) -> Result<()> {
        let (data, all) = (self.region.geometry.data, self.region.geometry.blocks());
        let mut entries = vec![false; u32_as_usize(all)];
        let mut slots = entries.clone();
        for shard in &self.shards {
            for cached in shard.map.read().values() {
                entries[u32_as_usize(cached.entry)] = true;
                if std::mem::replace(&mut slots[u32_as_usize(cached.slot)], true) {
                    return Err(Corrupt::NvmCache("two entries name the same place").into());
                }
            }
        }
        let free = |used: &[bool], from: u32, to: u32| {
            let free = (from..to).rev().filter(|&n| !used[u32_as_usize(n)]);
            free.collect::<Vec<u32>>()
        };
        let mut rooms = self.rooms.lock();
        rooms.entries = free(&entries, 0, all);
        rooms.slots = [free(&slots, 0, data), free(&slots, data, all)];
        Ok(())
    }

    fn start(&self) {
        let geometry = self.region.geometry;
        let mut rooms = self.rooms.lock();
        rooms.entries = (0..geometry.blocks()).rev().collect();
        rooms.slots = [
            (0..geometry.data).rev().collect(),
            (geometry.data..geometry.blocks()).rev().collect(),
        ];
    }

    /// Returns the terms of a scheme on this cache that does not want to know of changes.
    pub(crate) fn terms(&self) -> Terms {
        // A quarter of all blocks, so that enough of the others can be evicted.
        let most = stetfs_format::nvm_cache::CacheGeometry::MOST_IN_TRANSACTION;
        Terms {
            keeps: self.keeps,
            ..Terms::plain((self.region.geometry.blocks() / 4).min(most))
        }
    }

    fn shard(&self, home: BlockNo) -> &Shard {
        &self.shards[u64_as_usize(home.0) % SHARDS]
    }

    /// Returns the pool to which a block of the cache belongs.
    pub(crate) fn pool_of(&self, slot: u32) -> Pool {
        if slot < self.region.geometry.data {
            Pool::Data
        } else {
            Pool::Meta
        }
    }

    /// Returns the pool for blocks of that class.
    pub(crate) fn pool_for(&self, class: Class) -> Pool {
        if class == Class::Data || self.region.geometry.meta == 0 {
            Pool::Data
        } else {
            Pool::Meta
        }
    }

    fn touch(&self, cached: &Cached) {
        match self.pool_of(cached.slot) {
            Pool::Data => cached.used.store(self.tick.load(Relaxed), Relaxed),
            Pool::Meta => _ = cached.used.fetch_add(1, Relaxed),
        }
    }

    // -- reading --

    /// Reads a block, if it is in the cache.
    pub(crate) fn read(&self, home: BlockNo) -> Result<Held> {
        let mut content = Block::zeroed(self.block_size.bytes());
        Ok(if self.read_part(home, 0, content.bytes_mut())? {
            Held::Here(content.into())
        } else {
            Held::Home
        })
    }

    /// Reads a part of a block; false when it is not in the cache.
    pub(crate) fn read_part(&self, home: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool> {
        let shard = self.shard(home);
        let map = shard.map.read();
        let Some(cached) = map.get(&home).filter(|cached| cached.state != State::Dead) else {
            self.counters.misses.fetch_add(1, Relaxed);
            return Ok(false);
        };
        self.touch(cached);
        shard.hits.fetch_add(1, Relaxed);
        if cached.state == State::Dirty {
            shard.dirty_hits.fetch_add(1, Relaxed);
        }
        // Under the lock, because after it the place may get another block.
        self.region
            .read(cached.slot, offset, out, Tag::read(cached.class))?;
        Ok(true)
    }

    pub(crate) fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        (0..u64::from(count)).any(|i| {
            let home = start.plus(i);
            let map = self.shard(home).map.read();
            map.get(&home).is_some_and(|c| c.state != State::Dead)
        })
    }

    /// Takes in a block that was read from home.
    pub(crate) fn fill(&self, home: BlockNo, class: Class, content: &[u8]) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        let pool = self.pool_for(class);
        let mut reserved = self.reserve(std::slice::from_ref(&pool), 1)?;
        let place = Place {
            entry: reserved.entry(),
            slot: reserved.slot(pool),
        };
        let tag = Tag::new(class, Cause::Read);
        let mut map = self.shard(home).map.write();
        let MapEntry::Vacant(vacant) = map.entry(home) else {
            drop(map);
            self.give_back(&mut self.rooms.lock(), place);
            return Ok(());
        };
        let mut body = Body::in_memory(&*self.region.pmem);
        body.store_nt(self.region.geometry.slot_at(place.slot), content, tag)?;
        self.region.store_home(&mut body, place.entry, home, tag)?;
        let _durable = body.submit()?.fence(Cause::Read)?;
        // It need not be durable, because home has the same content.
        let clean = EntryState::clean(place.slot);
        self.region.store_state(place.entry, Some(clean), tag)?;
        vacant.insert(Cached {
            entry: place.entry,
            slot: place.slot,
            class,
            state: State::Clean,
            version: 0,
            pinned: false,
            used: AtomicU64::new(match pool {
                Pool::Data => self.tick.fetch_add(1, Relaxed),
                Pool::Meta => 1,
            }),
        });
        self.cached.fetch_add(1, Relaxed);
        Ok(())
    }

    // -- a commit --

    /// Pins a block that a commit will change, until [`finish`](Self::finish); `None`: it is not in
    /// the cache.
    pub(crate) fn pin(&self, home: BlockNo) -> Option<Pinned> {
        let mut map = self.shard(home).map.write();
        let cached = map.get_mut(&home)?;
        cached.pinned = true;
        Some(Pinned {
            place: Place {
                entry: cached.entry,
                slot: cached.slot,
            },
            state: cached.state,
        })
    }

    /// Pins a clean block that a transaction will change where it is. `None` if it is not in the
    /// cache, not clean, or pinned already.
    pub(crate) fn take_clean(&self, home: BlockNo) -> Option<Place> {
        let mut map = self.shard(home).map.write();
        let cached = map.get_mut(&home)?;
        if cached.pinned || cached.state != State::Clean {
            return None;
        }
        cached.pinned = true;
        Some(Place {
            entry: cached.entry,
            slot: cached.slot,
        })
    }

    /// True when a block is in the cache, committed, and home has other content.
    pub(crate) fn is_dirty(&self, home: BlockNo) -> bool {
        let map = self.shard(home).map.read();
        map.get(&home).is_some_and(|c| c.state == State::Dirty)
    }

    /// Changes a block where it lies, under the lock that keeps readers away.
    pub(crate) fn change_in_place(
        &self,
        home: BlockNo,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _alone = self.shard(home).map.write();
        change()
    }

    /// Takes a free block and entry for data; `None` if none is free.
    pub(crate) fn reserve_if_free(&self) -> Option<Place> {
        let mut rooms = self.rooms.lock();
        let slot = rooms.slots[Pool::Data.index()].pop()?;
        let Some(entry) = rooms.entries.pop() else {
            rooms.slots[Pool::Data.index()].push(slot);
            return None;
        };
        Some(Place { entry, slot })
    }

    /// Frees a place that nothing names, on the medium either.
    pub(crate) fn release(&self, place: Place) {
        self.give_back(&mut self.rooms.lock(), place);
    }

    /// Drops a block that was changed where it is, if that is still its place: its transaction has
    /// freed it again.
    pub(crate) fn forget(&self, home: BlockNo, place: Place) -> Result<()> {
        {
            let mut map = self.shard(home).map.write();
            let MapEntry::Occupied(cached) = map.entry(home) else {
                return Ok(());
            };
            if cached.get().slot != place.slot {
                return Ok(());
            }
            cached.remove();
            self.cached.fetch_sub(1, Relaxed);
        }
        let tag = Tag::new(Class::Journal, Cause::Log);
        self.region.store_state(place.entry, None, tag)?;
        self.rooms.lock().awaiting_fence.push(place);
        Ok(())
    }

    /// Reserves a block of the cache for each of `pools`, and `entries` entries, and makes room
    /// first if necessary. If a pool cannot give enough, all blocks come from the other one.
    pub(crate) fn reserve(&self, pools: &[Pool], entries: usize) -> Result<Reserved> {
        let meta = pools.iter().filter(|pool| **pool == Pool::Meta).count();
        let mut want = [pools.len() - meta, meta];
        let mut is_settled = false;
        loop {
            {
                let mut rooms = self.rooms.lock();
                let has = |rooms: &Rooms| {
                    rooms.entries.len() >= entries
                        && (0..2).all(|pool| rooms.slots[pool].len() >= want[pool])
                };
                if has(&rooms) {
                    let take = |from: &mut Vec<u32>, n: usize| from.split_off(from.len() - n);
                    return Ok(Reserved {
                        entries: take(&mut rooms.entries, entries),
                        slots: [
                            take(&mut rooms.slots[0], want[0]),
                            take(&mut rooms.slots[1], want[1]),
                        ],
                    });
                }
            }
            if !std::mem::replace(&mut is_settled, true) {
                self.fence_and_free()?;
                continue;
            }
            let pool = self.scarce(&want);
            if !self.evict(pool, want[pool.index()])? {
                let other = 1 - pool.index();
                if want[pool.index()] == 0 || want[other] == pools.len() {
                    return Err(SchemeError::Unusable(
                        "the cache has no room for a transaction".to_owned(),
                    ));
                }
                want = [0, 0];
                want[other] = pools.len();
            }
        }
    }

    fn scarce(&self, want: &[usize; 2]) -> Pool {
        let rooms = self.rooms.lock();
        if rooms.slots[1].len() < want[1] {
            Pool::Meta
        } else {
            Pool::Data
        }
    }

    fn give_back(&self, rooms: &mut Rooms, place: Place) {
        rooms.entries.push(place.entry);
        rooms.slots[self.pool_of(place.slot).index()].push(place.slot);
    }

    fn free_awaiting(&self, rooms: &mut Rooms) {
        for place in std::mem::take(&mut rooms.awaiting_fence) {
            self.give_back(rooms, place);
        }
    }

    fn fence_and_free(&self) -> Result<()> {
        let mut rooms = self.rooms.lock();
        if !rooms.awaiting_fence.is_empty() {
            self.region.fence(Cause::Log)?;
            self.free_awaiting(&mut rooms);
        }
        Ok(())
    }

    /// Frees the places that awaited a fence, after the caller has made one.
    pub(crate) fn after_fence(&self) {
        let mut rooms = self.rooms.lock();
        self.free_awaiting(&mut rooms);
    }

    /// Notes a durable commit. The blocks `freed_slots` of the cache are free now, the places
    /// `awaiting_fence` after the next fence.
    pub(crate) fn finish(
        &self,
        changed: &[Changed],
        freed_slots: &[u32],
        awaiting_fence: &[Place],
        revoked: &[BlockNo],
    ) {
        for block in changed {
            let mut map = self.shard(block.home).map.write();
            let cached = map.entry(block.home).or_insert_with(|| {
                self.cached.fetch_add(1, Relaxed);
                Cached {
                    entry: 0,
                    slot: 0,
                    class: block.class,
                    state: State::Clean,
                    version: 0,
                    pinned: false,
                    used: AtomicU64::new(0),
                }
            });
            if cached.state != State::Dirty {
                self.dirty.fetch_add(1, Relaxed);
            }
            (cached.entry, cached.slot) = (block.place.entry, block.place.slot);
            (cached.class, cached.state) = (block.class, State::Dirty);
            cached.version = cached.version.wrapping_add(1);
            cached.pinned = false;
            self.touch(cached);
        }
        self.tick.fetch_add(1, Relaxed);
        for home in revoked {
            if let Some(cached) = self.shard(*home).map.write().get_mut(home) {
                if cached.state == State::Dirty {
                    self.dirty.fetch_sub(1, Relaxed);
                }
                cached.state = State::Dead;
                cached.used.store(0, Relaxed);
            }
        }
        let mut rooms = self.rooms.lock();
        for &slot in freed_slots {
            rooms.slots[self.pool_of(slot).index()].push(slot);
        }
        rooms.awaiting_fence.extend(awaiting_fence);
    }

    /// Counts blocks that a commit copied because it could not change them where they were.
    pub(crate) fn note_copies(&self, copies: usize) {
        self.counters
            .cow_copies
            .fetch_add(usize_as_u64(copies), Relaxed);
    }

    /// Brings everything home and closes the region; with `keep-cache`, closes it with its content.
    pub(crate) fn close(&self) -> Result<()> {
        if self.keeps {
            return self.pair.close(PairState::Kept);
        }
        self.checkpoint(Goal::All)?;
        self.pair.close(PairState::Shut)
    }

    /// Returns the number of dirty blocks.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let sum = |of: fn(&Shard) -> &AtomicU64| {
            let counts = self.shards.iter().map(|shard| of(shard).load(Relaxed));
            counts.sum()
        };
        CacheStats {
            blocks: u64::from(self.region.geometry.blocks()),
            cached: usize_as_u64(self.cached.load(Relaxed)),
            dirty: usize_as_u64(self.dirty()),
            hits: sum(|shard| &shard.hits),
            dirty_hits: sum(|shard| &shard.dirty_hits),
            misses: self.counters.misses.load(Relaxed),
            evictions: self.counters.evictions.load(Relaxed),
            written_home: self.counters.written_home.load(Relaxed),
            cow_copies: self.counters.cow_copies.load(Relaxed),
            keeps: self.keeps,
        }
    }
}

impl Pinned {
    /// True when home has other content, or may have, as for a freed block.
    pub(crate) fn is_dirty(&self) -> bool {
        self.state != State::Clean
    }
}
