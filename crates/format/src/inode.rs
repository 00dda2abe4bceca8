//! Inodes.
//!
//! [`Inode`] holds what the disk holds, joined and typed. The caller knows what it means: which
//! mapping, which link in the orphan list. Encoding keeps all bytes that belong to no field, above
//! all the extended attributes behind `i_extra_isize`.
//!
//! Source: kernel `Documentation/filesystems/ext4/{inodes,checksums}.rst`;
//! the 34-bit times are under "Inode Timestamps" there.

use bitflags::bitflags;

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::layout::{Bytes, Le16, Le32, flag_words, record};
use crate::num::{BlockNo, InodeNo};
use crate::width::{
    high16, high32, low16, low32, must_fit, u16_as_u32, u32_as_usize, usize_as_u64,
};

/// Bytes of the part that every inode has.
pub const GOOD_OLD_INODE_SIZE: usize = 128;

/// The root directory.
pub const ROOT_INO: InodeNo = InodeNo(2);

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Secure deletion; not implemented by the kernel.
        const SECRM = 0x1;
        /// Undelete; not implemented by the kernel.
        const UNRM = 0x2;
        /// Compressed; not implemented by the kernel.
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// Must not change.
        const IMMUTABLE = 0x10;
        /// May only be appended to.
        const APPEND = 0x20;
        /// Not for dump(8).
        const NODUMP = 0x40;
        /// The access time is not kept.
        const NOATIME = 0x80;
        /// Of compression; not used.
        const DIRTY = 0x100;
        /// Of compression; not used.
        const COMPRBLK = 0x200;
        /// Of compression; not used.
        const NOCOMPR = 0x400;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash tree.
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data of the file are journaled in every mode.
        const JOURNAL_DATA = 0x4000;
        /// No tail merging; not used.
        const NOTAIL = 0x8000;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 0x10000;
        /// Top of a directory hierarchy: subdirectories are spread over the volume.
        const TOPDIR = 0x20000;
        /// `i_blocks` counts file system blocks.
        const HUGE_FILE = 0x40000;
        /// Mapped by extents.
        const EXTENTS = 0x80000;
        /// Has a Merkle tree.
        const VERITY = 0x100000;
        /// Holds the value of a large extended attribute.
        const EA_INODE = 0x200000;
        /// Blocks beyond the end; obsolete.
        const EOFBLOCKS = 0x400000;
        /// Direct access.
        const DAX = 0x0200_0000;
        /// The data are in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New files inherit the project.
        const PROJINHERIT = 0x2000_0000;
        /// Names are compared without regard to case.
        const CASEFOLD = 0x4000_0000;
    }
}

/// The kind of a file: the upper four bits of `i_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FileType {
    /// Named pipe.
    Fifo = 0x1000,
    /// Character device.
    CharDevice = 0x2000,
    /// Directory.
    Directory = 0x4000,
    /// Block device.
    BlockDevice = 0x6000,
    /// Regular file.
    Regular = 0x8000,
    /// Symbolic link.
    Symlink = 0xa000,
    /// Socket.
    Socket = 0xc000,
}

impl FileType {
    /// The bits of `mode` that hold the type.
    pub const MASK: u16 = 0xf000;

    /// The type in `mode`; `None` when POSIX has no such type.
    pub const fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode & Self::MASK {
            0x1000 => Self::Fifo,
            0x2000 => Self::CharDevice,
            0x4000 => Self::Directory,
            0x6000 => Self::BlockDevice,
            0x8000 => Self::Regular,
            0xa000 => Self::Symlink,
            0xc000 => Self::Socket,
            _ => return None,
        })
    }

    /// The type in `i_mode`'s place.
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the values on disk"
    )]
    pub const fn mode_bits(self) -> u16 {
        self as u16
    }

    /// The code in a directory entry (`EXT4_FT_*`).
    pub const fn dirent_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type with this code in a directory entry; `None` for 0 (unknown) and
    /// codes that do not exist.
    pub const fn of_dirent_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// A point of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970. On disk: 1901 to 2446, or to 2038 without extra fields.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000. Zero on disk without extra fields.
    pub nsec: u32,
}

impl Time {
    /// The earliest time that an inode can hold.
    pub const MIN: Self = Self {
        sec: -0x8000_0000,
        nsec: 0,
    };
    /// The latest second that an inode with extra fields can hold.
    pub const MAX_SEC: i64 = 0x3_7fff_ffff;

