//! Files of ext2 and ext3: block pointers in the inode, and one, two and three levels of pointer
//! blocks.
//!
//! A pointer block is trusted after one full check, as an extent node is: every pointer must lead
//! into the volume and outside its own structures. There is no checksum, and no state but
//! "written".
//!
//! Removal goes from the end of the file backwards and frees each block in the step that clears its
//! pointer, so it can stop anywhere.

use std::ops::Range;

use smallvec::SmallVec;
use stetfs_format::indirect::{
    DIRECT, DOUBLE_INDIRECT, INDIRECT, Path, Pointers, TRIPLE_INDIRECT, blocks_below,
    pointers_per_block, set_pointer,
};
use stetfs_format::width::{must_fit, must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, Corrupt, Inode, InodeNo, LBlock, Place};
use stetfs_journal::Handle;
use stetfs_media::{Block, BlockRef, Class};

use super::credits::remove_credits;
use super::damage::Damage;
use super::run::{MapState, Removed, Run, charge};
use crate::alloc::{Alloc, Source};
use crate::error::{Error, Result};

/// The levels of pointers below the inode, for the estimate of credits.
const LEVELS: u16 = 3;

/// What the `format` crate returns for pointers.
type Checked<T> = std::result::Result<T, Corrupt>;

/// The block pointers of a file, for reading.
#[derive(Clone, Copy)]
pub(super) struct BlockMap<'a> {
    pub(super) alloc: &'a Alloc,
    pub(super) ino: InodeNo,
    pub(super) raw: &'a Inode,
}

/// The pointer of a logical block: where it lies, and at which index.
struct Leaf {
    /// The block of pointers; `None` for the direct ones in the inode.
    block: Option<BlockNo>,
    index: u32,
    /// One past the last pointer to data in the same place.
    end: u32,
}

/// How far the way to a block exists.
enum Way {
    /// As far as the pointer itself.
    There(Leaf),
    /// A pointer on the way is missing: this many blocks from the wanted one on are holes.
    Missing(u64),
}

impl<'a> BlockMap<'a> {
    fn at(&self, block: Option<BlockNo>) -> impl Fn(Corrupt) -> Error {
        let ino = self.ino;
        move |what| {
            what.at(block.map_or(Place::Inode(ino), |b| Place::InodeBlock(ino, b)))
                .into()
        }
    }

    /// Checks the pointers in the inode.
    pub(super) fn check_root(&self) -> Result<()> {
        self.check_pointers(&self.raw.block, None)
    }

    fn check_pointers(&self, bytes: &[u8], block: Option<BlockNo>) -> Result<()> {
        let pointers = Pointers::new(bytes, self.alloc.geo());
        for index in 0..pointers.count() {
            if let Some(pblk) = pointers.get(index).map_err(self.at(block))? {
                self.alloc.check_mappable(self.ino, pblk, 1)?;
            }
        }
        Ok(())
    }

    /// Reads a pointer block; checks it the first time.
    fn read_block(&self, block: BlockNo) -> Result<BlockRef> {
        let bytes = self.alloc.journal().read(block, Class::Mapping)?;
        if !self.alloc.verified().is_noted(block) {
            self.alloc.check_mappable(self.ino, block, 1)?;
            self.check_pointers(&bytes, Some(block))?;
            self.alloc.verified().note(block);
        }
        Ok(bytes)
    }

    fn way(&self, path: &Path) -> Result<Way> {
        let geo = self.alloc.geo();
        let (last, above) = path.indexes().split_last().expect("at least one");
        let mut held: BlockRef;
        let (mut bytes, mut block) = (&self.raw.block[..], None);
        for (n, index) in above.iter().enumerate() {
            let Some(next) = Pointers::new(bytes, geo)
                .get(*index)
                .map_err(self.at(block))?
            else {
                // The hole ends where the missing subtree ends.
                let below = &path.indexes()[n + 1..];
                let offset: u64 = (0..)
                    .zip(below.iter().rev())
                    .map(|(l, i)| u64::from(*i) * blocks_below(l, geo))
                    .sum();
                return Ok(Way::Missing(
                    blocks_below(must_fit_u32(below.len()), geo) - offset,
                ));
            };
            held = self.read_block(next)?;
            (bytes, block) = (&held, Some(next));
        }
        let end = if block.is_none() {
            DIRECT
        } else {
            pointers_per_block(geo)
        };
        Ok(Way::There(Leaf {
            block,
            index: *last,
            end,
        }))
    }

