//! Spindle: a cache in persistent memory that keeps data and metadata apart. A commit switches the
//! state of each data block, and changes metadata where it lies, in pieces of an inode's size.
//!
//! Source: Yan, Huang, Huang, "Spindle: A Write-Optimized NVM Cache for Journaling File System"
//! (NPC 2019).
//!
//! Home is a block device. The cache in persistent memory replaces journal and buffer cache: blocks
//! go home only to make room.
//!
//! A commit, in order of stores:
//! 1. the old content of the changed sub-blocks of each metadata block that changed in few places,
//!    into the metadata log;
//! 2. for each other block, data or metadata (section 3.2, steps 1 to 3): the old state of its
//!    entry, or that there is none, into the ring, fence; the new content into a free block of the
//!    cache, which the entry then names; Tail moves on;
//! 3. after a fence, the metadata of step 1, changed where it lies;
//! 4. fence; Head becomes Tail, with the transaction's number: one word, fence. That is the commit.
//!    From then on the blocks before are free.
//!
//! Victims are the least recently used blocks for data and the least often used ones for metadata
//! (section 3.3), found a few at a time.
//!
//! Deviations from the paper:
//! - The paper empties the metadata log after Head has become Tail. A crash between the two would
//!   undo the metadata of a transaction whose data stays. Here Head's word and the log's records
//!   have the transaction's number, so that they are one commit.
//! - An entry behind Tail may be of any earlier transaction. Recovery looks at it, as the paper
//!   says, but it counts only if it has the number.
//! - Metadata gets into the cache at the commit, from the memory in which the running transaction
//!   has it. So there is one fence for all records of the log instead of one for each, and a
//!   sub-block that changes several times is logged and stored once.
//! - A metadata block goes the way of data in three cases: its sub-blocks, stored twice, would take
//!   more lines than the whole block once; the metadata log is full; the block is not in the cache.
//! - A metadata block for which there is no room goes to the data cache, and the other way round.
//! - Freed blocks are not written home.
//!
//! Recovery (section 3.4): [`LEFT`]; the rows that all caches share ([`cache::LEFT`]), and those of
//! the pair of volume and region ([`owner::LEFT`]).
//!
//! Recovery ends with a fence; Tail moves behind the slot that it named, if that slot counted; and
//! Head becomes Tail with that number, so that nothing in ring and log is of a later transaction. A
//! second cut before that finds the same and does the same again.

use hashbrown::HashMap;
use stetfs_format::nvm_cache::{
    CachePlan, Entry, EntryState, HEAD_OFFSET, RING_SLOT_SIZE, RingEnd, RingSlot,
    SUB_BLOCK_HEADER_SIZE, SubBlock, TAIL_OFFSET,
};
use stetfs_format::width::{must_fit_u16, must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::pmem::{Dirty, LINE};
use stetfs_media::{Cause, Class, Tag};

use crate::engine::cache::serving::{OnCache, Serving};
use crate::engine::cache::{
    self, BATCH, CacheRegion, Changed, KEEP_CACHE, NvmCache, Pinned, Place, Pool, State,
};
use crate::parts::owner;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Beside, Ground, LoggedBlock, OpenArgs, OptionAbout, Origin, Parts, Ranges, Registration,
    Result, Snapshot, Trial, recovery_cases,
};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    UNDONE "a block in the ring between Head and Tail, or at Tail with the number of the \
        transaction"
        => "its entry becomes what the ring says that it was",
        "Head was not moved, so nobody was told that the transaction is durable; the block before \
            is not free until then";
    OTHER_SLOT "a slot between Head and Tail that is of another transaction"
        => "error", "it was durable before Tail was moved";
    PART "a record in the metadata log with that number, intact"
        => "the sub-block becomes what it was",
        "it was durable before its sub-block was changed";
    PARTS_END "one that is not"
        => "nothing, and what is behind it is not looked at",
        "it was in flight: no sub-block had been changed";
    COUNTS "any other entry"
        => "it counts", "its transaction is complete, or it was read from home";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("spindle", "", Ground::NvmCache).planted(&[
            Bug::MissingCheckpointFlush,
            Bug::StateBeforeLines,
            Bug::TailBeforeEntries,
            Bug::EarlySubBlock,
            Bug::EvictedDirty,
            Bug::EarlyHead,
            Bug::MissingRingFence,
        ]),
        Trial::new("spindle-kept", "keep-cache", Ground::NvmCache),
        Trial::setting("spindle-meta", "meta=40,batch=1", Ground::NvmCache),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "spindle",
    title: "Spindle: a cache in NVM, data and metadata apart; metadata is logged in parts",
    source: "Yan, Huang, Huang, NPC 2019",
    nvm: Beside::Only(1 << 30),
    caches: true,
    cost: "commit: in NVM data blocks whole, a fence each, parts of metadata twice, 2 fences; \
        eviction: the block home",
    recovery: &[LEFT, cache::LEFT, owner::LEFT],
    options: &[&META, &BATCH, &KEEP_CACHE],
    ..About::PLAIN
};

