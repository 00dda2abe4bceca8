//! A regular file or a block device as a [`BlockDev`], through the page cache or past it
//! (O_DIRECT).
//!
//! - Opening, locking and measuring are in `file_open.rs`, remapping in `reflink.rs`; this file
//!   transfers the bytes.
//! - If the system does only part of a request, the device continues it; it repeats an interrupted
//!   one.
//! - A failed flush is final. The kernel reports a lost write once, to the first caller that asks,
//!   marks the pages clean and lets the next fdatasync succeed. So the device remembers the
//!   failure, and every later flush fails too.
//! - O_DIRECT needs aligned memory. A [`Block`](crate::Block) is aligned and goes straight to the
//!   device; anything else takes a detour through an aligned buffer.
//! - The busy time in the account is real: the time of a request's system calls. Reading the clock
//!   twice costs 56 ns a request.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev, pwritev2, retry_on_intr};
use smallvec::SmallVec;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_sys::block_ioctl;
use stetfs_sys::ring::{self, Ring};

use crate::dev::{BlockDev, write_zeros_by_hand};
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::range::{Run, check_parts, check_range};
use crate::remap::Remap;
use crate::tag::{Cause, Tag};

/// Buffers that one system call takes at most (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// A file or block device, locked as long as this lives.
pub struct FileDev {
    pub(crate) file: File,
    /// The backing files of a loop device, locked as long as this lives.
    _below: Vec<File>,
    pub(crate) path: PathBuf,
    pub(crate) shape: Shape,
    meter: Meter,
    /// A flush has failed: see the top of this file.
    writes_lost: AtomicBool,
    /// RWF_DSYNC does not exist here, or costs more than a write and a flush. The latter holds for
    /// a block device opened with O_DIRECT: the kernel marks the write FUA and flushes the device
    /// all the same. Elsewhere RWF_DSYNC saves a system call (22.4 us against 23.9 us).
    no_dsync: AtomicBool,
    bounce: BouncePool,
    rings: RingPool,
    /// The unit of clones, once somebody has asked; `None` inside: clones do not work here.
    clone_granularity: OnceLock<Option<u32>>,
}

/// What opening found out about the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) size: u64,
    pub(crate) sector: u32,
    pub(crate) block_device: bool,
    pub(crate) read_only: bool,
    pub(crate) direct: bool,
    /// Alignment that O_DIRECT asks of memory, in bytes; 1 without O_DIRECT.
    pub(crate) memory_align: u32,
    pub(crate) volatile_cache: bool,
    /// The kernel implements forced unit access by a flush of the device after the write.
    pub(crate) fua_is_flush: bool,
    /// [`BlockDev::jump_bytes`] of the device, or of the device that the file is on.
    pub(crate) jump_bytes: u64,
    /// The file had a name in a directory when it was opened.
    pub(crate) has_name: bool,
}

impl FileDev {
    pub(crate) fn from_parts(file: File, below: Vec<File>, path: PathBuf, shape: Shape) -> Self {
        Self {
            file,
            _below: below,
            path,
            shape,
            meter: Meter::new(),
            writes_lost: AtomicBool::new(false),
            no_dsync: AtomicBool::new(shape.block_device && shape.direct),
            bounce: BouncePool::default(),
            rings: RingPool::default(),
            clone_granularity: OnceLock::new(),
        }
    }

    /// Whether it is a block device rather than a regular file.
    pub fn is_block_device(&self) -> bool {
        self.shape.block_device
    }

