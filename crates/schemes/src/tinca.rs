//! Tinca: a transactional cache in persistent memory. A block gets from the log to the cache by a
//! change of its role.
//!
//! Source: Wei and others, SC 2017, as described by the paper on Spindle (Yan, Huang, Huang, NPC
//! 2019), which was measured against it. The paper itself was not at hand: its entries of 16 bytes,
//! its ring and its `cmpxchg16b` follow what is generally known of it.
//!
//! Home is a block device. The cache in persistent memory replaces journal and buffer cache: it has
//! every block that was read or committed, and blocks go home only to make room.
//!
//! A commit, in order of stores, for each block, data and metadata alike, whole:
//! 1. the new content into a free block of the cache, fence;
//! 2. the entry names that block and the one before it, with the role *log*: one word, fence;
//! 3. the block's number into the ring, and Head behind it, fence.
//!
//! Then the role of each turns from *log* to *buffer*, fence; and Tail becomes Head: one word,
//! fence. That is the commit. From then on the blocks before are free.
//!
//! Victims are the least recently used blocks, found a few at a time.
//!
//! Deviations from the paper:
//! - One word of 8 bytes changes an entry, not 16 bytes: `cmpxchg16b` is atomic for other
//!   processors, but a power cut can tear anything longer than a word. Both places and the role
//!   are in this word. The block's number is in the entry's other word, which is durable before.
//! - A slot of the ring names its transaction, so that Head and slot need one fence.
//! - A slot also has the entry's old state, because an entry that recovery has set back looks like
//!   one that never had a block before.
//! - Freed blocks are not written home.
//!
//! Recovery: [`LEFT`]; the rows that all caches share ([`cache::LEFT`]), and those of the pair of
//! volume and region ([`owner::LEFT`]).
//!
//! Recovery ends with a fence, and Tail becomes Head with the transaction's number. From then on
//! the rest in the ring belongs to no transaction. A second cut before that finds the same ring and
//! does the same again.

use hashbrown::HashMap;
use stetfs_format::nvm_cache::{
    CachePlan, Entry, EntryState, HEAD_OFFSET, RING_SLOT_SIZE, RingEnd, RingSlot, TAIL_OFFSET,
};
use stetfs_format::width::u64_as_usize;
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::pmem::{Dirty, Durable};
use stetfs_media::{Cause, Class, Tag};

use crate::engine::cache::serving::{OnCache, Serving};
use crate::engine::cache::{
    self, BATCH, CacheRegion, Changed, KEEP_CACHE, NvmCache, Pinned, Place, Pool,
};
use crate::parts::owner;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Beside, Ground, LoggedBlock, OpenArgs, Parts, Registration, Result, Snapshot, Trial,
    recovery_cases,
};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    UNDONE "a block in the ring, between Tail and Head"
        => "its entry becomes what the ring says that it was",
        "Tail was not moved, so nobody was told that the transaction is durable; the block before \
            is not free until then";
    ROLE_LEFT "the role *log* in an entry that is not in the ring"
        => "it names the block before, as one that home has not; or it is free",
        "the power went between steps 2 and 3";
    COUNTS "any other entry"
        => "it counts", "its transaction is complete, or it was read from home";
    NEWEST_SLOT "a slot in the ring of another transaction, the last one before Head"
        => "nothing; the entry's role tells",
        "Head is stored with it, and the power went before their fence";
    OTHER_SLOT "another one"
        => "error", "it was durable before Head moved on";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("tinca", "", Ground::NvmCache).planted(&[
            Bug::MissingCheckpointFlush,
            Bug::StateBeforeLines,
            Bug::TailBeforeEntries,
            Bug::EvictedDirty,
            Bug::EarlyHead,
            Bug::EarlyRoom,
            Bug::CurrentSlot,
            Bug::MiscountedSlot,
        ]),
        Trial::new("tinca-kept", "keep-cache", Ground::NvmCache),
        Trial::setting("tinca-batch", "batch=1", Ground::NvmCache),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "tinca",
    title: "Tinca: a cache in NVM; a commit switches the roles of its blocks",
    source: "Wei and others, SC 2017, as Yan, Huang, Huang, NPC 2019 tell it",
    nvm: Beside::Only(1 << 30),
    caches: true,
    cost: "commit of n blocks: n blocks in NVM, 3 fences each and 2 more; eviction: the block home",
    recovery: &[LEFT, cache::LEFT, owner::LEFT],
    options: &[&BATCH, &KEEP_CACHE],
    ..About::PLAIN
};

