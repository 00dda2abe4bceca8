//! A file's data blocks in memory, by logical block.
//!
//! A dirty block is named by (inode, logical block) until its transaction commits. Only the commit
//! places it, so a block that is truncated or deleted before costs nothing. Where commits do not
//! need its data, a new block is delayed and joins no transaction before it is enlisted
//! (`delayed.rs`). Clean blocks are a cache.
//!
//! The file system holds the inode's lock around everything here that adds or drops blocks. A
//! commit runs without that lock, but only reads blocks, notes homes and marks blocks clean.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use smallvec::SmallVec;
use stetfs_format::width::{must_fit_u32, u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, InodeNo, LBlock, Tid};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};

use crate::delayed::Delayed;
use crate::error::Result;
use crate::page::{Change, Origin, Page};
use stetfs_scheme::{DirtyBlock, Opened, Placement};
use stetfs_sync::{Mutex, MutexGuard};

/// Whether the block of a write of file data has a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The block has no home yet; a commit will place it.
    Unplaced {
        /// This write created the block: the caller must keep one free block reserved for it.
        newly: bool,
    },
    /// The block has a home.
    Placed,
}

/// A dirty data block that the committing transaction must place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceReq {
    /// The block of the file.
    pub lblk: LBlock,
    /// `Some`: its present home. The scheme asks for another one, which the file system may decline
    /// when space is short. `None`: it lies in a hole or an unwritten extent, and a block is
    /// reserved for it.
    pub home: Option<BlockNo>,
}

/// The part of a file's data that is not durable.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pending {
    /// The file has delayed blocks.
    pub has_delayed: bool,
    /// The newest transaction that has enlisted or dropped delayed blocks.
    pub enlisted: Option<Tid>,
    /// The newest transaction that has blocks of the file and is not durable; `None`: there is
    /// none.
    pub newest: Option<Tid>,
}

/// The cached data blocks of one file.
pub struct FileData {
    ino: InodeNo,
    shared: Arc<Shared>,
    inner: Mutex<Inner>,
    /// Held while blocks are written home outside of a transaction (`overwrite.rs`).
    home_writes: Mutex<()>,
}

/// Counters of all files together.
#[derive(Default)]
pub(crate) struct Shared {
    /// Cached blocks.
    pub(crate) cached: AtomicI64,
    pub(crate) delayed: Delayed,
}

#[derive(Default)]
struct Inner {
    pages: BTreeMap<u32, Page>,
    /// The blocks of the file that the running transaction has, if it has any.
    running: Option<Running>,
    /// The newest transaction whose commit is under way with blocks of the file.
    committing: Option<Tid>,
    /// The delayed blocks.
    delayed: BTreeSet<u32>,
    /// The file's entry in the list of files with delayed blocks, while it has some.
    entry: Option<u64>,
    /// The newest transaction that has enlisted or dropped delayed blocks.
    enlisted: Option<Tid>,
    /// Blocks without a home.
    unplaced: u32,
    /// Where the search for blocks to drop goes on.
    hand: u32,
}

/// The blocks of a file that a transaction has.
struct Running {
    tid: Tid,
    /// Blocks that joined it; some may have been discarded since.
    lblks: Vec<u32>,
    /// The end of the blocks that it has enlisted. No block before that is delayed.
    joined_end: u32,
}

/// Delayed data that joins a transaction, for the handle's accounts.
pub(crate) struct Enlisted {
    pub(crate) blocks: u32,
    pub(crate) runs: u32,
}

/// The part of a block that a write changes.
pub(crate) struct Part<'a> {
    pub(crate) lblk: LBlock,
    /// In bytes.
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
    /// The block changes with its transaction or not at all
    /// ([`LoggedBlock::whole`](stetfs_scheme::LoggedBlock::whole)).
    pub(crate) whole: bool,
}

/// A block that a write makes part of a transaction, for the handle's accounts.
pub(crate) struct Joined {
    /// The block is new in this transaction.
    pub(crate) block: bool,
    /// The block is new among those that the transaction must change as a whole.
    pub(crate) whole: bool,
    /// The block has no home, and neither neighbour is a block of the transaction without one.
    pub(crate) run: bool,
}

