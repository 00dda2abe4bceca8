//! The directory `.stetfs-tx` in the directory that a transaction changes. It exists for one
//! transaction at a time.
//!
//! | | |
//! |---|---|
//! | `lock` | open as long as the transaction lasts; the server closes it when this process dies. How the command ended is written to it |
//! | `upper`, `work` | overlayfs's: the layer that the command writes to; or, of a layer in memory, where the server makes it |
//! | `trash` | directories that the transaction removes go here in one piece |
//! | `mounts` | where a tmpfs is mounted, out of sight, for the mount points below the layer |
//!
//! Making and removing it leaves the times of the directory above as they were.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown,
};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use stetfs_fuse::tx::layer::plan::{PLACE, TRASH, UPPER};
use stetfs_sys::file_ioctl::begin_layer;

use super::tree;
use crate::args::Layer;
use crate::failure::{Explain, Failure, Result};
use crate::ran::failed;

/// The directory that overlayfs needs for itself.
pub(super) const WORK: &str = "work";
/// The directory for mounts below the layer.
pub(super) const MOUNTS: &str = "mounts";
const LOCK: &str = "lock";

/// How often a waiting transaction looks whether the other one has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Number of attempts to remove the place.
const ATTEMPTS: usize = 10;

/// Most bytes that the words about the command's end take in the lock.
const END_MAX: usize = 64;

/// A place that this process has.
pub(super) struct Place {
    dir: PathBuf,
    /// The directory that the transaction changes.
    pub(super) opened: File,
    lock: File,
    /// The server's name for the layer.
    pub(super) name: [u8; 16],
}

impl Place {
    /// Removes what an earlier transaction left there, and makes the place.
    pub(super) fn take(dir: &Path, waits: bool, layer: Layer) -> Result<Self> {
        let opened = File::open(dir).during(|| dir.display().to_string())?;
        let path = dir.join(PLACE);
        loop {
            let is_new = keeping_times(&opened, || make(&path))?;
            let lock = match open_lock(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                other => other.during(|| path.join(LOCK).display().to_string())?,
            };
            let name = match begin_layer(&lock) {
                Err(Errno::BUSY) => {
                    drop(lock);
                    if is_new {
                        keeping_times(&opened, || remove_tree(&path))?;
                    }
                    if !waits {
                        return Err(under_way(dir));
                    }
                    sleep(LOOK);
                    continue;
                }
                Err(Errno::NOTTY) => return Err(too_old(dir)),
                other => other.during(|| dir.display().to_string())?,
            };
            // The transaction that had it may have removed it just now.
            let there = fs::symlink_metadata(path.join(LOCK));
            let is_it = |there: fs::Metadata| lock.metadata().is_ok_and(|l| l.ino() == there.ino());
            if !there.is_ok_and(is_it) {
                continue;
            }
            let place = Self {
                dir: path,
                opened,
                lock,
                name,
            };
            if let Err(e) = place.fill(layer) {
                let _ = place.remove();
                return Err(e);
            }
            return Ok(place);
        }
    }

    /// Makes all its content anew.
    fn fill(&self, layer: Layer) -> Result<()> {
        for entry in fs::read_dir(&self.dir).during(|| self.dir.display().to_string())? {
            let entry = entry.during(|| self.dir.display().to_string())?;
            if entry.file_name() != LOCK {
                remove_tree(&entry.path())?;
            }
        }
        self.lock.set_len(0)?;
        for name in [UPPER, WORK, TRASH, MOUNTS] {
            let path = self.dir.join(name);
            DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .during(|| path.display().to_string())?;
        }
        let upper = self.upper();
        match layer {
            Layer::Volume => dress(&upper, &self.opened, self.dir.parent().unwrap_or(&self.dir)),
            // The server does this when it has made the layer's content.
            Layer::Memory => undress(&upper).map(drop),
        }
    }

    /// Returns what the process that ran the command wrote about its end. A process of an earlier
    /// transaction may write something too.
    pub(super) fn end(&self) -> Result<Option<String>> {
        let mut bytes = vec![0; END_MAX];
        let n = self.lock.read_at(&mut bytes, 0)?;
        bytes.truncate(n);
        let end = String::from_utf8_lossy(&bytes);
        let end = end.trim_end().split_once(' ');
        let own = end.filter(|(name, _)| *name == word(&self.name));
        Ok(own.map(|(_, end)| end.to_owned()))
    }

