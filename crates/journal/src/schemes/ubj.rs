//! UBJ: buffer cache and journal are one. A block of the cache is committed by freezing it where it is.
//!
//! Source: Lee, Bahn, Noh, "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory" (FAST 2013), of which the slides are
//! at hand; its inner workings as in DESIGN section 9.
//!
//! Home is a block device; the cache in persistent memory replaces journal and buffer cache. A block in it is *clean* (home has the same) or
//! *frozen* (it is committed, and home has something else). The running transaction changes blocks in the cache:
//! - one that is clean where it is: home has what it was;
//! - one that is frozen, or that a commit under way is about to freeze, in a copy: the frozen one may be all that there is;
//! - one that is not in the cache in a free block. When there is none, it is changed in memory alone, and the commit makes room for it: changing never
//!   waits for a device.
//!
//! A commit copies none of them:
//! 1. the lines that were changed are flushed, and the entry of each block says *frozen*, and by which transaction; fence;
//! 2. the number of the newest transaction: one word, fence. That is the commit.
//!
//! Frozen blocks serve reads and are not evicted. A checkpoint writes the newest frozen version of each block home, flush, and its entry
//! says *clean*. It happens when `frozen=` percent of the cache are frozen, `checkpoint=` seconds after the oldest commit that it takes in,
//! and when a commit finds no clean block to evict. Victims are those least recently used, found a few at a time.
//!
//! Deviations from the paper: what the running transaction changes is in memory as well, where readers find it, so NVM is stored to and not read; its three lists of transactions are the numbers in the entries (newer than the commit's word: running; frozen: committed;
//! clean: checkpointed); a frozen version is free as soon as the transaction with the next one is durable, and not only at the checkpoint,
//! since nothing would ever be written home from it.
//!
//! Recovery:
//!
//! | found | done | why that is right |
//! |---|---|---|
//! | a frozen block of a transaction that the commit's word includes | it counts; of several of one block the newest | its lines were durable before the word |
//! | a frozen block of a later one | it is dropped | nobody was told that it is durable; what it was is at home, or in a frozen block of its own |
//! | a clean block | it is dropped, unless an unmount kept the cache | it may have been about to change; home has what it was |
//!
//! That these are dropped is durable before the next commit; a second cut finds the same, or less of it to drop.

use std::time::Instant;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use stetfs_format::nvm_cache::{CachePlan, Entry, EntryState, HEAD_OFFSET, RingEnd};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::Dirty;
use stetfs_media::{Cause, Class, Tag};

use super::nvm::{Cache, Changed, KEEP_CACHE, OnCache, Place, Pool};
use super::period::{CHECKPOINT_INTERVAL, Period};
use crate::error::Result;
use crate::planted::{Bug, is_planted};
use crate::scheme::{
    About, Goal, LoggedBlock, Mark, OpenArgs, OptionAbout, RecoveryReport, Scheme, Snapshot, Spot,
};

pub(crate) static ABOUT: About = About {
    name: "ubj",
    title: "UBJ: the buffer cache in NVM is the journal, a commit freezes its blocks",
    source: "Lee, Bahn, Noh, UBJ, FAST 2013",
    modes: &[],
    needs_journal_area: true,
    needs_pmem: false,
    needs_remap: false,
    nvm: Some(1 << 30),
    caches: true,
    is_buffer_cache: true,
    mark: Mark::PrivateLog,
    atomic: true,
    wants_base: false,
    relocates: false,
    cost: "changed bytes of clean blocks, n blocks of frozen and new ones, and 2 fences a commit; frozen blocks home at checkpoint",
    options: &[&FROZEN, &CHECKPOINT_INTERVAL, &KEEP_CACHE],
};

static FROZEN: OptionAbout = OptionAbout {
    name: "frozen",
    syntax: "PERCENT",
    default: "50",
    what: "how much of the cache is frozen before a checkpoint (scheme ubj)",
};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const COMMIT: Tag = Tag::new(Class::Journal, Cause::CommitRecord);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

struct Ubj {
    cache: Cache,
    /// What running transactions, and the one that is being committed, change in the cache; also what nobody wants any more.
    changing: Mutex<HashMap<Spot, Changing>>,
    /// Frozen blocks at which a checkpoint is wanted.
    most_frozen: usize,
    period: Period,
    /// The newest transaction that is durable.
    committed: Mutex<Tid>,
}

