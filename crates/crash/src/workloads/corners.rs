//! Workloads for rare cases, each made to show one possible mistake.

use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::text::read_line;

/// Parses operations in the text form. Semicolons separate several in one line.
fn ops<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Vec<Op> {
    let parse = |line: L| {
        let parts = line.as_ref().split(';').map(str::trim);
        let ops = parts
            .map(|part| read_line(part).expect(part))
            .collect::<Vec<_>>();
        ops.concat()
    };
    lines.into_iter().flat_map(parse).collect()
}

/// Blocks that are allocated before they are written: which of them count as written, and whether a
/// sync knows of them.
pub(super) fn preallocated() -> Vec<Op> {
    let rounds = (0..3).map(|n| {
        let (from, seed) = (n * 9000 + 2000, n + 1);
        format!(
            "create p{n}; open @0 p{n}; fallocate @0 0 40000; fsync @0; write @0 {from} 3000 \
                {seed}; fsync @0; \
             write @0 0 1024 {seed}; fdatasync @0; fallocate @0 50000 20000 keep-size; fsync @0; \
             append @0 15000 {seed}; fsync @0; \
             zero @0 8000 12000; fsync @0; truncate @0 45000; fsync @0; close @0"
        )
    });
    ops(rounds)
}

/// Three orphans at once, removed from their list in several orders; and files that are truncated
/// while there are orphans.
pub(super) fn orphan_list() -> Vec<Op> {
    let rounds = [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 0, 1]];
    let rounds = rounds.into_iter().map(|[first, second, third]| {
        let files = (0..3).map(|n| {
            format!(
                "create o{n}; open @{n} o{n}; write @{n} 0 30000 {}; fsync @{n}",
                n + 1
            )
        });
        let files: Vec<_> = files.collect();
        format!(
            "{}; create cut; write cut 0 60000 9; sync; unlink o0; unlink o1; unlink o2; sync; \
             close @{first}; fsyncdir .; truncate cut 1000; fsync cut; close @{second}; fsyncdir \
             .; close @{third}; unlink cut; fsyncdir .",
            files.join("; ")
        )
    });
    ops(rounds)
}

/// Attribute blocks: large ones, shared ones, and ones that are freed and become data before the
/// log has forgotten them.
pub(super) fn attributes() -> Vec<Op> {
    let rounds = (0..3).map(|n| {
        let each = |what: &dyn Fn(u32) -> String| (0..8).map(what).collect::<Vec<_>>().join("; ");
        let made = each(&|i| format!("create x{i}; setxattr x{i} user.large 700 {}", i / 2 + 1));
        let less = each(&|i| format!("removexattr x{i} user.large"));
        let gone = each(&|i| format!("unlink x{i}"));
        // Enough data to reach every free block before the log has forgotten the freed ones.
        let data = |i: u32| format!("write @0 {} 20000 {}", i * 20_000, n * 30 + i + 1);
        let data = (0..22).map(data).collect::<Vec<_>>().join("; ");
        format!(
            "{made}; sync; setxattr x1 user.large 600 77; setxattr x1 user.more 100 5; sync; \
                {less}; sync; \
             create data; open @0 data; {data}; fsync @0; close @0; unlink data; {gone}; sync"
        )
    });
    // A preallocated file, so that few blocks are free.
    let begin = "create filler; fallocate filler 0 330000 keep-size".to_owned();
    ops(std::iter::once(begin).chain(rounds))
}

/// More changed inodes than fit into memory. Some of them are synced after they had to be read
/// again.
pub(super) fn inodes() -> Vec<Op> {
    let each = |what: &dyn Fn(u32) -> String| (0..96).map(what).collect::<Vec<_>>().join("; ");
    ops([
        "mkdir d".to_owned(),
        each(&|i| format!("create d/{i}")),
        "sync; chmod d/0 600; write d/1 0 100 1; chmod d/2 640".to_owned(),
        each(&|i| format!("stat d/{i}")),
        "fsync d/0; fsync d/1; chmod d/95 600; unlink d/3".to_owned(),
        each(&|i| format!("stat d/{}", if i == 3 { 4 } else { i })),
        "fsync d/95; sync".to_owned(),
    ])
}

