//! The operations.

use stetfs_format::jbd2::JBD2_MAGIC;

use crate::rng::Rng;
use crate::world::acl::Acl;

/// Open files at a time.
pub const SLOTS: u8 = 3;

/// A path below the base directory.
pub type Path = String;

/// A stretch of pseudo-random bytes, named by its seed so that it prints and shrinks well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Where the bytes come from; 0 means zeros. With one seed in eight each KiB begins as the
    /// blocks of a JBD2 log do.
    pub seed: u16,
    /// How many.
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
    /// Replace.
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

/// How setxattr treats what exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrHow {
    /// Either way.
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

    /// Major and minor number: zeros where there is no device.
    pub fn device(self) -> (u32, u32) {
        match self {
            Self::Fifo | Self::Socket => (0, 0),
            Self::Char(major, minor) | Self::Block(major, minor) => (major, minor),
        }
    }
}

/// What a clock says from now on, which operations and model are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockHow {
    /// Another time for each operation ([`moment`](super::moment)), as it is in the beginning.
    Runs,
    /// The same time: what is written leaves the times as they are.
    Still,
    /// This time, and no other: earlier than before, or much later.
    At(i64, u32),
}

/// What a write makes durable before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Nothing.
    No,
    /// Data and what is needed to read it (RWF_DSYNC).
    Data,
    /// All of the file (RWF_SYNC).
    All,
}

/// One call, as the superuser with umask 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the calls' arguments
pub enum Op {
    /// `open(O_CREAT | O_RDWR)` and close; with O_EXCL when `exclusive`.
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
    /// `linkat` of an open file, perhaps its first name.
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
    /// Into a slot, for reading and writing; what was in the slot is closed first.
    Open {
        slot: u8,
        path: Path,
        truncate: bool,
    },
    /// `open(O_TMPFILE | O_RDWR)` of a directory: into a slot, a new file without a name.
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
    /// At the end of the file (O_APPEND).
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
    /// `lsetxattr` and so on: links are not followed.
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
    /// The access ACL or the default ACL; `None` removes it.
    SetAcl {
        path: Path,
        default: bool,
        acl: Option<Acl>,
    },
    /// Follows links.
    Chmod {
        path: Path,
        mode: u16,
    },
    /// Does not follow links.
    Chown {
        path: Path,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// (seconds, nanoseconds) of atime and mtime; does not follow links.
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
    /// What a mount does by the clock: the running transaction is committed (`commit=`).
    Commit,
    /// The same for delayed data, as if `dirty_expire=` had passed: the next commit has it.
    Expire,
    /// A group of changes begins; one that is open is dropped.
    GroupBegin,
    /// The other of two groups: what is said of a group from now on is said of that one.
    GroupSwitch,
    /// An operation on paths, which are those that the group sees: staged in it, but for those that
    /// only look ([`Op::fits_group`]). What a group makes is opened so, too.
    GroupDo(Box<Op>),
    /// Staged in the group.
    GroupWrite {
        slot: u8,
        offset: u64,
        payload: Payload,
    },
    /// As the file will be with what is staged.
    GroupRead {
        slot: u8,
        offset: u64,
        len: u32,
    },
    /// What is staged happens, and the group ends; durable on return unless `lazy`.
    GroupCommit {
        lazy: bool,
    },
    /// What is staged is forgotten, and the group ends.
    GroupAbort,
    /// Closes all slots, unmounts and mounts again.
    Remount,
    /// Everything is made durable and then goes home, as far as the scheme brings it there.
    Checkpoint,
    /// Everything is made durable; then the power goes off and comes again, so that the volume is
    /// mounted without an unmount before.
    Crash,
    /// From the next operation on the clock goes otherwise.
    Clock(ClockHow),
    /// `chattr +j` or `-j`, as root: one write to the file is one transaction, or no more.
    Mark {
        path: Path,
        on: bool,
    },
    /// Stores to mapped memory, as far as the file reaches. Its pages are written back at once, and
    /// times are left alone.
    Store {
        slot: u8,
        offset: u64,
        payload: Payload,
    },
    /// `copy_file_range` of a range without holes, into another file or another part.
    Copy {
        from: u8,
        from_offset: u64,
        to: u8,
        to_offset: u64,
        len: u32,
    },
}

impl Op {
    /// Whether a group can do it.
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

/// What a stream of operations is made of.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Bytes of the largest attribute value.
    pub xattr_max: u32,
    /// Offsets beyond 4 GiB appear.
    pub huge_files: bool,
    /// Times that need more than 32 bits, and nanoseconds, appear.
    pub wide_times: bool,
    /// Remounts appear.
    pub remounts: bool,
    /// Calls that only look appear.
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
