//! The operations that tests carry out.

use stetfs_format::jbd2::JBD2_MAGIC;

use crate::rng::Rng;
use crate::world::acl::Acl;

/// How many files are open at a time.
pub const SLOTS: u8 = 3;

/// A path below the base directory.
pub type Path = String;

/// A stretch of pseudo-random bytes, named by its seed so that it prints and shrinks well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The seed of the bytes; 0 means zeros. For one seed in eight each KiB begins as the blocks of
    /// a JBD2 log do.
    pub seed: u16,
    /// Number of bytes.
    pub len: u32,
}

impl Payload {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        let mut out = vec![0; self.len as usize];
        if self.seed != 0 {
            Rng::new(u64::from(self.seed) << 20 | u64::from(self.len)).fill(&mut out);
        }
        if self.seed % 8 == 7 {
            for kib in out.chunks_exact_mut(1024) {
                kib[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
            }
        }
        out
    }
}

/// How to rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    /// Replaces an existing file.
    Plain,
    /// RENAME_NOREPLACE.
    NoReplace,
    /// RENAME_EXCHANGE.
    Exchange,
    /// RENAME_WHITEOUT.
    Whiteout,
}

/// Modes of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Mode 0.
    Plain,
    /// KEEP_SIZE.
    KeepSize,
    /// PUNCH_HOLE and KEEP_SIZE.
    Punch,
    /// ZERO_RANGE.
    Zero,
    /// ZERO_RANGE and KEEP_SIZE.
    ZeroKeepSize,
}

/// How setxattr treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrHow {
    /// Creates or replaces it.
    Any,
    /// XATTR_CREATE.
    Create,
    /// XATTR_REPLACE.
    Replace,
}

/// What mknod makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// S_IFIFO.
    Fifo,
    /// S_IFSOCK.
    Socket,
    /// S_IFCHR, with major and minor number.
    Char(u32, u32),
    /// S_IFBLK, with major and minor number.
    Block(u32, u32),
}

impl Special {
    /// The type, as in `st_mode`.
    pub fn kind(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::Char(..) => 0o020_000,
            Self::Block(..) => 0o060_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Major and minor number; zeros if it is not a device.
    pub fn device(self) -> (u32, u32) {
        match self {
            Self::Fifo | Self::Socket => (0, 0),
            Self::Char(major, minor) | Self::Block(major, minor) => (major, minor),
        }
    }
}

/// The course of the clock from now on; operations and model both follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockHow {
    /// Each operation has its own time ([`moment`](super::moment)), as at the start.
    Runs,
    /// The clock stands still: writes leave the times unchanged.
    Still,
    /// The clock stands at this time, which may be earlier than before, or much later.
    At(i64, u32),
}

/// What a write makes durable before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Nothing.
    No,
    /// The data, and what is needed to read it (RWF_DSYNC).
    Data,
    /// The whole file (RWF_SYNC).
    All,
}