    /// From the 32-bit seconds and the extra field (nanoseconds, two epoch bits).
    fn decode(base: u32, extra: Option<u32>) -> Self {
        let sec = i64::from(base.cast_signed());
        match extra {
            None => Self { sec, nsec: 0 },
            Some(extra) => Self {
                sec: sec + (i64::from(extra & 3) << 32),
                // 30 bits can hold more than a second; larger values are cut off.
                nsec: (extra >> 2).min(999_999_999),
            },
        }
    }

    /// Reads a time from its two fields. An inode with `end` bytes in use may lack one or both.
    fn read(raw: &[u8], base: Le32, extra: Le32, end: usize) -> Self {
        if base.end() > GOOD_OLD_INODE_SIZE.max(end) {
            return Self::default();
        }
        let extra = (extra.end() <= end).then(|| extra.get(raw));
        Self::decode(base.get(raw), extra)
    }

    /// Writes the time into those of its two fields that the inode has.
    fn write(self, raw: &mut [u8], base: Le32, extra: Le32, end: usize) {
        let has_extra = extra.end() <= end;
        let (low, high) = self.encode(has_extra);
        if base.end() <= GOOD_OLD_INODE_SIZE.max(end) {
            base.put(raw, low);
        }
        if has_extra {
            extra.put(raw, high);
        }
    }

    /// The nearest time that an inode can hold, with extra fields or without. As the
    /// kernel's `timestamp_truncate`, without nanoseconds at either end of the range.
    pub fn kept(self, has_extra: bool) -> Self {
        let last = if has_extra {
            Self::MAX_SEC
        } else {
            i32::MAX.into()
        };
        let sec = self.sec.clamp(Self::MIN.sec, last);
        let at_end = sec == Self::MIN.sec || sec == last;
        let nsec = if at_end || !has_extra { 0 } else { self.nsec };
        Self { sec, nsec }
    }

    /// The two words; a time that does not fit becomes the nearest that does.
    fn encode(self, has_extra: bool) -> (u32, u32) {
        if !has_extra {
            return (low32(self.kept(false).sec.cast_unsigned()), 0);
        }
        let fits = (Self::MIN.sec..=Self::MAX_SEC).contains(&self.sec);
        let Self { sec, nsec } = if fits { self } else { self.kept(true) };
        let base = low32(sec.cast_unsigned());
        let epoch = high32((sec - i64::from(base.cast_signed())).cast_unsigned()) & 3;
        (base, (nsec << 2) | epoch)
    }
}

flag_words!(InodeFlags: u32);

record! {
    /// An inode: 128 bytes, then as many as `i_extra_isize` says.
    pub INODE_LAYOUT = "Inode", 160, {
        0x00 Le16, MODE = "i_mode";
        0x08 Le32, ATIME = "i_atime";
        0x0c Le32, CTIME = "i_ctime";
        0x10 Le32, MTIME = "i_mtime";
        0x64 Le32, GENERATION = "i_generation";
        0x7c Le16, CHECKSUM_LO = "l_i_checksum_lo";
        0x80 Le16, EXTRA_ISIZE = "i_extra_isize";
        0x82 Le16, CHECKSUM_HI = "i_checksum_hi";
        0x84 Le32, CTIME_EXTRA = "i_ctime_extra";
        0x88 Le32, MTIME_EXTRA = "i_mtime_extra";
        0x8c Le32, ATIME_EXTRA = "i_atime_extra";
        0x90 Le32, CRTIME = "i_crtime";
        0x94 Le32, CRTIME_EXTRA = "i_crtime_extra";
    }

