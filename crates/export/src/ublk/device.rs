//! The device as the driver knows it: made, shown to its users, taken away.
//!
//! Source: Linux, `include/uapi/linux/ublk_cmd.h` (`struct ublksrv_ctrl_dev_info`,
//! `ublk_params`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use stetfs_format::width::{low32, must_fit_u32, usize_as_u64};
use stetfs_sys::ublk::{Command, Control};

use super::request::{ROOM, SECTOR};
use crate::ByteDev;

/// Where the driver is asked for devices.
const CONTROL: &str = "/dev/ublk-control";
/// Requests that are under way at most.
pub(super) const DEPTH: u16 = 128;
/// How long the nodes of a new device may take to appear.
const PATIENCE: Duration = Duration::from_secs(10);
/// Numbers among which devices that killed servers have left are looked for.
const LOOKED_AT: u32 = 64;

/// `UBLK_F_CMD_IOCTL_ENCODE`.
const IOCTL_ENCODE: u64 = 1 << 6;
/// `UBLK_F_USER_COPY`.
const USER_COPY: u64 = 1 << 7;

/// Bytes of `struct ublksrv_ctrl_dev_info`, and where its fields are.
const INFO: usize = 64;
mod info {
    pub(super) const QUEUES: usize = 0;
    pub(super) const DEPTH: usize = 2;
    pub(super) const STATE: usize = 4;
    pub(super) const ROOM: usize = 8;
    pub(super) const ID: usize = 12;
    pub(super) const FLAGS: usize = 24;
    /// `ublksrv_flags`, which the driver keeps for the server.
    pub(super) const OURS: usize = 32;
}

/// What our devices have in `ublksrv_flags`, before the server's process number.
const MARK: [u8; 4] = *b"stet";

/// `UBLK_S_DEV_DEAD`: it has no server.
const DEAD: u16 = 0;