    /// Returns where the layer is.
    pub(super) fn upper(&self) -> PathBuf {
        self.dir.join(UPPER)
    }

    /// Removes the place, even if a waiting transaction makes a lock there meanwhile.
    pub(super) fn remove(&self) -> Result<()> {
        keeping_times(&self.opened, || {
            let again = (1..ATTEMPTS).find_map(|_| remove_tree(&self.dir).ok());
            again.map_or_else(|| remove_tree(&self.dir), Ok)
        })
    }
}

/// Returns a transaction's name as a word.
pub(super) fn word(name: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*name))
}

/// Returns the name that a word stands for.
pub(super) fn named(word: &str) -> Option<[u8; 16]> {
    u128::from_str_radix(word, 16).ok().map(u128::to_be_bytes)
}

/// Gives a layer's root all attributes of the directory that it stands for, which is open and has
/// this path.
pub(super) fn dress(upper: &Path, dir: &File, path: &Path) -> Result<()> {
    let at = || upper.display().to_string();
    let meta = dir.metadata()?;
    let opened = undress(upper)?;
    fchown(&opened, Some(meta.uid()), Some(meta.gid())).during(at)?;
    opened
        .set_permissions(Permissions::from_mode(meta.mode() & 0o7777))
        .during(at)?;
    for (name, value) in tree::xattrs(path).during(at)? {
        rustix::fs::fsetxattr(&opened, &*name, &value, XattrFlags::empty()).during(at)?;
    }
    rustix::fs::futimens(&opened, &times(&meta)).during(at)
}

/// Removes what a new directory has inherited, and returns it open.
fn undress(upper: &Path) -> Result<File> {
    let at = || upper.display().to_string();
    let opened = File::open(upper).during(at)?;
    for name in tree::xattr_names(upper).during(at)? {
        rustix::fs::fremovexattr(&opened, &*name).during(at)?;
    }
    Ok(opened)
}

/// Opens the file to which the process that runs the command writes how it ended.
pub(super) fn open_lock(place: &Path) -> std::io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).unwrap_or_default();
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(place.join(LOCK))
}

/// Makes the directory, or finds one that only a transaction of this user can have left. Returns
/// true if it is new.
fn make(path: &Path) -> Result<bool> {
    let at = || path.display().to_string();
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            // A default ACL of the directory may say otherwise.
            fs::set_permissions(path, Permissions::from_mode(0o700)).during(at)?;
            return Ok(true);
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e).during(at),
    }
    let meta = fs::symlink_metadata(path).during(at)?;
    let user = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != user && user != 0 {
        return Err(failed(format!("{} is not a transaction's", path.display()))
            .advise("stetfs tx reserves this name: rename it, or remove it"));
    }
    Ok(false)
}

fn times(meta: &fs::Metadata) -> Timestamps {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    }
}

/// Acts in a directory and leaves its times as they were.
fn keeping_times<T>(dir: &File, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let meta = dir.metadata()?;
    let done = act()?;
    rustix::fs::futimens(dir, &times(&meta))?;
    Ok(done)
}

/// Removes a tree, even directories that their owner may not enter or change.
fn remove_tree(path: &Path) -> Result<()> {
    let at = || path.display().to_string();
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.during(at)?,
    };
    if !meta.is_dir() {
        return fs::remove_file(path).during(at);
    }
    if meta.mode() & 0o700 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).during(at)?;
    }
    for entry in fs::read_dir(path).during(at)? {
        remove_tree(&entry.during(at)?.path())?;
    }
    fs::remove_dir(path).during(at)
}

fn under_way(dir: &Path) -> Failure {
    failed(format!(
        "{}: another transaction is under way on this volume",
        dir.display()
    ))
    .advise("wait for its end, or let stetfs tx do so: --wait")
}

pub(super) fn too_old(dir: &Path) -> Failure {
    failed(format!(
        "{}: the server of this mount is older than stetfs tx",
        dir.display()
    ))
    .advise("unmount the volume, and mount it with this version of stetfs")
}
