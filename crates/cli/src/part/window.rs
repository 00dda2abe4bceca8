//! A part of a file or device as a device of its own.
//!
//! Locks are those of a loop device on the part (`media/src/file_open.rs`): a shared flock, which
//! keeps out whoever has all of the file open for writing, and a lock on the range, so that parts
//! are used side by side but no byte twice. A part of a block device takes all of the device.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use stetfs_format::width::usize_as_u64;
use stetfs_media::{BlockDev, Cause, FileOptions, MediaError, Meter, Op, Run, Tag, lock_holder};
use stetfs_sys::lock_range;

use super::extent::Extent;
use super::qcow2::{self, Qcow2};

/// For what a part is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To look at it, without a lock: it may be mounted.
    Look,
    Read,
    Write,
}

/// An open part of a file or device.
pub(crate) struct Window {
    dev: Box<dyn BlockDev>,
    extent: Extent,
    /// The file with the locks, which last as long as this is open.
    _lock: Option<File>,
}

impl Window {
    /// Opens a part, through the page cache unless `direct` says otherwise; waits for at most
    /// `patience` while somebody else uses it.
    pub(crate) fn open(
        extent: Extent,
        how: Use,
        direct: Option<bool>,
        patience: Duration,
    ) -> Result<Self, MediaError> {
        let file = &extent.file;
        let is_file = file.metadata().is_ok_and(|m| m.is_file());
        let locks = is_file && how != Use::Look;
        let lock = locks.then(|| lock(&extent, how, patience)).transpose()?;
        let dev: Box<dyn BlockDev> = if qcow2::is_qcow2(file) {
            Box::new(open_qcow2(file, how)?)
        } else {
            let options = FileOptions::default()
                .read_only(how != Use::Write)
                .direct(direct)
                .lock(how != Use::Look && !is_file);
            Box::new(options.open(file)?)
        };
        let sector = u64::from(dev.sector_size());
        if !extent.range.offset.is_multiple_of(sector) {
            return Err(MediaError::Misaligned {
                op: Op::Read,
                offset: extent.range.offset,
                len: extent.range.size,
                sector: dev.sector_size(),
            });
        }
        let mut extent = extent;
        extent.range.size -= extent.range.size % sector;
        Ok(Self {
            dev,
            extent,
            _lock: lock,
        })
    }

    /// Translates a range of the part into one of the file.
    fn at(&self, op: Op, offset: u64, len: u64) -> Result<u64, MediaError> {
        let range = self.extent.range;
        match offset.checked_add(len) {
            Some(end) if end <= range.size => Ok(range.offset + offset),
            _ => Err(MediaError::PastEnd {
                op,
                offset,
                len,
                size: range.size,
            }),
        }
    }

    fn at_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<u64, MediaError> {
        let len = parts.iter().map(|part| usize_as_u64(part.len())).sum();
        self.at(Op::Write, offset, len)
    }
}

/// Opens a disk in the format qcow2, unless it is to be written.
fn open_qcow2(file: &Path, how: Use) -> Result<Qcow2, MediaError> {
    let opened = match how {
        Use::Write => Err(Errno::ROFS),
        Use::Look | Use::Read => Qcow2::open(file).map_err(|e| of_io(&e)),
    };
    opened.map_err(|source| MediaError::Open {
        path: file.to_owned(),
        source,
    })
}

fn of_io(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Locks a part of a file; all of a qcow2 disk, in which the part is anywhere. A virtual machine
/// that begins to use the disk finds that lock; one that uses it already has its own.
fn lock(extent: &Extent, how: Use, patience: Duration) -> Result<File, MediaError> {
    let path = &extent.file;
    let failed = |source| MediaError::Open {
        path: path.to_owned(),
        source,
    };
    let (writes, is_qcow2) = (how == Use::Write, qcow2::is_qcow2(path));
    let file = File::options().read(true).write(writes).open(path);
    let file = file.map_err(|e| failed(of_io(&e)))?;
    let began = Instant::now();
    loop {
        let shared = || retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockShared));
        let range = extent.range;
        let (offset, len) = if is_qcow2 {
            (0, 0)
        } else {
            (range.offset, range.size)
        };
        let locked = shared().and_then(|()| lock_range(&file, offset, len, writes));
        match locked {
            Ok(()) if is_qcow2 && qcow2::has_writer(&file).map_err(failed)? => {
                return Err(MediaError::Busy {
                    path: path.to_owned(),
                    by: " (by a program that may write to it, as a virtual machine)".to_owned(),
                });
            }
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::ACCESS) if began.elapsed() < patience => {
                // A lock is let go as it was taken: the flock must not keep others out meanwhile.
                let _ = flock(&file, FlockOperation::Unlock);
                sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK | Errno::ACCESS) => {
                let holder = lock_holder(path).map(|holder| format!(" (by {holder})"));
                return Err(MediaError::Busy {
                    path: path.to_owned(),
                    by: holder.unwrap_or_default(),
                });
            }
            Err(e) => return Err(failed(e)),
        }
    }
}

/// Returns whether another process uses a part.
pub(crate) fn is_locked(extent: &Extent) -> rustix::io::Result<bool> {
    match lock(extent, Use::Read, Duration::ZERO) {
        Ok(_) => Ok(false),
        Err(MediaError::Busy { .. }) => Ok(true),
        Err(MediaError::Open { source, .. }) => Err(source),
        Err(_) => Err(Errno::IO),
    }
}

impl BlockDev for Window {
    fn describe(&self) -> String {
        let range = self.extent.range;
        let file = self.dev.describe();
        format!("{file}, {} bytes from byte {}", range.size, range.offset)
    }

    fn size(&self) -> u64 {
        self.extent.range.size
    }

    fn sector_size(&self) -> u32 {
        self.dev.sector_size()
    }

    fn atomic_unit(&self) -> u32 {
        self.dev.atomic_unit()
    }

    fn read_only(&self) -> bool {
        self.dev.read_only()
    }

    fn volatile_cache(&self) -> bool {
        self.dev.volatile_cache()
    }

    fn host_cached(&self) -> bool {
        self.dev.host_cached()
    }

    fn jump_bytes(&self) -> u64 {
        self.dev.jump_bytes()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let at = self.at(Op::Read, offset, usize_as_u64(out.len()))?;
        self.dev.read_at(at, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let at = self.at_parts(offset, parts)?;
        self.dev.write_vectored_at(at, parts, tag)
    }

    fn write_many(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let mut all = Vec::with_capacity(runs.len());
        for run in runs {
            all.push(Run {
                offset: self.at_parts(run.offset, &run.parts)?,
                ..run.clone()
            });
        }
        self.dev.write_many(&all)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let at = self.at_parts(offset, parts)?;
        self.dev.write_durable(at, parts, tag)
    }

    fn write_flushed(
        &self,
        offset: u64,
        parts: &[&[u8]],
        tag: Tag,
        cause: Cause,
    ) -> Result<(), MediaError> {
        let at = self.at_parts(offset, parts)?;
        self.dev.write_flushed(at, parts, tag, cause)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.dev.flush(cause)
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.dev.check_backing()
    }

    fn close(&self) -> Result<(), MediaError> {
        self.dev.close()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        let at = self.at(Op::Discard, offset, len)?;
        self.dev.discard(at, len)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        let at = self.at(Op::Write, offset, len)?;
        self.dev.write_zeros(at, len, tag)
    }

    fn meter(&self) -> &Meter {
        self.dev.meter()
    }
}