/// Transactions of equal length from the start of an empty log: after a recovery, an old one lies
/// exactly where the next is expected.
pub(super) fn alike() -> Vec<Op> {
    let begin = "create a; write a 0 4096 1; remount".to_owned();
    let rounds = (0..12).map(|n| format!("chmod a {}; fsync a", 600 + n % 8));
    ops(std::iter::once(begin).chain(rounds))
}

/// Operations on the blocks that the sync before them is still making durable.
pub(super) fn neighbours() -> Vec<Op> {
    let begin = "mkdir n; create n/a; create n/b; open @0 n/a; open @1 n/b; sync".to_owned();
    let rounds = (0..8).map(|n| {
        let (mode, seed) = (600 + n % 8, n + 1);
        format!(
            "write @0 0 3000 {seed}; fsync @0; chmod n/b {mode}; write @0 1000 500 {}; create \
                n/f{n}; fsync @1; write @1 0 2000 {seed}; \
             sync; chmod n/a {mode}; write @1 500 500 {}; fsync @0; rename n/f{n} n/g{n}; \
             fdatasync @1; fsyncdir n",
            seed + 40,
            seed + 60
        )
    });
    ops(std::iter::once(begin).chain(rounds))
}

/// What fdatasync must make durable beside overwritten blocks: a size that grew within a block or
/// shrank, new blocks, and freed ones. And what it need not: times, and changes of other files.
pub(super) fn data_syncs() -> Vec<Op> {
    let begin = "create s0; create s1; open @0 s0; open @1 s1; write @0 0 9000 1; \
        write @1 0 9000 2; sync"
        .to_owned();
    let rounds = (0..4).map(|n| {
        let (at, seed, hole) = (n * 1100, n * 12 + 3, 20_000 + n * 9000);
        let new = |more: u32| seed + more;
        format!(
            "write @0 {at} 700 {seed}; fdatasync @0; mkdir d{n}; write @1 2000 3000 {}; \
             write @0 0 5000 {}; fdatasync @1; append @0 40 {}; fdatasync @0; \
             write @0 {at} 700 {}; fdatasync @0; write @1 {hole} 2000 {}; fdatasync @1; \
             write @1 {hole} 1500 {}; create f{n}; fdatasync @1; truncate @0 {}; fdatasync @0; \
             write @0 100 4000 {}; fdatasync @0; punch @1 2000 5000; write @1 2500 1500 {}; \
             fdatasync @1; write @1 2000 2500 {}; rename f{n} g{n}; fdatasync @1; fsync @0",
            new(1),
            new(2),
            new(3),
            new(4),
            new(5),
            new(6),
            8800 - n * 100,
            new(7),
            new(8),
            new(9),
        )
    });
    ops(std::iter::once(begin).chain(rounds))
}

/// Blocks that get a new owner as soon as possible. Each freed block lies behind the last block of
/// a file that grows next: first blocks of directories, whose bytes are in the log, then those of a
/// file removed in the same transaction.
pub(super) fn reuse() -> Vec<Op> {
    const ROUNDS: u32 = 8;
    let begin = |n: u32| {
        let (seed, next) = (n * 4 + 1, n * 4 + 2);
        format!(
            "create left{n}; write left{n} 0 4096 {seed}; fsync left{n}; \
             create right{n}; write right{n} 0 4096 {next}; fsync right{n}; \
             mkdir a{n}; mkdir b{n}; mkdir c{n}; sync"
        )
    };
    // One round later, so that a checkpoint finds bytes of these blocks in both halves of the log.
    let change =
        |n: u32| format!("mkdir b{n}/e; rmdir b{n}/e; sync; mkdir c{n}/e; rmdir c{n}/e; sync");
    // `a` changes just before its removal, so that a checkpoint may be writing it home.
    let end = |n: u32| {
        let (seed, next) = (n * 4 + 3, n * 4 + 4);
        format!(
            "mkdir a{n}/e; rmdir a{n}/e; sync; rmdir a{n}; rmdir b{n}; rmdir c{n}; sync; \
             append right{n} 12288 {seed}; fsync right{n}; \
             unlink right{n}; append left{n} 12288 {next}; fsync left{n}"
        )
    };
    let rounds = (0..ROUNDS + 2).flat_map(|n| {
        let begin = (n < ROUNDS).then(|| begin(n));
        let change = n.checked_sub(1).filter(|n| *n < ROUNDS).map(change);
        let end = n.checked_sub(2).map(end);
        [begin, change, end].into_iter().flatten()
    });
    ops(rounds)
}

