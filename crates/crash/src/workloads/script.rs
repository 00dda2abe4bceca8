//! Long workloads by name: written down, random from a seed, or written as programs write.

use super::steps::{create, open, unlink, write};
use super::{corners, homes, kinds, patterns};
use crate::target::Target;
use crate::turns::Order;
use crate::workload::Workload;
use crate::workloads::vocabulary::ops;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::world::draw::stream;
use stetfs_testkit::world::op::{Op, Payload, Profile, RenameHow, Reserve};

/// A long workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// A random stream with many syncs, from a seed.
    Random(u64),
    /// A log file that is appended to and synced, beside a file that is replaced by rename.
    LogAndReplace,
    /// Blocks that change their owner as soon as they are freed.
    Reuse,
    /// A directory that grows until it splits, and shrinks again.
    Directory,
    /// Large files cut short, and files removed while open.
    Orphans,
    /// Overwrites in place, synced now and then.
    Overwrites,
    /// Blocks that change from metadata to data and back, which is the reason for revoke records.
    Revokes,
    /// Blocks that are allocated before they are written.
    Preallocated,
    /// Three orphans at once, closed in several orders.
    OrphanList,
    /// Large attributes, shared and given up.
    Attributes,
    /// More inodes than are kept in memory.
    Inodes,
    /// Transactions of equal length.
    Alike,
    /// Operations on the blocks that a sync is making durable.
    Neighbours,
    /// Records written over each other in several files, aligned and not.
    Records,
    /// Groups of writes to several files and of their names, with other changes meanwhile.
    Groups,
    /// Groups that change names, sizes and attributes, some of which meet conflicts.
    GroupNames,
    /// Two groups open at once, which meet in files and names, or do not.
    TwoGroups,
    /// Delayed data, while later operations on its files are committed.
    Waits,
    /// What fdatasync must make durable beside overwritten blocks.
    DataSyncs,
    /// Overwrites beside the log, which need no transaction.
    Beside,
    /// Metadata at home under bytes in the log, then freed and used again.
    Rests,
    /// Two objects in one block of metadata, changed by turns while a checkpoint writes it home.
    ByTurns,
    /// Files that are marked (`chattr +j`) and unmarked.
    Marks,
    /// Mapped memory, copied ranges, sizes within a block.
    Mapped,
    /// A directory whose hash tree splits.
    Splits,
    /// Clocks that stand, go back and jump.
    Clocks,
    /// A volume that is full, or has a few blocks left.
    Full,
    /// Postmark's pool of small files, from a seed.
    Postmark(u64),
    /// A SQLite database with a rollback journal.
    SqliteRollback,
    /// A SQLite database with a write-ahead log.
    SqliteWal,
}

impl Script {
    /// The scripts that are written down.
    pub const WRITTEN: [Self; 29] = [
        Self::LogAndReplace,
        Self::Groups,
        Self::GroupNames,
        Self::Waits,
        Self::Reuse,
        Self::Directory,
        Self::Orphans,
        Self::Overwrites,
        Self::Revokes,
        Self::Preallocated,
        Self::OrphanList,
        Self::Attributes,
        Self::Inodes,
        Self::Alike,
        Self::Neighbours,
        Self::Records,
        Self::Postmark(1),
        Self::SqliteRollback,
        Self::SqliteWal,
        Self::TwoGroups,
        Self::DataSyncs,
        Self::Beside,
        Self::Rests,
        Self::ByTurns,
        Self::Marks,
        Self::Mapped,
        Self::Splits,
        Self::Clocks,
        Self::Full,
    ];

    /// Returns the written scripts that a target can run.
    pub fn written(target: &Target) -> impl Iterator<Item = Self> {
        let can_group = target.can_group();
        let written = Self::WRITTEN.into_iter();
        let is_of_groups = |script| matches!(script, Self::Groups | Self::TwoGroups);
        written.filter(move |script| can_group || !is_of_groups(*script))
    }

