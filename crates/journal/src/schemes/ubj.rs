//! UBJ: buffer cache and journal are one. A block of the cache is committed by freezing it where it is.
//!
//! Source: Lee, Bahn, Noh, "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory" (FAST 2013), of which the slides are
//! at hand; its inner workings as in DESIGN section 9.
//!
//! Home is a block device; the cache in persistent memory replaces journal and buffer cache. A block in it is *clean* (home has the same) or
//! *frozen* (it is committed, and home has something else). A commit:
//! 1. a block that is clean is changed where it is: only the changed bytes are stored; home has what it was;
//! 2. a block that is frozen is changed in a copy, and so is one that is not in the cache; the frozen one stays as it is, it may be all there is;
//! 3. the entry of each says *frozen*, and by which transaction; all lines of 1 to 3 are flushed, fence;
//! 4. the number of the newest transaction: one word, fence. That is the commit; no block was copied for it.
//!
//! Frozen blocks serve reads and are not evicted. A checkpoint writes the newest frozen version of each block home, flush, and its entry
//! says *clean*. It happens when `frozen=` percent of the cache are frozen, `checkpoint=` seconds after the oldest commit that it takes in,
//! and when a commit finds no clean block to evict. Victims are those least recently used, found a few at a time.
//!
//! Deviations from the paper: its three lists of transactions are the numbers in the entries (newer than the commit's word: running; frozen: committed;
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
use stetfs_format::nvm_cache::{CachePlan, Entry, EntryState, HEAD_OFFSET, RingEnd};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::Dirty;
use stetfs_media::{Cause, Class, Tag};

use super::nvm::{Cache, Changed, Found, KEEP_CACHE, Pinned, Place, Pool};
use super::period::{CHECKPOINT_INTERVAL, Period};
use crate::error::Result;
use crate::planted::{Bug, is_planted};
use crate::scheme::{
    About, DataPromise, Goal, Held, LoggedBlock, Mark, OpenArgs, OptionAbout, RecoveryReport,
    Scheme, Snapshot,
};
use crate::stats::CacheStats;

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
    /// Frozen blocks at which a checkpoint is wanted.
    most_frozen: usize,
    period: Period,
    /// The newest transaction that is durable.
    committed: Mutex<Tid>,
}

pub(crate) fn open(args: OpenArgs) -> Result<(Box<dyn Scheme>, RecoveryReport)> {
    args.options.check_known(&ABOUT)?;
    let frozen = args.options.percent(&ABOUT, &FROZEN)?;
    let period = Period::of(&ABOUT, &args.options)?;
    let plan = CachePlan {
        ring: false,
        meta: None,
    };
    let (cache, found) = Cache::open(&ABOUT, &args, plan, true)?;
    let mut report = RecoveryReport::default();
    let committed = match found {
        Found::Nothing => Tid(0),
        Found::Left { is_kept } => {
            report.was_needed = !is_kept;
            recover(&cache, is_kept)?
        }
    };
    let blocks = u64::from(cache.region.geometry.blocks());
    let ubj = Ubj {
        most_frozen: (blocks * frozen / 100) as usize,
        cache,
        period,
        committed: Mutex::new(committed),
    };
    Ok((Box::new(ubj), report))
}

impl Scheme for Ubj {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn data_promise(&self) -> DataPromise {
        DataPromise::Atomic
    }

    fn max_transaction(&self) -> u32 {
        self.cache.max_transaction()
    }

    fn logs_data(&self) -> bool {
        true
    }

    fn keeps(&self) -> bool {
        self.cache.keeps()
    }

    fn cache_stats(&self) -> Option<CacheStats> {
        Some(self.cache.stats())
    }

    fn read(&self, block: BlockNo) -> Result<Held> {
        self.cache.read(block)
    }

    fn read_part(&self, block: BlockNo, offset: usize, out: &mut [u8]) -> Result<bool> {
        self.cache.read_part(block, offset, out)
    }

    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) -> Result<()> {
        self.cache.fill(block, class, content)
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.cache.holds_any(start, count)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks: Vec<&LoggedBlock> = txn.data.iter().chain(&txn.meta).collect();
        if blocks.is_empty() {
            self.cache.finish(&[], &[], &[], &txn.revoked);
            return Ok(());
        }
        let (cache, region) = (&self.cache, &self.cache.region);
        let mut committed = self.committed.lock();
        let tid = committed.next();
        let pinned: Vec<Option<Pinned>> = blocks.iter().map(|b| cache.pin(b.home)).collect();
        let is_in_place = |before: &Option<Pinned>| matches!(before, Some(p) if !p.is_dirty());
        let new = pinned.iter().filter(|before| !is_in_place(before)).count();
        let mut reserved = cache.reserve(&vec![Pool::Data; new], new)?;
        let mut body = Dirty::in_memory(&*region.pmem);
        let mut changed = Vec::with_capacity(blocks.len());
        let mut superseded = Vec::new();
        for (block, before) in blocks.iter().zip(&pinned) {
            let place = match before {
                Some(before) if !before.is_dirty() => before.place,
                _ => Place {
                    entry: reserved.entry(),
                    slot: reserved.slot(Pool::Data),
                },
            };
            let is_new = !is_in_place(before);
            if is_new {
                region.store_home(&mut body, place.entry, block.home, LOG)?;
                superseded.extend(before.map(|before| before.place));
            }
            if !is_planted(Bug::StateBeforeLines) {
                self.store_content(&mut body, block, place.slot, is_new)?;
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
        let body = body.submit()?.fence(Cause::Log)?;
        cache.after_fence();
        let newest = RingEnd {
            at: 0,
            sequence: tid,
        };
        body.store_commit_word(HEAD_OFFSET, newest.to_word(), COMMIT)?;
        if is_planted(Bug::StateBeforeLines) {
            let mut late = Dirty::in_memory(&*region.pmem);
            for (block, changed) in blocks.iter().zip(&changed) {
                self.store_content(&mut late, block, changed.place.slot, true)?;
            }
            let _late = late.submit()?.fence(Cause::Log)?;
        }
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

    fn close(&self) -> Result<()> {
        self.cache.close()
    }
}

impl Ubj {
    /// The whole block, or what changed of it.
    fn store_content(
        &self,
        body: &mut Dirty<'_>,
        block: &LoggedBlock,
        slot: u32,
        is_new: bool,
    ) -> Result<()> {
        let at = self.cache.region.geometry.slot_at(slot);
        let tag = Tag::new(block.class, Cause::Log);
        if is_new || block.fresh || block.ranges.bytes() == block.content.len() {
            return Ok(body.store_nt(at, &block.content, tag)?);
        }
        for range in block.ranges.iter() {
            body.store(at + range.start as u64, &block.content[range], tag)?;
        }
        Ok(())
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
    cache.start_with_adopted()?;
    Ok(committed)
}
