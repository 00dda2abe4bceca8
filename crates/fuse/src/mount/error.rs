//! Why a mount could not be made or undone.

use std::io;
use std::path::PathBuf;

use crate::wire::DEVICE;

pub(super) const HELPER: &str = "fusermount3";

/// Why a mount could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mount point {}: {source}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// A stetfs volume is mounted there already.
    #[error("{} already has the volume {} mounted on it", dir.display(), image.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// What is mounted there.
        image: PathBuf,
    },
    /// The kernel has no FUSE, or this user may not use it.
    #[error("{DEVICE} cannot be opened: {0}; {how}", how = how_to_open(.0))]
    NoFuse(io::Error),
    /// The descriptor that was named in place of a mount point is not there.
    #[error("/dev/fd/{number}: {source}; whoever mounts must pass the open {DEVICE} on")]
    NoSession {
        /// Its number.
        number: u32,
        /// What the system said.
        source: io::Error,
    },
    /// fusermount3 is not installed.
    #[error("{HELPER} cannot be run: {0}; it mounts for ordinary users (package fuse3)")]
    NoHelper(io::Error),
    /// fusermount3 refused.
    #[error("{HELPER}: {0}")]
    Helper(String),
    /// Only root may ask the kernel for this.
    #[error("mount option \"{0}\" needs root: {HELPER} does not accept it")]
    RootOnly(String),
    /// mount(2) refused.
    #[error("mounting {} on {}: {source}", image.display(), dir.display())]
    Mount {
        /// The volume.
        image: PathBuf,
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No loop device for an image that is to be mounted as a block device.
    #[error("{}: no loop device for it: {source}; without -o loop it is mounted all the \
        same", image.display())]
    NoLoop {
        /// The volume.
        image: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing is mounted there.
    #[error("{}: no stetfs volume is mounted there", .0.display())]
    NotMounted(PathBuf),
    /// umount(2) refused because of open files or working directories.
    #[error("{} is in use; close what is open there (fuser -vm DIR), or detach it with \
        --lazy", .0.display())]
    Busy(PathBuf),
    /// umount(2) refused otherwise.
    #[error("unmounting {}: {source}", dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A mount could not be changed.
    #[error("remounting {}: {source}", dir.display())]
    Remount {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// /proc could not be read.
    #[error("/proc/self/mountinfo: {0}")]
    Proc(io::Error),
}

/// Says what helps when `/dev/fuse` cannot be opened.
pub(super) fn how_to_open(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "it is open to ordinary users where its mode is 666, as udev sets it (chmod 666 \
                /dev/fuse); a container must be allowed the device"
        }
        _ => "load the fuse module (modprobe fuse), or give the container the device",
    }
}
