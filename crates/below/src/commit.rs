//! Transactions: from what the kernel has journaled, and from what came beside its journal, to the
//! scheme.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{LoggedBlock, Origin, Ranges, Snapshot};

use crate::core::Core;
use crate::error::BelowError;
use crate::map::{Allocated, Map};
use crate::state::Contents;
use crate::stats::count;
use crate::superblock;

impl Core {
    /// Commits every transaction of the kernel's that is complete. One that does not fit its
    /// checksums is not complete yet, unless it `must_fit`: a request may come in several parts.
    ///
    /// # Errors
    /// A journal that cannot be followed; the scheme's or the medium's.
    pub(crate) fn commit_closed(&self, tid: &mut Tid, must_fit: bool) -> Result<(), BelowError> {
        loop {
            let (closed, mut loose) = {
                let mut state = self.state.lock();
                let closed = match state.collector.take() {
                    Err(_) if !must_fit => None,
                    closed => closed?,
                };
                let Some(closed) = closed else {
                    if must_fit {
                        state.collector.check_whole()?;
                    }
                    return Ok(());
                };
                (closed, state.take_loose())
            };
            let live = closed.blocks.iter().map(|(home, _)| home.0).collect();
            count(&self.counters.transactions, 1);
            count(&self.counters.journaled_bytes, closed.journaled);
            let mut blocks = Vec::with_capacity(closed.blocks.len() + loose.len());
            for (home, mut content) in closed.blocks {
                if home.0 == self.superblock {
                    self.take_superblock(content.bytes_mut())?;
                }
                // What the journal has came later.
                loose.remove(&home.0);
                blocks.push((home.0, content.into()));
            }
            for block in &closed.revoked {
                loose.remove(&block.0);
            }
            blocks.extend(loose);
            let revoked = closed.revoked.clone();
            self.commit_blocks(tid, blocks, closed.revoked)?;
            let mut state = self.state.lock();
            for block in &revoked {
                state.live.forget(block.0);
            }
            for block in &live {
                // A home that came during the commit has an older content.
                state.loose.remove(block);
                state.held.remove(block);
            }
            state.live.logged(closed.tid, live);
        }
    }

    /// Makes a transaction of the changes that came beside the journal.
    ///
    /// # Errors
    /// The scheme's or the medium's.
    pub(crate) fn commit_loose(&self, tid: &mut Tid) -> Result<(), BelowError> {
        let loose = self.state.lock().take_loose();
        if loose.is_empty() {
            return Ok(());
        }
        count(&self.counters.loose_transactions, 1);
        self.commit_blocks(tid, loose.into_iter().collect(), Vec::new())
    }

    /// Makes everything durable that was written before this call.
    ///
    /// # Errors
    /// As [`commit_closed`](Self::commit_closed).
    pub(crate) fn make_durable(&self) -> Result<(), BelowError> {
        let mut tid = self.commit.lock();
        self.commit_closed(&mut tid, true)?;
        self.commit_loose(&mut tid)?;
        self.flush_homes()
    }

    /// Commits these blocks and revocations.
    ///
    /// # Errors
    /// The scheme's or the medium's.
    pub(crate) fn commit_blocks(
        &self,
        tid: &mut Tid,
        mut blocks: Vec<(u64, BlockRef)>,
        revoked: Vec<BlockNo>,
    ) -> Result<(), BelowError> {
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let committing: Contents = blocks.iter().cloned().collect();
        let allocated = self.allocated(&blocks)?;
        if self.has_unstable(&blocks, &allocated) && !is_planted(Bug::LateHomes) {
            self.flush_homes()?;
        }
        let now = self.clock.now();
        let mut snapshot = Snapshot {
            tid: *tid,
            meta: Vec::with_capacity(blocks.len()),
            data: Vec::new(),
            revoked: self.revoked(revoked, &allocated, &committing),
            time: (now.sec.max(0).cast_unsigned(), now.nsec),
        };
        let logs_data = self.alone.opened.terms.logs_data;
        for (block, content) in blocks {
            let is_fresh =
                allocated.taken.contains(&block) || self.state.lock().is_undefined(block);
            let Some(logged) = self.logged(block, content, is_fresh)? else {
                count(&self.counters.unchanged_blocks, 1);
                continue;
            };
            if logs_data && logged.class == Class::Data {
                snapshot.data.push(logged);
            } else {
                snapshot.meta.push(logged);
            }
        }
        if snapshot.meta.is_empty() && snapshot.data.is_empty() && snapshot.revoked.is_empty() {
            self.state.lock().committing = Arc::default();
            return Ok(());
        }
        self.state.lock().committing = Arc::new(committing);
        self.alone.opened.scheme.commit(&snapshot)?;
        *tid = tid.next();
        let mut state = self.state.lock();
        for block in snapshot.meta.iter().chain(&snapshot.data) {
            let home = block.home.0;
            state.logged.insert(home);
            state.keep(home, block.content.clone());
            if block.class == Class::GroupDesc {
                state.map.described(block.home, &block.content);
            }
        }
        for block in &snapshot.revoked {
            state.revoked(block.0);
        }
        state.committing = Arc::default();
        let is_grown = state.map.groups() != self.groups.load(Ordering::Relaxed);
        drop(state);
        if is_grown { self.look_again() } else { Ok(()) }
    }

