//! Changes of a file that is mapped by extents, made with [`TreeMut::splice`].

use smallvec::smallvec;
use stetfs_format::extent::Extent;
use stetfs_format::width::must_fit;
use stetfs_format::{BlockNo, LBlock};
use stetfs_media::Class;

use super::credits::{STEP_MAX, remove_credits};
use super::damage::Damage;
use super::extent::Path;
use super::node::{joined, len_max, part};
use super::run::{MapState, Removed, Run};
use super::tree::{Pieces, TreeMut};
use crate::error::Result;

impl TreeMut<'_> {
    /// Returns the leaf for `lblk`, and the last extent that begins at or before it, if any.
    fn find(&self, lblk: LBlock) -> Result<(Path, Option<(u16, Extent)>)> {
        let path = self.read().path(lblk)?;
        let leaf = path.leaf();
        let view = leaf
            .view(self.alloc.geo())
            .map_err(self.read().at(leaf.block))?;
        let found = match view.search(lblk) {
            Some(n) => Some((n, view.extent(n).map_err(self.read().at(leaf.block))?)),
            None => None,
        };
        Ok((path, found))
    }

    /// Maps `run`, all of which must be a hole.
    pub(super) fn insert(&mut self, run: Run) -> Result<()> {
        let unwritten = run.state == MapState::Unwritten;
        let overlap = Damage::Overlap {
            ino: self.ino,
            lblk: run.lblk,
        };
        let end = run.lblk.0.checked_add(run.len).ok_or(overlap)?;
        let mut at = run.lblk;
        while at.0 < end {
            let len = (end - at.0).min(len_max(unwritten));
            let pblk = run.pblk.plus((at.0 - run.lblk.0).into());
            let (path, found) = self.find(at)?;
            let pos = found.map_or(0, |(n, _)| n + 1);
            let leaf = path.leaf();
            let view = leaf
                .view(self.alloc.geo())
                .map_err(self.read().at(leaf.block))?;
            let next = if pos < view.entries() {
                view.lblk(pos).0
            } else {
                path.until
            };
            if found.is_some_and(|(_, e)| e.contains(at)) || at.0 + len > next {
                return Err(overlap.into());
            }
            let extent = Extent {
                lblk: at,
                len: must_fit(len),
                pblk,
                unwritten,
            };
            self.charge(len.into())?;
            if let Err(e) = self.splice(path, pos, false, smallvec![extent]) {
                self.charge(-i64::from(len))?;
                return Err(e);
            }
            at = at.plus(len);
        }
        Ok(())
    }

    /// Makes the mapped blocks in `[lblk, lblk + len)` written or unwritten.
    pub(super) fn convert(&mut self, lblk: LBlock, len: u32, unwritten: bool) -> Result<()> {
        let end = lblk.0.saturating_add(len);
        let mut at = lblk;
        while at.0 < end {
            let run = self.read().lookup(at, end - at.0)?;
            let wrong = match run.state {
                MapState::Hole => false,
                state => (state == MapState::Unwritten) != unwritten,
            };
            // The longest unwritten extent is shorter than the longest written one.
            let len = run.len.min(len_max(unwritten));
            if wrong {
                let (path, found) = self.find(at)?;
                let (pos, extent) = found.ok_or(Damage::NotMapped {
                    ino: self.ino,
                    lblk: at,
                })?;
                let changed = Extent {
                    unwritten,
                    ..part(&extent, at.0, at.0 + len)
                };
                self.splice(path, pos, true, around(&extent, changed))?;
            }
            at = at.plus(len);
        }
        Ok(())
    }

    /// Maps `[lblk, lblk + len)`, up to the end of its extent, to written blocks from `new` on
    /// instead. Returns the first old block and the number of blocks.
    pub(super) fn switch(
        &mut self,
        lblk: LBlock,
        len: u32,
        new: BlockNo,
    ) -> Result<(BlockNo, u32)> {
        let not_mapped = Damage::NotMapped {
            ino: self.ino,
            lblk,
        };
        let leaf = self.read().leaf(lblk)?;
        let view = leaf.view(&self.read())?;
        let extent = |n| view.extent(n).map_err(self.read().at(leaf.block));
        let pos = view.search(lblk).ok_or(not_mapped)?;
        let whole = extent(pos)?;
        if !whole.contains(lblk) || len == 0 {
            return Err(not_mapped.into());
        }
        let old = part(&whole, lblk.0, lblk.0.saturating_add(len));
        let changed = Extent {
            pblk: new,
            unwritten: false,
            ..old
        };
        let joins_before = pos > 0 && joined(&extent(pos - 1)?, &changed).is_some();
        let joins_after = pos + 1 < view.entries() && joined(&changed, &extent(pos + 1)?).is_some();
        match leaf.block {
            // Replacing one extent by one other, the most common case, needs no copy of the node.
            Some(block) if old.len == whole.len && !joins_before && !joins_after => {
                let new = view.replacement(pos, changed);
                // A block that is still borrowed would have to be copied before the change.
                drop(leaf);
                self.h.write_parts(block, Class::Mapping, new.parts())?;
            }
            _ => {
                drop(leaf);
                let path = self.read().path(lblk)?;
                self.splice(path, pos, true, around(&whole, changed))?;
            }
        }
        Ok((old.pblk, old.len.into()))
    }

    /// Unmaps and frees `[from, to)`, from its end on, as far as the handle's credits go.
    pub(super) fn remove(&mut self, from: LBlock, to: u32, class: Class) -> Result<Removed> {
        let (mut to, mut blocks) = (to, 0);
        while to > from.0 {
            let (path, found) = self.find(LBlock(to - 1))?;
            let Some((pos, extent)) = found else {
                // All extents of this leaf begin at or after `to`: go on in the leaf before.
                if path.low >= to {
                    break;
                }
                to = path.low;
                continue;
            };
            if extent.end() <= from.0 {
                break;
            }
            let end = extent.end().min(to);
            let start = extent.lblk.0.max(from.0).max(end.saturating_sub(STEP_MAX));
            let depth = self.read().depth()?;
            if !self
                .h
                .has_credits(remove_credits(self.alloc, end - start, depth))
            {
                return Ok(Removed {
                    done: false,
                    blocks,
                });
            }
            let gone = part(&extent, start, end);
            let mut left = Pieces::new();
            if start > extent.lblk.0 {
                left.push(part(&extent, extent.lblk.0, start));
            }
            if end < extent.end() {
                left.push(part(&extent, end, extent.end()));
            }
            self.splice(path, pos, true, left)?;
            self.alloc.free(self.h, gone.pblk, gone.len.into(), class)?;
            self.charge(-i64::from(gone.len))?;
            blocks += u64::from(gone.len);
            to = start;
        }
        self.shrink()?;
        Ok(Removed { done: true, blocks })
    }
}

/// Returns `changed`, which replaces a part of `extent`, with the rest of `extent` before and
/// behind it.
fn around(extent: &Extent, changed: Extent) -> Pieces {
    let mut pieces = Pieces::new();
    if changed.lblk > extent.lblk {
        pieces.push(part(extent, extent.lblk.0, changed.lblk.0));
    }
    let end = changed.end();
    pieces.push(changed);
    if end < extent.end() {
        pieces.push(part(extent, end, extent.end()));
    }
    pieces
}
