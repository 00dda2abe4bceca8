//! The block device: the contract that file systems and journals are written against.
//!
//! - Offsets and lengths are bytes, in whole sectors and within the device; anything else is
//!   [`MediaError::Misaligned`] or [`MediaError::PastEnd`] and changes nothing. (The simulated
//!   device panics instead, so that tests find such a mistake of ours.)
//! - A write that has returned is seen by every later read.
//! - A write is *durable* in two cases: it was a [`BlockDev::write_durable`], or a flush that
//!   started after the write returned has itself returned. Until then a power cut keeps or loses
//!   each [`BlockDev::atomic_unit`] of it independently, in whatever order the writes came.
//! - After a failed write nobody knows the content of its range. After a failed flush or durable
//!   write, nobody knows the content of any write since the last good flush, even if a later flush
//!   were to succeed. The device therefore never lets one succeed again
//!   ([`MediaError::WritesLost`]), and its owner must stop writing.
//! - The [`Meter`] counts every request that succeeded.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::atomic::AtomicWrite;
use crate::block::Block;
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::pmem::contract::{Pmem, Survives};
use crate::range::{Run, check_in_device};
use crate::remap::Remap;
use crate::tag::{Cause, Tag};
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// [`jump_bytes`](BlockDev::jump_bytes) of a rotating disk: one movement of the head.
pub const DISK_JUMP_BYTES: u64 = 256 << 10;

/// [`jump_bytes`](BlockDev::jump_bytes) of flash of an unknown kind. [`Timing`](crate::sim::Timing)
/// has 9 KB for a SATA drive, 36 KB for a memory card and 46 KB for a drive on PCI Express.
pub const FLASH_JUMP_BYTES: u64 = 16 << 10;

/// [`jump_bytes`](BlockDev::jump_bytes) of an unknown device: the processor's cost of one request.
pub(crate) const FEW_JUMP_BYTES: u64 = 1024;

/// Storage in sectors, with a cache that a power cut empties.
pub trait BlockDev: Send + Sync {
    /// The device's name for messages: `/dev/sda3`, `RAM, 64 MiB`.
    fn describe(&self) -> String;

    /// Size in bytes, a multiple of the sector size. It does not change.
    fn size(&self) -> u64;

    /// The unit of offsets and lengths in bytes, a power of two from 512 to 65,536; in memory a
    /// cache line of 64.
    fn sector_size(&self) -> u32;

    /// Bytes that a power cut leaves either all old or all new: a multiple of the sector size, or a
    /// word of 8 bytes where the device is memory. An aligned unit of this size is never torn.
    fn atomic_unit(&self) -> u32 {
        self.sector_size()
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Whether a write that has returned can still be lost by a power cut.
    fn volatile_cache(&self) -> bool;

    /// Whether reads come from the host's memory anyway, so that caching them again is waste.
    fn host_cached(&self) -> bool;

    /// Bytes that the device writes in the extra time that a non-sequential write takes. If the gap
    /// between two writes is smaller, it is cheaper to write the gap too.
    fn jump_bytes(&self) -> u64 {
        FEW_JUMP_BYTES
    }

    /// This device's content as persistent memory, if that is where it lives: see
    /// [`PmemDev`](crate::PmemDev).
    fn pmem(&self) -> Option<&Arc<dyn Pmem>> {
        None
    }

    /// Which failure durable content survives; persistent memory and simulated parts in files
    /// answer this. `None` for every other device.
    fn survives(&self) -> Option<Survives> {
        self.pmem().map(|pmem| pmem.survives())
    }

    /// The device's ability to give an address the content of another one; `None` if it has none.
    fn remap(&self) -> Option<&dyn Remap> {
        None
    }

    /// The device's ability to write several ranges as a whole; `None` if it has none.
    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        None
    }

    /// Fills `out` with the newest content.
    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError>;

    /// Writes `data`; durable after the next flush.
    fn write_at(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.write_vectored_at(offset, &[data], tag)
    }

    /// Writes `parts` one after the other into one contiguous range; durable after the next flush.
    /// Each part is in whole sectors.
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError>;

    /// Writes several ranges in any order, each as [`write_vectored_at`](Self::write_vectored_at)
    /// does; durable after the next flush. After an error each of them may be written or not.
    fn write_many(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        for run in runs {
            self.write_vectored_at(run.offset, &run.parts, run.tag)?;
        }
        Ok(())
    }

    /// Writes parts with labels of their own, as a log holds them, into one contiguous range in one
    /// request. The meter counts the request under the label of the first part, and each part's
    /// bytes under its own.
    fn write_tagged_at(&self, offset: u64, parts: &[(Tag, &[u8])]) -> Result<(), MediaError> {
        let Some((tag, bytes)) = untagged(parts) else {
            return Ok(());
        };
        self.write_vectored_at(offset, &bytes, tag)?;
        self.meter().reclassify(tag, parts);
        Ok(())
    }

