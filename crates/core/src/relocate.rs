//! Gives new homes to blocks of data, where a scheme asks for this when it closes a transaction.
//!
//! The scheme's terms say how far this may go ([`Relocates`]). Where relocation is to be sparing, a
//! run goes behind the block before it in the file if there is space, or else before the block
//! behind it. So a block that is overwritten twice comes back to its first home, which is free by
//! then. Otherwise the run goes anywhere if the bound on extents allows it, and stays home if not.
//! Only the map around the run is looked at.

use std::ops::Range;

use smallvec::SmallVec;
use stetfs_format::width::{must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, LBlock};
use stetfs_journal::{Handle, PlaceReq};
use stetfs_media::Class;
use stetfs_scheme::{Extents, Relocates};

use crate::alloc::Source;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::volume::Volume;

/// The source of new homes: nobody has reserved blocks for them.
const FREE: Source = Source::Free { privileged: false };

/// The most extents that may begin in a window after a relocation.
const STARTS_MAX: usize = 2;

/// Blocks of a file that move while their transaction is closed.
pub(crate) struct Relocation<'a> {
    pub(crate) vol: &'a Volume,
    pub(crate) h: &'a Handle,
    pub(crate) inode: &'a Inode,
    pub(crate) st: &'a mut InodeState,
}

/// Whether a run at its new home joins its neighbours.
#[derive(Clone, Copy)]
struct Joins {
    /// The run continues the extent before it.
    before: bool,
    /// The extent behind the run continues it.
    behind: bool,
}

const ALONE: Joins = Joins {
    before: false,
    behind: false,
};

