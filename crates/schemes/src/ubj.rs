//! UBJ: buffer cache and journal are one. A commit freezes blocks of the cache where they are.
//!
//! Source: Lee, Bahn, Noh, "Unioning of the Buffer Cache and Journaling Layers with Non-volatile
//! Memory" (FAST 2013). The abstract and the slides were at hand; the three lists of transactions
//! follow what is generally known of the paper.
//!
//! Home is a block device. The cache in persistent memory replaces journal and buffer cache. A
//! block in it is *clean* (home has the same content) or *frozen* (committed, and home has other
//! content). The running transaction changes blocks in the cache:
//! - a clean block where it is, because home has its old content;
//! - a frozen block, or one that a commit under way is about to freeze, in a copy, because the
//!   frozen one may be the only copy; or, with `cow=range`, in other memory alone until the commit;
//! - a block that is not in the cache, in a free block of the cache. If none is free, it changes in
//!   other memory alone, and the commit makes room: a change never waits for a device.
//!
//! A commit copies none of them. In order of stores:
//! 1. the changed lines are flushed, and the entry of each block says *frozen*, and by which
//!    transaction; fence;
//! 2. the number of the newest transaction: one word, fence. That is the commit.
//!
//! With `cow=range` a frozen block is committed without a copy, if storing its changed bytes twice
//! takes fewer bytes than a copy: step 1 stores the changed bytes in a log, and after step 2 they
//! go where the block lies. The log has two halves, for even and odd transactions. The first fence
//! of the next commit makes these bytes durable, before a later commit overwrites that half.
//!
//! Frozen blocks serve reads and are not evicted.
//!
//! A checkpoint, in order of writes:
//! 1. the newest frozen version of each block home;
//! 2. flush;
//! 3. each block's entry says *clean*, fence.
//!
//! It runs when `frozen=` percent of the cache are frozen, `checkpoint=` seconds after the oldest
//! commit that it takes in, and when a commit finds no clean block to evict. Victims are the least
//! recently used blocks, found a few at a time.
//!
//! Deviations from the paper:
//! - Blocks that the running transaction changes are in other memory as well, where readers find
//!   them, so that NVM is stored to and not read.
//! - Its three lists of transactions are the numbers in the entries (newer than the commit's word:
//!   running; frozen: committed; clean: checkpointed).
//! - A frozen version is free as soon as the transaction with the next version is durable, not only
//!   at the checkpoint, because it would never be written home.
//!
//! Recovery: [`recovery`]; the rows that all caches share ([`cache::LEFT`]), and those of the pair
//! of volume and region ([`owner::LEFT`]).
//!
//! Recovery makes dropped blocks and replayed bytes durable before it empties the log, and the
//! empty log durable before the next commit. A second cut finds the same, or less of it to do.

mod recovery;

use std::time::Instant;

use hashbrown::HashMap;
use smallvec::SmallVec;
use stetfs_format::nvm_cache::{CachePlan, Change, ChangeLog, EntryState, HEAD_OFFSET, RingEnd};
use stetfs_format::width::{must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::Dirty;
use stetfs_media::{Cause, Class, Tag};

use crate::engine::cache::serving::{OnCache, Serving};
use crate::engine::cache::{self, BATCH, Changed, KEEP_CACHE, NvmCache, Place, Pool, State};
use crate::parts::owner;
use crate::parts::period::{CHECKPOINT_INTERVAL, Period};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Backlog, Beside, Goal, Ground, LoggedBlock, OpenArgs, OptionAbout, Origin, Parts,
    Registration, Result, Snapshot, Spot, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("ubj", "", Ground::NvmCache).planted(&[
            Bug::MissingCheckpointFlush,
            Bug::StateBeforeLines,
            Bug::EvictedDirty,
        ]),
        Trial::new("ubj-range", "cow=range", Ground::NvmCache)
            .planted(&[Bug::StateBeforeLines, Bug::EarlySubBlock]),
        Trial::new("ubj-kept", "keep-cache", Ground::NvmCache),
        Trial::setting(
            "ubj-frozen",
            "cow=range,frozen=20,checkpoint=1,batch=1",
            Ground::NvmCache,
        ),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "ubj",
    title: "UBJ: the buffer cache in NVM is the journal; a commit freezes blocks where they are",
    source: "Lee, Bahn, Noh, FAST 2013",
    nvm: Beside::Only(1 << 30),
    caches: true,
    cost: "commit: the changed bytes of clean blocks, frozen and new blocks whole, 2 fences; \
        checkpoint: the frozen blocks",
    recovery: &[recovery::LEFT, cache::LEFT, owner::LEFT],
    options: &[&FROZEN, &COW, &CHECKPOINT_INTERVAL, &BATCH, &KEEP_CACHE],
    ..About::PLAIN
};

