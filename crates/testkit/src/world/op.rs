//! The operations, and how they are drawn.

use proptest::prelude::*;
use proptest::sample::select;
use stetfs_format::jbd2::JBD2_MAGIC;

use crate::rng::Rng;
use crate::world::acl::Acl;
use crate::world::names::{LONGEST, NAMES, TARGETS, XATTRS};

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
    /// The same for data that waits for a place as if it had waited long enough (`dirty_expire=`):
    /// the next commit has it.
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

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![20 => select(&NAMES[..4]), 3 => select(&NAMES[..]), 1 => Just(LONGEST)]
}

fn path() -> impl Strategy<Value = Path> {
    let deep = prop::collection::vec(name(), 1..4).prop_map(|names| names.join("/"));
    prop_oneof![
        5 => name().prop_map(str::to_owned),
        5 => (name(), name()).prop_map(|(a, b)| format!("{a}/{b}")),
        3 => deep,
        1 => name().prop_map(|a| format!("{a}/{LONGEST}n")),
    ]
}

fn slot() -> impl Strategy<Value = u8> {
    0..SLOTS
}

fn payload(max: u32) -> impl Strategy<Value = Payload> {
    let len = prop_oneof![
        3 => 0..200u32,
        3 => 1000..9000u32,
        2 => 0..max.max(1),
        2 => select(vec![1024, 4096, 8192]),
    ];
    (0..1000u16, len).prop_map(move |(seed, len)| Payload {
        seed,
        len: len.min(max),
    })
}

fn offset(huge: bool) -> impl Strategy<Value = u64> {
    let far = if huge { 1 } else { 0 };
    prop_oneof![
        4 => 0..20_000u64,
        3 => 0..300_000u64,
        3 => (0..40u64).prop_map(|n| n * 4096),
        1 => (0..40u64).prop_map(|n| n * 1024),
        1 => 0..20_000_000u64,
        far => (1u64 << 32) - 5000..(1u64 << 32) + 9000,
        far => 5_000_000_000..6_000_000_000u64,
    ]
}

fn mode() -> impl Strategy<Value = u16> {
    prop_oneof![4 => select(vec![0o644u16, 0o755, 0o600, 0o777]), 1 => 0..0o10000u16]
}

/// Devices that no machine has, in both of ext4's encodings: somebody may open what a test has
/// made.
fn special() -> impl Strategy<Value = Special> {
    select(vec![
        Special::Fifo,
        Special::Socket,
        Special::Char(240, 200),
        Special::Char(4000, 1_000_000),
        Special::Block(240, 201),
        Special::Block(4001, 300),
    ])
}

fn durable() -> impl Strategy<Value = Durable> {
    prop_oneof![
        12 => Just(Durable::No),
        1 => Just(Durable::Data),
        1 => Just(Durable::All),
    ]
}

fn acl() -> impl Strategy<Value = Acl> {
    let perm = || 0..8u8;
    let named = |max| {
        prop::collection::btree_map(1000..1004u32, perm(), 0..max)
            .prop_map(|m| m.into_iter().collect())
    };
    (
        perm(),
        named(3),
        perm(),
        named(2),
        prop::option::of(perm()),
        perm(),
    )
        .prop_map(
            |(owner, users, group, groups, mask, other): (
                u8,
                Vec<_>,
                u8,
                Vec<_>,
                Option<u8>,
                u8,
            )| {
                let mask = if users.is_empty() && groups.is_empty() {
                    mask
                } else {
                    mask.or(Some(7))
                };
                Acl {
                    owner,
                    users,
                    group,
                    groups,
                    mask,
                    other,
                }
            },
        )
}

fn time(wide: bool) -> BoxedStrategy<(i64, u32)> {
    if wide {
        let sec = prop_oneof![
            Just(0),
            -2_000_000_000..2_000_000_000i64,
            2_147_483_648..15_000_000_000i64
        ];
        (sec, 0..1_000_000_000u32).boxed()
    } else {
        (0..2_000_000_000i64, Just(0)).boxed()
    }
}

fn names_op() -> BoxedStrategy<Op> {
    let how = select(vec![
        RenameHow::Plain,
        RenameHow::Plain,
        RenameHow::NoReplace,
        RenameHow::Exchange,
        RenameHow::Whiteout,
    ]);
    prop_oneof![
        6 => (path(), mode(), any::<bool>())
            .prop_map(|(path, mode, exclusive)| Op::Create { path, mode, exclusive }),
        5 => (path(), mode()).prop_map(|(path, mode)| Op::Mkdir { path, mode: mode & 0o1777 }),
        1 => (path(), mode(), special())
            .prop_map(|(path, mode, special)| Op::Mknod { path, mode, special }),
        2 => (select(&TARGETS[..]), path())
            .prop_map(|(t, path)| Op::Symlink { target: t.to_owned(), path }),
        2 => (path(), path()).prop_map(|(old, new)| Op::Link { old, new }),
        1 => (slot(), path(), mode())
            .prop_map(|(slot, path, mode)| Op::Tmpfile { slot, path, mode }),
        1 => (slot(), path()).prop_map(|(slot, new)| Op::LinkSlot { slot, new }),
        3 => path().prop_map(|path| Op::Unlink { path }),
        2 => path().prop_map(|path| Op::Rmdir { path }),
        5 => (path(), path(), how).prop_map(|(old, new, how)| Op::Rename { old, new, how }),
    ]
    .boxed()
}

