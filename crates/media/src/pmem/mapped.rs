//! Real persistent memory: a mapped file.
//!
//! The promise of a fence depends on where the file is; [`Pmem::describe`] tells which applies:
//!
//! | the file is | a fence | durable content survives |
//! |---|---|---|
//! | on persistent memory, by a file system with DAX (MAP_SYNC) | store fence | power loss |
//! | elsewhere, with [`Survives::PowerLoss`] (the default) | store fence and msync of the flushed range | power loss, if the device keeps its word |
//! | elsewhere, with [`Survives::ProcessCrash`] | store fence | the death of the process |
//!
//! - The file is locked as [`FileDev`] locks it, for the lifetime of the mapping.
//! - A store cannot fail, so every page needs a block. The whole file gets its blocks when it is
//!   made, and again when it is opened for writing, since it may have holes. Opening fails if the
//!   file system cannot do that.
//! - Memory that has gone bad is an error (EIO) for every access to its page, as long as the
//!   mapping lives.
//! - The size is the file's when it was opened. If somebody ignores the lock and truncates the
//!   file, an access behind the new end is the same error. Growth of the file goes unnoticed.
//!
//! Times in memory (Zen 5, counting included): a fence 8 ns; 64 bytes past the cache with a fence
//! 0.13 us, 4 KiB 0.25 us; through the cache with flush and fence 0.19 and 0.39 us; loading 4 KiB
//! 0.16 us. So long data goes past the cache, and data that is soon loaded again through it.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_sys::mapping::{Access, Mapping};
use stetfs_sys::store_fence;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::file::FileDev;
use crate::meter::Meter;
use crate::pmem::contract::{LINE, Pmem, Survives, WORD, check_words, lines_touched};
use crate::range::check_in_device;
use crate::tag::{Cause, Tag};

/// How to open or make a [`MappedPmem`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PmemOptions {
    survives: Survives,
    read_only: bool,
    private: bool,
    lock: bool,
    mounted: bool,
}

impl Default for PmemOptions {
    /// For loads and stores that survive power loss, with a lock.
    fn default() -> Self {
        Self {
            survives: Survives::PowerLoss,
            read_only: false,
            private: false,
            lock: true,
            mounted: false,
        }
    }
}

impl PmemOptions {
    /// Sets what durable content must survive. A file on persistent memory survives power loss in
    /// any case.
    pub fn survives(mut self, survives: Survives) -> Self {
        self.survives = survives;
        self
    }

    /// Sets whether the memory is for loads only.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether the file is only read: stores then stay in memory and are forgotten.
    pub fn private(mut self, private: bool) -> Self {
        self.private = private;
        self
    }

    /// Sets whether to lock the file (the default). Without a lock the content can change while it
    /// is read.
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// As [`FileOptions::mounted`](crate::FileOptions::mounted).
    pub fn mounted(mut self, mounted: bool) -> Self {
        self.mounted = mounted;
        self
    }

    /// Opens a file in its whole size, rounded down to whole sectors of 512 bytes. Refuses an empty
    /// one (EINVAL).
    pub fn open(self, path: impl AsRef<Path>) -> Result<MappedPmem, MediaError> {
        let file = FileDev::options()
            .read_only(self.read_only || self.private)
            .lock(self.lock)
            .mounted(self.mounted)
            .open(path)?;
        let failed = |source| MediaError::Open {
            path: file.path.clone(),
            source,
        };
        let len = usize::try_from(file.shape.size).map_err(|_| failed(Errno::FBIG))?;
        if len == 0 {
            return Err(failed(Errno::INVAL));
        }
        if !self.read_only && !self.private && !file.shape.block_device {
            allocate(&file.file, file.shape.size).map_err(failed)?;
        }
        let mapping = self.map(&file.file, len).map_err(failed)?;
        Ok(MappedPmem {
            survives: if self.private {
                Survives::ProcessCrash
            } else if mapping.is_synchronous() {
                Survives::PowerLoss
            } else {
                self.survives
            },
            is_private: self.private,
            mapping,
            path: fs::canonicalize(&file.path).ok(),
            file,
            meter: Meter::new(),
            unsynced: Mutex::new(None),
            writes_lost: AtomicBool::new(false),
        })
    }

