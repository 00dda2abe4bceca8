//! The records of the FUSE protocol, version 7, as the kernel lays them out.
//!
//! Source of every number and layout: Linux, `include/uapi/linux/fuse.h` (its comments say which
//! minor version brought what). Numbers are in the machine's own byte order. Records from the
//! kernel end in `In`, answers in `Out`; fields have the kernel's names. A record's size is
//! asserted beside it. A test compares offsets with the header of this machine.

use bitflags::bitflags;
use bytemuck::{Pod, Zeroable};

/// The version of the protocol that this server speaks.
pub(crate) const MAJOR: u32 = 7;
/// The minor version: 7.44, Linux 6.16. An older kernel uses the part that it knows.
pub(crate) const MINOR: u32 = 44;
/// The oldest minor version that suffices: 7.23 (Linux 3.15) brought the writeback cache and the
/// INIT answer of today's size.
pub(crate) const MINOR_MIN: u32 = 23;

/// The smallest buffer for requests, in bytes.
pub(crate) const MIN_READ_BUFFER: usize = 8192;

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal $word:literal,)*) => {
        /// What a request asks for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Opcode {
            $($(#[$doc])* $name,)*
        }

        impl Opcode {
            /// Returns a request by its number; `None` if this server does not know it.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }

            /// All requests. The variants' own numbers count from 0 in this order.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns its place in [`Opcode::ALL`].
            #[expect(clippy::as_conversions, reason = "the discriminant is the place")]
            pub(crate) const fn index(self) -> usize {
                self as usize
            }

            /// Returns the kernel's name of it, in lower case.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

opcodes! {
    /// An inode by its name.
    Lookup = 1 "lookup",
    /// References to an inode are given up; there is no answer.
    Forget = 2 "forget",
    /// Attributes.
    GetAttr = 3 "getattr",
    /// Attributes are changed.
    SetAttr = 4 "setattr",
    /// A symbolic link's target.
    ReadLink = 5 "readlink",
    /// A symbolic link is made.
    SymLink = 6 "symlink",
    /// A file, device, pipe or socket is made.
    MkNod = 8 "mknod",
    /// A directory is made.
    MkDir = 9 "mkdir",
    /// A name is removed.
    Unlink = 10 "unlink",
    /// A directory is removed.
    RmDir = 11 "rmdir",
    /// A name is moved.
    Rename = 12 "rename",
    /// An inode gets another name.
    Link = 13 "link",
    /// A file is opened.
    Open = 14 "open",
    /// Contents.
    Read = 15 "read",
    /// Contents are changed.
    Write = 16 "write",
    /// Counts of the volume.
    StatFs = 17 "statfs",
    /// A file is closed for the last time.
    Release = 18 "release",
    /// A file is to be durable.
    FSync = 20 "fsync",
    /// An extended attribute is set.
    SetXattr = 21 "setxattr",
    /// An extended attribute.
    GetXattr = 22 "getxattr",
    /// The names of the extended attributes.
    ListXattr = 23 "listxattr",
    /// An extended attribute is removed.
    RemoveXattr = 24 "removexattr",
    /// A descriptor is closed.
    Flush = 25 "flush",
    /// The first request.
    Init = 26 "init",
    /// A directory is opened.
    OpenDir = 27 "opendir",
    /// Names.
    ReadDir = 28 "readdir",
    /// A directory is closed.
    ReleaseDir = 29 "releasedir",
    /// A directory is to be durable.
    FSyncDir = 30 "fsyncdir",
    /// access(2) or chdir(2) asks, on a mount whose permissions the kernel does not check.
    Access = 34 "access",
    /// A name is made and opened.
    Create = 35 "create",
    /// The caller of a request got a signal.
    Interrupt = 36 "interrupt",
    /// The mount is gone; the last request of a `fuseblk` mount.
    Destroy = 38 "destroy",
    /// An ioctl.
    Ioctl = 39 "ioctl",
    /// References to several inodes are given up; there is no answer.
    BatchForget = 42 "batch_forget",
    /// Room is reserved, or contents are cut out.
    FAllocate = 43 "fallocate",
    /// Names with attributes.
    ReadDirPlus = 44 "readdirplus",
    /// A name is moved, with flags.
    Rename2 = 45 "rename2",
    /// The next data or hole.
    LSeek = 46 "lseek",
    /// Contents are copied in the volume.
    CopyFileRange = 47 "copy_file_range",
    /// The whole volume is to be durable; for `fuseblk` mounts since Linux 6.18.
    SyncFs = 50 "syncfs",
    /// A file without a name is made and opened.
    TmpFile = 51 "tmpfile",
    /// Attributes by statx(2), with the time of birth.
    StatX = 52 "statx",
    /// [`Opcode::CopyFileRange`] whose answer has 64 bits.
    CopyFileRange64 = 53 "copy_file_range_64",
}

bitflags! {
    /// What kernel and server agree on in INIT: `FUSE_*` without the prefix.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Capabilities: u64 {
        /// Reads of one file may overtake each other.
        const ASYNC_READ = 1;
        /// O_TRUNC comes with OPEN.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// Lookups of `.` and `..` work, for file handles.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The umask is the server's to apply.
        const DONT_MASK = 1 << 6;
        /// Ioctls on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// READDIRPLUS works.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct reads and writes of one caller may be under way at once.
        const ASYNC_DIO = 1 << 15;
        /// The kernel keeps written pages and sends them later.
        const WRITEBACK_CACHE = 1 << 16;
        /// If OPEN is answered ENOSYS, it is never sent again.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups in one directory may be under way at once.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel checks POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort fails with an error of its own.
        const ABORT_ERROR = 1 << 21;
        /// The INIT answer has the largest number of pages of a request.
        const MAX_PAGES = 1 << 22;
        /// The kernel keeps targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// If OPENDIR is answered ENOSYS, it is never sent again.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The server clears set-user-ID and capabilities, and is told when.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// There are flags beyond 32 bits.
        const INIT_EXT = 1 << 30;
        /// Files that are open for direct I/O may be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// The kernel can send requests once more.
        const HAS_RESEND = 1 << 39;
        /// Requests come by io_uring.
        const OVER_IO_URING = 1 << 41;
        /// `FUSE_REQUEST_TIMEOUT`: the kernel aborts the connection when a request is not answered
        /// in time.
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

bitflags! {
    /// How the kernel treats an open file: `FOPEN_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Opened: u32 {
        /// No page cache.
        const DIRECT_IO = 1;
        /// Pages from earlier opens stay.
        const KEEP_CACHE = 1 << 1;
        /// Direct writes of several threads at once.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

bitflags! {
    /// What a SETATTR sets: `FATTR_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Set: u32 {
        /// The mode.
        const MODE = 1;
        /// The owner.
        const UID = 1 << 1;
        /// The group.
        const GID = 1 << 2;
        /// The length.
        const SIZE = 1 << 3;
        /// The access time.
        const ATIME = 1 << 4;
        /// The time of the last change of content.
        const MTIME = 1 << 5;
        /// The request comes through an open file.
        const FH = 1 << 6;
        /// The access time is now.
        const ATIME_NOW = 1 << 7;
        /// The time of the last change of content is now.
        const MTIME_NOW = 1 << 8;
        /// The time of the last change of the inode.
        const CTIME = 1 << 10;
        /// Set-user-ID and set-group-ID are cleared, because the caller lacks CAP_FSETID.
        const KILL_SUIDGID = 1 << 11;
    }
}

bitflags! {
    /// How a WRITE came about: `FUSE_WRITE_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct WriteKind: u32 {
        /// From the page cache; the caller of the request is not the writer.
        const CACHE = 1;
        /// Set-user-ID and set-group-ID are cleared.
        const KILL_SUIDGID = 1 << 2;
    }
}

/// The READ is for a caller, who is named, and not for the page cache (`FUSE_READ_LOCKOWNER`).
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// GETATTR comes through an open file (`FUSE_GETATTR_FH`).
pub(crate) const GETATTR_FH: u32 = 1;
/// FSYNC of the content alone (`FUSE_FSYNC_FDATASYNC`).
pub(crate) const FSYNC_FDATASYNC: u32 = 1;

/// A notification, in the error field of an answer to no request (`enum fuse_notify_code`): fetch
/// attributes and pages of an inode anew.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// A notification: look up a name in a directory anew.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
/// In the flags of [`NOTIFY_INVAL_ENTRY`]: look it up anew when it is next used.
pub(crate) const NOTIFY_EXPIRE_ONLY: u32 = 1;
/// A notification: send once more what was not answered (Linux 6.9).
pub(crate) const NOTIFY_RESEND: i32 = 7;
/// A notification: forget inodes that nobody uses (Linux 6.18).
pub(crate) const NOTIFY_PRUNE: i32 = 9;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $kind:ty,)* })*) => {
        /// Each record's name, its size, and the offsets of its fields.
        impl AttrOut {
    /// Makes an answer with attributes that the kernel may keep for `keep`.
    pub(crate) fn new(attr: Attr, keep: std::time::Duration) -> Self {
        Self {
            attr_valid: keep.as_secs(),
            attr_valid_nsec: keep.subsec_nanos(),
            dummy: 0,
            attr,
        }
    }
}

#[cfg(test)]
        const LAYOUTS: &[(&str, usize, &[(&str, usize)])] = &[
            $((
                stringify!($name),
                $size,
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*
        ];
        $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
        #[allow(missing_docs, reason = "the kernel's header describes the fields")]
        pub(crate) struct $name {
            $(pub $field: $kind,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

records! {
    /// Begins every request.
    InHeader, 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Begins every answer.
    OutHeader, 16 { len: u32, error: i32, unique: u64, }

    InitIn, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }

    Attr, 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut, 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }

    ForgetIn, 8 { nlookup: u64, }
    AccessIn, 8 { mask: u32, padding: u32, }
    ForgetOne, 16 { nodeid: u64, nlookup: u64, }
    BatchForgetIn, 8 { count: u32, dummy: u32, }
    GetAttrIn, 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    SetAttrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64,
        ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    StatXIn, 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// A time in [`StatX`].
    SxTime, 16 { tv_sec: i64, tv_nsec: u32, __reserved: i32, }
    /// `struct fuse_statx`.
    StatX, 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatXOut, 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatX,
    }

    MkNodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkDirIn, 8 { mode: u32, umask: u32, }
    RenameIn, 8 { newdir: u64, }
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn, 8 { oldnodeid: u64, }

    OpenIn, 8 { flags: i32, open_flags: u32, }
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32, }
    CreateIn, 16 { flags: i32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn, 24 { fh: u64, flags: i32, release_flags: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn, 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: i32,
        padding: u32,
    }
    WriteIn, 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: i32,
        padding: u32,
    }
    WriteOut, 8 { size: u32, padding: u32, }
    /// FSYNC and FSYNCDIR.
    FSyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32, }
    StatFsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }

    /// `struct fuse_setxattr_in` without FUSE_SETXATTR_EXT (FUSE_COMPAT_SETXATTR_IN_SIZE).
    CompatSetXattrIn, 8 { size: u32, flags: i32, }
    /// GETXATTR and LISTXATTR.
    GetXattrIn, 8 { size: u32, padding: u32, }
    GetXattrOut, 8 { size: u32, padding: u32, }

    IoctlIn, 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut, 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    FAllocateIn, 32 { fh: u64, offset: u64, length: u64, mode: i32, padding: u32, }
    LSeekIn, 24 { fh: u64, offset: i64, whence: i32, padding: u32, }
    LSeekOut, 8 { offset: u64, }
    CopyFileRangeIn, 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut, 8 { bytes_copied: u64, }

    /// A name in the answer to READDIR; the name follows, then zeros up to a multiple of 8.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32, }

    NotifyInvalInodeOut, 24 { ino: u64, off: i64, len: i64, }
    /// The name follows, and a NUL.
    NotifyInvalEntryOut, 16 { parent: u64, namelen: u32, flags: u32, }
    /// The inodes follow.
    NotifyPruneOut, 16 { count: u32, padding: u32, spare: u64, }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::LAYOUTS;

    /// Returns the kernel's name of a record: `InHeader` is `fuse_in_header`. The table has the
    /// names that do not follow from ours.
    fn kernel_name(ours: &str) -> String {
        let stem = match ours {
            "ReadIn" => "read_in",
            "StatFsOut" => "kstatfs",
            "FSyncIn" => "fsync_in",
            "FAllocateIn" => "fallocate_in",
            "MkNodIn" => "mknod_in",
            "MkDirIn" => "mkdir_in",
            "GetAttrIn" => "getattr_in",
            "SetAttrIn" => "setattr_in",
            "GetXattrIn" => "getxattr_in",
            "GetXattrOut" => "getxattr_out",
            "LSeekIn" => "lseek_in",
            "LSeekOut" => "lseek_out",
            "StatXIn" => "statx_in",
            "StatXOut" => "statx_out",
            "StatX" => "statx",
            other => return format!("fuse{}", in_small_words(other)),
        };
        format!("fuse_{stem}")
    }

    fn in_small_words(name: &str) -> String {
        let mut out = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() {
                out.push('_');
            }
            out.extend(letter.to_lowercase());
        }
        out
    }

    /// A record of the header: its size, its alignment, and the offsets of its fields.
    type Layout = (usize, usize, HashMap<String, usize>);

    /// Returns the structs of a header whose fields are integers, arrays of them, and earlier
    /// structs.
    fn parse(header: &str) -> HashMap<String, Layout> {
        let mut known: HashMap<String, Layout> = HashMap::new();
        for part in header.split("\nstruct ").skip(1) {
            let Some((name, rest)) = part.split_once(" {") else {
                continue;
            };
            let body = rest.split("\n}").next().unwrap();
            if let Some(layout) = layout(body, &known) {
                known.insert(name.to_owned(), layout);
            }
        }
        known
    }

    fn layout(body: &str, known: &HashMap<String, Layout>) -> Option<Layout> {
        let (mut end, mut widest, mut fields) = (0_usize, 1, HashMap::new());
        for line in body.lines() {
            let line = line.split("/*").next().unwrap().trim();
            let Some(line) = line.strip_suffix(';') else {
                continue;
            };
            let (kind, name) = line.rsplit_once(|c: char| c.is_whitespace())?;
            let (size, align) = match kind.trim() {
                "uint64_t" | "int64_t" => (8, 8),
                "uint32_t" | "int32_t" => (4, 4),
                "uint16_t" => (2, 2),
                "char" => (1, 1),
                other => {
                    let (size, align, _) = known.get(
                        other
                            .strip_prefix("struct\t")
                            .or_else(|| other.strip_prefix("struct "))?
                            .trim(),
                    )?;
                    (*size, *align)
                }
            };
            let (name, count) = match name.split_once('[') {
                Some((name, "]")) => (name, 0),
                Some((name, count)) => (name, count.trim_end_matches(']').parse().ok()?),
                None => (name, 1),
            };
            end = end.next_multiple_of(align);
            fields.insert(name.to_owned(), end);
            end += size * count;
            widest = widest.max(align);
        }
        Some((end.next_multiple_of(widest), widest, fields))
    }

    /// Compares with the header of this machine. It may be older: records and fields that it lacks
    /// are left out.
    #[test]
    fn records_are_those_of_the_kernel() {
        let Ok(header) = std::fs::read_to_string("/usr/include/linux/fuse.h") else {
            println!("SKIPPED: no /usr/include/linux/fuse.h (package linux-libc-dev)");
            return;
        };
        let theirs = parse(&header);
        let mut compared = 0;
        for (name, size, fields) in LAYOUTS {
            let kernel = kernel_name(name);
            let Some((their_size, _, their_fields)) = theirs.get(&kernel) else {
                println!("this header has no {kernel}");
                continue;
            };
            assert_eq!(size, their_size, "{kernel}");
            for (field, offset) in *fields {
                // Unused fields of one version are used in the next.
                if field.starts_with("unused") {
                    continue;
                }
                let theirs = their_fields.get(*field);
                let theirs =
                    theirs.or_else(|| their_fields.get("type").filter(|_| *field == "kind"));
                if let Some(their_offset) = theirs {
                    assert_eq!(offset, their_offset, "{kernel}.{field}");
                    compared += 1;
                } else {
                    println!("this header has no {kernel}.{field}");
                }
            }
        }
        // The oldest header that is in use, Debian 12's, has these.
        assert!(compared >= 160, "{compared} fields were compared");
    }
}