static META: OptionAbout = OptionAbout {
    name: "meta",
    syntax: "PERCENT",
    default: "12.5",
    what: "how much of the NVM is for metadata, 1 to 50, when the region is begun (scheme spindle)",
};

const ENTRY: Tag = Tag::new(Class::Journal, Cause::Log);
const COMMIT: Tag = Tag::new(Class::Journal, Cause::CommitRecord);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

struct Spindle {
    cache: NvmCache,
    /// Head, which Tail equals while no commit is under way.
    head: Mutex<RingEnd>,
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let percent = args.options.value(&META).parse().ok();
    let percent: f64 = percent
        .filter(|percent| (1.0..=50.0).contains(percent))
        .ok_or_else(|| args.options.wrong(&ABOUT, &META))?;
    let plan = CachePlan {
        ring: true,
        meta: Some((must_fit_u32(args.inode_size), tenths(percent))),
        changes: false,
    };
    let (cache, left, report) = NvmCache::open(&ABOUT, &args, plan, false, newest, recover)?;
    let head = left.unwrap_or(RingEnd::FIRST);
    let head = Mutex::new(head);
    let terms = cache.terms();
    Ok((Box::new(Serving(Spindle { cache, head })), terms, report))
}

/// Returns tenths of a percent, rounded down.
#[expect(clippy::as_conversions, reason = "nothing else rounds towards zero")]
fn tenths(percent: f64) -> u32 {
    (percent * 10.0) as u32
}

/// The way in which a block is committed.
enum How {
    /// These sub-blocks are changed where they lie.
    Parts(Ranges),
    /// The whole block goes to another place.
    Whole,
}