    /// Writes as [`write_vectored_at`](Self::write_vectored_at) does and returns when *these* bytes
    /// are durable (a write with forced unit access). It makes no other write durable. Until it has
    /// returned, a power cut keeps or loses each of its own atomic units independently, as with any
    /// write.
    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.write_vectored_at(offset, parts, tag)?;
        self.flush(tag.cause)
    }

    /// Writes as [`write_tagged_at`](Self::write_tagged_at) does and returns when these bytes are
    /// durable, as after [`write_durable`](Self::write_durable).
    fn write_tagged_durable(&self, offset: u64, parts: &[(Tag, &[u8])]) -> Result<(), MediaError> {
        let Some((tag, bytes)) = untagged(parts) else {
            return Ok(());
        };
        self.write_durable(offset, &bytes, tag)?;
        self.meter().reclassify(tag, parts);
        Ok(())
    }

    /// Writes as [`write_vectored_at`](Self::write_vectored_at) does, and makes this write and all
    /// that returned before it durable, as [`flush`](Self::flush) does. One request does both where
    /// the device has such a request.
    fn write_flushed(
        &self,
        offset: u64,
        parts: &[&[u8]],
        tag: Tag,
        cause: Cause,
    ) -> Result<(), MediaError> {
        self.write_vectored_at(offset, parts, tag)?;
        self.flush(cause)
    }

    /// Does the same as [`write_flushed`](Self::write_flushed) with parts that have labels of their
    /// own, as [`write_tagged_at`](Self::write_tagged_at) takes them.
    fn write_tagged_flushed(
        &self,
        offset: u64,
        parts: &[(Tag, &[u8])],
        cause: Cause,
    ) -> Result<(), MediaError> {
        let Some((tag, bytes)) = untagged(parts) else {
            return self.flush(cause);
        };
        self.write_flushed(offset, &bytes, tag, cause)?;
        self.meter().reclassify(tag, parts);
        Ok(())
    }

    /// Makes every write that returned before this call durable.
    fn flush(&self, cause: Cause) -> Result<(), MediaError>;

    /// Fails if the file behind the device was cut or removed while it was open: then nothing
    /// written to it is durable. Every flush of a file checks this too.
    fn check_backing(&self) -> Result<(), MediaError> {
        Ok(())
    }

    /// Ends the use of the device: writes what only speeds up the next use. An unmount calls it
    /// when everything is durable and it will write nothing more. Leaving it out loses nothing, and
    /// writing afterwards is allowed.
    fn close(&self) -> Result<(), MediaError> {
        Ok(())
    }

    /// Tells the device that a range is no longer needed; a later read of it may return anything.
    /// [`MediaError::Unsupported`] if the device cannot discard.
    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError>;

    /// Fills a range with zeros, by the device's own means if it has any; durable after the next
    /// flush.
    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        write_zeros_by_hand(self, offset, len, tag)
    }

    /// The account of everything done on this device.
    fn meter(&self) -> &Meter;

    /// Fills `out` from any byte offset by reading the whole sectors around it. It serves the few
    /// structures that need not be aligned to a sector, such as the superblock at byte 1024.
    fn read_bytes_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let sector = u64::from(self.sector_size());
        let len = usize_as_u64(out.len());
        if offset.is_multiple_of(sector) && len.is_multiple_of(sector) {
            return self.read_at(offset, out, tag);
        }
        check_in_device(Op::Read, offset, len, self.size())?;
        let first = offset - offset % sector;
        let end = (offset + len).next_multiple_of(sector);
        let mut whole = vec![0; u64_as_usize(end - first)];
        self.read_at(first, &mut whole, tag)?;
        let skip = u64_as_usize(offset - first);
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }
}

/// Returns the label of the first part, and the bytes of all.
fn untagged<'a>(parts: &[(Tag, &'a [u8])]) -> Option<(Tag, SmallVec<[&'a [u8]; 16]>)> {
    let first = parts.first()?;
    Some((first.0, parts.iter().map(|part| part.1).collect()))
}

/// Writes zeros as ordinary data, for devices that have nothing better.
pub(crate) fn write_zeros_by_hand<D: BlockDev + ?Sized>(
    dev: &D,
    offset: u64,
    len: u64,
    tag: Tag,
) -> Result<(), MediaError> {
    const CHUNK: u64 = 256 << 10;
    let zeros = Block::zeroed(u64_as_usize(len.min(CHUNK).next_multiple_of(512)));
    let mut done = 0;
    while done < len {
        let n = (len - done).min(CHUNK);
        dev.write_at(offset + done, &zeros.bytes()[..u64_as_usize(n)], tag)?;
        done += n;
    }
    Ok(())
}
