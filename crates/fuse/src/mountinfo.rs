//! What is mounted where, from `/proc/self/mountinfo`: never by asking the mount itself, which may
//! be dead.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::label::backing_file;

/// The type that /etc/fstab has, and that `mount` shows of a mount that is not on a block device.
pub const FS_TYPE: &str = "fuse.stetfs";

/// The type that `mount` shows of one that is.
pub const FS_TYPE_BLOCK: &str = "fuseblk.stetfs";

/// Where the kernel's control file system for FUSE is, if it is mounted.
pub(crate) const CONTROL_DIR: &str = "/sys/fs/fuse/connections";

/// One line of mountinfo (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number, as `stat` would tell in `st_dev`; unique among the mounts that
    /// stand.
    pub device: String,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What the kernel checks at this mount: `rw,nosuid,noatime`.
    pub flags: String,
    /// Type with subtype: `fuse.stetfs`.
    pub kind: String,
    /// The source: the image, or the device that stands for it.
    pub source: PathBuf,
    /// What the file system was told: `rw,user_id=0,allow_other`.
    pub options: String,
}

impl MountEntry {
    /// Whether stetfs serves it.
    pub fn is_stetfs(&self) -> bool {
        [FS_TYPE, FS_TYPE_BLOCK].contains(&self.kind.as_str())
    }

    /// Whether the mount has a flag, or the file system an option.
    pub fn has(&self, flag: &str) -> bool {
        let all = self.flags.split(',').chain(self.options.split(','));
        all.into_iter().any(|f| f == flag)
    }

    /// The image: the source, or the file that it is a loop device of. One that is of a part of a
    /// file is an image by itself: other parts are other volumes.
    pub fn image(&self) -> PathBuf {
        backing_file(&self.source).unwrap_or_else(|| self.source.clone())
    }

    /// Whether `image`, a file or a block device by whichever of its names, is what is mounted.
    pub fn is_of(&self, image: &Path) -> bool {
        let own = self.image();
        own == image || self.source == image || is_same(&own, image)
    }
}

/// Whether two paths lead to one file, or to one block device.
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

/// All mounts of this process's mount namespace, the newest last.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The mounts of one file system, by its device number: more than one when it was bound elsewhere.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounts_of(device: &str) -> io::Result<Vec<MountEntry>> {
    let mut all = mounts()?;
    all.retain(|m| m.device == device);
    Ok(all)
}

/// The name of a FUSE mount's directory in the kernel's control file system: its device number as
/// the kernel keeps it (`MKDEV`), in decimal digits.
pub(crate) fn connection(device: &str) -> Option<String> {
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some((major << 20 | minor).to_string())
}

/// Where the kernel keeps what can be tuned of the page cache of a FUSE mount, by the mount's
/// device number: there as long as the mount is, detached or not. The block device of a mount that
/// has one has one of its own, under the number alone.
pub(crate) fn backing_device(device: &str) -> PathBuf {
    let all = Path::new("/sys/class/bdi");
    let of_block = all.join(format!("{device}-fuseblk"));
    if of_block.exists() {
        of_block
    } else {
        all.join(device)
    }
}

/// Whether the FUSE mount with this device number, as the kernel keeps it, is there.
pub(crate) fn has_backing(number: u32) -> bool {
    let (major, minor) = (number >> 20, number & 0xf_ffff);
    let path = backing_device(&format!("{major}:{minor}"));
    // A number alone is that of a mount without a block device.
    path.exists() && (major == 0 || path.ends_with(format!("{major}:{minor}-fuseblk")))
}

/// The topmost mount on exactly this directory.
///
/// # Errors
/// `/proc` cannot be read.
pub fn mounted_on(dir: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|m| m.dir == dir))
}

/// The mount that a path is in: the topmost one of the longest directory that the path begins with.
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

/// An absolute path without symbolic links, whose last component is not looked at: on a mount point
/// whose server has died, looking at it fails.
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

/// `36 35 98:0 /root /dir rw,noatime shared:1 - fuse.stetfs /source rw,user_id=0`
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