/// The role *log*, in the upper half of an entry's state word. The other bits of that half are the
/// block before this one, plus 1; 0: there is none.
const LOG: u32 = 1 << 31;

const ENTRY: Tag = Tag::new(Class::Journal, Cause::Log);
const COMMIT: Tag = Tag::new(Class::Journal, Cause::CommitRecord);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

struct Tinca {
    cache: NvmCache,
    /// The place behind the newest block in the ring; without a commit under way, also that behind
    /// the newest transaction.
    head: Mutex<RingEnd>,
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let plan = CachePlan {
        ring: true,
        meta: None,
        changes: false,
    };
    let (cache, left, report) = NvmCache::open(&ABOUT, &args, plan, false, newest, recover)?;
    let head = left.unwrap_or(RingEnd::FIRST);
    let head = Mutex::new(head);
    let terms = cache.terms();
    Ok((Box::new(Serving(Tinca { cache, head })), terms, report))
}

impl OnCache for Tinca {
    fn cache(&self) -> &NvmCache {
        &self.cache
    }

    fn commit(&self, txn: &Snapshot, blocks: &[&LoggedBlock]) -> Result<()> {
        let (cache, region) = (&self.cache, &self.cache.region);
        let mut head = self.head.lock();
        let sequence = head.sequence.next();
        let pinned: Vec<Option<Pinned>> = blocks.iter().map(|b| cache.pin(b.home)).collect();
        let new = pinned.iter().filter(|pinned| pinned.is_none()).count();
        let mut reserved = cache.reserve(&vec![Pool::Data; blocks.len()], new)?;
        let mut changed = Vec::with_capacity(blocks.len());
        let mut freed = Vec::new();
        let mut at = head.at;
        let mut roles = Dirty::in_memory(&*region.pmem);
        for (block, before) in blocks.iter().zip(&pinned) {
            let slot = reserved.slot(Pool::Data);
            let entry = before.map_or_else(|| reserved.entry(), |before| before.place.entry);
            let place = Place { entry, slot };
            roles.rests_on(self.write_block(block, place, *before, at, sequence)?);
            at = at.wrapping_add(1);
            freed.extend(before.map(|before| before.place.slot));
            changed.push(Changed {
                home: block.home,
                class: block.class,
                place,
            });
        }
        let end = RingEnd { at, sequence };
        if is_planted(Bug::TailBeforeEntries) {
            region.store_end(TAIL_OFFSET, end, COMMIT)?;
            region.fence(Cause::CommitRecord)?;
        }
        for (block, before) in changed.iter().zip(&pinned) {
            let state = state(block.place.slot, *before);
            region.store_state_in(&mut roles, block.place.entry, state, ENTRY)?;
        }
        let roles = roles.submit()?.fence(Cause::Log)?;
        region.commit(roles, TAIL_OFFSET, end)?;
        if is_planted(Bug::StateBeforeLines) {
            for (block, changed) in blocks.iter().zip(&changed) {
                let at = region.geometry.slot_at(changed.place.slot);
                region.pmem.store_nt(at, &block.content, ENTRY)?;
            }
        }
        *head = end;
        cache.pair.note_commit(sequence);
        cache.finish(&changed, &freed, &[], &txn.revoked);
        Ok(())
    }
}