/// The effect of a write.
pub(crate) struct Written {
    pub(crate) wrote: Wrote,
    /// The file is new in the transaction.
    pub(crate) file: bool,
}

/// The blocks that a truncation dropped, for the handle's accounts.
#[derive(Default)]
pub(crate) struct Dropped {
    /// Blocks whose content was on no medium.
    pub(crate) dirty: u32,
    /// Blocks without a home.
    pub(crate) unplaced: u32,
    /// Blocks of the transaction.
    pub(crate) joined: u32,
    /// The blocks of the transaction that it had to change as a whole.
    pub(crate) whole: u32,
    /// Runs that the transaction would have placed and has lost as a whole.
    pub(crate) runs: u32,
    /// Runs that the transaction must place in two pieces now.
    pub(crate) splits: u32,
}

/// Overwritten blocks of a file that keep their homes.
#[derive(Default)]
pub(crate) struct Overwritten {
    pub(crate) tid: Tid,
    lblks: SmallVec<[u32; 4]>,
    /// Homes and contents.
    pub(crate) blocks: SmallVec<[(BlockNo, BlockRef); 4]>,
}

impl FileData {
    /// Returns the file's inode number.
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// Returns the newest content of a block, if it is in memory. A reader must ask here before it
    /// looks at the file's mapping: a block leaves memory only after the mapping shows its home.
    pub fn get(&self, lblk: LBlock) -> Option<BlockRef> {
        let mut inner = self.inner.lock();
        let page = inner.pages.get_mut(&lblk.0)?;
        page.referenced = true;
        Some(page.content.clone())
    }

    /// Returns the home of a block, if the block is in memory and has one.
    pub fn home_of(&self, lblk: LBlock) -> Option<BlockNo> {
        let inner = self.inner.lock();
        let page = inner.pages.get(&lblk.0)?;
        page.home
    }

    /// Returns the cached blocks of `[from, from + count)` in order.
    pub fn get_range(&self, from: LBlock, count: u32) -> SmallVec<[(LBlock, BlockRef); 8]> {
        let inner = self.inner.lock();
        if inner.pages.is_empty() {
            return SmallVec::new();
        }
        let end = u64::from(from.0) + u64::from(count);
        inner
            .pages
            .range(from.0..)
            .take_while(|&(&l, _)| u64::from(l) < end)
            .map(|(&l, page)| (LBlock(l), page.content.clone()))
            .collect()
    }

    /// Caches a clean block that was just read from `home`, unless the block is cached already.
    pub fn insert_clean(&self, lblk: LBlock, home: BlockNo, content: BlockRef) {
        let mut inner = self.inner.lock();
        if let Entry::Vacant(slot) = inner.pages.entry(lblk.0) {
            slot.insert(Page::clean(content, Class::Data, home));
            self.shared.cached.fetch_add(1, Relaxed);
        }
    }

    /// Returns the first run of blocks without a home at or after `from` and before `to`: its first
    /// block and length.
    pub fn dirty_in(&self, from: LBlock, to: Option<LBlock>) -> Option<(LBlock, u32)> {
        let inner = self.inner.lock();
        if inner.unplaced == 0 {
            return None;
        }
        let end = to.map_or(u32::MAX, |l| l.0);
        let mut run: Option<(u32, u32)> = None;
        for (&l, page) in inner.pages.range(from.0..).take_while(|&(&l, _)| l < end) {
            match &mut run {
                None if page.is_unplaced() => run = Some((l, 1)),
                Some((start, len)) if page.is_unplaced() && l == *start + *len => *len += 1,
                Some(_) => break,
                None => {}
            }
        }
        run.map(|(start, len)| (LBlock(start), len))
    }

    /// Returns the number of blocks without a home, delayed or in a transaction.
    pub fn unplaced(&self) -> u32 {
        self.inner.lock().unplaced
    }