    /// An inode, as it is on disk.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Inode from (raw, geometry: &Geometry, mode: u16, end: usize) {
        /// Owner.
        0x02 Le16, 0x78 Le16, uid: u32 = "i_uid", "l_i_uid_high";
        /// Bytes of the file.
        0x04 Le32, 0x6c Le32 where has_size_hi(mode, geometry),
        size: u64 = "i_size_lo", "i_size_high";
        /// When it was deleted, in seconds; in the orphan list the next orphan's number.
        0x14 Le32, dtime: u32 = "i_dtime";
        /// Group.
        0x18 Le16, 0x7a Le16, gid: u32 = "i_gid", "l_i_gid_high";
        /// Directory entries that name it; 1 for a directory that has too many (`dir_nlink`).
        0x1a Le16, links_count: u16 = "i_links_count";
        /// `i_blocks` as stored, in units of 512 bytes, or of blocks with
        /// [`InodeFlags::HUGE_FILE`]. See [`blocks_512`](Self::blocks_512).
        0x1c Le32, 0x74 Le16 where geometry.huge_file,
        blocks: u64 = "i_blocks_lo", "l_i_blocks_high";
        /// Flags.
        0x20 Le32, flags: InodeFlags = "i_flags";
        /// Counts changes (`i_version`), 64 bits where the inode has room.
        0x24 Le32, 0x98 Le32 where end >= 0x9c, version: u64 = "l_i_version", "i_version_hi";
        /// Extent root, block pointers, a short symbolic link, or a device number.
        0x28 Bytes<60>, block: [u8; 60] = "i_block";
        /// The block of extended attributes; 0 when there is none.
        0x68 Le32, 0x76 Le16 where geometry.is_64bit,
        file_acl: BlockNo = "i_file_acl_lo", "l_i_file_acl_high";
        /// Project; 0 where the inode has no room for it.
        0x9c Le32 where end >= 0xa0, projid: u32 = "i_projid";
    } {
        /// File type and permissions.
        pub mode: u16 = mode;
        /// Distinguishes files that had the same number (NFS); a seed of its checksums.
        pub generation: u32 = GENERATION.get(raw);
        /// Last access.
        pub atime: Time = Time::read(raw, ATIME, ATIME_EXTRA, end);
        /// Last change of the inode.
        pub ctime: Time = Time::read(raw, CTIME, CTIME_EXTRA, end);
        /// Last change of the content.
        pub mtime: Time = Time::read(raw, MTIME, MTIME_EXTRA, end);
        /// When it was made; zero where the inode has no room for it.
        pub crtime: Time = Time::read(raw, CRTIME, CRTIME_EXTRA, end);
        /// Bytes in use behind the first 128. In-inode attributes begin behind them.
        pub extra_isize: u16 = 0;
    }
}

