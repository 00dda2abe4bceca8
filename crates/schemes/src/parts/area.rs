//! The journal area as a ring of blocks.
//!
//! Log block `n` is block `n` of the journal's inode; block 0 is the journal superblock, the log
//! proper is `[first, end)` and wraps.

use std::sync::Arc;

use smallvec::SmallVec;
use stetfs_format::BlockNo;
use stetfs_media::{BlockDev, Cause, Class, Dirty, Durable, JournalCopy, RemapPair, Tag};

use stetfs_scheme::{LogExtent, Result, SchemeError};

pub(crate) struct Area {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) block_size: usize,
    extents: Vec<LogExtent>,
    /// First log block.
    pub(crate) first: u32,
    /// The log block after the last.
    pub(crate) end: u32,
}

/// Where blocks lie together on the device, in bytes, and the blocks.
type Together<'b, 'p> = (u64, &'b [(Tag, &'p [u8])]);

impl Area {
    pub(crate) fn new(dev: Arc<dyn BlockDev>, block_size: usize, extents: Vec<LogExtent>) -> Self {
        Self {
            dev,
            block_size,
            extents,
            first: 1,
            end: 1,
        }
    }

    /// Blocks in the area, the superblock included.
    pub(crate) fn len(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum()
    }

    /// The log proper, once the journal superblock has told it.
    pub(crate) fn set_log(&mut self, first: u32, end: u32) -> Result<()> {
        if first == 0 || first >= end || u64::from(end) > self.len() {
            let why = format!(
                "its superblock says blocks {first} to {end}, its inode has {} blocks",
                self.len()
            );
            return Err(SchemeError::Unusable(why));
        }
        (self.first, self.end) = (first, end);
        Ok(())
    }

    /// Blocks of the log proper.
    pub(crate) fn capacity(&self) -> u32 {
        self.end - self.first
    }

    /// The log block `n` after `at`, around the ring.
    pub(crate) fn step(&self, at: u32, n: u32) -> u32 {
        let next = u64::from(at - self.first) + u64::from(n);
        self.first + (next % u64::from(self.capacity())) as u32
    }

    /// Whether a block of the volume belongs to the journal.
    pub(crate) fn contains(&self, block: BlockNo) -> bool {
        self.extents
            .iter()
            .any(|e| block >= e.start && block.0 < e.start.0 + u64::from(e.len))
    }

    /// Where log block `at` lies, and how many log blocks from it on lie together.
    fn place(&self, at: u32) -> Result<(BlockNo, u32)> {
        let mut before = 0;
        for extent in &self.extents {
            if at - before < extent.len {
                return Ok((
                    extent.start.plus(u64::from(at - before)),
                    extent.len - (at - before),
                ));
            }
            before += extent.len;
        }
        Err(SchemeError::Unusable(format!(
            "log block {at} is beyond the journal's end"
        )))
    }

    pub(crate) fn read(&self, at: u32, out: &mut [u8]) -> Result<()> {
        let (block, _) = self.place(at)?;
        let tag = Tag {
            class: Class::Journal,
            cause: Cause::Recovery,
        };
        Ok(self
            .dev
            .read_at(block.0 * self.block_size as u64, out, tag)?)
    }

    /// Writes a record that stands alone, as the journal superblock (log block 0) does; durable
    /// when it returns.
    pub(crate) fn write_record(&self, at: u32, record: &[u8], cause: Cause) -> Result<()> {
        let tag = Tag::new(Class::Journal, cause);
        Ok(self.dev.write_durable(self.offset(at)?, &[record], tag)?)
    }

    /// Writes the record that makes a durable body valid; durable when it returns.
    pub(crate) fn write_commit(&self, body: Durable<'_>, at: u32, record: &[u8]) -> Result<()> {
        let tag = Tag {
            class: Class::Journal,
            cause: Cause::CommitRecord,
        };
        Ok(body.write_commit(self.offset(at)?, &[record], tag)?)
    }

    /// Writes a record that nothing vouches for: what planted bugs do.
    pub(crate) fn write_unvouched(&self, at: u32, record: &[u8], durable: bool) -> Result<()> {
        let tag = Tag::new(Class::Journal, Cause::CommitRecord);
        let offset = self.offset(at)?;
        match durable {
            true => self.dev.write_durable(offset, &[record], tag)?,
            false => self.dev.write_at(offset, record, tag)?,
        }
        Ok(())
    }

    /// Writes blocks one after the other from log block `at` on, around the ring, in as few
    /// requests as the area's layout allows.
    pub(crate) fn write(
        &self,
        body: &mut Dirty<'_>,
        at: u32,
        blocks: &[(Tag, &[u8])],
    ) -> Result<()> {
        for (offset, together) in self.runs(at, blocks)? {
            body.write_tagged(offset, together)?;
        }
        Ok(())
    }