    fn map(self, file: &File, len: usize) -> Result<Mapping, Errno> {
        if self.private {
            return Mapping::new(file, len, Access::Private);
        }
        if self.read_only {
            return Mapping::new(file, len, Access::ReadOnly);
        }
        match Mapping::new(file, len, Access::Synchronous) {
            // EINVAL: a kernel before 4.15, which does not know MAP_SYNC.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => Mapping::new(file, len, Access::ReadWrite),
            mapped => mapped,
        }
    }

    /// Makes a file of `size` zeros with all its blocks, and opens it. Refuses a path that exists
    /// (EEXIST) and a size that is not a multiple of 512 (EINVAL). Removes a file that it cannot
    /// finish.
    pub fn create(self, path: impl AsRef<Path>, size: u64) -> Result<MappedPmem, MediaError> {
        let path = path.as_ref();
        let failed = |source| MediaError::Open {
            path: path.to_owned(),
            source,
        };
        if size == 0 || !size.is_multiple_of(512) || self.read_only {
            return Err(failed(Errno::INVAL));
        }
        let file = File::create_new(path).map_err(|e| failed(errno(&e)))?;
        let made = allocate(&file, size)
            .and_then(|()| make_durable(&file, path).map_err(|e| errno(&e)))
            .map_err(failed)
            .and_then(|()| self.open(path));
        if made.is_err() {
            let _ = fs::remove_file(path);
        }
        made
    }
}

/// Gives a file all its blocks, and grows it to `size` if it is smaller.
fn allocate(file: &File, size: u64) -> Result<(), Errno> {
    retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, size))
}

