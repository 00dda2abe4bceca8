//! Translation between the core's attributes and FUSE's: numbers, times, file types.
//!
//! FUSE calls the root directory node 1, ext4 calls it inode 2; every other number is the same on both sides
//! (inode 1 holds bad blocks and can never be looked up). Attributes carry the volume's own numbers, so that
//! `stat` on the mount point says 2 as on a kernel mount; only entry replies for the root say 1, because fuser uses
//! one number for both.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use stetfs::{Attr, SetTime};
use stetfs_format::{InodeNo, Time};

/// The inode of the root directory (EXT4_ROOT_INO).
pub(crate) const ROOT: InodeNo = InodeNo(2);

/// The inode that a FUSE node is. A number that cannot be an inode becomes 0, which the core refuses.
pub(crate) fn inode(node: INodeNo) -> InodeNo {
    if node == INodeNo::ROOT {
        return ROOT;
    }
    InodeNo(u32::try_from(node.0).unwrap_or(0))
}

/// The FUSE node that an inode is.
pub(crate) fn node(ino: InodeNo) -> INodeNo {
    if ino == ROOT {
        INodeNo::ROOT
    } else {
        INodeNo(u64::from(ino.0))
    }
}

/// Attributes as FUSE carries them, under the volume's own number.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(u64::from(attr.ino.0)),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: file_type(attr.mode),
        perm: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_rdev(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Attributes for an entry reply, which names the node by the attributes' number.
pub(crate) fn entry_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: node(attr.ino),
        ..file_attr(attr)
    }
}

/// What an entry reply says for a name that does not exist: node 0, which the kernel may remember.
pub(crate) fn negative() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The generation as FUSE carries it.
pub(crate) fn generation(generation: u32) -> Generation {
    Generation(u64::from(generation))
}

/// The type in the mode's upper bits. What is none becomes a regular file: the core has checked the mode.
pub(crate) fn file_type(mode: u16) -> FileType {
    dirent_type((mode >> 12) as u8)
}

/// The type as `d_type` has it; unknown becomes a regular file (only a directory without the `filetype` feature
/// says unknown, and then only plain `readdir` shows it).
pub(crate) fn dirent_type(kind: u8) -> FileType {
    match kind {
        libc::DT_FIFO => FileType::NamedPipe,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_DIR => FileType::Directory,
        libc::DT_BLK => FileType::BlockDevice,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_SOCK => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// A device number in the form of the FUSE protocol (the kernel's `new_encode_dev`: minor 7-0, major 11-0, minor 19-8).
fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`encode_rdev`].
pub(crate) fn decode_rdev(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
    )
}

/// A timestamp as `SystemTime`.
pub(crate) fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let part = Duration::from_nanos(u64::from(time.nsec.min(999_999_999)));
    let base = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(part))
        .unwrap_or(UNIX_EPOCH)
}

/// A timestamp from a request.
///
/// For times before 1970 fuser 0.18 hands out `1970 - (|sec| + nsec)` where the request meant
/// `1970 - |sec| + nsec`; both numbers can still be told from the difference to 1970, and are.
pub(crate) fn request_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                sec: i64::try_from(before.as_secs()).map_or(i64::MIN, |s| -s),
                nsec: before.subsec_nanos(),
            }
        }
    }
}

/// A time to be set, from a request.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(request_time(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for rdev in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xf_ffff), (1, 3)] {
            assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
        }
        // What the kernel's new_encode_dev(MKDEV(259, 300)) gives.
        assert_eq!(
            encode_rdev((259, 300)),
            (300 & 0xff) | (259 << 8) | (0x100 << 12)
        );
    }

    #[test]
    fn times_before_1970() {
        let t = Time {
            sec: -2,
            nsec: 800_000_000,
        };
        let since = UNIX_EPOCH.duration_since(system_time(t)).unwrap();
        assert_eq!(since, Duration::from_millis(1_200));
        // As fuser makes it from the request (-2, 800_000_000).
        assert_eq!(request_time(UNIX_EPOCH - Duration::new(2, 800_000_000)), t);
        assert_eq!(
            request_time(UNIX_EPOCH + Duration::new(5, 7)),
            Time { sec: 5, nsec: 7 }
        );
    }

    #[test]
    fn the_root_has_two_numbers() {
        assert_eq!(inode(INodeNo(1)), InodeNo(2));
        assert_eq!(node(InodeNo(2)), INodeNo(1));
        assert_eq!(inode(INodeNo(12)), InodeNo(12));
        assert_eq!(inode(INodeNo(u64::MAX)), InodeNo(0));
    }
}
