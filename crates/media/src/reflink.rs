//! A file on a file system with reflinks (XFS, Btrfs) as a device that remaps: FICLONERANGE inside
//! one file.
//!
//! The file's map from offsets to blocks is the table. A clone lets two ranges of the file share
//! the blocks that hold the source; the file system copies on the next write to either of them (to
//! another place, so an ordinary write never touches what the other address has).
//!
//! What is relied on (kernel `fs/remap_range.c`, `fs/xfs/xfs_reflink.c`, `fs/btrfs/reflink.c`):
//!
//! | | |
//! |---|---|
//! | alignment | offsets and lengths are multiples of the file system's block ([`Remap::granularity`], FIGETBSZ): 4 KiB unless it was made with another. |
//! | page cache | the kernel writes dirty pages of the source before it looks for their blocks, waits for direct writes, and throws the destination's pages away; reads and writes wait for it (the inode's lock). So neither needs a flush before, nor does it matter whether this file is open with O_DIRECT. |
//! | holes and preallocated blocks | a home may be either: it gets blocks. A source that is one makes the home one: it reads as zeros in both. |
//! | durable | not before the file is synced, as a write is not: a clone changes the inode's map, and fdatasync writes what is needed to find the data. XFS forces its log, Btrfs its log tree. |
//! | a power cut before that | XFS does one extent after the other, each in a transaction of its log (chained by intents, which its recovery finishes): an extent is remapped or not, and the later ones not without the earlier ones. Btrfs the same, by extents, within a transaction that is committed or not. Neither promises anything about a list of clones. Nothing is torn inside a block. |
//!
//! So a list is not atomic, and whoever needs it whole keeps the sources and repeats it: see
//! [`Remap::is_atomic`].
//!
//! Neighbouring pairs are one clone. A list is followed by one fdatasync, and only then are the
//! journal's sectors released, if they are to be: they get preallocated blocks.
//!
//! What it costs the host's file system: a run that is remapped leaves the file in one or two more
//! pieces, and the file in need of as much free space as the journal is long, also when it has all
//! its blocks: while blocks are shared, the file has fewer, and somebody else can take them.

use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use stetfs_sys::file_ioctl;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::file::FileDev;
use crate::range::{check_in_device, check_range};
use crate::remap::{JournalCopy, Remap, RemapPair};
use crate::tag::Cause;

/// See [`Remap::least_run_bytes`]: a clone makes XFS write 15 KiB, whatever its length: its log,
/// and in time the trees of the file's extents and of reference counts (measured as in
/// `docs/LAB.md`, by the bytes beyond those that are logged).
const LEAST_RUN: u32 = 32 << 10;

/// Neighbouring pairs, in bytes.
#[derive(Clone, Copy)]
struct CloneRange {
    home: u64,
    journal: u64,
    len: u64,
}

impl FileDev {
    /// The unit of clones in bytes, where there is such a thing. Asking changes nothing.
    pub(crate) fn find_clone_granularity(&self) -> Option<u32> {
        if self.shape.block_device || self.shape.read_only {
            return None;
        }
        // From the end of the file to the end of the file: the file system says whether it can, and
        // has nothing to do.
        let end = u64::try_from(rustix::fs::fstat(&self.file).ok()?.st_size).ok()?;
        retry_on_intr(|| file_ioctl::clone_range(&self.file, end, 0, end)).ok()?;
        let block = file_ioctl::block_size_bytes(&self.file).ok()?;
        block
            .is_power_of_two()
            .then(|| block.max(self.shape.sector))
    }

    /// The list as few clones, checked.
    fn clones(&self, pairs: &[RemapPair]) -> Result<Vec<CloneRange>, MediaError> {
        let sector = u64::from(self.shape.sector);
        let mut clones: Vec<CloneRange> = Vec::new();
        for pair in pairs {
            let (home, journal) = (
                pair.home.saturating_mul(sector),
                pair.journal.saturating_mul(sector),
            );
            for offset in [home, journal] {
                check_in_device(Op::Remap, offset, sector, self.shape.size)?;
            }
            match clones.last_mut() {
                Some(last)
                    if (last.home + last.len, last.journal + last.len) == (home, journal) =>
                {
                    last.len += sector;
                }
                _ => clones.push(CloneRange {
                    home,
                    journal,
                    len: sector,
                }),
            }
        }
        let unit = self.granularity();
        for clone in &clones {
            for offset in [clone.home, clone.journal] {
                if !(offset | clone.len).is_multiple_of(unit.into()) {
                    return Err(MediaError::Misaligned {
                        op: Op::Remap,
                        offset,
                        len: clone.len,
                        sector: unit,
                    });
                }
            }
        }
        if let Some(both) = home_and_journal(&clones) {
            return Err(failed(Op::Remap, both, sector, Errno::INVAL));
        }
        Ok(clones)
    }
}

/// An offset that is in a home and in the journal.
fn home_and_journal(clones: &[CloneRange]) -> Option<u64> {
    let mut homes: Vec<(u64, u64)> = clones.iter().map(|c| (c.home, c.home + c.len)).collect();
    homes.sort_unstable();
    homes.dedup_by(|later, earlier| {
        let touches = later.0 <= earlier.1;
        if touches {
            earlier.1 = earlier.1.max(later.1);
        }
        touches
    });
    clones.iter().find_map(|c| {
        let before = homes.partition_point(|home| home.0 < c.journal + c.len);
        let (start, end) = *homes[..before].last()?;
        (end > c.journal).then_some(start.max(c.journal))
    })
}

fn failed(op: Op, offset: u64, len: u64, source: Errno) -> MediaError {
    MediaError::Io {
        op,
        offset,
        len,
        source,
    }
}

impl Remap for FileDev {
    fn means(&self) -> &'static str {
        "reflink"
    }

    fn granularity(&self) -> u32 {
        self.clone_granularity().unwrap_or(self.shape.sector)
    }

    fn is_atomic(&self) -> bool {
        false
    }

    fn least_run_bytes(&self) -> u32 {
        LEAST_RUN
    }

    fn max_pairs(&self) -> usize {
        usize::MAX
    }

    fn remap(&self, pairs: &[RemapPair], journal: JournalCopy) -> Result<(), MediaError> {
        if pairs.is_empty() {
            return Ok(());
        }
        let clones = self.clones(pairs)?;
        self.check_not_lost()?;
        for c in &clones {
            retry_on_intr(|| file_ioctl::clone_range(&self.file, c.journal, c.len, c.home))
                .map_err(|e| failed(Op::Remap, c.home, c.len, e))?;
        }
        self.flush(Cause::Checkpoint)?;
        if journal == JournalCopy::Released {
            for c in &clones {
                self.release(c.journal, c.len)?;
            }
            self.flush(Cause::Checkpoint)?;
        }
        Ok(())
    }

    /// Puts preallocated blocks there: nothing is shared any more, and what is written next needs
    /// no new place. Holes in their stead, or shared blocks that are copied on the next write, cost
    /// 0.3 bytes more for each byte of 64 KiB that is overwritten.
    fn release(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(
            Op::Discard,
            offset,
            len,
            self.granularity(),
            self.shape.size,
        )?;
        let start = Instant::now();
        let how = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| fallocate(&self.file, how, offset, len))
            .map_err(|e| failed(Op::Discard, offset, len, e))?;
        let busy_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        BlockDev::meter(self).count_discard(len, busy_ns);
        Ok(())
    }
}