    /// Whether transfers go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.shape.direct
    }

    /// The unit of clones in bytes; `None` if the file cannot be remapped: see `reflink.rs`.
    pub(crate) fn clone_granularity(&self) -> Option<u32> {
        *self
            .clone_granularity
            .get_or_init(|| self.find_clone_granularity())
    }

    fn is_aligned(&self, memory: &[u8]) -> bool {
        memory
            .as_ptr()
            .addr()
            .is_multiple_of(u32_as_usize(self.shape.memory_align))
    }

    fn check_writable(&self, op: Op, offset: u64, len: u64) -> Result<(), MediaError> {
        if self.shape.read_only {
            return Err(MediaError::ReadOnly { op, offset, len });
        }
        Ok(())
    }

    /// Reads until `out` is full.
    pub(crate) fn read_full(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        let mut done = 0;
        while done < out.len() {
            match retry_on_intr(|| pread(&self.file, &mut out[done..], offset + usize_as_u64(done)))
            {
                Ok(0) => {
                    return Err(MediaError::Truncated {
                        op: Op::Read,
                        offset,
                        len,
                        done: usize_as_u64(done),
                    });
                }
                Ok(n) => done += n,
                Err(source) => {
                    return Err(MediaError::Io {
                        op: Op::Read,
                        offset,
                        len,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Reads into memory that is not aligned for O_DIRECT.
    fn read_bounced(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        let mut buffer = self.bounce.take();
        let bytes = buffer.bytes_mut();
        let mut at = offset;
        for piece in out.chunks_mut(bytes.len()) {
            let aligned = &mut bytes[..piece.len()];
            self.read_full(at, aligned)?;
            piece.copy_from_slice(aligned);
            at += usize_as_u64(piece.len());
        }
        self.bounce.give_back(buffer);
        Ok(())
    }

    /// Writes all of `bytes`.
    pub(crate) fn write_full(&self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_parts(offset, &[bytes], Sync::Later)
    }

    /// Writes all of `parts`, as many per system call as the system takes.
    fn write_parts(&self, offset: u64, parts: &[&[u8]], how: Sync) -> Result<(), MediaError> {
        if !parts.iter().all(|part| self.is_aligned(part)) {
            return self.write_bounced(offset, parts, how);
        }
        let mut at = offset;
        for group in parts.chunks(IOV_MAX) {
            let mut slices: smallvec::SmallVec<[IoSlice<'_>; 16]> = group
                .iter()
                .filter(|part| !part.is_empty())
                .map(|part| IoSlice::new(part))
                .collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                let n = self.write_some(at, rest, how)?;
                IoSlice::advance_slices(&mut rest, n);
                at += usize_as_u64(n);
            }
        }
        Ok(())
    }

    /// One system call; returns how many bytes it wrote, at least one.
    fn write_some(&self, at: u64, slices: &[IoSlice<'_>], how: Sync) -> Result<usize, MediaError> {
        let written = retry_on_intr(|| match (how, slices) {
            (Sync::Durable, _) => pwritev2(&self.file, slices, at, ReadWriteFlags::DSYNC),
            (Sync::Later, [one]) => pwrite(&self.file, one, at),
            (Sync::Later, _) => pwritev(&self.file, slices, at),
        });
        let len = slices.iter().map(|s| usize_as_u64(s.len())).sum();
        match written {
            Ok(0) => Err(MediaError::Truncated {
                op: Op::Write,
                offset: at,
                len,
                done: 0,
            }),
            Ok(n) => Ok(n),
            Err(source) => Err(MediaError::Io {
                op: Op::Write,
                offset: at,
                len,
                source,
            }),
        }
    }

    /// Writes from memory that is not aligned for O_DIRECT.
    fn write_bounced(&self, offset: u64, parts: &[&[u8]], how: Sync) -> Result<(), MediaError> {
        let mut buffer = self.bounce.take();
        let mut at = offset;
        let mut filled = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let bytes = buffer.bytes_mut();
                let n = rest.len().min(bytes.len() - filled);
                bytes[filled..filled + n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                filled += n;
                if filled == bytes.len() {
                    self.write_parts(at, &[&buffer.bytes()[..filled]], how)?;
                    at += usize_as_u64(filled);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.write_parts(at, &[&buffer.bytes()[..filled]], how)?;
        }
        self.bounce.give_back(buffer);
        Ok(())
    }

    /// Writes `runs` past the page cache, many at a time; written singly, each would wait for the
    /// one before.
    fn write_by_ring(&self, ring: &mut Ring, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let slices: Vec<SmallVec<[IoSlice<'_>; 4]>> = runs
            .iter()
            .map(|run| run.parts.iter().map(|part| IoSlice::new(part)).collect())
            .collect();
        let writes: Vec<ring::Write<'_>> = runs
            .iter()
            .zip(&slices)
            .map(|(run, slices)| (run.offset, &slices[..]))
            .collect();
        let mut rest: SmallVec<[usize; 4]> = SmallVec::new();
        let how = ReadWriteFlags::empty();
        ring.write_all(self.file.as_fd(), &writes, how, |i, result| {
            let len = runs[i].parts.iter().map(|part| part.len()).sum::<usize>();
            if result != Ok(len) {
                rest.push(i);
            }
        });
        // Ordinary writes, which report errors, repeat every run that the ring did not write
        // entirely.
        for run in rest.into_iter().map(|i| &runs[i]) {
            self.write_parts(run.offset, &run.parts, Sync::Later)?;
        }
        Ok(())
    }

    /// Writes, and makes this and every write before durable.
    fn write_and_flush(&self, offset: u64, parts: &[&[u8]]) -> Result<(), MediaError> {
        if self.shape.fua_is_flush && self.write_fua(offset, parts)? {
            return Ok(());
        }
        self.write_parts(offset, parts, Sync::Later)?;
        self.sync_to_medium()
    }

    /// Writes with forced unit access in one request, past the page cache of a block device.
    /// Returns false if it did not write all of it.
    ///
    /// The caller is woken once instead of twice: 30 to 50 us on a loop device, where a write and
    /// fdatasync take 43 to 75 us. The request must be asynchronous: after pwritev2(2) with
    /// RWF_DSYNC the kernel flushes the device once more, which takes 61 to 83 us (Linux 6.18,
    /// `generic_write_sync` in `blkdev_write_iter`).
    fn write_fua(&self, offset: u64, parts: &[&[u8]]) -> Result<bool, MediaError> {
        self.check_not_lost()?;
        let fits = parts.len() <= IOV_MAX && parts.iter().all(|part| self.is_aligned(part));
        let Some(mut ring) = fits.then(|| self.rings.take()).flatten() else {
            return Ok(false);
        };
        let slices: SmallVec<[IoSlice<'_>; 16]> =
            parts.iter().map(|part| IoSlice::new(part)).collect();
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut written = Ok(0);
        let writes = [(offset, &slices[..])];
        ring.write_all(self.file.as_fd(), &writes, ReadWriteFlags::DSYNC, |_, n| {
            written = n;
        });
        self.rings.give_back(ring);
        match written {
            Ok(n) => Ok(n == len),
            Err(source) if is_unsupported(source) => Ok(false),
            Err(source) => {
                // The flush may be the part that failed.
                self.writes_lost.store(true, Ordering::Release);
                Err(MediaError::Io {
                    op: Op::Write,
                    offset,
                    len: usize_as_u64(len),
                    source,
                })
            }
        }
    }

    pub(crate) fn check_not_lost(&self) -> Result<(), MediaError> {
        if self.writes_lost.load(Ordering::Acquire) {
            return Err(MediaError::WritesLost);
        }
        Ok(())
    }

    pub(crate) fn sync_to_medium(&self) -> Result<(), MediaError> {
        self.check_not_lost()?;
        self.check_backing().inspect_err(|_| {
            self.writes_lost.store(true, Ordering::Release);
        })?;
        retry_on_intr(|| fdatasync(&self.file)).map_err(|source| {
            self.writes_lost.store(true, Ordering::Release);
            MediaError::Io {
                op: Op::Flush,
                offset: 0,
                len: 0,
                source,
            }
        })
    }

    fn zero_by_device(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.shape.block_device {
            return retry_on_intr(|| block_ioctl::zero_out(&self.file, offset, len));
        }
        let how = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        retry_on_intr(|| fallocate(&self.file, how, offset, len))
    }
}

/// When a write has to be durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    /// After the next flush.
    Later,
    /// When it returns.
    Durable,
}

/// Nanoseconds since `start`.
fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Whether an errno says that the operation does not exist here, rather than that it failed.
fn is_unsupported(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::NODEV
    )
}

impl BlockDev for FileDev {
    fn describe(&self) -> String {
        let how = if self.shape.direct { ", direct" } else { "" };
        format!("{}{how}", self.path.display())
    }

    fn size(&self) -> u64 {
        self.shape.size
    }

    fn sector_size(&self) -> u32 {
        self.shape.sector
    }

    fn read_only(&self) -> bool {
        self.shape.read_only
    }

    fn volatile_cache(&self) -> bool {
        self.shape.volatile_cache
    }

    fn host_cached(&self) -> bool {
        !self.shape.direct
    }

    fn jump_bytes(&self) -> u64 {
        self.shape.jump_bytes
    }

    fn remap(&self) -> Option<&dyn Remap> {
        self.clone_granularity().map(|_| -> &dyn Remap { self })
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        check_range(Op::Read, offset, len, self.shape.sector, self.shape.size)?;
        let start = Instant::now();
        if self.is_aligned(out) {
            self.read_full(offset, out)?;
        } else {
            self.read_bounced(offset, out)?;
        }
        self.meter.count_read(tag, len);
        self.meter.count_busy(tag, elapsed_ns(start));
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = check_parts(offset, parts, self.shape.sector, self.shape.size)?;
        self.check_writable(Op::Write, offset, len)?;
        let start = Instant::now();
        self.write_parts(offset, parts, Sync::Later)?;
        self.meter.count_write(tag, len);
        self.meter.count_busy(tag, elapsed_ns(start));
        Ok(())
    }

    fn write_many(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let fits = |run: &Run<'_>| {
            run.parts.len() <= IOV_MAX && run.parts.iter().all(|part| self.is_aligned(part))
        };
        let ring = if self.shape.direct && runs.len() > 1 && runs.iter().all(fits) {
            self.rings.take()
        } else {
            None
        };
        let Some(mut ring) = ring else {
            return runs
                .iter()
                .try_for_each(|run| self.write_vectored_at(run.offset, &run.parts, run.tag));
        };
        let mut lens = Vec::with_capacity(runs.len());
        for run in runs {
            let len = check_parts(run.offset, &run.parts, self.shape.sector, self.shape.size)?;
            self.check_writable(Op::Write, run.offset, len)?;
            lens.push(len);
        }
        let start = Instant::now();
        self.write_by_ring(&mut ring, runs)?;
        self.rings.give_back(ring);
        let busy_ns = elapsed_ns(start) / usize_as_u64(runs.len());
        for (run, len) in runs.iter().zip(lens) {
            self.meter.count_write(run.tag, len);
            self.meter.count_busy(run.tag, busy_ns);
        }
        Ok(())
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = check_parts(offset, parts, self.shape.sector, self.shape.size)?;
        self.check_writable(Op::Write, offset, len)?;
        self.check_not_lost()?;
        let start = Instant::now();
        if !self.no_dsync.load(Ordering::Relaxed) {
            let written = self.write_parts(offset, parts, Sync::Durable);
            match written.and_then(|()| self.check_backing()) {
                Ok(()) => {
                    self.meter.count_durable_write(tag, len);
                    self.meter.count_busy(tag, elapsed_ns(start));
                    return Ok(());
                }
                Err(MediaError::Io { source, .. }) if is_unsupported(source) => {
                    self.no_dsync.store(true, Ordering::Relaxed);
                }
                Err(e) => {
                    self.writes_lost.store(true, Ordering::Release);
                    return Err(e);
                }
            }
        }
        self.write_and_flush(offset, parts)?;
        self.meter.count_durable_write(tag, len);
        self.meter.count_busy(tag, elapsed_ns(start));
        Ok(())
    }

    fn write_flushed(
        &self,
        offset: u64,
        parts: &[&[u8]],
        tag: Tag,
        cause: Cause,
    ) -> Result<(), MediaError> {
        let len = check_parts(offset, parts, self.shape.sector, self.shape.size)?;
        self.check_writable(Op::Write, offset, len)?;
        let start = Instant::now();
        self.write_and_flush(offset, parts)?;
        self.meter.count_write(tag, len);
        self.meter.count_flush(cause);
        self.meter.count_busy(tag, elapsed_ns(start));
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        let start = Instant::now();
        self.sync_to_medium()?;
        self.meter.count_flush(cause);
        self.meter.count_cause_busy(cause, elapsed_ns(start));
        Ok(())
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        if self.shape.block_device {
            return Ok(());
        }
        let stat = rustix::fs::fstat(&self.file).map_err(|source| MediaError::Open {
            path: self.path.clone(),
            source,
        })?;
        let is = u64::try_from(stat.st_size).unwrap_or(0);
        if stat.st_nlink == 0 && self.shape.has_name {
            return Err(MediaError::Removed {
                path: self.path.clone(),
            });
        }
        if is < self.shape.size {
            return Err(MediaError::Cut {
                path: self.path.clone(),
                was: self.shape.size,
                is,
            });
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(Op::Discard, offset, len, self.shape.sector, self.shape.size)?;
        self.check_writable(Op::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let done = if self.shape.block_device {
            retry_on_intr(|| block_ioctl::discard(&self.file, offset, len))
        } else {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            retry_on_intr(|| fallocate(&self.file, how, offset, len))
        };
        done.map_err(|source| {
            if is_unsupported(source) {
                MediaError::Unsupported { op: Op::Discard }
            } else {
                MediaError::Io {
                    op: Op::Discard,
                    offset,
                    len,
                    source,
                }
            }
        })?;
        self.meter.count_discard(len, elapsed_ns(start));
        Ok(())
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        check_range(Op::Write, offset, len, self.shape.sector, self.shape.size)?;
        self.check_writable(Op::Write, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let start = Instant::now();
        match self.zero_by_device(offset, len) {
            Ok(()) => {
                self.meter.count_write(tag, len);
                self.meter.count_busy(tag, elapsed_ns(start));
                Ok(())
            }
            Err(source) if is_unsupported(source) => write_zeros_by_hand(self, offset, len, tag),
            Err(source) => Err(MediaError::Io {
                op: Op::Write,
                offset,
                len,
                source,
            }),
        }
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Alignment of bounce buffers in bytes: the most that any device asks of memory.
pub(crate) const PAGE: usize = 4096;

#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Aligned memory of [`BounceBuffer::PAGES`] pages.
struct BounceBuffer(Vec<Page>);

impl BounceBuffer {
    /// 256 KiB, which a device still takes as one request or two.
    const PAGES: usize = 64;

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Bounce buffers that nobody uses. An error path that loses one simply frees it.
#[derive(Default)]
struct BouncePool(Mutex<Vec<BounceBuffer>>);

impl BouncePool {
    const KEPT: usize = 4;

    fn take(&self) -> BounceBuffer {
        let kept = self.0.lock().pop();
        kept.unwrap_or_else(|| BounceBuffer(vec![Page([0; PAGE]); BounceBuffer::PAGES]))
    }

    fn give_back(&self, buffer: BounceBuffer) {
        let mut kept = self.0.lock();
        if kept.len() < Self::KEPT {
            kept.push(buffer);
        }
    }
}

/// Rings that nobody uses; none if the system has no io_uring.
#[derive(Default)]
struct RingPool {
    kept: Mutex<Vec<Ring>>,
    unavailable: AtomicBool,
}

impl RingPool {
    /// Rings kept: one for the committer, one for a checkpoint.
    const KEPT: usize = 2;

    fn take(&self) -> Option<Ring> {
        if self.unavailable.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.kept.lock().pop();
        kept.or_else(|| {
            let ring = Ring::new().ok();
            self.unavailable.store(ring.is_none(), Ordering::Relaxed);
            ring
        })
    }

    fn give_back(&self, ring: Ring) {
        let mut kept = self.kept.lock();
        if kept.len() < Self::KEPT {
            kept.push(ring);
        }
    }
}