/// Records of many sizes, written over each other in three files by turns: whole blocks and parts,
/// over a hole, at the end, over blocks with an older version in the log. Then the files are
/// truncated, and their blocks go to another file.
pub(super) fn records() -> Vec<Op> {
    let begin = "create r0; create r1; create r2; open @0 r0; open @1 r1; open @2 r2; \
        fallocate @2 0 40000; sync"
        .to_owned();
    let places = [
        (0, 4096),
        (0, 32_768),
        (1000, 9000),
        (4096, 12_288),
        (4000, 4200),
        (50_000, 20_000),
        (30_000, 30_000),
        (512, 32_000),
    ];
    let rounds = (0..12).map(|n| {
        let slot = n % 3;
        let (offset, len) = places[n * 5 % places.len()];
        let (other, most) = places[n % places.len()];
        let end = match n % 4 {
            0 => format!("fsync @{slot}"),
            1 => format!("append @{slot} 9000 {}; fdatasync @{slot}", n + 40),
            2 => "sync".to_owned(),
            _ => format!("append @{slot} 100 {}", n + 60),
        };
        format!(
            "write @{slot} {offset} {len} {}; write @{slot} {other} {most} {}; {end}",
            n + 1,
            n + 20
        )
    });
    let end = "truncate r0 3000; fsync @0; unlink r1; close @1; write @2 0 32000 90; sync; \
        write @2 8192 8192 91; fsync @2; append @0 30000 92; fsync @0"
        .to_owned();
    ops(std::iter::once(begin).chain(rounds).chain([end]))
}

/// Groups of writes and renames of three files: over data, holes and preallocated blocks, while
/// operations outside of the group write, truncate, sync and remove the same files. Some groups are
/// never ended.
pub(super) fn groups() -> Vec<Op> {
    let begin = "create g0; create g1; create g2; write g0 0 9000 1; fallocate g2 0 40000; sync";
    let ends = [
        "group-commit",
        "group-abort",
        "group-commit lazy; fsync g1",
        "group-commit lazy",
        "group-commit; write g1 3000 200 99",
    ];
    let beside = [
        "write g0 2000 700 98; fsync g0",
        "append g1 1500 97",
        "sync",
        "commit",
    ];
    let rounds = (0..10).map(|n| {
        let (seed, at) = (n * 3 + 2, n * 7 % 10 * 1500);
        let (end, beside) = (ends[n % ends.len()], beside[n % beside.len()]);
        format!(
            "group-begin; group-write g0 {at} 2500 {seed}; group-write g1 {} 4500 {}; \
             group-read g1 {at} 9000; {beside}; group-write g2 {} 600 {}; \
             group-write g1 {at} 1024 {seed}; group-read g1 0 30000; {end}",
            n * 2048,
            seed + 1,
            at * 2,
            seed + 2
        )
    });
    let end = [
        "group-begin; group-write g0 0 2000 50; group-write g1 0 2000 51; unlink g0; fsyncdir .",
        "group-commit; create g0; group-begin; group-write g0 9000 3000 52; unlink g0; group-abort",
        "group-begin; group-write g1 20000 3000 53; group-write g2 0 3000 54; truncate g1 1000",
        "punch g2 0 30000; fsync g1; group-commit; group-begin; group-write g1 0 5000 55; remount",
        "group-begin; group-write g1 0 5000 56; group-begin; group-write g2 500 5000 57",
        "group-commit; create g3; group-begin; group-write g3 0 6000 58; rename g3 g1; sync",
        "group-commit lazy; fsyncdir .; group-begin; group-write g1 0 2000 59",
        "group-write g2 0 9 60; sync",
        "group-begin; group-write g1 0 900 61; group-do truncate g1 500; group-commit",
        "group-begin; group-write g2 30000 900 62; group-do truncate g2 29000; group-commit lazy",
        "group-begin; group-write g1 0 900 63; group-do rename g1 g4; group-do link g2 g5",
        "append g4 1500 64; group-commit lazy; append g1 900 65; fsync g1",
        "group-begin; group-write g1 0 2000 66; group-do unlink g1; group-do create g1 excl",
        "group-do open @0 g1; group-write @0 0 7000 67; group-read @0 0 9000; append g5 900 68",
        "group-commit; append @0 900 69; fsync @0; close @0",
    ];
    let rounds = std::iter::once(begin.to_owned()).chain(rounds);
    ops(rounds.chain(end.map(str::to_owned)))
}

