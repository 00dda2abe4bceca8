//! Finds out whether an image is in use: mounted, behind a loop device, or locked by another
//! process.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stetfs_fuse::mountinfo::{self, MountEntry};
use stetfs_media::{FileOptions, loop_backing_file, loop_whole_file};

use crate::failure::{Explain, Failure, Result};
use crate::part::{self, Range, Use, Window};

/// How long a process that was just killed or unmounted may still hold a part of a file.
const LETTING_GO: Duration = Duration::from_millis(200);

/// Returns the path as the kernel's list of mounts writes it. A partition of a block device is its
/// own device.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let node = match part::find(path) {
        Ok(part::Image::Whole(node)) => node.into_owned(),
        _ => path.to_owned(),
    };
    part::with_file(&node, mountinfo::resolve).unwrap_or(node)
}

/// Returns the mount of a volume that shares bytes with `image`. Looks for its path, for a block
/// device by its number, and through loop devices in both directions.
pub(crate) fn mount_of(image: &Path) -> Result<Option<MountEntry>> {
    let real = resolved(image);
    let (file, range) = (part::file_of(&real), part::range(&real));
    let meta = file.metadata().ok();
    let is_block = |m: &&Metadata| m.file_type().is_block_device();
    let mut numbers: Vec<String> = Vec::new();
    let mut paths = vec![real.clone()];
    if let Some(meta) = meta.as_ref().filter(is_block) {
        let number = number(meta.rdev());
        let dir = Path::new("/sys/dev/block").join(&number);
        if part::is_part(&real) {
            let all = devices_of(&dir, 0).into_iter();
            numbers.extend(all.filter(|d| d.range.overlaps(range)).map(|d| d.number));
        } else {
            paths.extend(loop_whole_file(&dir));
            numbers.push(number);
        }
    } else {
        // The kernel may have it mounted through a loop device, and we through a loop device that
        // stands for the file.
        for dir in loop_devices_of(file) {
            let all = devices_of(&dir, loop_setting(&dir, "offset"));
            let shared = all.into_iter().filter(|d| d.range.overlaps(range));
            for device in shared {
                numbers.push(device.number);
                paths.push(device.node);
            }
        }
    }
    let is_it = |m: &MountEntry| {
        let mounted = m.image();
        let is_ours = m.is_stetfs() && (m.is_of(&real) || shares(&mounted, file, range));
        is_ours || numbers.contains(&m.device) || m.source == real || paths.contains(&mounted)
    };
    let all = mountinfo::mounts().during(|| "the list of mounts".to_owned())?;
    let found = all.iter().find(|mount| is_it(mount));
    // Where its users see it.
    let above = found.and_then(|mount| mounted_above(&all, &mount.dir));
    Ok(above.or(found).cloned())
}

/// The kernel's mount on the device that is exported in `dir`, if there is one.
pub(crate) fn mounted_above<'a>(all: &'a [MountEntry], dir: &Path) -> Option<&'a MountEntry> {
    all.iter()
        .find(|entry| backing_file(entry).is_some_and(|file| file.parent() == Some(dir)))
}

/// The file of the loop device on which something is mounted.
pub(crate) fn backing_file(entry: &MountEntry) -> Option<PathBuf> {
    fact(entry, "backing_file").map(PathBuf::from)
}

/// What the kernel says of the loop device on which something is mounted.
pub(crate) fn fact(entry: &MountEntry, name: &str) -> Option<String> {
    let device = entry.source.strip_prefix("/dev").ok()?;
    let path = Path::new("/sys/block").join(device).join("loop").join(name);
    let found = fs::read_to_string(path).ok()?;
    Some(found.trim_end().to_owned())
}

/// Returns whether a mounted image and a range of `file` share bytes, where one of them is a part.
fn shares(mounted: &Path, file: &Path, range: Range) -> bool {
    let is_part = part::is_part(mounted) || range != Range::WHOLE;
    let same = || {
        let a = part::file_of(mounted).metadata().ok()?;
        let b = file.metadata().ok()?;
        Some((a.dev(), a.ino()) == (b.dev(), b.ino()))
    };
    is_part && same() == Some(true) && part::range(mounted).overlaps(range)
}

