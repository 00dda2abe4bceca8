//! Arguments and results of the public operations.

use bitflags::bitflags;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use stetfs_format::inode::InodeFlags;
use stetfs_format::{InodeNo, Time};

/// The caller of an operation: user, groups, privileges.
///
/// ```
/// use stetfs::Caller;
///
/// let user = Caller { umask: 0o022, ..Caller::user(1000, 100) };
/// assert!(user.checks && !user.privileged && user.in_group(100));
/// assert!(Caller::root().privileged);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// The user (fsuid).
    pub uid: u32,
    /// The group (fsgid); new files get it unless the directory is set-group-ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: SmallVec<[u32; 8]>,
    /// The file creation mask, applied when the directory has no default ACL. 0 when it was applied
    /// before.
    pub umask: u16,
    /// The caller may do what root may (CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_CHOWN, CAP_FSETID,
    /// CAP_SYS_RESOURCE, CAP_SYS_ADMIN).
    pub privileged: bool,
    /// Whether permissions are checked here. False when the FUSE mount's `default_permissions` has
    /// checked them.
    pub checks: bool,
}

impl Caller {
    /// The superuser.
    pub fn root() -> Self {
        Self {
            privileged: true,
            checks: true,
            ..Self::default()
        }
    }

    /// An ordinary user with one group.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            privileged: uid == 0,
            checks: true,
            ..Self::default()
        }
    }

    /// Whether the caller is in group `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The attributes of a file, as `statx` returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: InodeNo,
    /// Generation: distinguishes files that had the same inode number one after the other.
    pub generation: u32,
    /// File type and permission bits.
    pub mode: u16,
    /// Number of links; 1 for a directory with more subdirectories than the format can count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device major and minor numbers, of device files.
    pub rdev: (u32, u32),
    /// Length in bytes.
    pub size: u64,
    /// Space in units of 512 bytes, delayed blocks included.
    pub blocks: u64,
    /// Preferred unit of input and output, in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation; zero on 128-byte inodes.
    pub crtime: Time,
    /// The inode's flags (chattr).
    pub flags: InodeFlags,
    /// Project.
    pub projid: u32,
    /// `i_version`. On mounts with [`MountOptions::redo`](crate::MountOptions::redo) that of a
    /// directory counts the changes of its names.
    pub version: u64,
}

impl Attr {
    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        mode::is_dir(self.mode)
    }
}

/// The inode that a name stands for.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Inode number.
    pub ino: InodeNo,
    /// Generation of the inode.
    pub generation: u32,
    /// Attributes.
    pub attr: Attr,
}

impl From<Attr> for Entry {
    fn from(attr: Attr) -> Self {
        let (ino, generation) = (attr.ino, attr.generation);
        Self {
            ino,
            generation,
            attr,
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's time (UTIME_NOW); needs write permission only.
    Now,
    /// This time; needs ownership.
    At(Time),
}

/// The changes of one `setattr`; `None` leaves an attribute alone. All are made in one handle; a
/// large truncate goes on in further ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, from a writeback cache above that keeps it.
    pub ctime: Option<Time>,
    /// The size is set through a file open for writing (`ftruncate`); permission was checked at
    /// open.
    pub through_handle: bool,
    /// Clear set-user-ID and set-group-ID as a write by this caller would
    /// (FUSE_HANDLE_KILLPRIV_V2).
    pub kill_suid: bool,
}

/// Sizes and limits of the volume (`statfs`); space is counted in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks for files: all but the overhead.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that an unprivileged writer may use.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
}

/// One entry of a listing (`readdir`).
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: InodeNo,
    /// The cookie at which the next call goes on after this entry.
    pub next: u64,
    /// File type as in `d_type` (`DT_REG` 8, `DT_DIR` 4, ..., 0 unknown).
    pub kind: u8,
    /// Name, not checked for UTF-8.
    pub name: &'a [u8],
}

bitflags! {
    /// How to rename (`renameat2`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail when the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout behind, a character device 0, 0 that hides the old name in an overlay.
        const WHITEOUT = 4;
    }
}

bitflags! {
    /// How a file is opened, as far as it matters to this layer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// Writes go to the end.
        const APPEND = 4;
        /// Truncate to length 0.
        const TRUNCATE = 8;
        /// Fail when the name exists (`create` only).
        const EXCLUSIVE = 16;
        /// For execution: needs execute permission instead of read.
        const EXEC = 32;
    }
}

bitflags! {
    /// How to carry out a write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct WriteFlags: u32 {
        /// At the end of the file, whatever the offset says (O_APPEND).
        const APPEND = 1;
        /// Return when data and what is needed to read it are durable (O_DSYNC).
        const DATASYNC = 2;
        /// Return when data and all attributes are durable (O_SYNC).
        const SYNC = 4;
        /// From a page cache above: check no permission, and change no times or set-ID bits
        /// (FUSE_WRITE_CACHE).
        const CACHED = 8;
        /// Clear set-user-ID and set-group-ID even for a privileged caller
        /// (FUSE_WRITE_KILL_SUIDGID).
        const KILL_SUID = 16;
        /// An append by a cache above: the offset is the end of the file as that cache knows it
        /// (O_APPEND).
        const AT_END = 32;
        /// Write all, or fail and leave the file no longer; its old content may be overwritten in
        /// part. For callers that cannot tell a short write from a broken disk (FUSE with
        /// O_DIRECT).
        const WHOLE = 64;
    }
}