    /// Returns the first delayed block at or after `from`.
    pub fn first_delayed(&self, from: LBlock) -> Option<LBlock> {
        let inner = self.inner.lock();
        inner.delayed.range(from.0..).next().copied().map(LBlock)
    }

    /// Returns the end of the last delayed block.
    pub(crate) fn delayed_end(&self) -> Option<u32> {
        self.inner.lock().delayed.last().map(|l| l + 1)
    }

    /// Returns the number of runs that the first delayed blocks form: those before `end`, at most
    /// `blocks` of them in at most `runs` runs.
    pub(crate) fn delayed_runs(&self, end: u32, blocks: u32, runs: u32) -> u32 {
        self.inner.lock().first_delayed(end, blocks, runs).1
    }

    /// Makes the first delayed blocks part of transaction `tid`: those before `end`, at most
    /// `blocks` of them in at most `runs` runs. Returns whether the file is new in the transaction.
    ///
    /// An fsync does not hold the inode's lock, so another thread may drop the blocks at once and
    /// give back what `charge` has taken for them: it is called before that can happen.
    pub(crate) fn enlist(
        &self,
        tid: Tid,
        served: &Opened,
        end: u32,
        blocks: u32,
        runs: u32,
        charge: impl FnOnce(Enlisted),
    ) -> Result<bool> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let (blocks, runs) = inner.first_delayed(end, blocks, runs);
        if blocks == 0 {
            return Ok(false);
        }
        charge(Enlisted { blocks, runs });
        let mut joined = std::mem::take(&mut inner.delayed);
        let behind = joined.iter().nth(u32_as_usize(blocks)).copied();
        inner.delayed = behind.map_or_else(BTreeSet::new, |l| joined.split_off(&l));
        self.shared.delayed.sub(blocks);
        inner.end_delayed(&self.shared.delayed);
        let (running, file) = Running::of(&mut inner.running, tid);
        for l in joined {
            running.lblks.push(l);
            running.joined_end = running.joined_end.max(l + 1);
            if let Some(page) = inner.pages.get_mut(&l) {
                page.enlist(tid, served)?;
            }
        }
        inner.enlisted = Some(tid);
        Ok(file)
    }

    pub(crate) fn new(ino: InodeNo, shared: Arc<Shared>) -> Self {
        Self {
            ino,
            shared,
            inner: Mutex::default(),
            home_writes: Mutex::default(),
        }
    }

    /// Drops the blocks of `[from, to)` in transaction `tid`.
    ///
    /// A sync of earlier writes must then commit `tid` too, if it drops delayed blocks: others may
    /// have been enlisted before.
    pub(crate) fn discard(&self, tid: Tid, from: LBlock, to: Option<LBlock>) -> Dropped {
        let _no_home_writes = self.home_writes.lock();
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.pages.is_empty() {
            return Dropped::default();
        }
        let end = to.map_or(u32::MAX, |l| l.0);
        let gone: BTreeMap<u32, Page> = if from.0 == 0 && to.is_none() {
            std::mem::take(&mut inner.pages)
        } else {
            inner
                .pages
                .extract_if(from.0..end.max(from.0), |_, _| true)
                .collect()
        };
        let mut dropped = Dropped::default();
        inner.count_runs(&gone, tid, &mut dropped);
        for page in gone.values() {
            page.dropped();
            let change = page.running(tid);
            dropped.dirty += u32::from(page.tid().is_some());
            dropped.unplaced += u32::from(page.is_unplaced());
            dropped.joined += u32::from(change.is_some());
            dropped.whole += u32::from(change.is_some_and(|change| change.whole));
        }
        let before = inner.delayed.len();
        if from.0 == 0 && to.is_none() {
            inner.delayed.clear();
        } else if before > 0 {
            let range = from.0..end.max(from.0);
            inner.delayed.extract_if(range, |_| true).for_each(drop);
        }
        let delayed = must_fit_u32(before - inner.delayed.len());
        if delayed > 0 {
            inner.enlisted = Some(tid);
        }
        self.shared.delayed.sub(delayed);
        inner.end_delayed(&self.shared.delayed);
        inner.unplaced -= dropped.unplaced;
        self.shared
            .cached
            .fetch_sub(usize_as_u64(gone.len()).cast_signed(), Relaxed);
        dropped.dirty += delayed;
        dropped
    }

    /// Changes bytes of a block in transaction `tid`. With `delays`, a new block that need not be
    /// whole and lies behind all that `tid` has enlisted is delayed instead. `absent` is the page
    /// to add if the block is not in memory; with `None` nothing happens then, and the result is
    /// `None`.
    ///
    /// An fsync that needs no transaction may write the block home at once and give back what
    /// `charge` has taken for it: it is called before that can happen.
    pub(crate) fn write(
        &self,
        tid: Tid,
        delays: bool,
        served: &Opened,
        part: &Part<'_>,
        absent: Option<Page>,
        charge: impl FnOnce(Joined),
    ) -> Result<Option<Written>> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let lblk = part.lblk.0;
        let page = match (inner.pages.entry(lblk), absent) {
            (Entry::Occupied(slot), _) => slot.into_mut(),
            (Entry::Vacant(slot), Some(page)) => {
                self.shared.cached.fetch_add(1, Relaxed);
                slot.insert(page)
            }
            (Entry::Vacant(_), None) => return Ok(None),
        };
        let newly = page.is_hole();
        let running = inner.running.as_ref().filter(|running| running.tid == tid);
        let is_behind = running.is_none_or(|running| lblk >= running.joined_end);
        inner.unplaced += u32::from(newly);
        if delays && !part.whole && page.may_be_delayed() && is_behind {
            page.delay(part.offset, part.bytes);
            if inner.delayed.insert(lblk) {
                let delayed = &self.shared.delayed;
                delayed.add(1);
                inner.entry.get_or_insert_with(|| delayed.begin(self.ino));
            }
            return Ok(Some(Written {
                wrote: Wrote::Unplaced { newly },
                file: false,
            }));
        }
        let block = page.join(tid, served, page.is_unplaced());
        let whole = part.whole && page.must_be_whole();
        page.change(part.offset, part.bytes, served)?;
        let wrote = if page.is_unplaced() {
            Wrote::Unplaced { newly }
        } else {
            Wrote::Placed
        };
        let run = newly && inner.places_beside(lblk, lblk, tid) == 0;
        let (running, file) = Running::of(&mut inner.running, tid);
        if block {
            running.lblks.push(lblk);
        }
        charge(Joined { block, whole, run });
        Ok(Some(Written { wrote, file }))
    }

    /// Collects the blocks of transaction `tid` that the file system must place, ascending.
    pub(crate) fn to_place(&self, tid: Tid, served: &Opened, out: &mut SmallVec<[PlaceReq; 4]>) {
        let mut guard = self.inner.lock();
        let Inner { pages, running, .. } = &mut *guard;
        let Some(running) = running.as_mut().filter(|running| running.tid == tid) else {
            return;
        };
        running.lblks.sort_unstable();
        running.lblks.dedup();
        running.keep_changed(pages);
        let relocates = served.terms.relocates.is_any();
        let pages = &*pages;
        // A block that was placed in this transaction already stays there.
        let may_move = |page: &Page| {
            let origin = page.running(tid).map(|change| change.origin);
            relocates && matches!(origin, Some(Origin::Old | Origin::Unread))
        };
        let follows = |a: &u32, b: &u32| a + 1 == *b && may_move(&pages[a]) == may_move(&pages[b]);
        let runs = running.lblks.chunk_by(follows);
        let with_run = runs.flat_map(|run| run.iter().map(|l| (*l, must_fit_u32(run.len()))));
        for (l, run) in with_run {
            let page = &pages[&l];
            let relocate = match (page.home, page.running(tid)) {
                (Some(home), Some(change)) if may_move(page) => {
                    let block = DirtyBlock {
                        ino: self.ino,
                        run,
                        home,
                        content: &page.content,
                        ranges: &change.ranges,
                    };
                    served.scheme.place(&block) == Placement::Relocate
                }
                _ => false,
            };
            if page.is_unplaced() || relocate {
                out.push(PlaceReq {
                    lblk: LBlock(l),
                    home: page.home.filter(|_| relocate),
                });
            }
        }
    }

    /// Notes the homes that the blocks of [`to_place`](Self::to_place) got.
    pub(crate) fn placed(&self, reqs: &[PlaceReq], homes: &[BlockNo]) {
        let mut inner = self.inner.lock();
        for (req, &home) in reqs.iter().zip(homes) {
            if let Some(page) = inner.pages.get_mut(&req.lblk.0) {
                let was_unplaced = page.is_unplaced();
                page.place(home);
                inner.unplaced -= u32::from(was_unplaced);
            }
        }
    }

    /// Closes transaction `tid` for this file: hands each of its blocks to `each`, with its change.
    pub(crate) fn close(&self, tid: Tid, mut each: impl FnMut(LBlock, &Page, Change)) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(running) = inner.running.take_if(|running| running.tid == tid) else {
            return;
        };
        for l in running.lblks {
            if let Some(page) = inner.pages.get_mut(&l)
                && let Some(change) = page.close(tid)
            {
                each(LBlock(l), page, change);
                inner.committing = Some(tid);
            }
        }
    }

    /// Notes that transaction `tid`, which has these blocks, is durable. A block that is clean now
    /// stays in memory if `keeps` says so of its home.
    pub(crate) fn committed(
        &self,
        tid: Tid,
        blocks: impl Iterator<Item = LBlock>,
        keeps: impl Fn(BlockNo) -> bool,
    ) {
        let mut inner = self.inner.lock();
        for lblk in blocks {
            if let Entry::Occupied(mut slot) = inner.pages.entry(lblk.0) {
                let page = slot.get_mut();
                page.finish(tid);
                if page.is_clean() && page.home.is_some_and(|home| !keeps(home)) {
                    slot.remove().evicted();
                    self.shared.cached.fetch_sub(1, Relaxed);
                }
            }
        }
        if inner.committing == Some(tid) {
            inner.committing = None;
        }
    }

    /// Returns what is left to do before all data written to the file is durable.
    pub fn pending(&self) -> Pending {
        let inner = self.inner.lock();
        let running = inner.running.as_ref();
        let running = running.filter(|running| !running.lblks.is_empty());
        Pending {
            has_delayed: !inner.delayed.is_empty(),
            enlisted: inner.enlisted,
            newest: running.map(|running| running.tid).or(inner.committing),
        }
    }

    /// Keeps everybody from writing blocks of the file home outside of a transaction, while the
    /// guard is held.
    pub(crate) fn no_home_writes(&self) -> MutexGuard<'_, ()> {
        self.home_writes.lock()
    }

    /// Returns the overwritten blocks that keep their homes. `None` if the file has any other block
    /// that is not durable, or if a commit under way has blocks of the file.
    pub(crate) fn overwritten(&self) -> Option<Overwritten> {
        let inner = self.inner.lock();
        if inner.committing.is_some() || !inner.delayed.is_empty() {
            return None;
        }
        let running = inner.running.as_ref()?;
        let mut found = Overwritten {
            tid: running.tid,
            ..Overwritten::default()
        };
        for l in &running.lblks {
            let Some(page) = inner.pages.get(l) else {
                continue;
            };
            let Some(change) = page.running(found.tid) else {
                continue;
            };
            let is_old = matches!(change.origin, Origin::Old | Origin::Unread);
            let home = page.home.filter(|_| is_old && !change.whole)?;
            found.lblks.push(*l);
            found.blocks.push((home, page.content.clone()));
        }
        Some(found)
    }

    /// Notes that these blocks are home and durable. Those that nobody has changed meanwhile become
    /// clean; returns their number.
    pub(crate) fn overwritten_home(&self, written: &Overwritten) -> u32 {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut clean = 0;
        for (l, (_, content)) in written.lblks.iter().zip(&written.blocks) {
            if let Some(page) = inner.pages.get_mut(l)
                && page.tid() == Some(written.tid)
                && (page.content.is_same(content) || is_planted(Bug::ForgottenOverwrite))
            {
                page.overwritten();
                clean += 1;
            }
        }
        if let Some(running) = &mut inner.running {
            running.keep_changed(&inner.pages);
        }
        clean
    }

    /// Drops up to `most` clean blocks that were not used since the last call passed them. Goes
    /// once around the file, from where that call stopped.
    pub(crate) fn evict(&self, most: usize) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let may_go = |_: &u32, page: &mut Page| page.may_go();
        let hand = inner.hand;
        let mut gone = 0;
        for part in [hand..u32::MAX, 0..hand] {
            let dropped = inner.pages.extract_if(part, may_go);
            for (lblk, page) in dropped.take(most - gone) {
                page.evicted();
                inner.hand = lblk + 1;
                gone += 1;
            }
        }
        self.shared
            .cached
            .fetch_sub(usize_as_u64(gone).cast_signed(), Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().pages.is_empty()
    }
}

