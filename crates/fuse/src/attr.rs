//! Translation between the core's attributes and FUSE's: numbers, times, file types.
//!
//! FUSE calls the root directory node 1, ext4 calls it inode 2. Every other number is the same on
//! both sides (inode 1 holds bad blocks and can never be looked up). Attributes carry the volume's
//! own numbers, so `stat` on the mount point says 2 as on a kernel mount.

use std::time::Duration;

use stetfs::{Attr, Entry, SetAttr, SetTime};
use stetfs_format::width::low16;
use stetfs_format::{InodeNo, Time};

use crate::wire::abi::{self, Set};

/// The inode of the root directory (EXT4_ROOT_INO).
pub(crate) const ROOT: InodeNo = InodeNo(2);

/// FUSE's number of the root directory (FUSE_ROOT_ID).
pub(crate) const ROOT_NODE: u64 = 1;

/// Returns the inode of a FUSE node. A number that cannot be an inode becomes 0, which the core
/// refuses.
pub(crate) fn inode(node: u64) -> InodeNo {
    if node == ROOT_NODE {
        return ROOT;
    }
    InodeNo(u32::try_from(node).unwrap_or(0))
}

/// Returns the FUSE node of an inode.
pub(crate) fn node(ino: InodeNo) -> u64 {
    if ino == ROOT { ROOT_NODE } else { ino.0.into() }
}

/// Converts attributes to FUSE's form.
pub(crate) fn attr(a: &Attr) -> abi::Attr {
    abi::Attr {
        ino: a.ino.0.into(),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.sec,
        mtime: a.mtime.sec,
        ctime: a.ctime.sec,
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode.into(),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: encode_rdev(a.rdev),
        blksize: a.blksize,
        flags: 0,
    }
}

/// Converts an entry. The kernel may keep its name for `names` and its attributes for `attrs`.
pub(crate) fn entry(found: &Entry, names: Duration, attrs: Duration) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: node(found.ino),
        generation: found.generation.into(),
        entry_valid: names.as_secs(),
        attr_valid: attrs.as_secs(),
        entry_valid_nsec: names.subsec_nanos(),
        attr_valid_nsec: attrs.subsec_nanos(),
        attr: attr(&found.attr),
    }
}

/// Says that a name does not exist: node 0. The kernel may remember this for `keep`.
pub(crate) fn no_entry(keep: Duration) -> abi::EntryOut {
    abi::EntryOut {
        entry_valid: keep.as_secs(),
        entry_valid_nsec: keep.subsec_nanos(),
        ..abi::EntryOut::default()
    }
}

/// Converts attributes to the form of statx(2), with the time of birth where the volume has it
/// (STATX_BASIC_STATS, STATX_BTIME).
pub(crate) fn statx(a: &Attr, birth: bool) -> abi::StatX {
    const BASIC_STATS: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let time = |t: Time| abi::SxTime {
        tv_sec: t.sec,
        tv_nsec: t.nsec,
        __reserved: 0,
    };
    abi::StatX {
        mask: BASIC_STATS | if birth { BTIME } else { 0 },
        blksize: a.blksize,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode,
        ino: a.ino.0.into(),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        btime: time(a.crtime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: a.rdev.0,
        rdev_minor: a.rdev.1,
        ..abi::StatX::default()
    }
}

/// Converts a SETATTR. Its times may be those that the kernel has kept for cached writes.
pub(crate) fn set_attr(to: &abi::SetAttrIn) -> SetAttr {
    let valid = Set::from_bits_retain(to.valid);
    let given = |flag, now, sec, nsec| {
        if !valid.contains(flag) {
            None
        } else if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            Some(SetTime::At(time(sec, nsec)))
        }
    };
    SetAttr {
        mode: valid.contains(Set::MODE).then_some(low16(to.mode & 0o7777)),
        uid: valid.contains(Set::UID).then_some(to.uid),
        gid: valid.contains(Set::GID).then_some(to.gid),
        size: valid.contains(Set::SIZE).then_some(to.size),
        atime: given(Set::ATIME, Set::ATIME_NOW, to.atime, to.atimensec),
        mtime: given(Set::MTIME, Set::MTIME_NOW, to.mtime, to.mtimensec),
        ctime: valid
            .contains(Set::CTIME)
            .then(|| time(to.ctime, to.ctimensec)),
        through_handle: valid.contains(Set::FH),
        kill_suid: valid.contains(Set::KILL_SUIDGID),
    }
}

fn time(sec: i64, nsec: u32) -> Time {
    Time { sec, nsec }
}

/// Encodes a device number in the form of the FUSE protocol (the kernel's `new_encode_dev`: minor
/// 7-0, major 11-0, minor 19-8).
fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// Undoes [`encode_rdev`].
pub(crate) fn decode_rdev(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_go_both_ways() {
        for rdev in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xf_ffff), (1, 3)] {
            assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
        }
        // The kernel's new_encode_dev(MKDEV(259, 300)) gives this.
        assert_eq!(
            encode_rdev((259, 300)),
            (300 & 0xff) | (259 << 8) | (0x100 << 12)
        );
    }

    #[test]
    fn only_what_is_valid_is_set() {
        let to = abi::SetAttrIn {
            valid: (Set::MODE | Set::ATIME | Set::ATIME_NOW | Set::MTIME | Set::FH).bits(),
            size: 7,
            atime: 1,
            mtime: -2,
            mtimensec: 800_000_000,
            mode: 0o104_755,
            ..abi::SetAttrIn::default()
        };
        let set = set_attr(&to);
        assert_eq!((set.mode, set.size), (Some(0o4755), None));
        assert_eq!(set.atime, Some(SetTime::Now));
        assert_eq!(set.mtime, Some(SetTime::At(time(-2, 800_000_000))));
        assert!(set.ctime.is_none() && set.through_handle && !set.kill_suid);
    }

    #[test]
    fn the_root_has_two_numbers() {
        assert_eq!(inode(1), InodeNo(2));
        assert_eq!(node(InodeNo(2)), 1);
        assert_eq!(inode(12), InodeNo(12));
        assert_eq!(inode(u64::MAX), InodeNo(0));
    }
}