fn number(device: u64) -> String {
    format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    )
}

/// Returns the sysfs directories of the loop devices whose backing file is `image`.
fn loop_devices_of(image: &Path) -> impl Iterator<Item = PathBuf> {
    let same_file = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let meta = image.metadata().ok().filter(Metadata::is_file);
    let devices = meta.as_ref().and_then(|_| fs::read_dir("/sys/block").ok());
    let dirs = devices.into_iter().flatten().flatten().map(|e| e.path());
    dirs.filter(move |dir| {
        let backing = loop_backing_file(dir).and_then(|file| file.metadata().ok());
        let both = backing.as_ref().zip(meta.as_ref());
        both.is_some_and(|(a, b)| same_file(a, b))
    })
}

/// A block device: all of a disk, or a partition.
struct Device {
    node: PathBuf,
    number: String,
    /// Its bytes, in the file or disk on which it is.
    range: Range,
}

/// Returns a block device, which begins at byte `offset` of its file, and its partitions.
fn devices_of(dir: &Path, offset: u64) -> Vec<Device> {
    let dir = &dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let device = |dir: &Path, start: u64| {
        // sysfs counts in sectors of 512 bytes, whatever the device's sector size.
        let bytes = |name| setting(&dir.join(name)).unwrap_or(0).saturating_mul(512);
        let number = std::fs::read_to_string(dir.join("dev")).ok()?;
        Some(Device {
            node: node_of(dir),
            number: number.trim().to_owned(),
            range: Range {
                offset: offset.saturating_add(start),
                size: bytes("size"),
            },
        })
    };
    let whole = device(dir, 0);
    let parts = fs::read_dir(dir).into_iter().flatten().flatten();
    let parts = parts.map(|entry| entry.path()).filter_map(|dir| {
        let start = setting(&dir.join("start"))?.saturating_mul(512);
        device(&dir, start)
    });
    whole.into_iter().chain(parts).collect()
}

/// Reads a number from sysfs.
fn setting(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn loop_setting(dir: &Path, name: &str) -> u64 {
    setting(&dir.join("loop").join(name)).unwrap_or(0)
}

/// Fails if `image` is mounted, is behind a loop device, or is locked by another process. Other
/// parts of its file may be in use.
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
    part::check_writable(image)?;
    let opened = match part::find(image)? {
        part::Image::Whole(image) => FileOptions::default().open(&image).map(drop),
        part::Image::Part(extent) => {
            Window::open(extent, Use::Write, Some(false), LETTING_GO).map(drop)
        }
    };
    opened.or_advise(|| "see who uses it: fuser -v".to_owned())
}

/// Returns the loop device whose backing file is `image`. A loop device that goes away with its
/// last user, as a mount's does, gets a moment to do so.
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

/// Returns a loop device with bytes of `image`, mounted or not: either has a cache of its own.
fn loop_device_of(image: &Path) -> Option<String> {
    let (file, range) = (part::file_of(image), part::range(image));
    let shares = |dir: &PathBuf| {
        let size = setting(&dir.join("size")).unwrap_or(0).saturating_mul(512);
        let offset = loop_setting(dir, "offset");
        range.overlaps(Range { offset, size }) || range == Range::WHOLE
    };
    let dir = loop_devices_of(file).find(shares)?;
    Some(node_of(&dir).display().to_string())
}

/// Returns a device's node, for its directory in sysfs.
fn node_of(dir: &Path) -> PathBuf {
    Path::new("/dev").join(dir.file_name().unwrap_or_default())
}

/// Returns the command by which the user ends this mount.
fn umount_command(mount: &MountEntry) -> String {
    let program = if mount.is_stetfs() {
        "stetfs umount"
    } else {
        "umount"
    };
    format!("{program} {}", mount.dir.display())
}

/// True if another process holds the image: by a lock on a file, or by exclusive use of a block
/// device.
pub(crate) fn is_locked(image: &Path) -> rustix::io::Result<bool> {
    if let Ok(part::Image::Part(extent)) = part::find(image) {
        return part::is_locked(&extent);
    }
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