static FROZEN: OptionAbout = OptionAbout {
    name: "frozen",
    syntax: "PERCENT",
    default: "50",
    what: "how much of the cache is frozen before a checkpoint (scheme ubj)",
};

static COW: OptionAbout = OptionAbout {
    name: "cow",
    syntax: "block|range",
    default: "block",
    what: "whether changing a frozen block takes a copy of it, or the changed bytes where they are \
        fewer (scheme ubj)",
};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const COMMIT: Tag = Tag::new(Class::Journal, Cause::CommitRecord);

struct Ubj {
    cache: NvmCache,
    /// Blocks of the cache that the running and the committing transaction change, and those that
    /// are no longer wanted.
    changing: Mutex<HashMap<Spot, Changing>>,
    /// `cow=range`: a commit logs the changed bytes of a frozen block if that is less than a copy.
    logs_changes: bool,
    /// Frozen blocks beyond which a checkpoint is due.
    most_frozen: usize,
    period: Period,
    /// The newest durable transaction.
    committed: Mutex<Tid>,
}

/// A block of the cache that a transaction is changing.
struct Changing {
    tid: Tid,
    place: Place,
    /// `Some`: this block of the volume, which is changed where it is.
    in_place_of: Option<BlockNo>,
    /// The place has all of the block, not its earlier content.
    is_filled: bool,
    /// Ranges (offset, length) that were stored through the processor's cache and not flushed.
    unflushed: SmallVec<[(u32, u32); 4]>,
}

/// Writes of at least this many bytes go past the processor's cache.
const MUCH: usize = 512;

/// Bytes that are stored in one piece; changes are logged in such pieces.
const WORD: usize = 8;

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let frozen = args.options.percent(&ABOUT, &FROZEN)?;
    let period = Period::of(&ABOUT, &args.options)?;
    let logs_changes = match args.options.value(&COW) {
        "block" => false,
        "range" => true,
        _ => return Err(args.options.wrong(&ABOUT, &COW)),
    };
    let plan = CachePlan {
        ring: false,
        meta: None,
        changes: true,
    };
    let (cache, left, report) = NvmCache::open(
        &ABOUT,
        &args,
        plan,
        true,
        recovery::newest,
        recovery::recover,
    )?;
    let committed = left.unwrap_or(Tid(0));
    let blocks = u64::from(cache.region.geometry.blocks());
    let terms = Terms {
        wants: Wants {
            base: false,
            changed_bytes: if logs_changes {
                args.block_size.bytes() / 2
            } else {
                0
            },
        },
        is_buffer_cache: true,
        ..cache.terms()
    };
    let ubj = Ubj {
        logs_changes,
        most_frozen: u64_as_usize(blocks * frozen / 100),
        cache,
        changing: Mutex::default(),
        period,
        committed: Mutex::new(committed),
    };
    Ok((Box::new(Serving(ubj)), terms, report))
}

impl OnCache for Ubj {
    fn cache(&self) -> &NvmCache {
        &self.cache
    }