impl Inner {
    /// Returns the number of first delayed blocks before `end`, and of the runs that they form: at
    /// most `blocks` and `runs`.
    fn first_delayed(&self, end: u32, blocks: u32, runs: u32) -> (u32, u32) {
        let mut taken = (0, 0);
        let mut behind = None;
        for &l in self.delayed.range(..end) {
            let begins = behind != Some(l);
            if taken.0 == blocks || begins && taken.1 == runs {
                break;
            }
            taken = (taken.0 + 1, taken.1 + u32::from(begins));
            behind = Some(l + 1);
        }
        taken
    }

    /// Takes the file off the list of files with delayed blocks, if it has none left.
    fn end_delayed(&mut self, delayed: &Delayed) {
        if self.delayed.is_empty()
            && let Some(entry) = self.entry.take()
        {
            delayed.end(entry);
        }
    }

    /// Counts what dropping these blocks does to the runs that transaction `tid` was to place. Each
    /// had been charged for; the two pieces of a split run are two runs.
    fn count_runs(&self, gone: &BTreeMap<u32, Page>, tid: Tid, dropped: &mut Dropped) {
        let to_place = gone.iter().filter(|(_, page)| page.is_placed_by(tid));
        let to_place: Vec<u32> = to_place.map(|(l, _)| *l).collect();
        for run in to_place.chunk_by(|a, b| a + 1 == *b) {
            match self.places_beside(run[0], run[run.len() - 1], tid) {
                0 => dropped.runs += 1,
                1 => {}
                _ => dropped.splits += 1,
            }
        }
    }