impl Tinca {
    /// Does steps 1 to 3 of a commit for one block.
    fn write_block(
        &self,
        block: &LoggedBlock,
        place: Place,
        before: Option<Pinned>,
        at: u16,
        sequence: Tid,
    ) -> Result<Durable<'_>> {
        let region = &self.cache.region;
        let mut body = Dirty::in_memory(&*region.pmem);
        if before.is_none() {
            region.store_home(&mut body, place.entry, block.home, ENTRY)?;
        }
        if !is_planted(Bug::StateBeforeLines) {
            let at = region.geometry.slot_at(place.slot);
            body.store_nt(at, &block.content, Tag::new(block.class, Cause::Log))?;
        }
        let mut role = Dirty::in_memory(&*region.pmem);
        role.rests_on(body.submit()?.fence(Cause::Log)?);
        let mut state = state(place.slot, before);
        state.high |= LOG;
        region.store_state_in(&mut role, place.entry, state, ENTRY)?;
        let mut listed = Dirty::in_memory(&*region.pmem);
        listed.rests_on(role.submit()?.fence(Cause::Log)?);
        let slot = RingSlot {
            home: block.home,
            before: before.map(|before| EntryState {
                slot: before.place.slot,
                is_dirty: before.is_dirty(),
                high: 0,
            }),
        };
        let ring_at = region.geometry.ring_at(at);
        let slot = slot.encode(sequence, region.seed);
        listed.store_nt(ring_at, &slot, ENTRY)?;
        let head = RingEnd {
            at: at.wrapping_add(1),
            sequence,
        };
        region.store_end_in(&mut listed, HEAD_OFFSET, head, ENTRY)?;
        Ok(listed.submit()?.fence(Cause::Log)?)
    }
}

/// Returns the state of an entry in the role *buffer*: the new block, and the one before.
fn state(slot: u32, before: Option<Pinned>) -> EntryState {
    EntryState {
        slot,
        is_dirty: true,
        high: before.map_or(0, |before| before.place.slot + 1),
    }
}

/// Returns the newest transaction in a region.
fn newest(region: &CacheRegion) -> Result<Tid> {
    Ok(region.end(TAIL_OFFSET)?.sequence)
}

/// Sets back the entries that an incomplete transaction has changed. Returns where the ring goes
/// on.
fn recover(cache: &NvmCache, _is_kept: bool) -> Result<RingEnd> {
    let region = &cache.region;
    let tail = region.end(TAIL_OFFSET)?;
    let head = region.end(HEAD_OFFSET)?;
    let sequence = tail.sequence.next();
    // A Head with the number of the newest complete transaction is at that transaction's end.
    let end = RingEnd {
        at: if head.sequence == sequence {
            head.at
        } else {
            tail.at
        },
        sequence,
    };
    let undone = read_ring(cache, tail.at, end.at, sequence)?;
    if is_planted(Bug::EarlyHead) {
        region.store_end(TAIL_OFFSET, end, RECOVERY)?;
        region.fence(Cause::Recovery)?;
    }
    cache.entries(|n, mut entry| {
        let is_log = entry.state.high & LOG != 0;
        let before = match undone.get(&entry.home) {
            Some(before) => {
                UNDONE.reached();
                *before
            }
            None if is_log => {
                ROLE_LEFT.reached();
                (entry.state.high & !LOG)
                    .checked_sub(1)
                    .map(|slot| EntryState {
                        slot,
                        is_dirty: true,
                        high: 0,
                    })
            }
            None => {
                COUNTS.reached();
                entry.state.high = 0;
                return cache.adopt(n, entry);
            }
        };
        region.store_state(n, before, RECOVERY)?;
        match before {
            Some(state) => cache.adopt(n, Entry { state, ..entry }),
            None => Ok(()),
        }
    })?;
    region.fence(Cause::Recovery)?;
    region.store_end(TAIL_OFFSET, end, RECOVERY)?;
    region.fence(Cause::Recovery)?;
    Ok(end)
}

/// Reads the blocks in a part of the ring, each with the state that its entry had before.
fn read_ring(
    cache: &NvmCache,
    from: u16,
    to: u16,
    sequence: Tid,
) -> Result<HashMap<BlockNo, Option<EntryState>>> {
    let geometry = cache.region.geometry;
    if u32::from(to.wrapping_sub(from)) > geometry.ring {
        return Err(Corrupt::NvmCache("the ring's ends are further apart than it is long").into());
    }
    let mut found = HashMap::new();
    let mut at = from;
    while at != to {
        let mut raw = [0; u64_as_usize(RING_SLOT_SIZE)];
        let pmem = &cache.region.pmem;
        pmem.load(geometry.ring_at(at), &mut raw, RECOVERY)?;
        at = at.wrapping_add(1);
        match RingSlot::decode(&raw, sequence, cache.region.seed)? {
            Some(slot) => _ = found.insert(slot.home, slot.before),
            None if at == to => NEWEST_SLOT.reached(),
            None => {
                OTHER_SLOT.reached();
                let why = "a slot of the ring is of another transaction";
                return Err(Corrupt::NvmCache(why).into());
            }
        }
    }
    Ok(found)
}