impl Inode {
    /// A new inode: all zero but the mode, the flags, the generation and the room
    /// for extra fields that the volume wants.
    pub fn new(mode: u16, flags: InodeFlags, generation: u32, geometry: &Geometry) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Time::default(),
            ctime: Time::default(),
            mtime: Time::default(),
            crtime: Time::default(),
            dtime: 0,
            links_count: 0,
            blocks: 0,
            flags,
            generation,
            file_acl: BlockNo(0),
            version: 0,
            projid: 0,
            extra_isize: geometry.want_extra_isize,
            block: [0; 60],
        }
    }

    /// Decodes the inode `ino` from its bytes in the inode table.
    ///
    /// An inode is valid if and only if: 1. its extra fields end inside it;
    /// 2. with `metadata_csum`, its checksum fits; 3. its type is one of POSIX's (or
    /// 0, when it is not in use); 4. its size is below 2^63; 5. its attribute block
    /// lies inside the volume. The reader of `block` checks its content.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Inode`, for the first check that failed.
    pub fn decode(raw: &[u8], ino: InodeNo, geometry: &Geometry) -> Result<Self, Corrupt> {
        let raw = raw.get(..geometry.inode_size()).ok_or(Corrupt::TooShort {
            record: "inode",
            needed: geometry.inode_size(),
            found: raw.len(),
        })?;
        let extra_isize = check_extra_isize(raw, ino)?;
        let end = GOOD_OLD_INODE_SIZE + usize::from(extra_isize);
        if geometry.metadata_csum {
            check_checksum(raw, ino, end, geometry)?;
        }
        let inode = Self {
            extra_isize,
            ..Self::read_fields(raw, geometry, MODE.get(raw), end)
        };
        inode.check(ino, geometry)?;
        Ok(inode)
    }

    fn check(&self, ino: InodeNo, geometry: &Geometry) -> Result<(), Corrupt> {
        if self.mode & FileType::MASK != 0 && self.file_type().is_none() {
            return Err(Corrupt::InodeMode {
                ino,
                mode: self.mode,
            });
        }
        if self.size > i64::MAX.cast_unsigned() {
            return Err(Corrupt::InodeSize {
                ino,
                size: self.size,
            });
        }
        if self.file_acl.0 != 0 && !geometry.is_valid_range(self.file_acl, 1) {
            return Err(Corrupt::InodeFileAcl {
                ino,
                block: self.file_acl,
            });
        }
        Ok(())
    }

    /// Writes every field into `raw`, an older version of this inode, and makes its
    /// checksum anew. Extended attributes and all else that is no field stay.
    ///
    /// # Panics
    /// When `raw` is shorter than an inode, or the extra fields do not fit into it.
    pub fn encode_into(&self, raw: &mut [u8], ino: InodeNo, geometry: &Geometry) {
        let raw = &mut raw[..geometry.inode_size()];
        let end = GOOD_OLD_INODE_SIZE + usize::from(self.extra_isize);
        assert!(end <= raw.len(), "extra fields do not fit the inode");
        MODE.put(raw, self.mode);
        GENERATION.put(raw, self.generation);
        self.write_fields(raw, geometry, self.mode, end);
        self.atime.write(raw, ATIME, ATIME_EXTRA, end);
        self.ctime.write(raw, CTIME, CTIME_EXTRA, end);
        self.mtime.write(raw, MTIME, MTIME_EXTRA, end);
        self.crtime.write(raw, CRTIME, CRTIME_EXTRA, end);
        if raw.len() > GOOD_OLD_INODE_SIZE {
            EXTRA_ISIZE.put(raw, self.extra_isize);
        }
        if geometry.metadata_csum {
            write_checksum(raw, ino, end, self.generation, geometry);
        }
    }

    /// As [`encode_into`](Self::encode_into), over an inode that was not in use: all bytes that
    /// belong to no field become zero.
    ///
    /// # Panics
    /// As [`encode_into`](Self::encode_into).
    pub fn encode_fresh(&self, raw: &mut [u8], ino: InodeNo, geometry: &Geometry) {
        raw[..geometry.inode_size()].fill(0);
        self.encode_into(raw, ino, geometry);
    }

    /// The type of the file; `None` when the inode is not in use.
    #[inline]
    pub const fn file_type(&self) -> Option<FileType> {
        FileType::of_mode(self.mode)
    }

    /// Whether it is a directory.
    #[inline]
    pub const fn is_dir(&self) -> bool {
        matches!(self.file_type(), Some(FileType::Directory))
    }

    /// Whether it is a regular file.
    #[inline]
    pub const fn is_regular(&self) -> bool {
        matches!(self.file_type(), Some(FileType::Regular))
    }

    /// Whether it is a symbolic link.
    #[inline]
    pub const fn is_symlink(&self) -> bool {
        matches!(self.file_type(), Some(FileType::Symlink))
    }

    /// Whether the content lies in the inode itself: in `block`, and in the attribute
    /// `system.data`.
    #[inline]
    pub const fn is_inline(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// Where the extended attributes inside the inode begin, counted from its start.
    #[inline]
    pub const fn xattr_offset(&self) -> usize {
        GOOD_OLD_INODE_SIZE + u32_as_usize(u16_as_u32(self.extra_isize))
    }

    /// The space that the file takes, in units of 512 bytes.
    pub fn blocks_512(&self, geometry: &Geometry) -> u64 {
        if geometry.huge_file && self.flags.contains(InodeFlags::HUGE_FILE) {
            return geometry.block.sectors_of(self.blocks);
        }
        self.blocks
    }

    /// Stores the space that the file takes, in units of 512 bytes, in the unit that
    /// can hold it, and sets or clears [`InodeFlags::HUGE_FILE`] accordingly.
    /// Returns false, and changes nothing, when no unit can: the file is too big.
    #[must_use]
    pub fn set_blocks_512(&mut self, blocks: u64, geometry: &Geometry) -> bool {
        if blocks <= u64::from(u32::MAX) {
            self.blocks = blocks;
            self.flags.remove(InodeFlags::HUGE_FILE);
            return true;
        }
        if !geometry.huge_file {
            return false;
        }
        if blocks < 1 << 48 {
            self.blocks = blocks;
            self.flags.remove(InodeFlags::HUGE_FILE);
            return true;
        }
        let blocks = blocks >> (geometry.block.bits() - 9);
        if blocks >= 1 << 48 {
            return false;
        }
        self.blocks = blocks;
        self.flags.insert(InodeFlags::HUGE_FILE);
        true
    }

    /// Whether it is a symbolic link whose text lies in `block`. Then at most an attribute block is
    /// allocated for it (the kernel's `ext4_inode_is_fast_symlink`).
    pub fn is_fast_symlink(&self, geometry: &Geometry) -> bool {
        let attributes = if self.file_acl.0 == 0 {
            0
        } else {
            geometry.block.sectors_of(1 << geometry.cluster_bits)
        };
        self.is_symlink() && !self.is_inline() && self.blocks_512(geometry) == attributes
    }

    /// The text of a fast symbolic link.
    ///
    /// # Errors
    /// [`Corrupt::InodeSymlink`] when the size is 0, does not fit `block`, or
    /// the text has a zero before its end or none at it.
    pub fn fast_symlink(&self, ino: InodeNo) -> Result<&[u8], Corrupt> {
        let length = self
            .block
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.block.len());
        if length == 0 || length == self.block.len() || usize_as_u64(length) != self.size {
            return Err(Corrupt::InodeSymlink {
                ino,
                size: self.size,
            });
        }
        Ok(&self.block[..length])
    }

    /// Device number of a device file: major and minor.
    pub fn rdev(&self) -> (u32, u32) {
        let old = crate::bytes::read_u32le(&self.block, 0);
        if old != 0 {
            return (old >> 8 & 0xff, old & 0xff);
        }
        let new = crate::bytes::read_u32le(&self.block, 4);
        (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xfff00)
    }

    /// Stores a device number, in the old form where it fits (the kernel's
    /// `old_valid_dev`, `new_encode_dev`). Major below 2^12, minor below 2^20.
    pub fn set_rdev(&mut self, major: u32, minor: u32) {
        self.block = [0; 60];
        if major < 256 && minor < 256 {
            crate::bytes::write_u32le(&mut self.block, 0, major << 8 | minor);
        } else {
            let new = minor & 0xff | major << 8 | (minor & !0xff) << 12;
            crate::bytes::write_u32le(&mut self.block, 4, new);
        }
    }

    /// Seed of the checksums of this inode's blocks: extent and directory blocks.
    pub fn csum_seed(&self, ino: InodeNo, geometry: &Geometry) -> u32 {
        inode_csum_seed(ino, self.generation, geometry)
    }
}

