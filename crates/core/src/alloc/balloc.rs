//! Finding, taking and freeing blocks.
//!
//! Where a request goes, in this order:
//! 1. the goal itself, when it is free: the file stays contiguous, however short the free run there
//!    is;
//! 2. groups from the goal's on, each from its cursor on (next fit, so that data written together
//!    lies together), for a run that is as long as wanted or at least [`GOOD_RUN`]; a group whose
//!    longest run is known to be too short is passed over;
//! 3. after [`SCANS_MAX`] bitmaps without such a run, the longest run among them;
//! 4. any free block, beginning where the last such search ended.
//!
//! When a growing file finds its next block taken, it continues elsewhere, and the cursor leaves a
//! gap behind it, so that the file and its neighbour do not cut each other up again. Nothing is
//! marked in the gap; it is used when the cursor comes round.

use std::ops::Range;
use std::sync::atomic::Ordering;

use stetfs_format::width::must_fit;
use stetfs_format::{BlockNo, GroupNo, InodeNo};
use stetfs_journal::Handle;
use stetfs_media::Class;

use super::bits::View;
use super::damage::Damage;
use super::group::{GroupState, Which};
use super::pins::Pins;
use super::{Alloc, Source};
use crate::error::{Error, Kind, Result};

/// A run that is long enough for any request, in blocks.
const GOOD_RUN: u32 = 2048;
/// How many bitmaps a search looks through before it takes the best run seen.
const SCANS_MAX: u32 = 8;
/// The gap behind a growing file, in blocks.
const GAP: Range<u32> = 16..512;

/// Where in a group to look.
#[derive(Clone, Copy)]
struct Look {
    /// Look first at this block, however short the free run is there.
    at: Option<u32>,
    /// How far past the taken run the cursor moves, in blocks.
    gap: u32,
}

enum Found {
    /// These blocks are taken.
    Took(BlockNo, u32),
    /// No run is long enough; the longest has this many blocks.
    Best(u32),
    /// No run is long enough; this was known without a search.
    Skipped,
}

impl Alloc {
    /// Takes a run of 1 to `want` blocks for `h`, at `goal` when it is free, else near it.
    /// [`Source::Reserved`] uses up that many blocks of the caller's reservation.
    ///
    /// The blocks' content is undefined. Needs two credits.
    ///
    /// # Errors
    /// `NoSpace`: then drop the handle and ask [`Alloc::retry_after_commit`]. Damage found in a
    /// bitmap.
    pub(crate) fn allocate(
        &self,
        h: &Handle,
        goal: BlockNo,
        want: u32,
        source: Source,
    ) -> Result<(BlockNo, u32)> {
        if matches!(source, Source::Free { .. }) {
            self.untold.tell()?;
        }
        let want = want.clamp(1, self.geo.blocks_per_group());
        let mut granted = self.space.take(want.into(), source);
        if granted == 0 && self.release_pins() > 0 {
            granted = self.space.take(want.into(), source);
        }
        if granted == 0 {
            return Err(Error::NoSpace);
        }
        let found = self.find(h, goal, must_fit(granted), source);
        let used = match &found {
            Ok(Some((_, got))) => u64::from(*got),
            _ => 0,
        };
        if used < granted {
            self.space.untake(granted - used, source);
        }
        found?.ok_or(Error::NoSpace)
    }

    /// Takes one block for metadata of an inode: [`Alloc::allocate`] of one block.
    pub(crate) fn allocate_one(
        &self,
        h: &Handle,
        goal: BlockNo,
        source: Source,
    ) -> Result<BlockNo> {
        Ok(self.allocate(h, goal, 1, source)?.0)
    }

    /// Returns where the first block of inode `ino` should be. With `flex_bg`, directories and the
    /// like begin in the first group of a flex group, files in the second
    /// (`ext4_inode_to_goal_block`).
    pub(crate) fn goal_of_inode(&self, ino: InodeNo, is_file: bool) -> BlockNo {
        let (group, _) = self.geo.group_of_inode(ino);
        let (first, count) = self.geo.flex_group(group);
        let group = match self.geo.groups_per_flex {
            0..4 => group,
            _ => GroupNo(first.0 + u32::from(is_file && count > 1)),
        };
        self.geo.group_first_block(group)
    }

    /// Returns how many blocks, up to `want`, are free from `start` on.
    ///
    /// # Errors
    /// Damage found in a bitmap.
    pub(crate) fn free_from(&self, start: BlockNo, want: u32) -> Result<u32> {
        if !self.geo.is_valid_range(start, 1) {
            return Ok(0);
        }
        let (g, at) = self.geo.group_of_block(start);
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        if state.pins.is_some() {
            self.release_pins_of(g, state, self.journal.committed());
        }
        if at == 0 || self.free_blocks[g.index()].load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        let bitmap = self.block_bitmap(g, state)?;
        let blocks = self.geo.group_blocks(g);
        let view = View::new(&bitmap, blocks, state.overlays());
        Ok(view.next_busy(at..blocks.min(at.saturating_add(want))) - at)
    }