fn content_op(p: Profile) -> BoxedStrategy<Op> {
    let huge = p.huge_files;
    let how = select(vec![
        Reserve::Plain,
        Reserve::KeepSize,
        Reserve::Punch,
        Reserve::Punch,
        Reserve::Zero,
        Reserve::ZeroKeepSize,
    ]);
    prop_oneof![
        5 => (slot(), path(), any::<bool>())
            .prop_map(|(slot, path, t)| Op::Open { slot, path, truncate: t }),
        1 => slot().prop_map(|slot| Op::Close { slot }),
        8 => (slot(), offset(huge), payload(p.write_max), durable())
            .prop_map(|(slot, offset, payload, durable)| Op::Write {
                slot,
                offset,
                payload,
                durable,
            }),
        3 => (slot(), payload(p.write_max))
            .prop_map(|(slot, payload)| Op::Append { slot, payload }),
        2 => (path(), offset(huge)).prop_map(|(path, size)| Op::Truncate { path, size }),
        2 => (slot(), offset(huge)).prop_map(|(slot, size)| Op::Ftruncate { slot, size }),
        4 => (slot(), how, offset(false), 0..200_000u64)
            .prop_map(|(slot, how, offset, len)| Op::Fallocate { slot, how, offset, len }),
        1 => slot().prop_map(|slot| Op::Fsync { slot }),
    ]
    .boxed()
}

fn attribute_op(p: Profile) -> BoxedStrategy<Op> {
    let name = || select(&XATTRS[..]).prop_map(str::to_owned);
    let how = select(vec![
        XattrHow::Any,
        XattrHow::Any,
        XattrHow::Create,
        XattrHow::Replace,
    ]);
    let id = || prop::option::of(0..3000u32);
    prop_oneof![
        4 => (path(), name(), payload(p.xattr_max), how)
            .prop_map(|(path, name, value, how)| Op::SetXattr { path, name, value, how }),
        1 => (path(), name()).prop_map(|(path, name)| Op::RemoveXattr { path, name }),
        2 => (path(), any::<bool>(), prop::option::weighted(0.8, acl()))
            .prop_map(|(path, default, acl)| Op::SetAcl { path, default, acl }),
        2 => (path(), mode()).prop_map(|(path, mode)| Op::Chmod { path, mode }),
        1 => (path(), id(), id())
            .prop_map(|(path, uid, gid)| Op::Chown { path, uid: uid.or(Some(7)), gid }),
        1 => (path(), time(p.wide_times), time(p.wide_times))
            .prop_map(|(path, atime, mtime)| Op::Utimes { path, atime, mtime }),
    ]
    .boxed()
}

fn look_op(p: Profile) -> BoxedStrategy<Op> {
    let name = select(&XATTRS[..]).prop_map(str::to_owned);
    prop_oneof![
        3 => (slot(), offset(p.huge_files), 0..100_000u32)
            .prop_map(|(slot, offset, len)| Op::Read { slot, offset, len }),
        2 => path().prop_map(|path| Op::Stat { path }),
        1 => path().prop_map(|path| Op::Readlink { path }),
        1 => path().prop_map(|path| Op::Readdir { path }),
        1 => (path(), name).prop_map(|(path, name)| Op::GetXattr { path, name }),
        1 => path().prop_map(|path| Op::ListXattr { path }),
    ]
    .boxed()
}

/// One operation.
pub fn operation(p: Profile) -> BoxedStrategy<Op> {
    let (looks, remounts) = (if p.looks { 4 } else { 0 }, if p.remounts { 1 } else { 0 });
    prop_oneof![
        16 => names_op(),
        16 => content_op(p),
        6 => attribute_op(p),
        looks => look_op(p),
        1 => prop_oneof![Just(Op::Sync), path().prop_map(|path| Op::FsyncDir { path })],
        remounts => Just(Op::Remount),
    ]
    .boxed()
}

/// A stream of operations that is the same for the same seed.
pub fn stream(seed: u64, count: usize, p: Profile) -> Vec<Op> {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [0; 32];
    Rng::new(seed).fill(&mut bytes);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = operation(p);
    (0..count)
        .filter_map(|_| {
            strategy
                .new_tree(&mut runner)
                .ok()
                .map(|tree| tree.current())
        })
        .collect()
}