/// One call, as the superuser with umask 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the calls' arguments
pub enum Op {
    /// Does `open(O_CREAT | O_RDWR)` and close; with O_EXCL if `exclusive`.
    Create {
        path: Path,
        mode: u16,
        exclusive: bool,
    },
    Mkdir {
        path: Path,
        mode: u16,
    },
    Mknod {
        path: Path,
        mode: u16,
        special: Special,
    },
    Symlink {
        target: String,
        path: Path,
    },
    Link {
        old: Path,
        new: Path,
    },
    /// Does `linkat` of an open file, which may give it its first name.
    LinkSlot {
        slot: u8,
        new: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        old: Path,
        new: Path,
        how: RenameHow,
    },
    /// Opens a file in a slot, for reading and writing; closes what was in the slot first.
    Open {
        slot: u8,
        path: Path,
        truncate: bool,
    },
    /// Does `open(O_TMPFILE | O_RDWR)` on a directory: a new file without a name, in a slot.
    Tmpfile {
        slot: u8,
        path: Path,
        mode: u16,
    },
    Close {
        slot: u8,
    },
    Write {
        slot: u8,
        offset: u64,
        payload: Payload,
        durable: Durable,
    },
    /// Writes at the end of the file (O_APPEND).
    Append {
        slot: u8,
        payload: Payload,
    },
    Read {
        slot: u8,
        offset: u64,
        len: u32,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    Ftruncate {
        slot: u8,
        size: u64,
    },
    Fallocate {
        slot: u8,
        how: Reserve,
        offset: u64,
        len: u64,
    },
    /// Does `lsetxattr`; this and the next three do not follow links.
    SetXattr {
        path: Path,
        name: String,
        value: Payload,
        how: XattrHow,
    },
    GetXattr {
        path: Path,
        name: String,
    },
    RemoveXattr {
        path: Path,
        name: String,
    },
    ListXattr {
        path: Path,
    },
    /// Sets the access ACL or the default ACL; `None` removes it.
    SetAcl {
        path: Path,
        default: bool,
        acl: Option<Acl>,
    },
    /// Changes the mode; follows links.
    Chmod {
        path: Path,
        mode: u16,
    },
    /// Changes the owner; does not follow links.
    Chown {
        path: Path,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Sets atime and mtime, in seconds and nanoseconds; does not follow links.
    Utimes {
        path: Path,
        atime: (i64, u32),
        mtime: (i64, u32),
    },
    Stat {
        path: Path,
    },
    Readlink {
        path: Path,
    },
    Readdir {
        path: Path,
    },
    Fsync {
        slot: u8,
    },
    Fdatasync {
        slot: u8,
    },
    FsyncDir {
        path: Path,
    },
    Sync,
    /// Commits the running transaction, as a mount does by its clock (`commit=`).
    Commit,
    /// Makes delayed data join the next commit, as if `dirty_expire=` had passed.
    Expire,
    /// Makes a file outside of the directory so long that this many blocks of the volume are free.
    Fill {
        room: u32,
    },
    /// Begins a group of changes; drops one that is open.
    GroupBegin,
    /// Switches to the other of two groups: all operations on a group mean that one from now on.
    GroupSwitch,
    /// Carries out an operation on paths as the group sees them. Its change is staged; an operation
    /// that only reads is carried out at once ([`Op::fits_group`]). It also opens files that the
    /// group has made.
    GroupDo(Box<Op>),
    /// Stages a write in the group.
    GroupWrite {
        slot: u8,
        offset: u64,
        payload: Payload,
    },
    /// Reads the file as it will be with the staged changes.
    GroupRead {
        slot: u8,
        offset: u64,
        len: u32,
    },
    /// Applies the staged changes and ends the group; durable on return unless `lazy`.
    GroupCommit {
        lazy: bool,
    },
    /// Forgets the staged changes and ends the group.
    GroupAbort,
    /// Closes all slots, unmounts and mounts again.
    Remount,
    /// Makes everything durable and brings it home, as far as the scheme does so.
    Checkpoint,
    /// Makes everything durable. Then the power goes off and on again, so that the volume is
    /// mounted without a previous unmount.
    Crash,
    /// Changes the course of the clock from the next operation on.
    Clock(ClockHow),
    /// Does `chattr +j` or `-j`, as root: from now on one write to the file is one transaction, or
    /// not.
    Mark {
        path: Path,
        on: bool,
    },
    /// Stores to mapped memory, up to the end of the file. The pages are written back at once, and
    /// times do not change.
    Store {
        slot: u8,
        offset: u64,
        payload: Payload,
    },
    /// Does `copy_file_range` of a range without holes, into another file or another part.
    Copy {
        from: u8,
        from_offset: u64,
        to: u8,
        to_offset: u64,
        len: u32,
    },
}

impl Op {
    /// Whether a group can carry it out.
    pub fn fits_group(&self) -> bool {
        match self {
            Self::Open { truncate, .. } => !truncate,
            Self::Create { .. }
            | Self::Mkdir { .. }
            | Self::Mknod { .. }
            | Self::Symlink { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Truncate { .. }
            | Self::Chmod { .. }
            | Self::Chown { .. }
            | Self::Readdir { .. } => true,
            _ => false,
        }
    }
}

/// The kinds of operations in a stream.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Bytes of the largest attribute value.
    pub xattr_max: u32,
    /// Whether offsets beyond 4 GiB occur.
    pub huge_files: bool,
    /// Whether nanoseconds and times of more than 32 bits occur.
    pub wide_times: bool,
    /// Whether remounts occur.
    pub remounts: bool,
    /// Whether calls that only read occur.
    pub looks: bool,
    /// Bytes of the largest write.
    pub write_max: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            xattr_max: 100,
            huge_files: true,
            wide_times: true,
            remounts: true,
            looks: true,
            write_max: 70_000,
        }
    }
}