    /// The script's name: `log`, `random7`, ...
    pub fn name(self) -> String {
        match self {
            Self::Random(seed) => format!("random{seed}"),
            Self::LogAndReplace => "log".to_owned(),
            Self::Reuse => "reuse".to_owned(),
            Self::Directory => "directory".to_owned(),
            Self::Orphans => "orphans".to_owned(),
            Self::Overwrites => "overwrites".to_owned(),
            Self::Revokes => "revokes".to_owned(),
            Self::Preallocated => "preallocated".to_owned(),
            Self::OrphanList => "orphan-list".to_owned(),
            Self::Attributes => "attributes".to_owned(),
            Self::Inodes => "inodes".to_owned(),
            Self::Alike => "alike".to_owned(),
            Self::Neighbours => "neighbours".to_owned(),
            Self::Records => "records".to_owned(),
            Self::Groups => "groups".to_owned(),
            Self::GroupNames => "group-names".to_owned(),
            Self::TwoGroups => "two-groups".to_owned(),
            Self::Waits => "waits".to_owned(),
            Self::DataSyncs => "data-syncs".to_owned(),
            Self::Beside => "beside".to_owned(),
            Self::Rests => "rests".to_owned(),
            Self::ByTurns => "by-turns".to_owned(),
            Self::Marks => "marks".to_owned(),
            Self::Mapped => "mapped".to_owned(),
            Self::Splits => "splits".to_owned(),
            Self::Clocks => "clocks".to_owned(),
            Self::Full => "full".to_owned(),
            Self::Postmark(seed) => format!("postmark{seed}"),
            Self::SqliteRollback => "sqlite-rollback".to_owned(),
            Self::SqliteWal => "sqlite-wal".to_owned(),
        }
    }

    /// The script of that name.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(seed) = name.strip_prefix("random") {
            return seed.parse().ok().map(Self::Random);
        }
        if let Some(seed) = name.strip_prefix("postmark") {
            return seed.parse().ok().map(Self::Postmark);
        }
        Self::WRITTEN
            .into_iter()
            .find(|script| script.name() == name)
    }

    /// Returns the operations. `profile` bounds the random ones.
    pub fn ops(self, profile: Profile) -> Vec<Op> {
        match self {
            Self::Random(seed) => random(seed, profile),
            Self::LogAndReplace => log_and_replace(),
            Self::Reuse => corners::reuse(),
            Self::Directory => directory(),
            Self::Orphans => orphans(),
            Self::Overwrites => overwrites(),
            Self::Revokes => revokes(),
            Self::Preallocated => corners::preallocated(),
            Self::OrphanList => corners::orphan_list(),
            Self::Attributes => corners::attributes(),
            Self::Inodes => corners::inodes(),
            Self::Alike => corners::alike(),
            Self::Neighbours => corners::neighbours(),
            Self::Records => corners::records(),
            Self::Groups => corners::groups(),
            Self::GroupNames => corners::group_names(),
            Self::TwoGroups => corners::two_groups(),
            Self::Waits => waits(),
            Self::DataSyncs => corners::data_syncs(),
            Self::Beside => homes::beside(),
            Self::Rests => homes::rests(),
            Self::ByTurns => homes::by_turns(),
            Self::Marks => kinds::marks(),
            Self::Mapped => kinds::mapped(),
            Self::Splits => kinds::splits(),
            Self::Clocks => kinds::clocks(),
            Self::Full => kinds::full(),
            Self::Postmark(seed) => patterns::postmark(seed),
            Self::SqliteRollback => patterns::sqlite_rollback(),
            Self::SqliteWal => patterns::sqlite_wal(),
        }
    }

    /// Returns the workload. It has no setup, so the power is also cut during the mount.
    pub fn workload(self, profile: Profile) -> Workload {
        Workload {
            name: self.name(),
            setup: Vec::new(),
            ops: self.ops(profile),
            order: Order::default(),
        }
    }
}

