//! A file on a file system with reflinks (XFS, Btrfs) as a device that remaps, by FICLONERANGE
//! inside one file.
//!
//! The file's map from offsets to blocks is the table. A clone lets two ranges of the file share
//! the blocks of the source. On the next write to either range the file system copies to another
//! place, so an ordinary write never touches the content of the other address.
//!
//! The code relies on (kernel `fs/remap_range.c`, `fs/xfs/xfs_reflink.c`, `fs/btrfs/reflink.c`):
//!
//! | | |
//! |---|---|
//! | alignment | offsets and lengths are multiples of the file system's block ([`Remap::granularity`], FIGETBSZ): 4 KiB unless it was made with another. |
//! | page cache | the kernel writes dirty pages of the source before it looks for their blocks, waits for direct writes, and drops the destination's pages; reads and writes wait for the clone (the inode's lock). So neither side needs a flush first, with or without O_DIRECT. |
//! | holes and preallocated blocks | if a home is one, it gets blocks. If a source is one, its home becomes one: both read as zeros. |
//! | durability | like a write, a clone is durable once the file is synced: it changes the inode's map, and fdatasync writes what is needed to find the data. XFS forces its log, Btrfs its log tree. |
//! | a power cut before that | XFS remaps one extent after the other, each in a transaction of its log; intents chain these, and its recovery finishes them. So an extent is remapped or not, and no later one without the earlier ones. Btrfs also works by extents, within a transaction that is committed or not. Neither promises anything about a list of clones. Neither tears inside a block. |
//!
//! So a list is not atomic. A caller that needs all of it keeps the sources and repeats the list:
//! see [`Remap::is_atomic`].
//!
//! One clone covers a run of neighbouring pairs. One fdatasync follows a list. Only then are the
//! journal's sectors released, if the caller asked for it: they get preallocated blocks.
//!
//! The host's file system pays twice. A remapped run leaves the file in one or two more pieces. And
//! the host needs free space of the journal's length, even if the file had all its blocks: while
//! blocks are shared, the file has fewer, and other files can take the freed ones.

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

/// See [`Remap::least_run_bytes`]. A clone of any length makes XFS write 15 KiB: its log, and later
/// the trees of the file's extents and of reference counts. Measured as in `docs/LAB.md`, as the
/// bytes written beyond the logged ones.
const LEAST_RUN: u32 = 32 << 10;

/// A run of neighbouring pairs, in bytes.
#[derive(Clone, Copy)]
struct CloneRange {
    home: u64,
    journal: u64,
    len: u64,
}

impl FileDev {
    /// Finds the unit of clones in bytes; `None` if the file system cannot clone. The question
    /// changes nothing.
    pub(crate) fn find_clone_granularity(&self) -> Option<u32> {
        if self.shape.block_device || self.shape.read_only {
            return None;
        }
        // Clones the empty range at the end of the file to itself: the file system tells whether it
        // can clone, and has nothing to do.
        let end = u64::try_from(rustix::fs::fstat(&self.file).ok()?.st_size).ok()?;
        retry_on_intr(|| file_ioctl::clone_range(&self.file, end, 0, end)).ok()?;
        let block = file_ioctl::block_size_bytes(&self.file).ok()?;
        block
            .is_power_of_two()
            .then(|| block.max(self.shape.sector))
    }

    /// Turns the list into as few clones as possible and checks them.
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

/// Returns an offset that is both in a home and in the journal, if there is one.
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

    /// Puts preallocated blocks there, so that nothing is shared any more and the next write needs
    /// no new place. The alternatives, holes or blocks that stay shared and are copied on the next
    /// write, cost 0.3 bytes more for each byte of an overwrite of 64 KiB.
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