impl OnCache for Spindle {
    fn cache(&self) -> &NvmCache {
        &self.cache
    }

    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()> {
        let (cache, region) = (&self.cache, &self.cache.region);
        let mut head = self.head.lock();
        let sequence = head.sequence.next();
        let pinned: Vec<Option<Pinned>> = blocks.iter().map(|b| cache.pin(b.home)).collect();
        let mut room = u32_as_usize(region.geometry.sub_blocks);
        let how: Vec<How> = blocks
            .iter()
            .zip(&pinned)
            .map(|(block, before)| self.how(block, before.as_ref(), &mut room))
            .collect();
        let is_whole = |how: &How| matches!(how, How::Whole);
        let whole = blocks.iter().zip(&how).filter(|(_, how)| is_whole(how));
        let pools: Vec<Pool> = whole.map(|(b, _)| cache.pool_for(b.class)).collect();
        let new = pinned.iter().filter(|before| before.is_none()).count();
        let mut reserved = cache.reserve(&pools, new)?;

        let mut logged = Dirty::in_memory(&*region.pmem);
        let is_early = is_planted(Bug::EarlySubBlock);
        let mut n = 0;
        for (before, how) in pinned.iter().zip(&how) {
            if let (Some(before), How::Parts(parts), false) = (before, how, is_early) {
                self.log_parts(&mut logged, before.place.slot, parts, sequence, &mut n)?;
            }
        }
        let mut logged = Some(logged);
        let mut body = Dirty::in_memory(&*region.pmem);
        let (mut changed, mut freed) = (Vec::with_capacity(blocks.len()), Vec::new());
        let mut at = head.at;
        for ((block, before), how) in blocks.iter().zip(&pinned).zip(&how) {
            let place = match (how, before) {
                (How::Parts(_), Some(before)) => before.place,
                _ => {
                    let slot = reserved.slot(cache.pool_for(block.class));
                    let entry = before.map_or_else(|| reserved.entry(), |b| b.place.entry);
                    let place = Place { entry, slot };
                    let first = logged.take();
                    let first = first.unwrap_or_else(|| Dirty::in_memory(&*region.pmem));
                    let name = RingEnd { at, sequence };
                    self.write_block(first, &mut body, block, place, *before, name)?;
                    freed.extend(before.map(|before| before.place.slot));
                    at = at.wrapping_add(1);
                    place
                }
            };
            changed.push(Changed {
                home: block.home,
                class: block.class,
                place,
            });
        }
        if let Some(logged) = logged.filter(|_| n > 0) {
            body.rests_on(logged.submit()?.fence(Cause::Log)?);
        }
        let end = RingEnd { at, sequence };
        let is_tail_early = is_planted(Bug::TailBeforeEntries);
        if is_tail_early {
            region.store_end(HEAD_OFFSET, end, COMMIT)?;
            region.fence(Cause::CommitRecord)?;
        }
        for ((block, changed), how) in blocks.iter().zip(&changed).zip(&how) {
            if let How::Parts(_) = how {
                self.change_parts(&mut body, block, changed.place)?;
            }
        }
        let is_late = is_planted(Bug::StateBeforeLines);
        let body = body.submit()?.fence(Cause::Log)?;
        if !is_tail_early {
            region.commit(body, HEAD_OFFSET, end)?;
        }
        if is_late {
            let mut late = Dirty::in_memory(&*region.pmem);
            for ((block, changed), how) in blocks.iter().zip(&changed).zip(&how) {
                if is_whole(how) {
                    self.store_whole(&mut late, block, changed.place.slot)?;
                }
            }
            let _durable = late.submit()?.fence(Cause::Log)?;
        }
        *head = end;
        cache.pair.note_commit(sequence);
        cache.finish(&changed, &freed, &[], &txn.revoked);
        Ok(())
    }
}

impl Spindle {
    /// Chooses the way of a block. The metadata log has `room` for that many more sub-blocks.
    fn how(&self, block: &LoggedBlock, before: Option<&Pinned>, room: &mut usize) -> How {
        let Some(before) = before else {
            return How::Whole;
        };
        let is_meta = self.cache.pool_of(before.place.slot) == Pool::Meta;
        if !is_meta || before.state == State::Dead || block.origin == Origin::Fresh {
            return How::Whole;
        }
        let size = u32_as_usize(self.cache.region.geometry.sub_block);
        let parts = block.ranges.widened(size);
        let n = parts.bytes() / size;
        // In lines. Parts: each sub-block twice, the headers in the log, the entry. Whole: the
        // block, the ring, the entry and Tail.
        let lines = u64_as_usize(LINE);
        let in_place =
            2 * n * size / lines + n.div_ceil(lines / u64_as_usize(SUB_BLOCK_HEADER_SIZE)) + 1;
        if in_place > block.content.len() / lines + 3 || n > *room {
            return How::Whole;
        }
        *room -= n;
        How::Parts(parts)
    }

