//! Whether an image is in use: mounted, the backing file of a loop device, or locked by another process.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_media::FileOptions;

use crate::failure::{Explain, Failure, Result};

/// The path as the kernel's list of mounts has it.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    mountinfo::resolve(path).unwrap_or_else(|_| path.to_owned())
}

/// The mount whose volume is `image`: by its path, or for a block device by its number.
pub(crate) fn mount_of(image: &Path) -> Result<Option<MountEntry>> {
    let real = resolved(image);
    let number = real
        .metadata()
        .ok()
        .filter(|m| m.file_type().is_block_device())
        .map(|m| {
            format!(
                "{}:{}",
                rustix::fs::major(m.rdev()),
                rustix::fs::minor(m.rdev())
            )
        });
    let is_it = |m: &MountEntry| number.as_ref() == Some(&m.device) || m.image() == real;
    let all = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
    Ok(all.into_iter().find(is_it))
}

/// Fails when `image` is mounted, backs a loop device, or is locked by another process.
pub(crate) fn check_unused(image: &Path) -> Result<()> {
    if let Some(mount) = mount_of(image)? {
        return Err(Failure::new(format!(
            "{} is mounted on {}",
            image.display(),
            mount.dir.display()
        ))
        .advise(format!("unmount it first: {}", umount_command(&mount))));
    }
    if let Some(device) = lasting_loop_device_of(image) {
        let shown = image.display();
        return Err(
            Failure::new(format!("{shown} is the backing file of {device}")).advise(format!(
                "work on {device}, or detach it: losetup -d {device}"
            )),
        );
    }
    FileOptions::default()
        .open(image)
        .map(drop)
        .or_advise(|| "see who uses it: fuser -v".to_owned())
}

/// The loop device whose backing file is `image`. One that goes away by itself when its last user has gone, as a mount's does, is
/// given a moment to do so.
fn lasting_loop_device_of(image: &Path) -> Option<String> {
    const MOMENT: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + MOMENT;
    loop {
        let device = loop_device_of(image)?;
        let name = device.strip_prefix("/dev/").unwrap_or_default();
        let autoclear = Path::new("/sys/block").join(name).join("loop/autoclear");
        let is_leaving = std::fs::read_to_string(autoclear).is_ok_and(|text| text.trim() == "1");
        if !is_leaving || Instant::now() > deadline {
            return Some(device);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The loop device whose backing file is `image`, mounted or not: both have caches of their own.
fn loop_device_of(image: &Path) -> Option<String> {
    let same_file = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let meta = image.metadata().ok().filter(Metadata::is_file)?;
    let devices = std::fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|entry| {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let backing = Path::new(backing.trim_end_matches('\n')).metadata().ok()?;
        same_file(&backing, &meta).then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
    })
}

/// How a user ends this mount.
fn umount_command(mount: &MountEntry) -> String {
    let program = if mount.is_stetfs() {
        "stetfs umount"
    } else {
        "umount"
    };
    format!("{program} {}", mount.dir.display())
}

/// Whether another process holds the image: a lock on a file, exclusive use of a block device.
pub(crate) fn is_locked(image: &Path) -> rustix::io::Result<bool> {
    let is_block = image
        .metadata()
        .is_ok_and(|m| m.file_type().is_block_device());
    let exclusive = if is_block {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let file = match rustix::fs::open(
        image,
        OFlags::RDONLY | OFlags::CLOEXEC | exclusive,
        Mode::empty(),
    ) {
        Err(Errno::BUSY) => return Ok(true),
        other => File::from(other?),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_locked(file.path()).unwrap());
        rustix::fs::flock(file.as_file(), FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_locked(file.path()).unwrap());
        assert!(
            check_unused(file.path())
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
    }
}
