//! Workloads about blocks and their homes: overwritten at home beside the log, at home under newer
//! bytes in the log, and changed while a checkpoint writes them home.

use stetfs_testkit::world::op::Op;

use super::vocabulary::ops;

/// Overwrites of two files, which need no transaction while the clock stands: of one block and of
/// others of its file, with commits of other changes between them, and with truncates, holes and
/// new writes. In two of six rounds the clock runs, so that a sync commits.
pub(super) fn beside() -> Vec<Op> {
    let begin = "create o0; create o1; open @0 o0; open @1 o1; write @0 0 9000 1; \
        write @1 0 9000 2; sync; clock still"
        .to_owned();
    let rounds = (0..6).map(|n| {
        let seed = n * 20 + 3;
        let s = |more: usize| seed + more;
        let (sync, clock) = match n % 3 {
            0 => ("fsync", "clock still"),
            1 => ("fdatasync", "clock still"),
            _ => ("fdatasync", "clock runs"),
        };
        let between = [
            "create c{n}; commit",
            "chmod o1 600; fsyncdir .",
            "mkdir c{n}; append @1 50 {s}; fsync @1",
            "truncate @0 7000; write @0 6000 1500 {s}",
            "punch @0 4096 2048; write @0 4500 900 {s}; commit",
            "checkpoint; chmod o0 640",
        ][n];
        let between = between.replace("{n}", &n.to_string());
        let between = between.replace("{s}", &s(15).to_string());
        format!(
            "{clock}; write @0 0 700 {}; {sync} @0; write @0 0 700 {}; {sync} @0; \
             write @0 100 300 {}; write @0 2100 500 {}; {sync} @0; write @0 3100 500 {}; \
             write @1 200 1500 {}; {sync} @1; store @0 300 200 {}; {sync} @0; {between}; \
             write @0 0 2500 {}; {sync} @0; write @1 0 300 {}; write @0 2100 400 {}; {sync} @1; \
             store @1 1100 3000 {}; write @0 2000 200 {}; {sync} @0; {sync} @1",
            s(0),
            s(1),
            s(2),
            s(3),
            s(4),
            s(5),
            s(6),
            s(7),
            s(8),
            s(9),
            s(10),
            s(11),
        )
    });
    ops(&std::iter::once(begin)
        .chain(rounds)
        .collect::<Vec<_>>()
        .join(";"))
}

/// Metadata that a checkpoint or a recovery brings home and that changes again, so that the log has
/// only bytes on top of home. Then it is freed, and its blocks go to another file. By turns: a
/// directory's block, a file's block map, an attribute block, a symbolic link's block.
pub(super) fn rests() -> Vec<Op> {
    let begin = "create keep; write keep 0 1024 1; sync".to_owned();
    let rounds = (0..12).map(|n| {
        let (seed, path) = (n * 5 + 2, format!("r{n}"));
        let long = "a/target/of/more/than/sixty/bytes/which/takes/a/block/of/its/own";
        let (made, changed, gone) = match n % 4 {
            0 => (
                format!("mkdir {path}; create {path}/a; create {path}/b"),
                format!("rename {path}/a {path}/c"),
                format!("unlink {path}/b; unlink {path}/c; rmdir {path}"),
            ),
            1 => {
                // Enough pieces for a map with a block of its own.
                let piece = |i: usize| format!("write {path} {} 1024 {seed}", i * 4096);
                let pieces: Vec<_> = (0..6).map(piece).collect();
                (
                    format!("create {path}; {}", pieces.join("; ")),
                    format!("write {path} 40000 1024 {}", seed + 1),
                    format!("unlink {path}"),
                )
            }
            2 => (
                format!("create {path}; setxattr {path} user.large 600 {seed}"),
                format!("setxattr {path} user.more 40 {seed}"),
                format!("unlink {path}"),
            ),
            _ => (
                format!("symlink {long} {path}; mkdir d{n}"),
                format!("create d{n}/a; create d{n}/b"),
                format!("unlink {path}; unlink d{n}/a; unlink d{n}/b; rmdir d{n}"),
            ),
        };
        // Home by a checkpoint or a recovery. Then a change on top of home, which goes home too, or
        // does not.
        let first = ["checkpoint", "crash"][n % 2];
        let then = ["sync", "sync; checkpoint", "sync; crash"][n / 2 % 3];
        format!(
            "{made}; sync; {first}; {changed}; {then}; {gone}; sync; append keep 6000 {}; \
             fsync keep; write keep 1000 700 {}; fdatasync keep",
            seed + 2,
            seed + 3
        )
    });
    ops(&std::iter::once(begin)
        .chain(rounds)
        .collect::<Vec<_>>()
        .join(";"))
}

/// Two objects in one block of metadata, changed and synced by turns while a checkpoint writes the
/// block home: inodes, names in a directory, bits of a bitmap.
pub(super) fn by_turns() -> Vec<Op> {
    let begin = "mkdir d; create d/a; create d/b; open @0 d/a; open @1 d/b; write @0 0 1024 1; \
        write @1 0 1024 2; sync"
        .to_owned();
    let rounds = (0..10).map(|n| {
        let (one, other) = [("a", "b"), ("b", "a")][n % 2];
        let (first, second) = [("@0", "@1"), ("@1", "@0")][n % 2];
        let (mode, seed) = (600 + n % 8, n + 3);
        let meanwhile = ["checkpoint", "commit", "checkpoint; commit"][n % 3];
        format!(
            "chmod d/{one} {mode}; fsync {first}; checkpoint; chmod d/{other} {mode}; \
             fsync {second}; chmod d/{one} 644; {meanwhile}; create d/n{n}; fsyncdir d; \
             append {second} 700 {seed}; checkpoint; append {first} 700 {seed}; \
             fsync {second}; setxattr d/{other} user.one 20 {seed}; fsync {first}; \
             rename d/n{n} d/m{n}; checkpoint; unlink d/m{n}; fsyncdir d; fsync {second}"
        )
    });
    ops(&std::iter::once(begin)
        .chain(rounds)
        .collect::<Vec<_>>()
        .join(";"))
}