/// Groups of names. First files replaced as programs save them, and trees that are made, moved and
/// removed, in directories that also change outside of the group. Then groups that fail because
/// something that they rest on has changed, and groups that changes elsewhere do not concern.
pub(super) fn group_names() -> Vec<Op> {
    let begin = "mkdir d; mkdir e; create a; write a 0 9000 1; create b; write b 0 3000 2; \
        link a l; sync";
    let ends = [
        "group-commit",
        "group-commit lazy; fsyncdir .",
        "group-abort",
        "group-commit lazy",
        "group-begin; group-do unlink b; group-begin",
    ];
    let beside = [
        "sync",
        "write a 100 700 90",
        "create d/o; fsync d/o",
        "unlink d/o; commit",
    ];
    // One of three, since a short log takes few changes at a time.
    let staged = |n: usize| match n % 3 {
        0 => format!(
            "group-do create new excl; group-do open @0 new; group-write @0 0 6000 {}; \
             group-do chmod new 600; group-do rename new b",
            n * 2 + 10
        ),
        1 => format!(
            "group-do mkdir t{n}; group-do create t{n}/f excl; \
             group-do open @0 t{n}/f; group-do rename t{n} e/t{n}; group-do readdir e"
        ),
        _ => format!(
            "group-do link a d/a{n}; group-do truncate a {}; open @0 a",
            8000 - n * 500
        ),
    };
    let rounds = (0..15).map(|n| {
        let (end, beside) = (ends[n % ends.len()], beside[n % beside.len()]);
        let (staged, seed) = (staged(n), n * 2 + 11);
        format!("group-begin; {staged}; {beside}; {end}; append @0 1500 {seed}; close @0")
    });
    let end = [
        // Conflicts: outside of the group, the name appears, the number of links changes, or the
        // file to be removed is gone.
        "group-begin; group-do create n excl; create n; group-do readdir .; group-commit",
        "group-begin; group-do unlink n; group-do mkdir m; unlink n; group-commit; fsyncdir .",
        "group-begin; group-do link a n; link a k; group-commit; unlink k",
        "group-begin; group-do unlink l; group-do create l; unlink a; create a; group-commit; sync",
        "mkdir r; group-begin; group-do rmdir r; create r/f; group-commit; unlink r/f; rmdir r",
        "mkdir g; group-begin; group-do create g/f excl; group-do mkdir g/h; rmdir g; group-commit",
        "mkdir p; mkdir q; group-begin; group-do rename p q/p; rename q d/q; group-commit; sync",
        // Changes outside of the group that are no conflict.
        "group-begin; group-do rename p d/q/p; group-do create d/q/p/f excl; rename d/q z",
        "create p2; chmod z 700; group-commit lazy; create z/p/g; write z/p/g 0 3000 50",
        "rename z/p/f z/p/g; sync",
        "group-begin; group-do rename a b exchange; append a 1500 51; unlink d/o; group-commit",
        "open @1 b; group-begin; group-do unlink b; group-do mkfifo b; group-do chown a 7 8",
        "write @1 0 3000 52; group-commit; fsync @1; append @1 900 53; close @1; sync",
        // A tree that is replaced by a new one, and groups that nobody ends.
        "group-begin; group-do unlink z/p/g; group-do rmdir z/p; group-do rmdir z",
        "group-do mkdir z; group-do mkdir z/y; group-commit lazy; create z/y/w; fsync z/y/w",
        "group-begin; group-do mkdir z/v; group-do create z/v/u excl; group-do rename z zz",
        "remount; group-begin; group-do create z/left excl; group-do open @0 z/left",
        "group-write @0 0 9000 54",
    ];
    let rounds = std::iter::once(begin.to_owned()).chain(rounds);
    ops(rounds.chain(end.map(str::to_owned)))
}