/// Makes the file's size and name durable.
fn make_durable(file: &File, path: &Path) -> std::io::Result<()> {
    file.sync_all()?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// A mapped file, locked as long as this lives.
pub struct MappedPmem {
    // Dropped first: unmapped before the lock is released.
    mapping: Mapping,
    file: FileDev,
    path: Option<PathBuf>,
    survives: Survives,
    /// Stores never reach the file.
    is_private: bool,
    meter: Meter,
    /// From the first to the last byte flushed and not yet synced. One msync over all costs the
    /// device one flush; one msync per piece would cost a flush each.
    unsynced: Mutex<Option<Range<u64>>>,
    /// An msync has failed: as with fsync, the kernel forgets the pages that it could not write.
    writes_lost: AtomicBool,
}

impl MappedPmem {
    /// Returns the default options for opening or making one.
    pub fn options() -> PmemOptions {
        PmemOptions::default()
    }

    /// Whether the file lies on persistent memory, so that lines are durable without the kernel's
    /// help.
    pub fn is_direct(&self) -> bool {
        self.mapping.is_synchronous()
    }

    fn check_writable(&self, op: Op, offset: u64, len: u64) -> Result<(), MediaError> {
        if self.read_only() {
            return Err(MediaError::ReadOnly { op, offset, len });
        }
        Ok(())
    }

    fn needs_sync(&self) -> bool {
        self.survives == Survives::PowerLoss && !self.mapping.is_synchronous()
    }

    /// Adds a range to what the next fence has to sync.
    fn will_sync(&self, offset: u64, len: u64) {
        if !self.needs_sync() || len == 0 {
            return;
        }
        let mut unsynced = self.unsynced.lock();
        *unsynced = Some(match unsynced.take() {
            Some(range) => range.start.min(offset)..range.end.max(offset + len),
            None => offset..offset + len,
        });
    }

    /// Writes flushed ranges to the device. It holds the lock meanwhile: otherwise a fence could
    /// return while another one still writes data that the first has to wait for.
    fn sync(&self, cause: Cause) -> Result<(), MediaError> {
        let mut unsynced = self.unsynced.lock();
        if self.writes_lost.load(Ordering::Acquire) {
            return Err(MediaError::WritesLost);
        }
        let Some(range) = unsynced.take() else {
            return Ok(());
        };
        let (offset, len) = (range.start, range.end - range.start);
        let start = Instant::now();
        // Lines round the range up to 64 bytes; the kernel rounds it to pages.
        let synced = retry_on_intr(|| self.mapping.sync(u64_as_usize(offset), u64_as_usize(len)));
        synced.map_err(|source| {
            self.writes_lost.store(true, Ordering::Release);
            MediaError::Io {
                op: Op::Flush,
                offset,
                len,
                source,
            }
        })?;
        let busy_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.meter.count_cause_busy(cause, busy_ns);
        Ok(())
    }
}

/// The error of an access to a page that no longer exists.
fn lost(op: Op, offset: u64, len: u64) -> impl FnOnce(Errno) -> MediaError {
    move |source| MediaError::Io {
        op,
        offset,
        len,
        source,
    }
}

impl Pmem for MappedPmem {
    fn describe(&self) -> String {
        let path = self.file.path.display();
        let how = match (self.read_only(), self.is_direct(), self.survives) {
            (true, ..) => "read-only".to_owned(),
            _ if self.is_private => "read only; changes stay in memory".to_owned(),
            (_, true, _) => format!(
                "persistent memory, {}",
                self.mapping.write_back_instruction()
            ),
            (_, _, Survives::PowerLoss) => "file, msync at each fence".to_owned(),
            (_, _, Survives::ProcessCrash) => "file, no msync".to_owned(),
        };
        format!("{path} ({how}; {})", self.survives)
    }

    fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Counts blocks that were only allocated as a hole, so that scanning a new file does not read
    /// all of it into the page cache.
    fn next_data(&self, offset: u64) -> u64 {
        match seek(&self.file.file, SeekFrom::Data(offset)) {
            Ok(at) => at.clamp(offset, self.size()),
            Err(Errno::NXIO) => self.size(),
            Err(_) => offset,
        }
    }

    fn size(&self) -> u64 {
        usize_as_u64(self.mapping.len()) / LINE * LINE
    }

    fn survives(&self) -> Survives {
        self.survives
    }

    fn read_only(&self) -> bool {
        self.file.shape.read_only && !self.is_private
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        check_in_device(Op::Read, offset, len, self.size())?;
        let loaded = self.mapping.load(u64_as_usize(offset), out);
        loaded.map_err(lost(Op::Read, offset, len))?;
        self.meter.count_read(tag, len);
        Ok(())
    }

    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        check_words(Op::Read, offset, WORD, self.size())?;
        let value = self.mapping.load_u64(u64_as_usize(offset));
        let value = u64::from_le(value.map_err(lost(Op::Read, offset, WORD))?);
        self.meter.count_read(tag, WORD);
        Ok(value)
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(data.len());
        check_in_device(Op::Write, offset, len, self.size())?;
        self.check_writable(Op::Write, offset, len)?;
        let stored = self.mapping.store(u64_as_usize(offset), data);
        stored.map_err(lost(Op::Write, offset, len))?;
        self.meter.count_write(tag, len);
        Ok(())
    }

    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        check_words(Op::Write, offset, WORD, self.size())?;
        self.check_writable(Op::Write, offset, WORD)?;
        let stored = self.mapping.store_u64(u64_as_usize(offset), value.to_le());
        stored.map_err(lost(Op::Write, offset, WORD))?;
        self.meter.count_write(tag, WORD);
        Ok(())
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(data.len());
        check_words(Op::Write, offset, len, self.size())?;
        self.check_writable(Op::Write, offset, len)?;
        let stored = self.mapping.store_past_cache(u64_as_usize(offset), data);
        stored.map_err(lost(Op::Write, offset, len))?;
        self.will_sync(offset, len);
        self.meter.count_write(tag, len);
        self.meter.count_lines(tag, lines_touched(offset, len));
        Ok(())
    }

    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        check_in_device(Op::Flush, offset, len, self.size())?;
        self.check_writable(Op::Flush, offset, len)?;
        let lines = self
            .mapping
            .write_back(u64_as_usize(offset), u64_as_usize(len));
        let lines = lines.map_err(lost(Op::Flush, offset, len))?;
        self.will_sync(offset, len);
        self.meter.count_lines(tag, usize_as_u64(lines));
        Ok(())
    }

    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        store_fence();
        if self.needs_sync() {
            self.sync(cause)?;
        }
        self.meter.count_fence(cause);
        Ok(())
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        BlockDev::check_backing(&self.file)
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