    fn before_write(&self, tid: Tid, home: Option<BlockNo>) -> Option<Spot> {
        if self.logs_changes && home.is_some_and(|home| self.cache.is_dirty(home)) {
            return None;
        }
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
            let (start, bytes) = if std::mem::replace(&mut changing.is_filled, true) {
                (offset, &content[offset..offset + len])
            } else {
                (0, content)
            };
            let is_in_words = start.is_multiple_of(WORD) && bytes.len().is_multiple_of(WORD);
            let is_past = is_in_words && bytes.len() >= MUCH;
            if !is_past {
                changing
                    .unflushed
                    .push((must_fit_u32(start), must_fit_u32(bytes.len())));
            }
            (start, bytes, is_past)
        };
        let at = at + usize_as_u64(start);
        if is_past {
            pmem.store_nt(at, bytes, tag)?
        } else {
            pmem.store(at, bytes, tag)?
        }
        Ok(())
    }

    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()> {
        let (cache, region) = (&self.cache, &self.cache.region);
        let mut committed = self.committed.lock();
        let tid = committed.next();
        let mut log = ChangeLog::new();
        let logged: Vec<Option<Place>> = blocks
            .iter()
            .map(|block| self.log_changes(&mut log, block))
            .collect();
        // The other blocks that were changed in other memory alone need room now.
        let needs_room = |(block, logged): &(&&LoggedBlock, &Option<Place>)| {
            block.spot.is_none() && logged.is_none()
        };
        let homeless = blocks.iter().zip(&logged).filter(needs_room).count();
        let mut reserved = cache.reserve(&vec![Pool::Data; homeless], homeless)?;
        let mut body = Dirty::in_memory(&*region.pmem);
        if !log.is_empty() {
            let at = region.geometry.changes_at(tid);
            body.store_nt(at, log.encode(region.seed, tid), LOG)?;
        }
        let mut changed = Vec::with_capacity(blocks.len());
        let mut superseded = Vec::new();
        for (block, logged) in blocks.iter().zip(&logged) {
            let before = cache.pin(block.home);
            let place = match (block.spot, *logged) {
                (Some(spot), _) => self.complete(&mut body, spot, block)?,
                (None, Some(place)) => place,
                (None, None) => {
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
            // A block whose changes are logged stays frozen by an earlier transaction, even if a
            // late checkpoint has said that it is clean.
            let frozen_by = if logged.is_some() { *committed } else { tid };
            let frozen = EntryState {
                slot: place.slot,
                is_dirty: true,
                high: frozen_by.0,
            };
            let word = region.state_word(place.entry, Some(frozen));
            body.store_u64(region.state_at(place.entry), word, LOG)?;
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
        let is_early = is_planted(Bug::EarlySubBlock);
        if is_early {
            self.change_logged(blocks, &logged)?;
        }
        let body = body.submit()?;
        if is_planted(Bug::StateBeforeLines) {
            region.store_end(HEAD_OFFSET, newest, COMMIT)?;
            let _durable = body.fence(Cause::CommitRecord)?;
        } else {
            let body = body.fence(Cause::Log)?;
            region.commit(body, HEAD_OFFSET, newest)?;
        }
        cache.after_fence();
        if !is_early {
            self.change_logged(blocks, &logged)?;
        }
        // Durable with the next fence. Until then recovery finds two frozen versions and takes the
        // newer one.
        for old in &superseded {
            region.store_state(old.entry, None, LOG)?;
        }
        *committed = tid;
        cache.pair.note_commit(tid);
        cache.note_copies(superseded.len());
        cache.finish(&changed, &[], &superseded, &txn.revoked);
        self.period.note_commit();
        Ok(())
    }

    /// Blocks that were changed and freed again are in no commit, and nobody wants them.
    fn let_go(&self, up_to: Option<Tid>) -> Result<()> {
        let mut left: Vec<Changing> = {
            let mut changing = self.changing.lock();
            let is_over = |_: &Spot, changing: &mut Changing| {
                up_to.is_none_or(|up_to| !changing.tid.is_after(up_to))
            };
            let left = changing.extract_if(is_over);
            left.map(|(_, changing)| changing).collect()
        };
        // Sorted, so that equal runs do the same.
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

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.cache.dirty() > self.most_frozen || self.period.is_over(),
            forced: 0,
        }
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
    /// Logs the changes of a block if they are committed so, and returns its place; `None`: they
    /// are not.
    fn log_changes(&self, log: &mut ChangeLog, block: &LoggedBlock) -> Option<Place> {
        if !self.logs_changes || block.spot.is_some() || block.origin == Origin::Fresh {
            return None;
        }
        let changed = block.ranges.widened(WORD);
        let size: usize = changed.iter().map(|r| ChangeLog::size_of(r.len())).sum();
        let room = u32_as_usize(self.cache.region.geometry.changes);
        if size + changed.bytes() >= block.content.len() || log.size() + size > room {
            return None;
        }
        let before = self.cache.pin(block.home)?;
        if before.state != State::Dirty {
            return None;
        }
        let slot = before.place.slot;
        for range in changed.iter() {
            log.add(Change {
                slot,
                offset: range.start,
                bytes: &block.content[range],
            });
        }
        Some(before.place)
    }

    /// Stores the logged changes where their blocks lie; durable after a fence.
    fn change_logged(&self, blocks: &[&LoggedBlock], logged: &[Option<Place>]) -> Result<()> {
        let region = &self.cache.region;
        for (block, place) in blocks.iter().zip(logged) {
            let Some(place) = place else { continue };
            let (at, tag) = (
                region.geometry.slot_at(place.slot),
                Tag::new(block.class, Cause::Log),
            );
            self.cache.change_in_place(block.home, || {
                for range in block.ranges.widened(WORD).iter() {
                    let at = at + usize_as_u64(range.start);
                    region.pmem.store_nt(at, &block.content[range], tag)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adds all lines of a block that was changed in the cache to `body`, and returns its place.
    fn complete(&self, body: &mut Dirty<'_>, spot: Spot, block: &LoggedBlock) -> Result<Place> {
        let changing = self.changing.lock().remove(&spot);
        let changing = changing.expect("it was given");
        let (at, tag) = (
            self.cache.region.geometry.slot_at(spot.0),
            Tag::new(block.class, Cause::Log),
        );
        if !changing.is_filled {
            // The block joined the transaction, but none of its bytes changed.
            body.store_nt(at, &block.content, tag)?;
        }
        for (start, len) in changing.unflushed {
            body.include(at + u64::from(start), u64::from(len), tag);
        }
        Ok(changing.place)
    }
}