bitflags! {
    /// `fallocate` modes (Linux `falloc.h`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FallocateMode: u32 {
        /// Keep the length.
        const KEEP_SIZE = 0x01;
        /// Make a hole; needs KEEP_SIZE.
        const PUNCH_HOLE = 0x02;
        /// Remove a range; not supported.
        const COLLAPSE_RANGE = 0x08;
        /// Make a range read as zeros, and keep its blocks.
        const ZERO_RANGE = 0x10;
        /// Insert a range; not supported.
        const INSERT_RANGE = 0x20;
        /// Unshare blocks; not supported.
        const UNSHARE_RANGE = 0x40;
    }
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that may hold data (SEEK_DATA).
    Data,
    /// The next hole (SEEK_HOLE); the end of the file counts as one.
    Hole,
}

bitflags! {
    /// Properties of a mapped range (Linux `fiemap.h`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FiemapFlags: u32 {
        /// The last range of the file.
        const LAST = 0x0000_0001;
        /// Has no place yet.
        const UNKNOWN = 0x0000_0002;
        /// Delayed: allocated at a later commit.
        const DELALLOC = 0x0000_0004;
        /// Not in whole blocks.
        const NOT_ALIGNED = 0x0000_0100;
        /// In the inode (`inline_data`).
        const INLINE = 0x0000_0200;
        /// Allocated and never written: reads as zeros.
        const UNWRITTEN = 0x0000_0800;
        /// Made of single blocks (ext3 mapping).
        const MERGED = 0x0000_1000;
    }
}

/// One range that `fiemap` reports, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiemapExtent {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the device; 0 when there is none yet.
    pub physical: u64,
    /// Length.
    pub length: u64,
    /// Its properties.
    pub flags: FiemapFlags,
}

/// What is known of an operation that is done once more ([`Fs::redo`](crate::Fs::redo)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Past {
    /// When it was done.
    pub at: Time,
    /// The inode that it made, and its generation.
    pub made: Option<(InodeNo, u32)>,
    /// The inodes that it changed; of names, the directories.
    pub changed: SmallVec<[Changed; 2]>,
}

/// An inode that an operation has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Its number.
    pub ino: InodeNo,
    /// Its generation.
    pub generation: u32,
    /// Of a directory whose names were changed: the [version](Attr::version) that this left.
    pub version: Option<u64>,
}

/// An inode that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Its number.
    pub ino: u32,
    /// Its generation.
    pub generation: u32,
    /// How many times it is open.
    pub opens: u32,
    /// It has lost its last name, and is kept until the cache above forgets it; that is one of
    /// `opens`.
    pub is_held: bool,
    /// It was made without a name, and can get one.
    pub is_nameable: bool,
    /// It was truncated to nothing, and its new data gets a place when it is closed.
    pub places_on_close: bool,
}

/// What `setxattr` does about an existing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Set it in any case.
    #[default]
    Any,
    /// Fail when it exists (XATTR_CREATE).
    Create,
    /// Fail when it does not (XATTR_REPLACE).
    Replace,
}

/// What a shutdown does with changes that are not durable yet (FS_IOC_SHUTDOWN, xfs's `godown`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Write everything first, then stop (GOING_FLAGS_DEFAULT).
    Full,
    /// Commit the journal, then stop (GOING_FLAGS_LOGFLUSH).
    LogFlush,
    /// Stop at once, like a crash (GOING_FLAGS_NOLOGFLUSH).
    NoLogFlush,
}

bitflags! {
    /// The access to a file that a caller asks for (`access`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Access: u16 {
        /// Execute, or search a directory.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

/// The file type bits of `i_mode`, and functions to test them.
pub mod mode {
    /// The type's bits.
    pub const S_IFMT: u16 = 0o170000;
    /// FIFO.
    pub const S_IFIFO: u16 = 0o010000;
    /// Character device.
    pub const S_IFCHR: u16 = 0o020000;
    /// Directory.
    pub const S_IFDIR: u16 = 0o040000;
    /// Block device.
    pub const S_IFBLK: u16 = 0o060000;
    /// Regular file.
    pub const S_IFREG: u16 = 0o100000;
    /// Symbolic link.
    pub const S_IFLNK: u16 = 0o120000;
    /// Socket.
    pub const S_IFSOCK: u16 = 0o140000;
    /// Set-user-ID.
    pub const S_ISUID: u16 = 0o4000;
    /// Set-group-ID.
    pub const S_ISGID: u16 = 0o2000;
    /// Sticky.
    pub const S_ISVTX: u16 = 0o1000;
    /// Group execute.
    pub const S_IXGRP: u16 = 0o010;

    /// True for a directory.
    pub const fn is_dir(mode: u16) -> bool {
        mode & S_IFMT == S_IFDIR
    }
    /// True for a regular file.
    pub const fn is_reg(mode: u16) -> bool {
        mode & S_IFMT == S_IFREG
    }
    /// True for a symbolic link.
    pub const fn is_lnk(mode: u16) -> bool {
        mode & S_IFMT == S_IFLNK
    }
    /// True for a character or block device.
    pub const fn is_device(mode: u16) -> bool {
        matches!(mode & S_IFMT, S_IFCHR | S_IFBLK)
    }
}
