//! Opening a file or block device: exclusively, and with its size and alignments found out.
//!
//! Who keeps whom out:
//!
//! | | means | keeps out |
//! |---|---|---|
//! | read-write, file | flock, exclusive | every other stetfs |
//! | read-only, file | flock, shared | writers |
//! | read-write, block device | O_EXCL and flock, exclusive | kernel mounts, swap, RAID, every other stetfs |
//! | read-only, block device | O_EXCL tried once, flock, shared | as above, at the moment of opening |
//!
//! A file that the kernel has mounted through a loop device is not locked by the kernel; that is
//! looked up in sysfs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, StatxFlags, flock, fstat, major, minor,
    open, statx,
};
use rustix::io::{Errno, retry_on_intr};
use stetfs_sys::block_ioctl;

use crate::error::MediaError;
use crate::file::{FileDev, PAGE, Shape};

/// How to open a [`FileDev`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FileOptions {
    read_only: bool,
    direct: Option<bool>,
    lock: bool,
}

impl Default for FileOptions {
    /// For reading and writing, through the page cache, locked.
    fn default() -> Self {
        Self {
            read_only: false,
            direct: Some(false),
            lock: true,
        }
    }
}

impl FileOptions {
    /// For reading only.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Past the page cache (O_DIRECT). Fails where the file system has no such thing. `None` chooses what costs a
    /// durable write least: past it on a block device that can (on a loop device a 12 KiB write and flush takes 0.8 times what it
    /// takes through the page cache), through it on a regular file.
    pub fn direct(mut self, direct: impl Into<Option<bool>>) -> Self {
        self.direct = direct.into();
        self
    }

    /// Whether to lock (the default). Without a lock the content can change while it is read: only for
    /// looking at something that may be mounted.
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Opens `path`.
    pub fn open(self, path: impl AsRef<Path>) -> Result<FileDev, MediaError> {
        let path = path.as_ref();
        let failed = |source| MediaError::Open {
            path: path.to_owned(),
            source,
        };
        let before = rustix::fs::stat(path).map_err(failed)?;
        let block_device = check_is_storage(path, &before)?;
        let (file, direct) = self.open_file(path, block_device)?;
        let stat = fstat(&file).map_err(failed)?;
        if (stat.st_dev, stat.st_ino, stat.st_rdev)
            != (before.st_dev, before.st_ino, before.st_rdev)
        {
            return Err(failed(Errno::STALE));
        }
        if self.lock {
            self.lock_file(path, &file, &stat, block_device)?;
        }
        let shape = self
            .measure(&file, &stat, block_device, direct)
            .map_err(failed)?;
        Ok(FileDev::from_parts(file, path.to_owned(), shape))
    }

    /// The file, and whether it was opened past the page cache.
    fn open_file(self, path: &Path, block_device: bool) -> Result<(File, bool), MediaError> {
        let direct = self.direct.unwrap_or(block_device);
        match self.open_as(path, block_device, direct) {
            Err(MediaError::Open {
                source: Errno::INVAL,
                ..
            }) if direct && self.direct.is_none() => {
                Ok((self.open_as(path, block_device, false)?, false))
            }
            opened => Ok((opened?, direct)),
        }
    }

    fn open_as(self, path: &Path, block_device: bool, direct: bool) -> Result<File, MediaError> {
        let mut flags = OFlags::CLOEXEC;
        flags |= if self.read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        if direct {
            flags |= OFlags::DIRECT;
        }
        let try_open = |flags| retry_on_intr(|| open(path, flags, Mode::empty()));
        if block_device && self.lock && self.read_only {
            // Opened exclusively for a moment only, so that several readers can be there together.
            with_patience(|| try_open(flags | OFlags::EXCL))
                .map_err(|e| busy_or_failed(path, e))?;
        }
        if block_device && self.lock && !self.read_only {
            flags |= OFlags::EXCL;
            return with_patience(|| try_open(flags))
                .map(File::from)
                .map_err(|e| busy_or_failed(path, e));
        }
        try_open(flags)
            .map(File::from)
            .map_err(|e| busy_or_failed(path, e))
    }

    fn lock_file(
        self,
        path: &Path,
        file: &File,
        stat: &Stat,
        block_device: bool,
    ) -> Result<(), MediaError> {
        let how = if self.read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let try_lock = || retry_on_intr(|| flock(file, how));
        // udev locks a block device for a moment while it looks at it; a child of this process that has not come to its exec
        // holds whatever was locked here.
        with_patience(try_lock).map_err(|e| match e {
            Errno::WOULDBLOCK => MediaError::Busy {
                path: path.to_owned(),
                by: lock_holder(stat),
            },
            e => MediaError::Open {
                path: path.to_owned(),
                source: e,
            },
        })?;
        match mounted_loop_device(stat) {
            Some(device) if !block_device => Err(MediaError::Busy {
                path: path.to_owned(),
                by: format!(" (mounted through {device})"),
            }),
            _ => Ok(()),
        }
    }

