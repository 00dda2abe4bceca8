//! The journal area as a ring of blocks.
//!
//! Log block `n` is block `n` of the journal's inode. Block 0 is the journal superblock. The log
//! proper is `[first, end)`, and wraps.

use std::sync::Arc;

use smallvec::SmallVec;
use stetfs_format::width::{must_fit, must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, BlockSize};
use stetfs_media::{BlockDev, Cause, Class, Dirty, Durable, Tag};

use stetfs_scheme::{LogExtent, Result, SchemeError};

pub(crate) struct JournalArea {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) block_size: BlockSize,
    extents: Vec<LogExtent>,
    /// The first block of the log proper.
    pub(crate) first: u32,
    /// The block behind the log proper.
    pub(crate) end: u32,
}

/// Blocks that are contiguous on the device: their byte offset, and the blocks.
type Together<'b, 'p> = (u64, &'b [(Tag, &'p [u8])]);

impl JournalArea {
    pub(crate) fn new(
        dev: Arc<dyn BlockDev>,
        block_size: BlockSize,
        extents: Vec<LogExtent>,
    ) -> Self {
        Self {
            dev,
            block_size,
            extents,
            first: 1,
            end: 1,
        }
    }

    /// Returns the number of blocks in the area, the superblock included.
    pub(crate) fn len(&self) -> u64 {
        self.extents.iter().map(|e| u64::from(e.len)).sum()
    }

    /// Sets the bounds of the log proper, which the journal superblock has.
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

    /// Returns the number of blocks of the log proper.
    pub(crate) fn capacity(&self) -> u32 {
        self.end - self.first
    }

    /// Returns the log block `n` after `at`, around the ring.
    pub(crate) fn step(&self, at: u32, n: u32) -> u32 {
        let next = u64::from(at - self.first) + u64::from(n);
        self.first + must_fit::<_, u32>(next % u64::from(self.capacity()))
    }

    /// True when a block of the volume belongs to the journal.
    pub(crate) fn contains(&self, block: BlockNo) -> bool {
        self.extents
            .iter()
            .any(|e| block >= e.start && block.0 < e.start.0 + u64::from(e.len))
    }

    /// Returns the block of the volume for log block `at`, and the number of log blocks from it on
    /// that are contiguous.
    pub(crate) fn place(&self, at: u32) -> Result<(BlockNo, u32)> {
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
            .read_at(self.block_size.start_of(block), out, tag)?)
    }

    /// Writes a record that has no body, such as the journal superblock (log block 0); durable when
    /// it returns.
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

    /// Writes blocks one after the other from log block `at` on, around the ring, in as few
    /// requests as the area's layout allows.
    #[cfg(feature = "testing")]
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

    /// Writes the last blocks of a body, around the ring; all of the body is
    /// durable when it returns.
    pub(crate) fn write_last<'d>(
        &self,
        mut body: Dirty<'d>,
        at: u32,
        blocks: &[(Tag, &[u8])],
        cause: Cause,
    ) -> Result<Durable<'d>> {
        if blocks.is_empty() {
            return Ok(body.submit().flush(cause)?);
        }
        let (offset, last) = self.write_but_last(&mut body, at, blocks)?;
        Ok(body.write_last(offset, last, cause)?)
    }

    /// Writes all requests except for the last one, which it returns.
    fn write_but_last<'b, 'p>(
        &self,
        body: &mut Dirty<'_>,
        at: u32,
        blocks: &'b [(Tag, &'p [u8])],
    ) -> Result<Together<'b, 'p>> {
        let mut runs = self.runs(at, blocks)?;
        let last = runs.pop().expect("at least one block");
        for (offset, together) in runs {
            body.write_tagged(offset, together)?;
        }
        Ok(last)
    }

    /// Writes the last blocks of a body, around the ring. The last one is a record with a
    /// checksum over all others; durable when it returns.
    pub(crate) fn write_covering_commit(
        &self,
        mut body: Dirty<'_>,
        at: u32,
        blocks: &[(Tag, &[u8])],
    ) -> Result<()> {
        let (offset, last) = self.write_but_last(&mut body, at, blocks)?;
        Ok(body.write_covering_commit(offset, last)?)
    }

    /// Splits blocks to be written from log block `at` on into runs that are contiguous on the
    /// device.
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
                .min(u32_as_usize(together))
                .min(u32_as_usize(self.end - at));
            let (now, later) = blocks.split_at(n);
            runs.push((self.block_size.start_of(block), now));
            at = self.step(at, must_fit_u32(n));
            blocks = later;
        }
        Ok(runs)
    }

    /// Returns the byte offset of log block `at`.
    pub(crate) fn offset(&self, at: u32) -> Result<u64> {
        Ok(self.block_size.start_of(self.place(at)?.0))
    }
}
