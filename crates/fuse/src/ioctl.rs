//! The ioctls that people's tools use on an ext4 volume, and their arguments.
//!
//! A FUSE server gets "restricted" ioctls: the kernel copies as many bytes as the number says, in
//! the direction that the number says. `FS_IOC_SHUTDOWN` is declared as a *read*, although the
//! kernel's file systems read its mode from the caller; so the mode never arrives here. Programs
//! that send that number (xfs_io, xfstests' `godown`) get what `godown` means without options,
//! [`Shutdown::NoLogFlush`]. The number with the right direction, [`SHUTDOWN_WITH_MODE`], carries
//! the mode. FIEMAP, FIBMAP, FICLONE and FS_IOC_GETFSUUID never reach a FUSE server at all.
//! `tests/ioctls.rs` goes through all of ext4's ioctls, beside a kernel mount.
//!
//! Their numbers are in `ioctl/numbers.rs`.

pub(crate) mod numbers;

use rustix::io::Errno;
use stetfs::{Attr, Caller, Change, Error, Shutdown};
use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;

use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::server::FsServer;
use crate::tx::groups;
use crate::tx::layer;
use crate::wire::abi::InHeader;
use numbers::*;

impl<B: Backend> FsServer<B> {
    /// Carries out an ioctl. The answer may be shorter than its number says, not longer.
    pub(crate) fn control_file(
        &self,
        from: &InHeader,
        (ino, handle): (InodeNo, u64),
        cmd: u32,
        data: &[u8],
    ) -> Outcome<Vec<u8>> {
        let c = self.caller(from);
        let attr = || self.attr_of(ino);
        let nothing = |()| Vec::new();
        match cmd {
            GETFLAGS | GETFLAGS_32 => attr().map(|a| a.flags.bits().to_ne_bytes().to_vec()),
            SETFLAGS | SETFLAGS_32 => self.set_flags(&c, ino, data).map(nothing),
            FSGETXATTR => attr().map(|a| encode_fsxattr(a.flags, a.projid).to_vec()),
            FSSETXATTR => self.set_fsxattr(&c, ino, data).map(nothing),
            GETVERSION | EXT4_GETVERSION => attr().map(|a| a.generation.to_ne_bytes().to_vec()),
            SETVERSION | EXT4_SETVERSION => self.set_generation(&c, ino, data).map(nothing),
            GETFSLABEL => self.label(),
            SETFSLABEL => self.set_label(from, data).map(nothing),
            FITRIM => self.trim(&self.administrator(from)?, data),
            SHUTDOWN => self
                .asked_to_shut_down(from, Some(Shutdown::NoLogFlush))
                .map(nothing),
            SHUTDOWN_WITH_MODE => {
                let mode = read_u32(data).and_then(shutdown_mode);
                self.asked_to_shut_down(from, mode).map(nothing)
            }
            layer::BEGIN_LAYER => self.begin_layer(ino, handle).map(|name| name.to_vec()),
            groups::ABORT => {
                self.check_groups()?;
                self.abort_group(ino, handle);
                Ok(Vec::new())
            }
            // Encryption and verity: ext4 knows these on a volume that has neither.
            cmd if matches!(cmd.to_be_bytes(), [_, _, b'f', 19..=27 | 133..=135]) => {
                Err(Errno::OPNOTSUPP)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn attr_of(&self, ino: InodeNo) -> Outcome<Attr> {
        self.fs.getattr(ino).map_err(|e| errno(&e))
    }

    fn set_flags(&self, c: &Caller, ino: InodeNo, data: &[u8]) -> Outcome<()> {
        let flags = InodeFlags::from_bits_retain(read_u32(data).ok_or(Errno::INVAL)?);
        self.change_flags(c, ino, flags)
    }

    fn set_fsxattr(&self, c: &Caller, ino: InodeNo, data: &[u8]) -> Outcome<()> {
        let attr = self.attr_of(ino)?;
        let (flags, projid) = decode_fsxattr(data, attr.flags)?;
        if projid != attr.projid {
            return Err(Errno::NOTSUP);
        }
        self.change_flags(c, ino, flags)
    }

    fn set_generation(&self, c: &Caller, ino: InodeNo, data: &[u8]) -> Outcome<()> {
        let generation = read_u32(data).ok_or(Errno::INVAL)?;
        let set = self.fs.change(c, &Change::SetGeneration(ino, generation));
        set.map_err(|e| match e {
            // ext4 answers so where the generation seeds checksums.
            Error::NotSupported => Errno::NOTTY,
            e => errno(&e),
        })?;
        self.attributes_changed(ino);
        Ok(())
    }

    fn label(&self) -> Outcome<Vec<u8>> {
        let mut out = vec![0; LABEL_MAX];
        let label = self.fs.label().map_err(|e| errno(&e))?;
        out[..label.len()].copy_from_slice(&label);
        Ok(out)
    }

    fn set_label(&self, from: &InHeader, data: &[u8]) -> Outcome<()> {
        let end = data.iter().position(|b| *b == 0).ok_or(Errno::INVAL)?;
        let c = self.administrator(from)?;
        self.fs.set_label(&c, &data[..end]).map_err(|e| errno(&e))
    }

    /// Shuts down for an administrator. `None`: the request has no valid mode.
    fn asked_to_shut_down(&self, from: &InHeader, mode: Option<Shutdown>) -> Outcome<()> {
        let c = self.administrator(from)?;
        self.shut_down(&c, mode.ok_or(Errno::INVAL)?, from.pid)
    }

    fn change_flags(&self, c: &Caller, ino: InodeNo, flags: InodeFlags) -> Outcome<()> {
        let change = Change::SetFlags(ino, flags);
        self.fs.change(c, &change).map_err(|e| errno(&e))?;
        let is_immutable = flags.contains(InodeFlags::IMMUTABLE);
        self.opens.freeze(ino, is_immutable);
        self.attributes_changed(ino);
        Ok(())
    }

    fn trim(&self, c: &Caller, data: &[u8]) -> Outcome<Vec<u8>> {
        let mut range = TrimRange::decode(data).ok_or(Errno::INVAL)?;
        range.len = self
            .fs
            .trim(c, range.start, range.len, range.min_len)
            .map_err(|e| errno(&e))?;
        Ok(range.encode().to_vec())
    }
}

/// Returns the mode of a shutdown for the argument of `FS_IOC_SHUTDOWN`; `None` if there is no such
/// mode.
pub(crate) fn shutdown_mode(argument: u32) -> Option<Shutdown> {
    match argument {
        0 => Some(Shutdown::Full),
        1 => Some(Shutdown::LogFlush),
        2 => Some(Shutdown::NoLogFlush),
        _ => None,
    }
}

/// Reads a `u32` at the beginning of an ioctl's argument.
pub(crate) fn read_u32(data: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.first_chunk()?))
}

/// `struct fstrim_range`: which range to trim, and the shortest free range that is worth it. In
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrimRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) min_len: u64,
}

