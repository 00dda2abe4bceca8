//! The mounts of this machine, from `/proc/self/mountinfo`: the mount itself is never asked, since
//! its server may be dead.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::label::backing_file;

/// The type of a mount that is not on a block device, as `mount` shows it. /etc/fstab has it too.
pub const FS_TYPE: &str = "fuse.stetfs";

/// The type of a mount on a block device, as `mount` shows it.
pub const FS_TYPE_BLOCK: &str = "fuseblk.stetfs";

/// The kernel's control file system for FUSE, if it is mounted.
pub(crate) const CONTROL_DIR: &str = "/sys/fs/fuse/connections";

/// One line of mountinfo (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number, as in `st_dev` of stat(2); unique among the mounts that stand.
    pub device: String,
    /// The mount point.
    pub dir: PathBuf,
    /// What the kernel checks at this mount: `rw,nosuid,noatime`.
    pub flags: String,
    /// Type with subtype: `fuse.stetfs`.
    pub kind: String,
    /// The source: the image, or the device that stands for it.
    pub source: PathBuf,
    /// The options of the file system: `rw,user_id=0,allow_other`.
    pub options: String,
}

impl MountEntry {
    /// Returns whether stetfs serves it.
    pub fn is_stetfs(&self) -> bool {
        [FS_TYPE, FS_TYPE_BLOCK].contains(&self.kind.as_str())
    }

    /// Returns whether the mount has a flag, or the file system an option.
    pub fn has(&self, flag: &str) -> bool {
        let all = self.flags.split(',').chain(self.options.split(','));
        all.into_iter().any(|f| f == flag)
    }

    /// Returns the image: the source, or the file that the source is a loop device of. A loop
    /// device of a part of a file is an image by itself: other parts are other volumes.
    pub fn image(&self) -> PathBuf {
        backing_file(&self.source).unwrap_or_else(|| self.source.clone())
    }

    /// Returns whether `image` is mounted here: a file or a block device, by any of its names.
    pub fn is_of(&self, image: &Path) -> bool {
        let own = self.image();
        own == image || self.source == image || is_same(&own, image)
    }
}

/// Returns whether two paths lead to one file, or to one block device.
fn is_same(a: &Path, b: &Path) -> bool {
    let look = |path: &Path| std::fs::metadata(path).ok();
    let (Some(a), Some(b)) = (look(a), look(b)) else {
        return false;
    };
    let is_block = |m: &Metadata| m.file_type().is_block_device();
    match (is_block(&a), is_block(&b)) {
        (true, true) => a.rdev() == b.rdev(),
        (false, false) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Returns all mounts of this process's mount namespace, the newest last.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// Returns the mounts of one file system, by its device number: several if it was bound elsewhere.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounts_of(device: &str) -> io::Result<Vec<MountEntry>> {
    let mut all = mounts()?;
    all.retain(|m| m.device == device);
    Ok(all)
}

/// Returns the name of a FUSE mount's directory in the kernel's control file system: the device
/// number as the kernel keeps it (`MKDEV`), in decimal digits.
pub(crate) fn connection(device: &str) -> Option<String> {
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some((major << 20 | minor).to_string())
}

/// Returns where the kernel keeps the settings of a FUSE mount's page cache, by the mount's device
/// number. The directory is there as long as the mount is, detached or not. If the mount is on a
/// block device, the number alone names that device's own settings.
pub(crate) fn backing_device(device: &str) -> PathBuf {
    let all = Path::new("/sys/class/bdi");
    let of_block = all.join(format!("{device}-fuseblk"));
    if of_block.exists() {
        of_block
    } else {
        all.join(device)
    }
}

/// Returns whether there is a FUSE mount with this device number, in the kernel's form.
pub(crate) fn has_backing(number: u32) -> bool {
    let (major, minor) = (number >> 20, number & 0xf_ffff);
    let path = backing_device(&format!("{major}:{minor}"));
    // With a major number, only a name with `-fuseblk` is a FUSE mount's.
    path.exists() && (major == 0 || path.ends_with(format!("{major}:{minor}-fuseblk")))
}

/// Returns the topmost mount on exactly this directory.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounted_on(dir: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|m| m.dir == dir))
}

/// Returns the mount that a path is in: the topmost one of the longest directory that the path
/// begins with.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mount_of(path: &Path) -> io::Result<Option<MountEntry>> {
    let mut found: Option<MountEntry> = None;
    for entry in mounts()? {
        let longer = |f: &MountEntry| entry.dir.as_os_str().len() >= f.dir.as_os_str().len();
        if path.starts_with(&entry.dir) && found.as_ref().is_none_or(longer) {
            found = Some(entry);
        }
    }
    Ok(found)
}

/// Returns an absolute path without symbolic links. Does not look at the last component: on a mount
/// point whose server has died, looking fails.
///
/// # Errors
/// The directory above does not exist or may not be searched.
pub fn resolve(dir: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = dir.canonicalize() {
        return Ok(path);
    }
    let absolute = std::path::absolute(dir)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(absolute),
    }
}

/// Parses a line: `36 35 98:0 /root /dir rw,noatime shared:1 - fuse.stetfs /source rw,user_id=0`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let dir = unescape(fields.nth(1)?);
    let flags = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescape(rest.next()?);
    let options = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(MountEntry {
        device,
        dir,
        flags,
        kind,
        source,
        options,
    })
}

/// Undoes the `\040` (octal) escapes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = |i: usize| {
            field
                .get(i)
                .filter(|b| (b'0'..=b'7').contains(b))
                .map(|b| u32::from(b - b'0'))
        };
        let code = match (field[at], octal(at + 1), octal(at + 2), octal(at + 3)) {
            (b'\\', Some(a), Some(b), Some(c)) => u8::try_from(a * 64 + b * 8 + c).ok(),
            _ => None,
        };
        match code {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_blanks_and_optional_fields() {
        let line = b"40 23 0:45 / /mnt/a\\040b rw,nosuid shared:7 master:1 - fuse.stetfs \
            /tmp/disk\\134.img rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.device, "0:45");
        assert_eq!(entry.dir, Path::new("/mnt/a b"));
        assert!(entry.has("nosuid") && !entry.has("suid"));
        assert_eq!(entry.source, Path::new("/tmp/disk\\.img"));
        assert!(entry.is_stetfs());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3 4"), None);
    }

    #[test]
    fn connections_have_the_number_of_the_kernel() {
        assert_eq!(connection("0:45").as_deref(), Some("45"));
        assert_eq!(connection("7:3").as_deref(), Some("7340035"));
        assert_eq!(connection("x"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).unwrap().is_some());
        assert_eq!(
            mount_of(Path::new("/")).unwrap().unwrap().dir,
            Path::new("/")
        );
    }
}