    fn find(
        &self,
        h: &Handle,
        goal: BlockNo,
        want: u32,
        source: Source,
    ) -> Result<Option<(BlockNo, u32)>> {
        let goal = BlockNo(
            goal.0
                .clamp(self.geo.first_data_block().0, self.geo.blocks_count - 1),
        );
        let (near, at) = self.geo.group_of_block(goal);
        let grows = at != 0 && source == Source::Reserved;
        let look = Look {
            at: (at != 0).then_some(at),
            gap: if grows {
                want.clamp(GAP.start, GAP.end)
            } else {
                0
            },
        };
        if let Some(taken) = self.find_long(h, near, look, want, source)? {
            return Ok(Some(taken));
        }
        // Take any free block, whatever the cursors say. Try twice: others take and free meanwhile.
        for _ in 0..2 {
            let far = GroupNo(self.far.load(Ordering::Relaxed));
            for g in self.groups_from(far) {
                if self.free_blocks[g.index()].load(Ordering::Relaxed) > 0
                    && let Found::Took(start, got) =
                        self.take(h, g, Look { at: None, gap: 0 }, (want, 1), source)?
                {
                    self.far.store(g.0, Ordering::Relaxed);
                    return Ok(Some((start, got)));
                }
            }
            self.release_pins();
        }
        Ok(None)
    }

    /// Does steps 1 to 3: the goal itself, a long run, or the longest of a few groups.
    fn find_long(
        &self,
        h: &Handle,
        near: GroupNo,
        look: Look,
        want: u32,
        source: Source,
    ) -> Result<Option<(BlockNo, u32)>> {
        let accept = want.min(GOOD_RUN);
        let (mut scans, mut best) = (0, (0, near));
        let elsewhere = Look { at: None, ..look };
        for g in self.groups_from(near) {
            let look = if g == near { look } else { elsewhere };
            let free = self.free_blocks[g.index()].load(Ordering::Relaxed);
            if look.at.is_none() && free < accept {
                continue;
            }
            match self.take(h, g, look, (want, accept), source)? {
                Found::Took(start, got) => return Ok(Some((start, got))),
                Found::Best(len) => {
                    best = best.max((len, g));
                    scans += 1;
                    if scans == SCANS_MAX {
                        break;
                    }
                }
                Found::Skipped => {}
            }
        }
        if best.0 > 0
            && let Found::Took(start, got) = self.take(h, best.1, elsewhere, (want, 1), source)?
        {
            return Ok(Some((start, got)));
        }
        Ok(None)
    }

    /// Returns all groups, from `first` on and around.
    pub(super) fn groups_from(&self, first: GroupNo) -> impl Iterator<Item = GroupNo> {
        let count = self.geo.groups_count();
        (first.0..count).chain(0..first.0.min(count)).map(GroupNo)
    }

    /// Does [`Alloc::take_from`], and sets the group aside when damage is found in it. Data that is
    /// placed at commit then goes elsewhere, and the next caller that can be told hears of the
    /// damage.
    fn take(
        &self,
        h: &Handle,
        g: GroupNo,
        look: Look,
        (want, accept): (u32, u32),
        source: Source,
    ) -> Result<Found> {
        let taken = self.take_from(h, g, look, want, accept);
        let Err(error) = &taken else {
            return taken;
        };
        if error.kind() != Kind::Corrupted {
            return taken;
        }
        self.set_aside(g);
        if matches!(source, Source::Free { .. }) {
            return taken;
        }
        self.untold.put(error.clone());
        Ok(Found::Skipped)
    }

    /// Stops all allocation in group `g`.
    fn set_aside(&self, g: GroupNo) {
        let mut state = self.group(g).state.lock();
        if !std::mem::replace(&mut state.set_aside, true) {
            let lost = self.free_blocks[g.index()].swap(0, Ordering::Relaxed);
            self.space.set_aside(lost.into());
        }
    }