fn random(seed: u64, profile: Profile) -> Vec<Op> {
    let profile = Profile {
        huge_files: false,
        looks: false,
        write_max: 20_000,
        ..profile
    };
    let mut rng = Rng::new(seed ^ 0xC7A5);
    let mut ops = Vec::new();
    for op in stream(seed, 90, profile) {
        let slot = match &op {
            Op::Write { slot, .. } | Op::Append { slot, .. } | Op::Ftruncate { slot, .. } => {
                Some(*slot)
            }
            _ => None,
        };
        ops.push(op);
        match slot {
            Some(slot) if rng.chance(30) => ops.push(Op::Fsync { slot }),
            _ if rng.chance(6) => ops.push(Op::Sync),
            _ => {}
        }
    }
    ops
}

fn log_and_replace() -> Vec<Op> {
    let mut ops = vec![create("log"), open(0, "log")];
    for i in 0..12u16 {
        ops.push(Op::Append {
            slot: 0,
            payload: Payload {
                seed: i + 1,
                len: 700,
            },
        });
        if i % 3 == 2 {
            ops.push(Op::Fsync { slot: 0 });
        }
        ops.extend([
            create("new"),
            open(1, "new"),
            write(1, 0, 100 + i, 5000),
            Op::Fsync { slot: 1 },
        ]);
        ops.push(Op::Rename {
            old: "new".into(),
            new: "config".into(),
            how: RenameHow::Plain,
        });
        if i % 4 == 3 {
            ops.push(Op::FsyncDir { path: ".".into() });
        }
    }
    ops.push(Op::Sync);
    ops
}

fn directory() -> Vec<Op> {
    let name = |i: u32| format!("d/a-name-that-takes-some-room-in-the-block-{i}");
    let mut ops = vec![Op::Mkdir {
        path: "d".into(),
        mode: 0o755,
    }];
    for i in 0..150 {
        ops.push(create(&name(i)));
        if i % 10 == 9 {
            ops.push(if i % 20 == 9 {
                Op::FsyncDir { path: "d".into() }
            } else {
                Op::Sync
            });
        }
    }
    for i in 0..150 {
        ops.push(unlink(&name((i * 7) % 150)));
        if i % 25 == 24 {
            ops.push(Op::FsyncDir { path: "d".into() });
        }
    }
    ops.extend([Op::Rmdir { path: "d".into() }, Op::Sync]);
    ops
}

fn orphans() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..4u16 {
        ops.extend([create("big"), open(0, "big")]);
        for i in 0..12u64 {
            // Every other block, so that the mapping has many pieces.
            ops.push(write(0, i * 40_000, round * 50 + i as u16 + 1, 9000));
        }
        ops.extend([
            Op::Fsync { slot: 0 },
            Op::Ftruncate {
                slot: 0,
                size: 30_000,
            },
            Op::Sync,
        ]);
        ops.extend([
            create("gone"),
            open(1, "gone"),
            write(1, 5000, 900 + round, 15_000),
        ]);
        ops.extend([
            Op::Fsync { slot: 1 },
            unlink("gone"),
            Op::FsyncDir { path: ".".into() },
        ]);
        ops.extend([
            write(1, 0, 950 + round, 3000),
            Op::Fsync { slot: 1 },
            Op::Close { slot: 1 },
            Op::Sync,
        ]);
        ops.extend([unlink("big"), Op::Close { slot: 0 }]);
        // The file has no name at first. The rename of its name leaves a whiteout.
        ops.extend([
            Op::Tmpfile {
                slot: 2,
                path: ".".into(),
                mode: 0o600,
            },
            write(2, 0, 970 + round, 7000),
            Op::Fsync { slot: 2 },
            Op::LinkSlot {
                slot: 2,
                new: format!("named-{round}"),
            },
            Op::Fsync { slot: 2 },
            Op::Rename {
                old: format!("named-{round}"),
                new: "named".into(),
                how: RenameHow::Whiteout,
            },
            Op::FsyncDir { path: ".".into() },
            Op::Close { slot: 2 },
        ]);
    }
    ops.push(Op::Sync);
    ops
}