    /// Size, sector size and alignments.
    fn measure(
        self,
        file: &File,
        stat: &Stat,
        block_device: bool,
        direct: bool,
    ) -> Result<Shape, Errno> {
        let (size, mut sector) = if block_device {
            (
                block_ioctl::size_bytes(file)?,
                block_ioctl::sector_size_bytes(file)?,
            )
        } else {
            (u64::try_from(stat.st_size).map_err(|_| Errno::FBIG)?, 512)
        };
        let mut memory_align = 1;
        if direct {
            let (memory, offset) = direct_alignment(file, sector);
            memory_align = memory;
            sector = sector.max(offset);
        }
        if !sector.is_power_of_two()
            || !(512..=65_536).contains(&sector)
            || memory_align as usize > PAGE
        {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Shape {
            size: size - size % u64::from(sector),
            sector,
            block_device,
            read_only: self.read_only,
            direct,
            memory_align,
            volatile_cache: !(block_device && direct && is_write_through(stat)),
            has_name: stat.st_nlink > 0,
        })
    }
}

/// Whether it is a block device (true) or a regular file (false).
fn check_is_storage(path: &Path, stat: &Stat) -> Result<bool, MediaError> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => return Ok(true),
        FileType::RegularFile => return Ok(false),
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    };
    Err(MediaError::NotStorage {
        path: path.to_owned(),
        what,
    })
}

fn busy_or_failed(path: &Path, source: Errno) -> MediaError {
    if source == Errno::BUSY {
        return MediaError::Busy {
            path: path.to_owned(),
            by: String::new(),
        };
    }
    MediaError::Open {
        path: path.to_owned(),
        source,
    }
}

/// Tries again for a while what another program's short look at a device can spoil.
fn with_patience<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    const ATTEMPTS: u32 = 20;
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Errno::BUSY | Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    attempt()
}

/// Alignment in bytes that O_DIRECT asks of memory and of offsets. A kernel before 6.1 does not say; the sector size is
/// enough for block devices and for file systems on them, a page for the rest.
fn direct_alignment(file: &File, sector: u32) -> (u32, u32) {
    let asked = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match asked {
        Ok(x) if x.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && x.stx_dio_offset_align != 0 => {
            (x.stx_dio_mem_align.max(1), x.stx_dio_offset_align)
        }
        _ if sector > 512 => (sector, sector),
        _ => (PAGE as u32, 512),
    }
}

/// Whether a block device says that it has no volatile cache.
fn is_write_through(stat: &Stat) -> bool {
    let device = PathBuf::from(format!("/sys/dev/block/{}", device_number(stat.st_rdev)));
    // A partition has its queue in the directory of the whole device, one up from where the link leads.
    let settings = [
        device.join("queue/write_cache"),
        device.join("../queue/write_cache"),
    ];
    let cache = settings
        .iter()
        .find_map(|path| fs::read_to_string(path).ok());
    cache.is_some_and(|text| text.trim() == "write through")
}

fn device_number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The process that holds a lock on the file, in words, or nothing.
fn lock_holder(stat: &Stat) -> String {
    let file = format!(
        "{:02x}:{:02x}:{}",
        major(stat.st_dev),
        minor(stat.st_dev),
        stat.st_ino
    );
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file.as_str());
        if is_it {
            words.get(4).and_then(|pid| pid.parse::<u32>().ok())
        } else {
            None
        }
    });
    let Some(pid) = holder else {
        return String::new();
    };
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!(" (by {}, process {pid})", name.trim()),
        Err(_) => format!(" (by process {pid})"),
    }
}

/// The loop device, or partition of one, through which this file is mounted just now.
fn mounted_loop_device(stat: &Stat) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let same = rustix::fs::stat(backing.trim_end_matches('\n'))
            .is_ok_and(|other| (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino));
        if !same {
            continue;
        }
        for part in std::iter::once(entry.path()).chain(partitions(&entry.path(), &name)) {
            let number = fs::read_to_string(part.join("dev")).unwrap_or_default();
            if mounted.contains(&number.trim()) {
                return Some(format!("/dev/{}", part.file_name()?.to_string_lossy()));
            }
        }
    }
    None
}

/// The directories of the partitions of a device in sysfs.
fn partitions(device: &Path, name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(device) else {
        return Vec::new();
    };
    let is_partition = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(name))
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_partition)
        .collect()
}