    /// Takes a run of at least `accept` and at most `want` blocks in group `g`, if it has one.
    fn take_from(
        &self,
        h: &Handle,
        g: GroupNo,
        look: Look,
        want: u32,
        accept: u32,
    ) -> Result<Found> {
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        if state.pins.is_some() {
            self.release_pins_of(g, state, self.journal.committed());
        }
        let free = self.free_blocks[g.index()].load(Ordering::Relaxed);
        if free == 0 || look.at.is_none() && state.longest < accept {
            return Ok(Found::Skipped);
        }
        let bitmap = self.block_bitmap(g, state)?;
        let blocks = self.geo.group_blocks(g);
        let view = View::new(&bitmap, blocks, state.overlays());
        let range = match look.at.filter(|n| !view.is_busy(*n)) {
            Some(n) => n..view.next_busy(n..blocks.min(n.saturating_add(want))),
            None if state.longest < accept => return Ok(Found::Skipped),
            None => {
                let long_enough = |r: &Range<u32>| r.end - r.start >= accept;
                let after = view.find_run(state.cursor..blocks, want).0;
                let range = match after.filter(long_enough) {
                    Some(range) => range,
                    None => match view.find_run(0..blocks, want).0 {
                        Some(range) if long_enough(&range) => range,
                        short => {
                            state.longest = short.map_or(0, |r| r.end - r.start);
                            return Ok(Found::Best(state.longest));
                        }
                    },
                };
                let gap = if free > blocks / 8 { look.gap } else { 0 };
                state.cursor = range.end.saturating_add(gap).min(blocks);
                range
            }
        };
        self.mark_taken(h, g, state, bitmap, range.clone())?;
        let start = self.geo.group_first_block(g).plus(range.start.into());
        Ok(Found::Took(start, range.end - range.start))
    }

    fn mark_taken(
        &self,
        h: &Handle,
        g: GroupNo,
        state: &mut GroupState,
        bitmap: stetfs_media::BlockRef,
        range: Range<u32>,
    ) -> Result<()> {
        let count = range.end - range.start;
        // The bitmap agreed with the descriptor when it was first read. If two groups share a
        // bitmap, it does not stay so.
        let Some(left) = state.desc.free_blocks_count.checked_sub(count) else {
            return Err(self.free_blocks_damage(g, state, &bitmap));
        };
        self.init_block_bitmap(h, g, state)?;
        self.set_bits(h, state, Which::Blocks, bitmap, range, true)?;
        state.desc.free_blocks_count = left;
        self.note_desc(h, g, state)?;
        self.free_blocks[g.index()].fetch_sub(count, Ordering::Relaxed);
        Ok(())
    }

    /// Frees `count` blocks from `start` on, which held `class`. They cannot be taken again until
    /// `h`'s transaction is durable. Metadata, and data that the journal logs, is revoked. Needs
    /// two credits for each group that the run touches.
    ///
    /// # Errors
    /// Damage: the run is not wholly in the volume, holds the volume's own structures, or is free
    /// already. Nothing is freed in the group at fault, nor in those after it.
    pub(crate) fn free(&self, h: &Handle, start: BlockNo, count: u32, class: Class) -> Result<()> {
        if !self.geo.is_valid_range(start, count.into()) {
            return Err(Damage::FreeOutside { start, count }.into());
        }
        if self.zone.overlaps(start, count.into()) {
            return Err(Damage::FreeSystem { start, count }.into());
        }
        let (mut at, mut left) = (start, count);
        while left > 0 {
            let (g, first) = self.geo.group_of_block(at);
            let n = left.min(self.geo.group_blocks(g) - first);
            self.free_in_group(h, g, first..first + n)?;
            at = at.plus(n.into());
            left -= n;
        }
        self.note_freed(h.tid(), start, count);
        if class != Class::Data || self.journal.logs_data() {
            for n in 0..count {
                let block = start.plus(n.into());
                h.revoke(block);
                self.verified.forget(block);
            }
        }
        Ok(())
    }

    fn free_in_group(&self, h: &Handle, g: GroupNo, range: Range<u32>) -> Result<()> {
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        let bitmap = self.block_bitmap(g, state)?;
        if let Some(n) = View::plain(&bitmap, self.geo.group_blocks(g)).next_free(range.clone()) {
            let block = self.geo.group_first_block(g).plus(n.into());
            return Err(Damage::FreeTwice { group: g, block }.into());
        }
        let count = range.end - range.start;
        let left = state.desc.free_blocks_count.saturating_add(count);
        if left > self.geo.group_blocks(g) {
            return Err(self.free_blocks_damage(g, state, &bitmap));
        }
        self.init_block_bitmap(h, g, state)?;
        self.set_bits(h, state, Which::Blocks, bitmap, range.clone(), false)?;
        state.desc.free_blocks_count = left;
        self.note_desc(h, g, state)?;
        let bits = self.geo.group_blocks(g);
        let pins = state.pins.get_or_insert_with(|| Box::new(Pins::new(bits)));
        if pins.pin(h.tid(), range) {
            self.pinned.lock().push_back((h.tid(), g));
        }
        self.space.pin(count.into());
        Ok(())
    }
}