/// A block of the cache that is being changed.
struct Changing {
    tid: Tid,
    place: Place,
    /// It is changed where it is: of this block of the volume.
    in_place_of: Option<BlockNo>,
    /// It has all of the block, and not only what was there before.
    is_filled: bool,
    /// Stored through the cache and not flushed.
    unflushed: SmallVec<[(u32, u32); 4]>,
}

/// From so many bytes on they are stored past the processor's cache.
const MUCH: usize = 512;

pub(crate) fn open(args: OpenArgs) -> Result<(Box<dyn Scheme>, RecoveryReport)> {
    args.options.check_known(&ABOUT)?;
    let frozen = args.options.percent(&ABOUT, &FROZEN)?;
    let period = Period::of(&ABOUT, &args.options)?;
    let plan = CachePlan {
        ring: false,
        meta: None,
    };
    let (cache, left, report) = Cache::open(&ABOUT, &args, plan, true, recover)?;
    let committed = left.unwrap_or(Tid(0));
    let blocks = u64::from(cache.region.geometry.blocks());
    let ubj = Ubj {
        most_frozen: (blocks * frozen / 100) as usize,
        cache,
        changing: Mutex::default(),
        period,
        committed: Mutex::new(committed),
    };
    Ok((Box::new(ubj), report))
}

impl OnCache for Ubj {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn cache(&self) -> &Cache {
        &self.cache
    }

    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        let clean = home.and_then(|home| self.cache.take_clean(home));
        let place = clean.or_else(|| self.cache.reserve_if_free())?;
        let spot = Spot(place.slot);
        let changing = Changing {
            tid,
            place,
            in_place_of: home.filter(|_| clean.is_some()),
            is_filled: clean.is_some(),
            unflushed: SmallVec::new(),
        };
        self.changing.lock().insert(spot, changing);
        Some(spot)
    }

    fn after_write(
        &self,
        spot: Spot,
        class: Class,
        offset: usize,
        len: usize,
        content: &[u8],
    ) -> Result<()> {
        let (pmem, tag) = (&self.cache.region.pmem, Tag::new(class, Cause::Log));
        let at = self.cache.region.geometry.slot_at(spot.0);
        let (start, bytes, is_past) = {
            let mut changing = self.changing.lock();
            let changing = changing.get_mut(&spot).expect("it was given");
            let (start, bytes) = match std::mem::replace(&mut changing.is_filled, true) {
                true => (offset, &content[offset..offset + len]),
                false => (0, content),
            };
            let is_in_words = start.is_multiple_of(8) && bytes.len().is_multiple_of(8);
            let is_past = is_in_words && bytes.len() >= MUCH;
            if !is_past {
                changing.unflushed.push((start as u32, bytes.len() as u32));
            }
            (start, bytes, is_past)
        };
        let at = at + start as u64;
        match is_past {
            true => pmem.store_nt(at, bytes, tag)?,
            false => pmem.store(at, bytes, tag)?,
        }
        Ok(())
    }

    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()> {
        let (cache, region) = (&self.cache, &self.cache.region);
        let mut committed = self.committed.lock();
        let tid = committed.next();
        // What was changed in memory alone needs room now.
        let homeless = blocks.iter().filter(|block| block.spot.is_none()).count();
        let mut reserved = cache.reserve(&vec![Pool::Data; homeless], homeless)?;
        let mut body = Dirty::in_memory(&*region.pmem);
        let mut changed = Vec::with_capacity(blocks.len());
        let mut superseded = Vec::new();
        for block in blocks {
            let before = cache.pin(block.home);
            let place = match block.spot {
                Some(spot) => self.complete(&mut body, spot, block)?,
                None => {
                    let place = Place {
                        entry: reserved.entry(),
                        slot: reserved.slot(Pool::Data),
                    };
                    let tag = Tag::new(block.class, Cause::Log);
                    let at = region.geometry.slot_at(place.slot);
                    body.store_nt(at, &block.content, tag)?;
                    place
                }
            };
            let is_new = before.is_none_or(|before| before.place.slot != place.slot);
            if is_new {
                region.store_home(&mut body, place.entry, block.home, LOG)?;
                superseded.extend(before.map(|before| before.place));
            }
            let frozen = EntryState {
                slot: place.slot,
                is_dirty: true,
                high: tid.0,
            };
            body.store_u64(region.state_at(place.entry), frozen.to_word(), LOG)?;
            changed.push(Changed {
                home: block.home,
                class: block.class,
                place,
            });
        }
        let newest = RingEnd {
            at: 0,
            sequence: tid,
        };
        let body = body.submit()?;
        if is_planted(Bug::StateBeforeLines) {
            region.store_word(HEAD_OFFSET, newest.to_word(), COMMIT)?;
            let _durable = body.fence(Cause::CommitRecord)?;
        } else {
            let body = body.fence(Cause::Log)?;
            body.store_commit_word(HEAD_OFFSET, newest.to_word(), COMMIT)?;
        }
        cache.after_fence();
        // With the next fence: until then a crash finds two frozen versions and takes the newer one.
        for old in &superseded {
            region.store_state(old.entry, 0, LOG)?;
        }
        *committed = tid;
        cache.note_copies(superseded.len());
        cache.finish(&changed, &[], &superseded, &txn.revoked);
        self.period.note_commit();
        Ok(())
    }

    /// What was changed and is in no transaction, as it was freed again, is wanted by nobody.
    fn let_go(&self, up_to: Option<Tid>) -> Result<()> {
        let mut left: Vec<Changing> = {
            let mut changing = self.changing.lock();
            let is_over = |_: &Spot, changing: &mut Changing| {
                up_to.is_none_or(|up_to| !changing.tid.is_after(up_to))
            };
            let left = changing.extract_if(is_over);
            left.map(|(_, changing)| changing).collect()
        };
        // In the same order each time, for who wants to see the same again.
        left.sort_unstable_by_key(|changing| changing.place.slot);
        for Changing {
            place, in_place_of, ..
        } in left
        {
            match in_place_of {
                Some(home) => self.cache.forget(home, place)?,
                None => self.cache.release(place),
            }
        }
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        self.cache.dirty() > self.most_frozen || self.period.is_over()
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        let since = Instant::now();
        self.cache.checkpoint(goal)?;
        let is_left = self.cache.dirty() > 0;
        self.period.note_checkpoint(is_left.then_some(since));
        Ok(())
    }
}