    /// Calls `look` with the pointers of a leaf.
    fn pointers<T>(&self, leaf: &Leaf, look: impl FnOnce(Pointers<'_>) -> Checked<T>) -> Result<T> {
        let geo = self.alloc.geo();
        match leaf.block {
            None => look(Pointers::new(
                &self.raw.block[..u32_as_usize(DIRECT) * 4],
                geo,
            )),
            Some(block) => look(Pointers::new(&self.read_block(block)?, geo)),
        }
        .map_err(self.at(leaf.block))
    }

    /// Returns the run at `lblk`, of at most `max` blocks.
    pub(super) fn lookup(&self, lblk: LBlock, max: u32) -> Result<Run> {
        let max = max.max(1);
        let hole = |len: u64| {
            let len = must_fit(u64::from(max).min(len));
            Run {
                lblk,
                len,
                pblk: BlockNo(0),
                state: MapState::Hole,
            }
        };
        let Some(path) = Path::to(lblk, self.alloc.geo()) else {
            return Ok(hole(u64::MAX));
        };
        let leaf = match self.way(&path)? {
            Way::There(leaf) => leaf,
            Way::Missing(len) => return Ok(hole(len)),
        };
        let (found, len) = self.pointers(&leaf, |p| p.run(leaf.index, max))?;
        Ok(match found {
            Some(pblk) => Run {
                lblk,
                len,
                pblk,
                state: MapState::Written,
            },
            None => hole(len.into()),
        })
    }

    /// Returns where a new block at `lblk` should be: behind the nearest mapped block before it
    /// among the same pointers.
    pub(super) fn goal(&self, lblk: LBlock) -> Result<BlockNo> {
        if let Some(before) = lblk.0.checked_sub(1) {
            let run = self.lookup(LBlock(before), 1)?;
            if run.state != MapState::Hole {
                return Ok(run.pblk.plus(1));
            }
        }
        if let Some(path) = Path::to(lblk, self.alloc.geo())
            && let Way::There(leaf) = self.way(&path)?
        {
            let near = self.pointers(&leaf, |p| {
                let mut found = (0..leaf.index).rev().map(|n| (n, p.get(n)));
                let near = found.find(|(_, block)| !matches!(block, Ok(None)));
                near.map(|(n, block)| Ok((n, block?))).transpose()
            })?;
            if let Some((n, Some(pblk))) = near {
                return Ok(pblk.plus((leaf.index - n).into()));
            }
        }
        Ok(self.alloc.goal_of_inode(self.ino, self.raw.is_regular()))
    }
}

/// The block pointers of a file, for changing. The caller stores the inode, whose `block` and
/// `blocks` change.
pub(super) struct BlockMapMut<'a> {
    pub(super) alloc: &'a Alloc,
    pub(super) h: &'a Handle,
    pub(super) ino: InodeNo,
    pub(super) raw: &'a mut Inode,
}