impl Relocation<'_> {
    /// Moves blocks that follow each other in the file, as far as there is space and the terms
    /// allow it. The others stay. Appends the home of each block to `homes`.
    pub(crate) fn relocate(&mut self, blocks: &[PlaceReq], homes: &mut Vec<BlockNo>) -> Result<()> {
        match self.vol.journal.terms().relocates {
            Relocates::No | Relocates::Freely => self.freely(blocks, homes),
            Relocates::Sparingly(bound) => self.sparingly(blocks, bound, homes),
        }
    }

    /// Moves blocks to the free blocks nearest to their old homes.
    fn freely(&mut self, blocks: &[PlaceReq], homes: &mut Vec<BlockNo>) -> Result<()> {
        let mut rest = blocks;
        let mut near = rest.first().and_then(|first| first.home);
        while let (Some(first), Some(goal)) = (rest.first(), near) {
            let Some((new, got)) = self.allocate(goal, must_fit_u32(rest.len()))? else {
                break;
            };
            self.switch(first.lblk, got, new)?;
            homes.extend((0..u64::from(got)).map(|i| new.plus(i)));
            near = Some(new.plus(got.into()));
            rest = &rest[u32_as_usize(got)..];
        }
        homes.extend(rest.iter().filter_map(|block| block.home));
        Ok(())
    }

    fn sparingly(
        &mut self,
        blocks: &[PlaceReq],
        bound: Extents,
        homes: &mut Vec<BlockNo>,
    ) -> Result<()> {
        let mut rest = blocks;
        while let Some(first) = rest.first() {
            let all = first.lblk.0..first.lblk.0 + must_fit_u32(rest.len());
            let Some((run, goal)) = self.plan(all, bound)? else {
                break;
            };
            let Some((new, got)) = self.allocate(goal, run.end - run.start)? else {
                break;
            };
            let part = run.start..run.start + got;
            if part != run && !self.is_granted(&part, self.joins(&part, new)?, bound)? {
                self.vol.alloc.free(self.h, new, got, Class::Data)?;
                break;
            }
            self.switch(LBlock(part.start), got, new)?;
            let (stay, moved) = rest.split_at(u32_as_usize(part.start - first.lblk.0));
            homes.extend(stay.iter().filter_map(|block| block.home));
            homes.extend((0..u64::from(got)).map(|i| new.plus(i)));
            rest = &moved[u32_as_usize(got)..];
        }
        homes.extend(rest.iter().filter_map(|block| block.home));
        Ok(())
    }

    /// Returns the blocks that should move first, and their new home; `None` when all should stay.
    fn plan(&self, all: Range<u32>, bound: Extents) -> Result<Option<(Range<u32>, BlockNo)>> {
        let len = all.end - all.start;
        let before = self.before(all.start)?;
        let mut near = self.at(all.start)?.unwrap_or(BlockNo(0));
        if let Some(before) = before {
            near = before.plus(1);
            let free = self.vol.alloc.free_from(near, len)?;
            let run = all.start..all.start + free;
            if (free == len || free >= bound.mean)
                && self.is_granted(&run, self.joins(&run, near)?, bound)?
            {
                return Ok(Some((run, near)));
            }
        }
        let behind = self.at(all.end)?;
        if let Some(goal) = behind
            .and_then(|home| home.0.checked_sub(len.into()))
            .map(BlockNo)
        {
            let joins = self.joins(&all, goal)?;
            if self.vol.alloc.free_from(goal, len)? == len && self.is_granted(&all, joins, bound)? {
                return Ok(Some((all, goal)));
            }
            if before.is_none() {
                near = goal;
            }
        }
        let mut parts: SmallVec<[Range<u32>; 4]> = SmallVec::from_iter([all.clone()]);
        if len > 1 {
            let (start, end) = (
                self.start_after(all.start, bound)?,
                self.end_before(all.end, bound)?,
            );
            parts.extend([all.start..end, start..all.end, start..end]);
        }
        for part in parts {
            let is_long = part.start < part.end && part.end - part.start >= bound.run;
            if is_long && self.is_granted(&part, ALONE, bound)? {
                return Ok(Some((part, near)));
            }
        }
        Ok(None)
    }

    /// Whether the bound allows the run to become one extent that joins its neighbours like this.
    fn is_granted(&self, run: &Range<u32>, joins: Joins, bound: Extents) -> Result<bool> {
        let (first, last) = (window(run.start, bound), window(run.end, bound));
        let ends = !joins.behind && self.run_at(run.end)?.state != MapState::Hole;
        let (mut had, mut has) = (0, 0);
        for window in [&first, &last]
            .into_iter()
            .take(if first == last { 1 } else { 2 })
        {
            let starts = self.starts(window)?;
            let others = starts
                .iter()
                .filter(|at| **at < run.start || **at > run.end);
            let after = others.count()
                + usize::from(window.contains(&run.start) && !joins.before)
                + usize::from(window.contains(&run.end) && ends);
            if after > starts.len().max(STARTS_MAX) {
                return Ok(false);
            }
            had += starts.len();
            has += after;
        }
        Ok(run.end - run.start >= bound.run || has < had)
    }

    /// The blocks of a window at which an extent begins.
    fn starts(&self, window: &Range<u32>) -> Result<SmallVec<[u32; 8]>> {
        let mut starts = SmallVec::new();
        let mut before = match window.start.checked_sub(1) {
            Some(before) => Some(self.run_at(before)?),
            None => None,
        };
        let mut at = window.start;
        while at < window.end {
            let max = window.end - at;
            let run = mapping::lookup(self.vol, self.inode, self.st, LBlock(at), max)?;
            if run.state != MapState::Hole && !before.is_some_and(|b| continues(&b, &run)) {
                starts.push(at);
            }
            at += run.len;
            before = Some(run);
        }
        Ok(starts)
    }

    /// The first block after `at` at which a run may begin without a new extent in a full window.
    fn start_after(&self, at: u32, bound: Extents) -> Result<u32> {
        let here = window(at, bound);
        if let Some(start) = self.starts(&here)?.into_iter().find(|start| *start > at) {
            return Ok(start);
        }
        let next = window(here.end, bound);
        let starts = self.starts(&next)?;
        let is_full = starts.len() >= STARTS_MAX;
        Ok(if is_full { starts[0] } else { next.start })
    }

    /// The last block before `end` at which a run may end without a new extent in a full window.
    fn end_before(&self, end: u32, bound: Extents) -> Result<u32> {
        let here = window(end, bound);
        if let Some(start) = self.starts(&here)?.into_iter().rfind(|start| *start < end) {
            return Ok(start);
        }
        let Some(last) = here.start.checked_sub(1) else {
            return Ok(0);
        };
        let starts = self.starts(&window(last, bound))?;
        Ok(starts.last().copied().unwrap_or(last))
    }

    /// How the run would join its neighbours if its home began at `new`.
    fn joins(&self, run: &Range<u32>, new: BlockNo) -> Result<Joins> {
        let end = new.plus((run.end - run.start).into());
        Ok(Joins {
            before: self
                .before(run.start)?
                .is_some_and(|home| home.plus(1) == new),
            behind: self.at(run.end)? == Some(end),
        })
    }

    /// The home of the block before `at`, if it has written data.
    fn before(&self, at: u32) -> Result<Option<BlockNo>> {
        at.checked_sub(1).map_or(Ok(None), |before| self.at(before))
    }

    /// The home of block `at`, if it has written data.
    fn at(&self, at: u32) -> Result<Option<BlockNo>> {
        let run = self.run_at(at)?;
        Ok((run.state == MapState::Written).then_some(run.pblk))
    }

    fn run_at(&self, at: u32) -> Result<Run> {
        mapping::lookup(self.vol, self.inode, self.st, LBlock(at), 1)
    }

    /// Allocates up to `want` blocks; `None` when there is no space.
    fn allocate(&self, goal: BlockNo, want: u32) -> Result<Option<(BlockNo, u32)>> {
        match self.vol.alloc.allocate(self.h, goal, want, FREE) {
            Ok(taken) => Ok(Some(taken)),
            Err(Error::NoSpace) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Maps `count` blocks from `lblk` on to homes from `new` on, and frees the old homes.
    fn switch(&mut self, lblk: LBlock, count: u32, new: BlockNo) -> Result<()> {
        let mut done = 0;
        while done < count {
            let (lblk, to) = (lblk.plus(done), new.plus(done.into()));
            let (vol, h) = (self.vol, self.h);
            let (old, n) =
                mapping::switch_run(vol, h, self.inode, self.st, lblk, count - done, to)?;
            vol.alloc.free(h, old, n, Class::Data)?;
            done += n;
        }
        Ok(())
    }
}

/// Whether the run `b` continues the extent of the run `a` before it.
fn continues(a: &Run, b: &Run) -> bool {
    a.state == b.state && a.pblk.plus(a.len.into()) == b.pblk
}

/// The window of a file that contains block `at`.
fn window(at: u32, bound: Extents) -> Range<u32> {
    let len = 2 * bound.mean.max(1);
    let start = at - at % len;
    start..start.saturating_add(len)
}