    /// Returns how many of the two blocks beside `[first, last]` transaction `tid` is to place.
    fn places_beside(&self, first: u32, last: u32, tid: Tid) -> u32 {
        if self.unplaced == 0 {
            return 0;
        }
        let is_placed = |l: Option<u32>| {
            l.and_then(|l| self.pages.get(&l))
                .is_some_and(|page| page.is_placed_by(tid))
        };
        let beside = [first.checked_sub(1), last.checked_add(1)].map(is_placed);
        beside.into_iter().map(u32::from).sum()
    }
}

impl Running {
    /// Returns the blocks that transaction `tid` has of the file, and whether it had none before.
    fn of(running: &mut Option<Self>, tid: Tid) -> (&mut Self, bool) {
        let is_new = running.as_ref().is_none_or(|running| running.tid != tid);
        if is_new {
            *running = None;
        }
        let begin = || Self {
            tid,
            lblks: Vec::new(),
            joined_end: 0,
        };
        (running.get_or_insert_with(begin), is_new)
    }

    /// Forgets the blocks that are no longer part of the transaction.
    fn keep_changed(&mut self, pages: &BTreeMap<u32, Page>) {
        let tid = self.tid;
        let is_its = |l: &u32| pages.get(l).is_some_and(|page| page.running(tid).is_some());
        self.lblks.retain(is_its);
    }
}