impl BlockMapMut<'_> {
    fn read(&self) -> BlockMap<'_> {
        BlockMap {
            alloc: self.alloc,
            ino: self.ino,
            raw: self.raw,
        }
    }

    fn charge(&mut self, blocks: i64) -> Result<()> {
        charge(self.alloc, self.ino, self.raw, blocks)
    }

    /// Stores pointers from `index` on, in the inode (`block` is `None`) or in a pointer block.
    fn set(
        &mut self,
        block: Option<BlockNo>,
        index: u32,
        pointers: &[Option<BlockNo>],
    ) -> Result<()> {
        let Some(block) = block else {
            for (n, pointer) in (index..).zip(pointers) {
                set_pointer(&mut self.raw.block, n, *pointer);
            }
            return Ok(());
        };
        let mut bytes: SmallVec<[u8; 256]> = smallvec::smallvec![0; pointers.len() * 4];
        for (n, pointer) in (0..).zip(pointers) {
            set_pointer(&mut bytes, n, *pointer);
        }
        self.h
            .write(block, Class::Mapping, u32_as_usize(index) * 4, &bytes)?;
        Ok(())
    }

    /// Stores pointers to a run of blocks.
    fn set_run(
        &mut self,
        block: Option<BlockNo>,
        index: u32,
        first: BlockNo,
        len: u32,
    ) -> Result<()> {
        let pointers: SmallVec<[_; 64]> =
            (0..u64::from(len)).map(|n| Some(first.plus(n))).collect();
        self.set(block, index, &pointers)
    }

    fn check_width(&self, last: BlockNo) -> Result<()> {
        if last.0 > u64::from(u32::MAX) {
            return Err(Damage::PointerWidth {
                ino: self.ino,
                block: last,
            }
            .into());
        }
        Ok(())
    }

    /// Returns where the pointer of `lblk` lies; creates the pointer blocks that are missing on the
    /// way.
    fn make_way(&mut self, lblk: LBlock) -> Result<Leaf> {
        let geo = *self.alloc.geo();
        let path = Path::to(lblk, &geo).ok_or(Error::TooBig)?;
        let (last, above) = path.indexes().split_last().expect("at least one");
        let mut block = None;
        for index in above {
            let next = match block {
                None => Pointers::new(&self.raw.block, &geo).get(*index),
                Some(b) => Pointers::new(&self.read().read_block(b)?, &geo).get(*index),
            };
            block = Some(match next.map_err(self.read().at(block))? {
                Some(next) => next,
                None => self.make_block(block, *index)?,
            });
        }
        let end = if block.is_none() {
            DIRECT
        } else {
            pointers_per_block(&geo)
        };
        Ok(Leaf {
            block,
            index: *last,
            end,
        })
    }

    fn make_block(&mut self, parent: Option<BlockNo>, index: u32) -> Result<BlockNo> {
        let goal = self.alloc.goal_of_inode(self.ino, false);
        let new = self.alloc.allocate_one(self.h, goal, Source::Pool)?;
        if let Err(e) = self.check_width(new) {
            self.alloc.free(self.h, new, 1, Class::Mapping)?;
            return Err(e);
        }
        let zeros = Block::zeroed(self.alloc.geo().block_size());
        self.h.create(new, Class::Mapping, zeros.bytes())?;
        self.alloc.verified().note(new);
        self.charge(1)?;
        self.set(parent, index, &[Some(new)])?;
        Ok(new)
    }

    /// Maps `run`, all of which must be a hole.
    pub(super) fn insert(&mut self, run: Run) -> Result<()> {
        if run.state != MapState::Written {
            return Err(Error::NotSupported);
        }
        self.check_width(run.pblk.plus(u64::from(run.len) - 1))?;
        let mut done = 0;
        while done < run.len {
            match self.insert_some(
                run.lblk.plus(done),
                run.pblk.plus(done.into()),
                run.len - done,
            ) {
                Ok(n) => done += n,
                Err(e) => {
                    self.unmap(run.lblk, done)?;
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Maps the first blocks of a run, as many as have their pointers in one place; returns their
    /// number.
    fn insert_some(&mut self, lblk: LBlock, pblk: BlockNo, most: u32) -> Result<u32> {
        let leaf = self.make_way(lblk)?;
        let len = most.min(leaf.end - leaf.index);
        let (mapped, free) = self.read().pointers(&leaf, |p| p.run(leaf.index, len))?;
        if mapped.is_some() || free < len {
            return Err(Damage::Overlap {
                ino: self.ino,
                lblk,
            }
            .into());
        }
        self.charge(len.into())?;
        self.set_run(leaf.block, leaf.index, pblk, len)?;
        Ok(len)
    }

    /// Takes back what [`BlockMapMut::insert`] mapped. Pointer blocks that it created stay, empty.
    fn unmap(&mut self, lblk: LBlock, len: u32) -> Result<()> {
        let mut done = 0;
        while done < len {
            let leaf = self.make_way(lblk.plus(done))?;
            let n = (len - done).min(leaf.end - leaf.index);
            let holes: SmallVec<[_; 64]> = (0..n).map(|_| None).collect();
            self.set(leaf.block, leaf.index, &holes)?;
            self.charge(-i64::from(n))?;
            done += n;
        }
        Ok(())
    }

    /// Maps `[lblk, lblk + len)`, up to the end of its run, to blocks from `new` on instead.
    /// Returns the first old block and the number of blocks.
    pub(super) fn switch(
        &mut self,
        lblk: LBlock,
        len: u32,
        new: BlockNo,
    ) -> Result<(BlockNo, u32)> {
        self.check_width(new.plus(u64::from(len)))?;
        let not_mapped = Damage::NotMapped {
            ino: self.ino,
            lblk,
        };
        let run = self.read().lookup(lblk, len)?;
        if run.state == MapState::Hole || len == 0 {
            return Err(not_mapped.into());
        }
        let len = run.len.min(len);
        // The run has its pointers in one place, because `lookup` does not look further.
        let leaf = self.make_way(lblk)?;
        self.set_run(leaf.block, leaf.index, new, len)?;
        Ok((run.pblk, len))
    }

    /// Unmaps and frees `[from, to)`, from its end on, as far as the handle's credits go.
    pub(super) fn remove(&mut self, from: LBlock, to: u32, class: Class) -> Result<Removed> {
        let geo = *self.alloc.geo();
        let mut removal = Removal {
            from: from.0.into(),
            to: to.into(),
            class,
            blocks: 0,
        };
        let direct = u64::from(DIRECT);
        let single = direct + blocks_below(1, &geo);
        let double = single + blocks_below(2, &geo);
        for (index, level, start) in [
            (TRIPLE_INDIRECT, 3, double),
            (DOUBLE_INDIRECT, 2, single),
            (INDIRECT, 1, direct),
        ] {
            if !self.remove_child(&mut removal, None, index, level, start)? {
                return Ok(Removed {
                    done: false,
                    blocks: removal.blocks,
                });
            }
        }
        let indexes = removal.indexes(0, direct, 1);
        let done = self.remove_data(&mut removal, None, indexes)?;
        Ok(Removed {
            done,
            blocks: removal.blocks,
        })
    }

    /// Removes the blocks below the pointer at `index` of `parent`. The pointer leads to a pointer
    /// block of `level`, which begins with logical block `start` and goes too once it is empty.
    /// Returns false when the credits are used up.
    fn remove_child(
        &mut self,
        removal: &mut Removal,
        parent: Option<BlockNo>,
        index: u32,
        level: u32,
        start: u64,
    ) -> Result<bool> {
        let geo = *self.alloc.geo();
        let indexes = removal.indexes(
            start,
            start + blocks_below(level, &geo),
            blocks_below(level - 1, &geo),
        );
        if indexes.is_empty() {
            return Ok(true);
        }
        let pointer = match parent {
            None => Pointers::new(&self.raw.block, &geo).get(index),
            Some(b) => Pointers::new(&self.read().read_block(b)?, &geo).get(index),
        };
        let Some(block) = pointer.map_err(self.read().at(parent))? else {
            return Ok(true);
        };
        let done = if level == 1 {
            self.remove_data(removal, Some(block), indexes)?
        } else {
            let below = blocks_below(level - 1, &geo);
            let mut children = indexes.rev();
            children.try_fold(true, |done, n| {
                let start = start + u64::from(n) * below;
                Ok::<_, Error>(
                    done && self.remove_child(removal, Some(block), n, level - 1, start)?,
                )
            })?
        };
        if !done {
            return Ok(false);
        }
        let empty = Pointers::new(&self.read().read_block(block)?, &geo).is_empty();
        if empty {
            if !self.h.has_credits(remove_credits(self.alloc, 1, LEVELS)) {
                return Ok(false);
            }
            self.set(parent, index, &[None])?;
            self.alloc.free(self.h, block, 1, Class::Mapping)?;
            self.charge(-1)?;
        }
        Ok(true)
    }

    /// Frees the data blocks of the pointers at `indexes`, run by run from the end, and clears the
    /// pointers.
    fn remove_data(
        &mut self,
        removal: &mut Removal,
        block: Option<BlockNo>,
        indexes: Range<u32>,
    ) -> Result<bool> {
        let leaf = Leaf {
            block,
            index: 0,
            end: 0,
        };
        let mut end = indexes.end;
        while end > indexes.start {
            let run = self
                .read()
                .pointers(&leaf, |p| last_run(p, indexes.start..end))?;
            let Some((start, len, pblk)) = run else {
                break;
            };
            if !self.h.has_credits(remove_credits(self.alloc, len, LEVELS)) {
                return Ok(false);
            }
            let holes: SmallVec<[_; 64]> = (0..len).map(|_| None).collect();
            self.set(block, start, &holes)?;
            self.alloc.free(self.h, pblk, len, removal.class)?;
            self.charge(-i64::from(len))?;
            removal.blocks += u64::from(len);
            end = start;
        }
        Ok(true)
    }
}

/// The range to remove, and how many blocks were removed.
struct Removal {
    from: u64,
    to: u64,
    class: Class,
    blocks: u64,
}

impl Removal {
    /// Returns the indexes in the range to remove, of pointers that stand for `each` blocks and
    /// together for `[start, end)`.
    fn indexes(&self, start: u64, end: u64, each: u64) -> Range<u32> {
        let (from, to) = (self.from.max(start), self.to.min(end));
        if from >= to {
            return 0..0;
        }
        must_fit((from - start) / each)..must_fit((to - start).div_ceil(each))
    }
}

/// Returns the last run of consecutive blocks among the pointers in `within`: its first index, its
/// length, its first block.
fn last_run(pointers: Pointers<'_>, within: Range<u32>) -> Checked<Option<(u32, u32, BlockNo)>> {
    let mut run: Option<(u32, u32, BlockNo)> = None;
    for index in within.rev() {
        match (pointers.get(index)?, run) {
            (None, None) => {}
            (Some(block), None) => run = Some((index, 1, block)),
            (Some(block), Some((_, len, first))) if block.plus(1) == first => {
                run = Some((index, len + 1, block))
            }
            _ => break,
        }
    }
    Ok(run)
}