impl Ubj {
    /// A block that was changed in the cache, all of whose lines become durable with `body`.
    fn complete(&self, body: &mut Dirty<'_>, spot: Spot, block: &LoggedBlock) -> Result<Place> {
        let changing = self.changing.lock().remove(&spot);
        let changing = changing.expect("it was given");
        let (at, tag) = (
            self.cache.region.geometry.slot_at(spot.0),
            Tag::new(block.class, Cause::Log),
        );
        if !changing.is_filled {
            // It became a part of the transaction, and nothing of it changed.
            body.store_nt(at, &block.content, tag)?;
        }
        for (start, len) in changing.unflushed {
            body.include(at + u64::from(start), u64::from(len), tag);
        }
        Ok(changing.place)
    }
}

/// Drops what is not committed; the newest transaction that is.
fn recover(cache: &Cache, is_kept: bool) -> Result<Tid> {
    let region = &cache.region;
    let committed = RingEnd::from_word(region.word(HEAD_OFFSET)?).sequence;
    let mut newest: HashMap<BlockNo, (u32, Entry)> = HashMap::new();
    let mut dropped = Vec::new();
    cache.entries(|n, entry| {
        let tid = Tid(entry.state.high);
        let counts = match entry.state.is_dirty {
            true => !tid.is_after(committed) || is_planted(Bug::UncheckedReplay),
            false => is_kept,
        };
        if !counts {
            dropped.push(n);
            return Ok(());
        }
        let known = newest.entry(entry.home).or_insert((n, entry));
        if known.0 != n {
            let is_newer = !known.1.state.is_dirty
                || entry.state.is_dirty && tid.is_after(Tid(known.1.state.high));
            dropped.push(if is_newer { known.0 } else { n });
            if is_newer {
                *known = (n, entry);
            }
        }
        Ok(())
    })?;
    for n in dropped {
        region.store_state(n, 0, RECOVERY)?;
    }
    region.fence(Cause::Recovery)?;
    for (n, entry) in newest.into_values() {
        cache.adopt(n, entry)?;
    }
    Ok(committed)
}