    /// Stores the old content of parts of a block in the metadata log.
    fn log_parts(
        &self,
        body: &mut Dirty<'_>,
        slot: u32,
        parts: &Ranges,
        sequence: Tid,
        n: &mut u32,
    ) -> Result<()> {
        let region = &self.cache.region;
        let size = u32_as_usize(region.geometry.sub_block);
        let mut old = vec![0; size];
        for index in parts
            .iter()
            .flat_map(|part| part.step_by(size))
            .map(|at| at / size)
        {
            region.read(slot, index * size, &mut old, ENTRY)?;
            let header = SubBlock {
                slot,
                index: must_fit_u16(index),
                sequence,
            };
            let header = header.encode(region.seed, &old);
            body.store(region.geometry.sub_block_header_at(*n), &header, ENTRY)?;
            body.store_nt(region.geometry.sub_block_at(*n), &old, ENTRY)?;
            *n += 1;
        }
        Ok(())
    }

    /// Does steps 1 to 3 of section 3.2 for one block, which gets this place in the ring. `first`
    /// has the stores that must be durable with the ring's slot before `body` changes the entry.
    fn write_block(
        &self,
        mut first: Dirty<'_>,
        body: &mut Dirty<'_>,
        block: &LoggedBlock,
        place: Place,
        before: Option<Pinned>,
        RingEnd { at, sequence }: RingEnd,
    ) -> Result<()> {
        let region = &self.cache.region;
        if before.is_none() {
            region.store_home(&mut first, place.entry, block.home, ENTRY)?;
        }
        let slot = RingSlot {
            home: block.home,
            before: before.map(|before| EntryState {
                slot: before.place.slot,
                is_dirty: before.is_dirty(),
                high: 0,
            }),
        };
        let ring_at = region.geometry.ring_at(at);
        first.store_nt(ring_at, &slot.encode(sequence, region.seed), ENTRY)?;
        let first = first.submit()?;
        if !is_planted(Bug::MissingRingFence) {
            body.rests_on(first.fence(Cause::Log)?);
        }
        if !is_planted(Bug::StateBeforeLines) {
            self.store_whole(body, block, place.slot)?;
        }
        let state = EntryState {
            slot: place.slot,
            is_dirty: true,
            high: 0,
        };
        region.store_state_in(body, place.entry, state, ENTRY)?;
        region.store_end_in(body, TAIL_OFFSET, tail(at.wrapping_add(1)), ENTRY)
    }

    fn store_whole(&self, body: &mut Dirty<'_>, block: &LoggedBlock, slot: u32) -> Result<()> {
        let region = &self.cache.region;
        let at = region.geometry.slot_at(slot);
        let tag = Tag::new(block.class, Cause::Log);
        Ok(body.store_nt(at, &block.content, tag)?)
    }

    /// Changes parts of a block where it lies.
    fn change_parts(&self, body: &mut Dirty<'_>, block: &LoggedBlock, place: Place) -> Result<()> {
        let region = &self.cache.region;
        let at = region.geometry.slot_at(place.slot);
        let tag = Tag::new(block.class, Cause::Log);
        for range in block.ranges.iter() {
            body.store(at + usize_as_u64(range.start), &block.content[range], tag)?;
        }
        let state = EntryState {
            slot: place.slot,
            is_dirty: true,
            high: 0,
        };
        let word = region.state_word(place.entry, Some(state));
        Ok(body.store_u64(region.state_at(place.entry), word, ENTRY)?)
    }
}

/// Returns the value of Tail, which names no transaction.
fn tail(at: u16) -> RingEnd {
    RingEnd {
        at,
        ..RingEnd::FIRST
    }
}

/// Returns the newest transaction in a region.
fn newest(region: &CacheRegion) -> Result<Tid> {
    Ok(region.end(HEAD_OFFSET)?.sequence)
}

