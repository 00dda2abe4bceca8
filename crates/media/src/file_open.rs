//! Opening a file or block device: exclusively, and with its size and alignments measured.
//!
//! Who excludes whom:
//!
//! | | means | keeps out |
//! |---|---|---|
//! | read-write, file | flock, exclusive | every other stetfs |
//! | read-only, file | flock, shared; a range | writers |
//! | read-write, block device | O_EXCL and flock, exclusive | kernel mounts, swap, RAID, every other stetfs |
//! | read-only, block device | O_EXCL tried once, flock, shared | as above, at the moment of opening |
//!
//! A loop device and its backing file are one volume by two names. Opening the device therefore
//! locks the file too, and the whole chain if that file is on a loop device again. It takes two
//! locks: a shared flock, which keeps out anybody who has the file itself open read-write; and a
//! lock on the device's range of the file (F_OFD_SETLK), so that partitions of one file can be used
//! side by side but no byte twice. Opening the file read-only locks all of it in the same way.
//!
//! The kernel does not lock a file that it has mounted through a loop device; sysfs tells of these.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, StatxFlags, flock, fstat, major, minor,
    open, statx,
};
use rustix::io::{Errno, retry_on_intr};
use stetfs_format::width::{low32, must_fit, u32_as_usize};
use stetfs_sys::{block_ioctl, lock_range, loop_ioctl};

use crate::dev::{DISK_JUMP_BYTES, FLASH_JUMP_BYTES};
use crate::error::MediaError;
use crate::file::{FileDev, PAGE, Shape};

impl FileDev {
    /// Returns the default options for opening one.
    pub fn options() -> FileOptions {
        FileOptions::default()
    }
}

/// How to open a [`FileDev`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct FileOptions {
    read_only: bool,
    direct: Option<bool>,
    lock: bool,
    mounted: bool,
}

impl Default for FileOptions {
    /// For reading and writing, through the page cache, locked.
    fn default() -> Self {
        Self {
            read_only: false,
            direct: Some(false),
            lock: true,
            mounted: false,
        }
    }
}

impl FileOptions {
    /// For reading only.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether to go past the page cache (O_DIRECT); fails if the file system does not support
    /// that. `None` chooses what makes a durable write cheapest: past the cache on a block device
    /// that supports it (on a loop device a 12 KiB write and flush takes 0.8 times as long as
    /// through the cache), through the cache on a regular file.
    pub fn direct(mut self, direct: impl Into<Option<bool>>) -> Self {
        self.direct = direct.into();
        self
    }

    /// Whether to lock (the default). Without a lock the content can change while it is read: only
    /// for looking at a volume that may be mounted.
    pub fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Whether the file may be mounted through a loop device (not by default): for a program that
    /// goes on with such a mount.
    pub fn mounted(mut self, mounted: bool) -> Self {
        self.mounted = mounted;
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
        if block_device && !self.read_only && block_ioctl::is_read_only(&file).map_err(failed)? {
            // The kernel opens a read-only device for writing all the same.
            return Err(failed(Errno::ROFS));
        }
        let stat = fstat(&file).map_err(failed)?;
        if (stat.st_dev, stat.st_ino, stat.st_rdev)
            != (before.st_dev, before.st_ino, before.st_rdev)
        {
            return Err(failed(Errno::STALE));
        }
        let mut below = Vec::new();
        if self.lock {
            self.lock_file(path, &file, &stat, block_device)?;
            below = self.lock_backing(path, &stat, block_device)?;
        }
        let shape = self
            .measure(&file, &stat, block_device, direct)
            .map_err(failed)?;
        Ok(FileDev::from_parts(file, below, path.to_owned(), shape))
    }