/// Seed of all checksums that belong to an inode: the volume's seed, then number
/// and generation. See [`Inode::csum_seed`].
pub fn inode_csum_seed(ino: InodeNo, generation: u32, geometry: &Geometry) -> u32 {
    let identity = u64::from(generation) << 32 | u64::from(ino.0);
    crc32c(geometry.csum_seed, &identity.to_le_bytes())
}

/// Whether the size has 64 bits. That of a directory has only with `large_dir`: elsewhere the upper
/// half was once the access control list.
fn has_size_hi(mode: u16, geometry: &Geometry) -> bool {
    geometry.largedir || matches!(FileType::of_mode(mode), Some(FileType::Regular))
}

/// Returns `i_extra_isize`; 0 when the inode has no room for the field itself.
fn check_extra_isize(raw: &[u8], ino: InodeNo) -> Result<u16, Corrupt> {
    if raw.len() == GOOD_OLD_INODE_SIZE {
        return Ok(0);
    }
    let extra = EXTRA_ISIZE.get(raw);
    if !extra.is_multiple_of(4) || GOOD_OLD_INODE_SIZE + usize::from(extra) > raw.len() {
        return Err(Corrupt::InodeExtraSize {
            ino,
            extra,
            inode_size: must_fit(raw.len()),
        });
    }
    Ok(extra)
}

fn check_checksum(
    raw: &[u8],
    ino: InodeNo,
    end: usize,
    geometry: &Geometry,
) -> Result<(), Corrupt> {
    let has_hi = CHECKSUM_HI.end() <= end;
    let mut computed = checksum_of(raw, ino, has_hi, GENERATION.get(raw), geometry);
    let mut stored = u32::from(CHECKSUM_LO.get(raw));
    if has_hi {
        stored |= u32::from(CHECKSUM_HI.get(raw)) << 16;
    } else {
        computed &= 0xffff;
    }
    if stored != computed {
        return Err(Corrupt::InodeChecksum {
            ino,
            stored,
            computed,
        });
    }
    Ok(())
}

fn write_checksum(raw: &mut [u8], ino: InodeNo, end: usize, generation: u32, geometry: &Geometry) {
    let has_hi = CHECKSUM_HI.end() <= end;
    let checksum = checksum_of(raw, ino, has_hi, generation, geometry);
    CHECKSUM_LO.put(raw, low16(checksum));
    if has_hi {
        CHECKSUM_HI.put(raw, high16(checksum));
    }
}

/// CRC-32C of number, generation and the inode with zeros for the checksum itself.
fn checksum_of(
    raw: &[u8],
    ino: InodeNo,
    has_hi: bool,
    generation: u32,
    geometry: &Geometry,
) -> u32 {
    // One pass over a copy beats many short ones; bytes behind the usual sizes go in a second one.
    const IDENTITY: usize = 8;
    const COPIED: usize = 256;
    let mut copy = [0; IDENTITY + COPIED];
    let copied = raw.len().min(COPIED);
    copy[..4].copy_from_slice(&ino.0.to_le_bytes());
    copy[4..IDENTITY].copy_from_slice(&generation.to_le_bytes());
    let inode = &mut copy[IDENTITY..IDENTITY + copied];
    inode.copy_from_slice(&raw[..copied]);
    CHECKSUM_LO.put(inode, 0);
    if has_hi {
        CHECKSUM_HI.put(inode, 0);
    }
    let crc = crc32c(geometry.csum_seed, &copy[..IDENTITY + copied]);
    if raw.len() == copied {
        crc
    } else {
        crc32c(crc, &raw[copied..])
    }
}