    /// Learns the layout of a volume that has got more groups.
    fn look_again(&self) -> Result<(), BelowError> {
        let block = self.content(self.superblock)?;
        let written = superblock::decode(&block, self.size);
        let sb = written.map_err(|why| BelowError::Overwritten { why: Some(why) })?;
        let read = |block: BlockNo| Some(self.content(block.0).ok()?.to_vec());
        let map = Map::new(&sb, read);
        self.state.lock().map = map;
        Ok(())
    }

    /// What the block bitmaps of a transaction say.
    fn allocated(&self, blocks: &[(u64, BlockRef)]) -> Result<Allocated, BelowError> {
        let mut found = Allocated::default();
        for (block, after) in blocks {
            let home = BlockNo(*block);
            if self.state.lock().map.is_block_bitmap(home) {
                let before = self.before(*block)?;
                self.state
                    .lock()
                    .map
                    .compare(home, &before, after, &mut found);
            }
        }
        Ok(found)
    }

    /// Whether a power cut could change, at home, what a part of these blocks would be applied to.
    fn has_unstable(&self, blocks: &[(u64, BlockRef)], allocated: &Allocated) -> bool {
        let state = self.state.lock();
        blocks.iter().any(|(block, _)| {
            !allocated.taken.contains(block)
                && !state.logged.contains(*block)
                && !state.is_stable(*block)
        })
    }

    /// Those of the revoked and of the freed blocks of which the scheme has something.
    fn revoked(
        &self,
        revoked: Vec<BlockNo>,
        allocated: &Allocated,
        changed: &Contents,
    ) -> Vec<BlockNo> {
        let state = self.state.lock();
        let freed = allocated.freed.iter().map(|block| BlockNo(*block));
        let all: HashSet<_> = revoked.into_iter().chain(freed).collect();
        let known = all
            .into_iter()
            .filter(|block| state.logged.contains(block.0) && !changed.contains_key(&block.0));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        known
    }

    /// A block as the scheme gets it; none if nothing changes.
    fn logged(
        &self,
        block: u64,
        content: BlockRef,
        is_fresh: bool,
    ) -> Result<Option<LoggedBlock>, BelowError> {
        let home = BlockNo(block);
        let wants = &self.alone.opened.terms.wants;
        let class = self.state.lock().map.class(home, &content);
        let mut ranges = Ranges::new();
        let mut base = None;
        if is_fresh {
            ranges.add(0, content.len());
            count(&self.counters.fresh_blocks, 1);
        } else {
            let before = self.before(block)?;
            ranges.add_changes(0, &before, &content);
            if ranges.is_empty() {
                return Ok(None);
            }
            base = wants.base.then_some(before);
        }
        let changed: usize = ranges.iter().map(|range| range.len()).sum();
        count(
            &self.counters.changed_bytes,
            stetfs_format::width::usize_as_u64(changed),
        );
        count(&self.counters.blocks, 1);
        Ok(Some(LoggedBlock {
            home,
            class,
            content,
            base,
            ranges,
            origin: if is_fresh { Origin::Fresh } else { Origin::Old },
            whole: false,
            owner: None,
            spot: None,
        }))
    }

    /// The content of a block before the transaction that is being made, kept for the next one.
    fn before(&self, block: u64) -> Result<BlockRef, BelowError> {
        let content = self.committed(block)?;
        let mut state = self.state.lock();
        // A home may be written while it is read: nobody would forget what was read before.
        if state.logged.contains(block) || is_planted(Bug::RacedRead) {
            state.keep(block, content.clone());
        }
        Ok(content)
    }

    /// Gives a block with the kernel's superblock the face that it has on the medium.
    ///
    /// # Errors
    /// It has no superblock, or another volume's.
    pub(crate) fn take_superblock(&self, content: &mut [u8]) -> Result<(), BelowError> {
        let mark = self.alone.opened.terms.mark;
        let written = superblock::mark(content, self.size, mark)
            .map_err(|why| BelowError::Overwritten { why: Some(why) })?;
        if !superblock::is_same_volume(&written, &self.alone.superblock) {
            return Err(BelowError::Overwritten { why: None });
        }
        let needs_recovery = written
            .feature_incompat
            .contains(stetfs_format::FeatureIncompat::RECOVER);
        self.needs_recovery.store(needs_recovery, Ordering::Relaxed);
        self.groups.store(written.groups_count, Ordering::Relaxed);
        Ok(())
    }
}