    /// Opens the file; returns it and whether it goes past the page cache.
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
            // Exclusive for a moment only, so that several readers can have it open together.
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
        // udev locks a block device for a moment while it looks at it. A child of this process
        // holds our locks until its exec.
        with_patience(try_lock).map_err(|e| match e {
            Errno::WOULDBLOCK => MediaError::Busy {
                path: path.to_owned(),
                by: lock_holder_shown(stat),
            },
            e => MediaError::Open {
                path: path.to_owned(),
                source: e,
            },
        })?;
        match mounted_loop_device(stat) {
            Some(device) if !block_device && !self.mounted => {
                return Err(MediaError::Busy {
                    path: path.to_owned(),
                    by: format!(" (mounted through {device})"),
                });
            }
            _ => {}
        }
        if !block_device && self.read_only {
            return lock_part(path, file, Part::WHOLE, false);
        }
        Ok(())
    }

    /// Locks the backing files of a loop device. The locks last as long as the returned files.
    fn lock_backing(
        self,
        path: &Path,
        stat: &Stat,
        block_device: bool,
    ) -> Result<Vec<File>, MediaError> {
        const DEPTH_MAX: usize = 8;
        let mut locked = Vec::new();
        let mut device = block_device.then_some(stat.st_rdev);
        let mut part = Part::WHOLE;
        while let Some(backing) = device.and_then(backing_of) {
            if locked.len() == DEPTH_MAX {
                break;
            }
            part = part.inside(backing.part);
            let Some(file) = self.open_backing(&backing) else {
                // The file was removed, or its path cannot be seen from here. Who holds a lock on
                // it can still be looked up.
                return match lock_holder_of(&backing.identity) {
                    Some(by) => Err(busy_below(path, &backing, &by)),
                    None => Ok(locked),
                };
            };
            let busy = |by: &str| busy_below(path, &backing, by);
            let shared = || retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockShared));
            with_patience(shared)
                .map_err(|_| busy(&lock_holder_of(&backing.identity).unwrap_or_default()))?;
            // A file that cannot be written cannot be written through its device either.
            let exclusive = !self.read_only && is_writable(&file);
            lock_part(path, &file, part, exclusive).map_err(|e| match e {
                MediaError::Busy { by, .. } => busy(&by),
                e => e,
            })?;
            device = fstat(&file)
                .ok()
                .filter(|stat| FileType::from_raw_mode(stat.st_mode).is_block_device())
                .map(|stat| stat.st_rdev);
            locked.push(file);
        }
        Ok(locked)
    }

    /// Opens the backing file; `None` if its path leads to another file or cannot be opened.
    fn open_backing(self, backing: &Backing) -> Option<File> {
        let open_as = |flags| {
            let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
            retry_on_intr(|| open(&backing.path, flags, Mode::empty()))
        };
        let file = match open_as(OFlags::RDWR) {
            Ok(file) if !self.read_only => file,
            _ => open_as(OFlags::RDONLY).ok()?,
        };
        let stat = fstat(&file).ok()?;
        (identity(&stat) == backing.identity).then(|| File::from(file))
    }

    /// Measures size, sector size and alignments.
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
            || u32_as_usize(memory_align) > PAGE
        {
            return Err(Errno::OPNOTSUPP);
        }
        let dev = if block_device {
            stat.st_rdev
        } else {
            stat.st_dev
        };
        let jump_bytes = match queue_setting(dev, "rotational").as_deref() {
            Some("1") => DISK_JUMP_BYTES,
            _ => FLASH_JUMP_BYTES,
        };
        Ok(Shape {
            size: size - size % u64::from(sector),
            sector,
            block_device,
            read_only: self.read_only,
            direct,
            memory_align,
            volatile_cache: !(block_device && direct && is_write_through(stat)),
            fua_is_flush: block_device && direct && is_fua_a_flush(stat),
            jump_bytes,
            has_name: stat.st_nlink > 0,
        })
    }
}

/// A range of a file in bytes; without a length it reaches to the end of the file.
#[derive(Clone, Copy, Debug)]
struct Part {
    offset: u64,
    len: Option<u64>,
}

impl Part {
    const WHOLE: Self = Self {
        offset: 0,
        len: None,
    };