/// Two groups open beside each other, ended in either order: writes to one file and to two, then
/// saves, moves and links that meet in names. A group that met a conflict is done again. At the
/// end, the second group is open when the first commits, and stages only then.
pub(super) fn two_groups() -> Vec<Op> {
    let begin = "create t0; create t1; write t0 0 9000 1; write t1 0 5000 2; mkdir d; mkdir e; \
        create d/a; write d/a 0 3000 3; sync";
    let ends = ["group-commit", "group-commit lazy", "group-abort"];
    let both = |n: usize, first: &str, second: &str| {
        let begun = format!("group-begin; {first}; group-switch; group-begin; {second}");
        let (end, other) = (ends[n % ends.len()], ends[n % 2]);
        // The two take turns in ending first.
        if n % 4 < 2 {
            format!("{begun}; {end}; group-switch; {other}")
        } else {
            format!("{begun}; group-switch; {end}; group-switch; {other}")
        }
    };
    let writes = (0..8).map(|n| {
        let (at, seed, file) = (n * 1100, n * 3 + 10, ["t0", "t1"][n / 2 % 2]);
        let again = format!("group-write {file} {} 1500 {}", at + 700, seed + 1);
        let first = format!("group-write t0 {at} 1800 {seed}; group-read t0 0 20000");
        let met = both(n, &first, &again);
        format!("{met}; group-begin; {again}; group-read {file} 0 20000; group-commit")
    });
    let names = (0..8).map(|n| {
        let saved = format!(
            "group-do create d/n{n} excl; group-do open @0 d/n{n}; group-write @0 0 4000 {}; \
             close @0; group-do rename d/n{n} d/a",
            n + 40
        );
        let other = [
            format!("group-do create d/m{n} excl; group-do create e/m{n} excl"),
            format!("group-write d/a 700 2500 {}", n + 50),
            format!("group-do rename d/a e/a{n}"),
            format!(
                "group-do link d/a e/l{n}; group-write t1 {} 900 {n}",
                n * 800
            ),
        ];
        let met = both(n + 1, &saved, &other[n % other.len()]);
        format!("{met}; create d/a; append d/a 700 {}", n + 60)
    });
    let end = [
        "mkdir r; group-begin; group-do rmdir r; group-switch; group-begin",
        "group-do create r/f excl; group-switch; group-commit; group-switch; group-commit",
        "mkdir r; group-begin; group-do rmdir r; group-switch; group-begin",
        "group-do create r/f excl; group-commit; group-switch; group-commit; fsyncdir r",
        "group-begin; group-write t0 0 2000 80; group-switch; group-begin; group-switch",
        "group-commit lazy; group-switch; group-write t0 1000 2000 81; group-commit",
        "group-begin; group-write t1 0 2000 82; group-switch; group-begin",
        "group-do truncate t1 1000; group-write t0 0 9 83; sync; group-commit",
        "group-switch; group-read t1 0 9000; group-commit; fsync t1",
    ];
    let rounds = writes.chain(names);
    ops(std::iter::once(begin.to_owned())
        .chain(rounds)
        .chain(end.map(str::to_owned)))
}