/// Sets back the changes of an incomplete transaction. Returns where the ring goes on.
fn recover(cache: &NvmCache, _is_kept: bool) -> Result<RingEnd> {
    let region = &cache.region;
    let (head, newest) = (region.end(HEAD_OFFSET)?, region.end(TAIL_OFFSET)?);
    let sequence = head.sequence.next();
    let (undone, at) = read_ring(cache, head.at, newest.at, sequence)?;
    let end = RingEnd { at, sequence };
    let finish = || {
        region.store_end(TAIL_OFFSET, tail(at), RECOVERY)?;
        region.fence(Cause::Recovery)?;
        region.store_end(HEAD_OFFSET, end, RECOVERY)?;
        region.fence(Cause::Recovery)
    };
    let is_early = is_planted(Bug::EarlyHead);
    if is_early {
        finish()?;
    }
    cache.entries(|n, entry| {
        let Some(before) = undone.get(&entry.home) else {
            COUNTS.reached();
            return cache.adopt(n, entry);
        };
        UNDONE.reached();
        region.store_state(n, *before, RECOVERY)?;
        match *before {
            Some(state) => cache.adopt(n, Entry { state, ..entry }),
            None => Ok(()),
        }
    })?;
    undo_parts(cache, sequence)?;
    region.fence(Cause::Recovery)?;
    if !is_early {
        finish()?;
    }
    Ok(end)
}

/// The blocks of an incomplete transaction, each with the state that its entry had before.
type Undone = HashMap<BlockNo, Option<EntryState>>;

/// Reads the blocks between Head and Tail, and the one at Tail if it is of the transaction. Also
/// returns where the ring goes on.
fn read_ring(cache: &NvmCache, head: u16, tail: u16, sequence: Tid) -> Result<(Undone, u16)> {
    let geometry = cache.region.geometry;
    let count = tail.wrapping_sub(head);
    if u32::from(count) > geometry.ring {
        return Err(Corrupt::NvmCache("the ring's ends are further apart than it is long").into());
    }
    let mut found = HashMap::new();
    for i in 0..=count {
        let mut raw = [0; u64_as_usize(RING_SLOT_SIZE)];
        let ring_at = geometry.ring_at(head.wrapping_add(i));
        cache.region.pmem.load(ring_at, &mut raw, RECOVERY)?;
        match RingSlot::decode(&raw, sequence, cache.region.seed)? {
            Some(slot) => _ = found.insert(slot.home, slot.before),
            None if i == count => return Ok((found, tail)),
            None => {
                OTHER_SLOT.reached();
                let why = "a slot of the ring is of another transaction";
                return Err(Corrupt::NvmCache(why).into());
            }
        }
    }
    Ok((found, tail.wrapping_add(1)))
}

/// Gives sub-blocks of metadata their old content back.
fn undo_parts(cache: &NvmCache, sequence: Tid) -> Result<()> {
    let region = &cache.region;
    let geometry = region.geometry;
    let (mut header, mut old) = (
        [0; u64_as_usize(SUB_BLOCK_HEADER_SIZE)],
        vec![0; u32_as_usize(geometry.sub_block)],
    );
    for n in 0..geometry.sub_blocks {
        let at = geometry.sub_block_header_at(n);
        region.pmem.load(at, &mut header, RECOVERY)?;
        let at = geometry.sub_block_at(n);
        region.pmem.load(at, &mut old, RECOVERY)?;
        let found = SubBlock::decode(&header, region.seed, &old);
        let Some(found) = found.filter(|found| found.sequence == sequence) else {
            PARTS_END.reached();
            break;
        };
        let offset = u32::from(found.index) * geometry.sub_block;
        if found.slot >= geometry.blocks() || offset >= geometry.block_size {
            return Err(Corrupt::NvmCache("the metadata log names a part of no block").into());
        }
        PART.reached();
        let at = geometry.slot_at(found.slot) + u64::from(offset);
        region.pmem.store_nt(at, &old, RECOVERY)?;
    }
    Ok(())
}