    /// Translates this part of a device into the coordinates of the file of which the device is
    /// `outer`.
    fn inside(self, outer: Self) -> Self {
        let rest = outer.len.map(|len| len.saturating_sub(self.offset));
        Self {
            offset: outer.offset.saturating_add(self.offset),
            len: match (self.len, rest) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        }
    }
}

/// The backing file of a loop device or of a partition of one.
struct Backing {
    /// The loop device: `/dev/loop3`.
    device: String,
    path: PathBuf,
    /// [`identity`] of the file.
    identity: (u64, u64),
    part: Part,
}

fn is_writable(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns the backing file of a loop device, given the device's directory in sysfs
/// (`/sys/block/loop3`). `None` if it is no loop device or has no backing file.
pub fn loop_backing_file(sysfs: &Path) -> Option<PathBuf> {
    let text = fs::read(sysfs.join("loop/backing_file")).ok()?;
    let path = text.strip_suffix(b"\n").unwrap_or(&text);
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// Returns the backing file if the device covers all of it.
pub fn loop_whole_file(sysfs: &Path) -> Option<PathBuf> {
    let is_zero = |name| fs::read_to_string(sysfs.join(name)).is_ok_and(|text| text.trim() == "0");
    let is_whole = is_zero("loop/offset") && is_zero("loop/sizelimit");
    loop_backing_file(sysfs).filter(|_| is_whole)
}

/// Returns the backing file of the block device with this number, if that is a loop device or a
/// partition of one.
fn backing_of(device: u64) -> Option<Backing> {
    let dir = fs::canonicalize(format!("/sys/dev/block/{}", device_number(device))).ok()?;
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let (whole, part) = match number(dir.join("partition")) {
        None => (dir.clone(), Part::WHOLE),
        Some(_) => {
            // sysfs counts in sectors of 512 bytes, whatever the device's sector size.
            let sectors = |name| number(dir.join(name))?.checked_mul(512);
            let part = Part {
                offset: sectors("start")?,
                len: sectors("size"),
            };
            (dir.parent()?.to_owned(), part)
        }
    };
    let name = whole.file_name()?.to_string_lossy().into_owned();
    let path = loop_backing_file(&whole)?;
    let device = format!("/dev/{name}");
    let asked = File::open(&device)
        .ok()
        .and_then(|device| loop_ioctl::backing(&device).ok());
    let identity = match asked {
        Some(found) => (from_encoded(found.device), found.inode),
        // Identified by its path alone.
        None => identity(&rustix::fs::stat(&path).ok()?),
    };
    let of_file = Part {
        offset: number(whole.join("loop/offset")).unwrap_or(0),
        len: number(whole.join("loop/sizelimit")).filter(|len| *len > 0),
    };
    Some(Backing {
        device,
        path,
        identity,
        part: part.inside(of_file),
    })
}

/// Unpacks a device number from the form of the kernel's `huge_encode_dev`, which `struct
/// loop_info64` uses.
fn from_encoded(packed: u64) -> u64 {
    let (major, minor) = (packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xfff00);
    rustix::fs::makedev(low32(major), low32(minor))
}

fn lock_part(path: &Path, file: &File, part: Part, exclusive: bool) -> Result<(), MediaError> {
    let len = part.len.unwrap_or(0);
    let locked = with_patience(|| retry_on_intr(|| lock_range(file, part.offset, len, exclusive)));
    locked.map_err(|source| match source {
        Errno::AGAIN | Errno::ACCESS => MediaError::Busy {
            path: path.to_owned(),
            by: " (through a loop device or its backing file)".to_owned(),
        },
        source => MediaError::Open {
            path: path.to_owned(),
            source,
        },
    })
}

fn busy_below(path: &Path, backing: &Backing, by: &str) -> MediaError {
    MediaError::Busy {
        path: path.to_owned(),
        by: format!(
            ": so is {}, the backing file of {}{by}",
            backing.path.display(),
            backing.device
        ),
    }
}

/// Returns true for a block device, false for a regular file; fails for anything else.
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

/// Repeats an attempt for a while, since another program's short look at a device can spoil it.
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

/// Returns the alignment in bytes that O_DIRECT asks of memory and of offsets. A kernel before 6.1
/// does not tell: the sector size is enough for block devices and for file systems on them, a page
/// for the rest.
fn direct_alignment(file: &File, sector: u32) -> (u32, u32) {
    let asked = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match asked {
        Ok(x) if x.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && x.stx_dio_offset_align != 0 => {
            (x.stx_dio_mem_align.max(1), x.stx_dio_offset_align)
        }
        _ if sector > 512 => (sector, sector),
        _ => (must_fit(PAGE), 512),
    }
}

/// Whether a block device reports that it has no volatile cache.
fn is_write_through(stat: &Stat) -> bool {
    queue_setting(stat.st_rdev, "write_cache").is_some_and(|text| text == "write through")
}

/// Whether the kernel implements forced unit access on a block device by a write and a flush of the
/// whole device. Two kinds of device are different: one that supports forced unit access itself;
/// and one that consists of other devices, since each of these has its own flush (its queue has no
/// requests, `mq`).
fn is_fua_a_flush(stat: &Stat) -> bool {
    let is = |name, wanted: &str| queue_setting(stat.st_rdev, name).is_some_and(|t| t == wanted);
    is("write_cache", "write back")
        && is("fua", "0")
        && in_sysfs(stat.st_rdev)
            .iter()
            .any(|dir| dir.join("mq").is_dir())
}

/// Reads a queue setting of the block device with this number; `None` if there is no such device:
/// many file systems have a device number of their own.
fn queue_setting(device: u64, name: &str) -> Option<String> {
    let text = in_sysfs(device)
        .iter()
        .find_map(|dir| fs::read_to_string(dir.join("queue").join(name)).ok())?;
    Some(text.trim().to_owned())
}

/// Returns the sysfs directories that describe a block device. A partition has its queue in the
/// directory of the whole device, one level above the link's target.
fn in_sysfs(device: u64) -> [PathBuf; 2] {
    let dir = PathBuf::from(format!("/sys/dev/block/{}", device_number(device)));
    let whole = dir.join("..");
    [dir, whole]
}

fn device_number(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// A process that has a file locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its process id; 0 if it is in another PID namespace and cannot be seen from here.
    pub pid: u32,
    /// Its name; `None` if it cannot be seen.
    pub name: Option<String>,
}

impl Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), pid) => write!(f, "{name}, process {pid}"),
            (None, 0) => f.write_str("a process elsewhere"),
            (None, pid) => write!(f, "process {pid}"),
        }
    }
}