fn overwrites() -> Vec<Op> {
    let mut rng = Rng::new(5);
    let mut ops = vec![create("f"), open(0, "f")];
    ops.extend((0..6).map(|i| write(0, i * 20_000, i as u16 + 1, 20_000)));
    ops.push(Op::Sync);
    for i in 0..60u16 {
        let at = rng.below(118_000);
        ops.push(write(0, at, 100 + i, 200 + rng.below(9000) as u32));
        if rng.chance(25) {
            ops.push(Op::Fsync { slot: 0 });
        }
    }
    ops.push(Op::Sync);
    ops
}

fn revokes() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..6u16 {
        ops.push(Op::Mkdir {
            path: "m".into(),
            mode: 0o755,
        });
        ops.extend(
            (0..30).map(|i| create(&format!("m/some-rather-long-name-so-that-blocks-fill-{i}"))),
        );
        ops.extend([create("holes"), open(0, "holes")]);
        ops.extend((0..20).map(|i| write(0, i * 16_384, round * 40 + i as u16 + 1, 1024)));
        ops.push(Op::Sync);
        ops.extend(
            (0..30).map(|i| unlink(&format!("m/some-rather-long-name-so-that-blocks-fill-{i}"))),
        );
        ops.extend([
            Op::Rmdir { path: "m".into() },
            Op::Fallocate {
                slot: 0,
                how: Reserve::Punch,
                offset: 0,
                len: 1 << 20,
            },
        ]);
        ops.push(Op::Sync);
        // Enough data to reach every free block before the log has forgotten the freed ones.
        ops.extend([create("data"), open(1, "data")]);
        ops.extend((0..20).map(|i| write(1, i * 20_000, 700 + round * 20 + i as u16, 20_000)));
        ops.push(Op::Fsync { slot: 1 });
        ops.extend([
            unlink("data"),
            Op::Close { slot: 1 },
            unlink("holes"),
            Op::Close { slot: 0 },
        ]);
    }
    ops.push(Op::Sync);
    ops
}

/// In the text form. An operation with a path closes its file at once.
const WAITS: &str = "\
# New data, and what is committed of its file meanwhile.
create a; write a 0 9000 1; commit; chmod a 600; link a b; commit
setxattr a user.one 20 2; rename b c; commit; expire; chmod a 644; commit
# Behind the end, in a block that has a place; then beyond a hole, and in the hole.
append a 700 3; commit; append a 9000 4; commit; write a 40000 3000 5; chmod a 640; commit
fsync c; write a 60000 5000 6; commit; write a 30000 2000 7; commit
expire; write a 50000 1500 8; commit; append a 3000 9; chmod a 600; commit
# What one rename puts in the place of another file, and what is written over a file cut to nothing.
create d; write d 0 6000 10; fsync d; create e; write e 0 7000 11; commit; rename e d; commit
open @0 d truncate; write @0 0 5000 12; commit; close @0; chmod d 600; commit
truncate d 0; write d 0 3000 13; chmod d 640; commit
create e; write e 0 5000 14; rename e d exchange; commit; unlink e; fsyncdir .
# Cut, grown and allocated while it waits.
create f; write f 0 20000 15; commit; truncate f 12345; commit; truncate f 30000; commit
fallocate f 8000 40000; commit; chmod f 600; commit; append f 5000 16; commit; expire; commit
create g; write g 0 30000 17; punch g 4096 9000; commit; zero g 20000 6000; commit; fdatasync g
write g 5000 2000 18; commit; punch g 0 16384; commit; append g 10000 19; zero g 25000 30000; commit
fallocate g 60000 20000 keep-size; append g 20000 20; commit; expire; chmod g 600; commit
# Removed before anybody wanted it, and while it is open.
create h; write h 0 25000 21; commit; unlink h; commit; create h; write h 0 4000 22; commit
open @1 h; append @1 9000 23; unlink h; commit; expire; commit; append @1 3000 24; close @1; commit
# Synced in pieces, and one file of several.
create i; create j; write i 0 8000 25; write j 0 8000 26; commit; fsync i; append j 2000 27; commit
write i 2000 9000 28 dsync; append i 4000 29; chmod i 600; commit; sync
append i 6000 30; append j 6000 31; rename i j; commit; chmod j 600; commit; sync
";

fn waits() -> Vec<Op> {
    ops(WAITS)
}