/// `UBLK_PARAM_TYPE_BASIC` and `UBLK_PARAM_TYPE_DISCARD`.
const BASIC: u32 = 1 << 0;
const DISCARD: u32 = 1 << 1;
/// `UBLK_ATTR_READ_ONLY`, `UBLK_ATTR_VOLATILE_CACHE`, `UBLK_ATTR_FUA`.
const READ_ONLY: u32 = 1 << 0;
const VOLATILE_CACHE: u32 = 1 << 2;
const FUA: u32 = 1 << 3;
/// Linux takes no larger block.
const MOST_BLOCK: u32 = 4096;
/// Sectors of a discard, or of a range that is zeroed: a GiB.
const RANGE_SECTORS: u32 = 1 << 21;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The driver is not there, or is not for this user.
    #[error("{path}: {source}; the driver ublk_drv serves root: modprobe ublk_drv")]
    NoDriver {
        /// The driver's control device.
        path: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The driver lacks something.
    #[error("the kernel's ublk driver is too old: Linux 6.9 or later is needed")]
    TooOld,
    /// The driver has refused.
    #[error("ublk: {what}: {source}")]
    Refused {
        /// What it was asked for.
        what: &'static str,
        /// Its reason.
        source: Errno,
    },
    /// The device's node, or a thread of the server.
    #[error("{what}: {source}")]
    Io {
        /// The node, or what the thread is for.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// A device that the driver has made.
pub(super) struct Device {
    control: Control,
    id: u32,
}

/// Opens the driver's control device.
pub(super) fn open_control() -> Result<Control, UblkError> {
    let missing = |source| UblkError::NoDriver {
        path: CONTROL,
        source,
    };
    let file = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = Control::new(file.map_err(missing)?);
    control.map_err(|source| UblkError::Refused {
        what: "io_uring",
        source,
    })
}

impl Device {
    /// Makes a device for `dev`, which nobody sees yet.
    pub(super) fn add(mut control: Control, dev: &ByteDev) -> Result<Self, UblkError> {
        remove_left(&mut control);
        let mut record = [0; INFO];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(info::QUEUES, &1u16.to_ne_bytes());
        put(info::DEPTH, &DEPTH.to_ne_bytes());
        put(info::ROOM, &must_fit_u32(ROOM).to_ne_bytes());
        put(info::ID, &u32::MAX.to_ne_bytes());
        put(info::FLAGS, &(IOCTL_ENCODE | USER_COPY).to_ne_bytes());
        put(info::OURS, &MARK);
        put(info::OURS + 4, &std::process::id().to_ne_bytes());
        let added = control.command(Command::Add, u32::MAX, 0, &mut record);
        added.map_err(|source| match source {
            Errno::INVAL | Errno::OPNOTSUPP => UblkError::TooOld,
            source => UblkError::Refused {
                what: "a new device",
                source,
            },
        })?;
        let id = word(&record, info::ID);
        let device = Self { control, id };
        let flags = u64::from(word(&record, info::FLAGS));
        let depth = half(&record, info::DEPTH);
        if flags & USER_COPY == 0 || depth != DEPTH {
            return Err(UblkError::TooOld);
        }
        device.with_params(dev)
    }

    fn with_params(mut self, dev: &ByteDev) -> Result<Self, UblkError> {
        let mut record = params(dev);
        let id = self.id;
        let set = self.control.command(Command::SetParams, id, 0, &mut record);
        set.map_err(|source| UblkError::Refused {
            what: "the device's properties",
            source,
        })?;
        Ok(self)
    }

    /// The node of the device.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// Opens the node at which it is served.
    pub(super) fn served(&self) -> Result<File, UblkError> {
        let path = PathBuf::from(format!("/dev/ublkc{}", self.id));
        open_node(&path, OpenOptions::new().read(true).write(true))
    }

    /// Shows the device to its users, whose requests are served already.
    pub(super) fn show(&mut self) -> Result<(), UblkError> {
        let (id, pid) = (self.id, std::process::id().into());
        let started = self.control.command(Command::Start, id, pid, &mut []);
        started.map_err(|source| UblkError::Refused {
            what: "the device's start",
            source,
        })?;
        open_node(&self.path(), OpenOptions::new().read(true)).map(drop)
    }

    /// Whether somebody has mounted it, or has it for himself in another way.
    pub(super) fn is_in_use(&self) -> bool {
        let exclusive = i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(exclusive).open(self.path());
        opened.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
    }

    /// Takes the device away from its users, and waits for the requests that are under way.
    pub(super) fn stop(&mut self) {
        let stopped = self.control.command(Command::Stop, self.id, 0, &mut []);
        if let Err(error) = stopped {
            tracing::warn!("ublk: the device's end: {error}");
        }
    }
}

impl Drop for Device {
    /// Its number can be had again when the last user has closed it.
    fn drop(&mut self) {
        let _ = self.control.command(Command::Delete, self.id, 0, &mut []);
    }
}

/// Removes the devices whose servers were killed.
fn remove_left(control: &mut Control) {
    for id in 0..LOOKED_AT {
        let mut record = [0; INFO];
        if control
            .command(Command::GetInfo, id, 0, &mut record)
            .is_err()
        {
            continue;
        }
        let pid = word(&record, info::OURS + 4);
        let is_ours = record[info::OURS..].starts_with(&MARK);
        let is_dead = half(&record, info::STATE) == DEAD;
        if is_ours && is_dead && !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = control.command(Command::Delete, id, 0, &mut []);
        }
    }
}

fn word(record: &[u8; INFO], at: usize) -> u32 {
    u32::from_ne_bytes(record[at..at + 4].try_into().expect("four bytes"))
}

fn half(record: &[u8; INFO], at: usize) -> u16 {
    u16::from_ne_bytes(record[at..at + 2].try_into().expect("two bytes"))
}

/// Opens a node, which may take a moment to appear.
fn open_node(path: &Path, how: &OpenOptions) -> Result<File, UblkError> {
    let begun = Instant::now();
    loop {
        match how.open(path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(source) => {
                return Err(UblkError::Io {
                    what: path.display().to_string(),
                    source,
                });
            }
        }
    }
}

/// `struct ublk_params`: its length, the kinds in it, `ublk_param_basic` from byte 8,
/// `ublk_param_discard` from byte 40.
fn params(dev: &ByteDev) -> [u8; 60] {
    let mut params = [0; 60];
    let mut put = |at: usize, bytes: &[u8]| params[at..at + bytes.len()].copy_from_slice(bytes);
    let block = dev.sector_size().clamp(512, MOST_BLOCK);
    let shift = |bytes: u32| u8::try_from(bytes.trailing_zeros()).unwrap_or_default();
    let mut attributes = FUA;
    if dev.dev().volatile_cache() {
        attributes |= VOLATILE_CACHE;
    }
    if dev.dev().read_only() {
        attributes |= READ_ONLY;
    }
    let most = low32(usize_as_u64(ROOM) / SECTOR);
    put(0, &60u32.to_ne_bytes());
    put(4, &(BASIC | DISCARD).to_ne_bytes());
    put(8, &attributes.to_ne_bytes());
    // The logical block; the physical one, and what is best and least for a request.
    let page = shift(MOST_BLOCK);
    put(12, &[shift(block), page, page, page]);
    put(16, &most.to_ne_bytes());
    put(24, &(dev.size() / SECTOR).to_ne_bytes());
    // A discard's granularity and length, a zeroed range's length, and ranges of a discard.
    put(44, &block.to_ne_bytes());
    put(48, &RANGE_SECTORS.to_ne_bytes());
    put(52, &RANGE_SECTORS.to_ne_bytes());
    put(56, &1u16.to_ne_bytes());
    params
}