/// Returns who has the file at `path` locked; `None` if nobody has, or the file does not exist.
pub fn lock_holder(path: &Path) -> Option<LockHolder> {
    find_lock(&identity(&rustix::fs::stat(path).ok()?))
}

/// Returns the process that holds a lock on the file, as " (by ...)"; empty if there is none.
fn lock_holder_shown(stat: &Stat) -> String {
    lock_holder_of(&identity(stat)).unwrap_or_default()
}

/// Returns the holder of a lock on the file with this [`identity`], as " (by ...)"; `None` if
/// nobody has one.
fn lock_holder_of(identity: &(u64, u64)) -> Option<String> {
    find_lock(identity).map(|holder| format!(" (by {holder})"))
}

fn find_lock(&(device, inode): &(u64, u64)) -> Option<LockHolder> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
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
    let pid = holder?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Some(LockHolder {
        pid,
        name: name.map(|name| name.trim().to_owned()),
    })
}

/// Returns the loop device, or partition of one, through which this file is mounted now.
fn mounted_loop_device(stat: &Stat) -> Option<String> {
    // A mount point need not be UTF-8.
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let mounts = String::from_utf8_lossy(&mounts);
    let mounted: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(backing) = loop_backing_file(&entry.path()) else {
            continue;
        };
        let same = rustix::fs::stat(backing).is_ok_and(|other| identity(&other) == identity(stat));
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

/// Returns the sysfs directories of a device's partitions.
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