    /// As [`write`](Self::write), the last block being a record with a checksum over all others;
    /// durable when it returns.
    pub(crate) fn write_covering_commit(
        &self,
        mut body: Dirty<'_>,
        at: u32,
        blocks: &[(Tag, &[u8])],
    ) -> Result<()> {
        let mut runs = self.runs(at, blocks)?;
        let (offset, last) = runs.pop().expect("at least the record");
        for (offset, together) in runs {
            body.write_tagged(offset, together)?;
        }
        Ok(body.write_covering_commit(offset, last)?)
    }

    /// Takes what is to be written from log block `at` on apart into what lies together on the
    /// device, and where.
    fn runs<'b, 'p>(
        &self,
        mut at: u32,
        mut blocks: &'b [(Tag, &'p [u8])],
    ) -> Result<SmallVec<[Together<'b, 'p>; 2]>> {
        let mut runs = SmallVec::new();
        while !blocks.is_empty() {
            let (block, together) = self.place(at)?;
            let n = blocks
                .len()
                .min(together as usize)
                .min((self.end - at) as usize);
            let (now, later) = blocks.split_at(n);
            runs.push((block.0 * self.block_size as u64, now));
            at = self.step(at, n as u32);
            blocks = later;
        }
        Ok(runs)
    }

    /// Takes blocks apart into those that are brought home by a remap and those that are written.
    /// `place` says of one where its home is and which log block holds it, if one does as it is.
    ///
    /// Remapped are neighbours, at home and in the log, that make whole granules of the device and
    /// are worth it.
    pub(crate) fn split<T>(
        &self,
        blocks: Vec<T>,
        place: impl Fn(&T) -> Option<(BlockNo, u32)>,
    ) -> Result<(Vec<T>, Vec<T>)> {
        let Some(remap) = self.dev.remap() else {
            return Ok((Vec::new(), blocks));
        };
        let in_blocks = |bytes: u32| (bytes as usize).div_ceil(self.block_size) as u64;
        let unit = in_blocks(remap.granularity()).max(1);
        let least = in_blocks(remap.least_run_bytes()).max(unit);
        let end = self.dev.size() / self.block_size as u64;
        let mut placed = Vec::with_capacity(blocks.len());
        for block in blocks {
            let at = match place(&block) {
                Some((home, at)) => Some((home.0, self.place(at)?.0.0)),
                None => None,
            };
            placed.push((at, block));
        }
        placed.sort_by_key(|(at, _)| *at);
        let (mut remapped, mut written) = (Vec::new(), Vec::new());
        let mut rest = placed.into_iter().peekable();
        while let Some((at, block)) = rest.next() {
            let Some((home, log)) = at else {
                written.push(block);
                continue;
            };
            let mut run = vec![block];
            let next = |n: usize| Some((home + n as u64, log + n as u64));
            while let Some((_, block)) = rest.next_if(|(at, _)| *at == next(run.len())) {
                run.push(block);
            }
            // What is aligned of it.
            let skip = home.next_multiple_of(unit) - home;
            let whole = (home + run.len() as u64).min(end) / unit * unit;
            let len = whole.saturating_sub(home + skip);
            if home.abs_diff(log).is_multiple_of(unit) && len >= least {
                written.extend(run.splice(..skip as usize, []));
                written.extend(run.drain(len as usize..));
                remapped.append(&mut run);
            } else {
                written.append(&mut run);
            }
        }
        Ok((remapped, written))
    }

    /// Gives homes what log blocks hold, without a copy; durable when it returns. The log keeps
    /// what it has, since until its tail is moved a replay reads it, and a replay is what makes the
    /// list whole where the device does not do all of it or nothing.
    pub(crate) fn remap(&self, blocks: impl Iterator<Item = (BlockNo, u32)>) -> Result<()> {
        let mut pairs = Vec::new();
        let sector = u64::from(self.dev.sector_size());
        let sectors = self.block_size as u64 / sector;
        for (home, at) in blocks {
            let (log, _) = self.place(at)?;
            pairs.extend((0..sectors).map(|i| RemapPair {
                home: home.0 * sectors + i,
                journal: log.0 * sectors + i,
            }));
        }
        let Some(remap) = self.dev.remap().filter(|_| !pairs.is_empty()) else {
            return Ok(());
        };
        // Several lists are as good as one: the commit block has decided, and whoever finds some of
        // them repeats all.
        for list in pairs.chunks(remap.max_pairs()) {
            remap.remap(list, JournalCopy::Kept)?;
        }
        Ok(())
    }

    /// Lets the device forget `len` log blocks from `at` on, which nobody replays any more.
    pub(crate) fn release(&self, mut at: u32, mut len: u32) -> Result<()> {
        let Some(remap) = self.dev.remap() else {
            return Ok(());
        };
        while len > 0 {
            let (block, together) = self.place(at)?;
            let n = len.min(together).min(self.end - at);
            let size = self.block_size as u64;
            remap.release(block.0 * size, u64::from(n) * size)?;
            at = self.step(at, n);
            len -= n;
        }
        Ok(())
    }

    /// Where log block `at` lies, in bytes.
    pub(crate) fn offset(&self, at: u32) -> Result<u64> {
        Ok(self.place(at)?.0.0 * self.block_size as u64)
    }
}