impl TrimRange {
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let u64_at = |i: usize| Some(u64::from_ne_bytes(*data.get(i..)?.first_chunk()?));
        Some(Self {
            start: u64_at(0)?,
            len: u64_at(8)?,
            min_len: u64_at(16)?,
        })
    }

    /// Encodes the answer: `len` says how many bytes were trimmed.
    pub(crate) fn encode(&self) -> [u8; 24] {
        let mut out = [0; 24];
        for (field, value) in out
            .chunks_exact_mut(8)
            .zip([self.start, self.len, self.min_len])
        {
            field.copy_from_slice(&value.to_ne_bytes());
        }
        out
    }
}

/// The `fsx_xflags` bit (`FS_XFLAG_*`) of each inode flag.
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x0000_0008, InodeFlags::IMMUTABLE),
    (0x0000_0010, InodeFlags::APPEND),
    (0x0000_0020, InodeFlags::SYNC),
    (0x0000_0040, InodeFlags::NOATIME),
    (0x0000_0080, InodeFlags::NODUMP),
    (0x0000_0200, InodeFlags::PROJINHERIT),
];

/// Encodes flags and project of a file as `struct fsxattr`.
pub(crate) fn encode_fsxattr(flags: InodeFlags, projid: u32) -> [u8; 28] {
    let mut xflags = 0;
    for (bit, flag) in XFLAGS {
        if flags.contains(flag) {
            xflags |= bit;
        }
    }
    let mut out = [0; 28];
    out[0..4].copy_from_slice(&u32::to_ne_bytes(xflags));
    out[12..16].copy_from_slice(&projid.to_ne_bytes());
    out
}

/// Decodes `FS_IOC_FSSETXATTR`. Returns the new flags and the project; flags that it cannot express
/// stay as in `old`.
///
/// # Errors
/// `INVAL` for too few bytes, `OPNOTSUPP` for flags that no file here can have.
pub(crate) fn decode_fsxattr(data: &[u8], old: InodeFlags) -> Outcome<(InodeFlags, u32)> {
    let xflags = read_u32(data).ok_or(Errno::INVAL)?;
    let projid = data.get(12..).and_then(read_u32).ok_or(Errno::INVAL)?;
    if XFLAGS.iter().fold(xflags, |rest, (bit, _)| rest & !bit) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut flags = old;
    for (bit, flag) in XFLAGS {
        flags.set(flag, xflags & bit != 0);
    }
    Ok((flags, projid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        // From linux/fs.h, as the C compiler computes them on x86-64.
        assert_eq!(GETFLAGS, 0x8008_6601);
        assert_eq!(SETFLAGS, 0x4008_6602);
        assert_eq!(FSGETXATTR, 0x801c_581f);
        assert_eq!(FSSETXATTR, 0x401c_5820);
        assert_eq!(GETVERSION, 0x8008_7601);
        assert_eq!(FITRIM, 0xc018_5879);
        assert_eq!(EXT4_GETVERSION, 0x8008_6603);
        assert_eq!(EXT4_SETVERSION, 0x4008_6604);
        assert_eq!(GETFSLABEL, 0x8100_9431);
        assert_eq!(SETFSLABEL, 0x4100_9432);
        assert_eq!(SHUTDOWN, 0x8004_587d);
    }

    #[test]
    fn fsxattr_keeps_what_it_cannot_say() {
        let old = InodeFlags::EXTENTS | InodeFlags::IMMUTABLE;
        let bytes = encode_fsxattr(InodeFlags::APPEND | InodeFlags::EXTENTS, 7);
        let (flags, projid) = decode_fsxattr(&bytes, old).unwrap();
        assert_eq!(flags, InodeFlags::EXTENTS | InodeFlags::APPEND);
        assert_eq!(projid, 7);
        assert_eq!(decode_fsxattr(&bytes[..8], old), Err(Errno::INVAL));
        let dax = [&0x8000_u32.to_ne_bytes()[..], &bytes[4..]].concat();
        assert_eq!(decode_fsxattr(&dax, old), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn trim_ranges_round_trip() {
        let range = TrimRange {
            start: 4096,
            len: u64::MAX,
            min_len: 1,
        };
        assert_eq!(TrimRange::decode(&range.encode()), Some(range));
        assert_eq!(TrimRange::decode(&[0; 23]), None);
    }
}
