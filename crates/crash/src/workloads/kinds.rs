//! Workloads with features that the others lack: marks set and taken away, mapped memory and copied
//! ranges, directories that split, clocks that stand, go back and jump, full volumes.

use stetfs_testkit::world::op::Op;

use super::vocabulary::ops;

/// Marks (`chattr +j`) set and taken away while a file has new and overwritten data in memory;
/// marks inherited from a directory; marked files that are truncated, punched and removed. Writes
/// of all lengths, up to the longest that a mark makes whole, and beyond.
pub(super) fn marks() -> Vec<Op> {
    let begin = "create m0; create m1; open @0 m0; open @1 m1; write @0 0 12000 1; sync".to_owned();
    // With blocks of 1 KiB, one handle takes 32 KiB of a write, one transaction 39 KiB.
    let lengths = [2048, 6000, 14_000, 31_000, 33_500, 36_000, 38_900, 45_000];
    let lengths = (0..).zip(lengths).map(|(n, len): (u32, u32)| {
        let seed = n * 3 + 80;
        let [one, two] = [seed + 1, seed + 2];
        format!(
            "write @0 {} {len} {seed}; write @1 {} {} {one}; append @1 {} {two}",
            n * 300,
            n * 700,
            len - 900,
            len / 4,
        )
    });
    let lengths = lengths.collect::<Vec<_>>().join("; ");
    let rest = "\
write @0 500 3000 40; write @0 20000 2000 41; chattr m0 +j; write @0 700 2500 42; fsync @0
write @0 0 2000 43; chattr m0 -j; write @0 300 2000 44; fdatasync @0; write @0 0 900 45; commit
chattr m0 +j; write @0 1000 4000 46; truncate @0 3000; write @0 2500 3000 47; commit
append @1 5000 48; chattr m1 +j; commit; append @1 2000 49; chattr m1 -j; append @1 900 50
fsync @1; punch @0 1024 2048; write @0 900 2500 51; fsync @0; chattr m0 -j; write @0 1500 700 52
chattr m0 +j; write @0 1400 900 53; checkpoint; write @0 1400 900 54; chattr m0 -j; fsync @0
write @0 1300 1100 55; fsync @0; chattr m1 +j; truncate @1 700; write @1 600 2600 56; crash
open @0 m0; open @1 m1; write @1 0 2900 57; fsync @1; write @0 0 2900 58; fdatasync @0
write @0 500 300 64; fdatasync @0; write @0 600 100 65; chattr m0 -j; write @0 500 400 66
fdatasync @0; write @0 550 100 67; chattr m0 +j; write @0 650 60 68; commit; chattr m0 -j; commit
clock still; write @1 500 400 69; fsync @1; write @1 550 100 70; chattr m1 -j; write @1 400 300 71
fsync @1; write @1 450 100 72; chattr m1 +j; write @1 550 60 73; commit; clock runs
fsync @0; zero @0 300 200; chattr m0 +j; commit; chattr m0 -j; fsync @0; punch @0 1500 900
chattr m0 +j; commit; chattr m0 -j; fsync @0; truncate @0 1700; truncate @0 2000; chattr m0 +j
commit; chattr m0 -j; commit
mkdir d; chattr d +j; create d/i; open @2 d/i; write @2 0 7000 59; commit; write @2 500 5000 60
rename m1 d/i; fsync @2; close @2; mkdir d/e; create d/e/j; write d/e/j 100 9000 61; fsync d/e/j
write d/e/j 0 4500 62; chattr d/e/j -j; write d/e/j 2000 4500 63; commit; unlink d/e/j; sync
";
    ops(&format!(
        "{begin}; {rest}; chattr m0 +j; chattr d/i +j; {lengths}; sync"
    ))
}

/// Stores to mapped memory and copies of ranges: over written, preallocated and missing blocks,
/// cached and not, beside writes and both kinds of sync. Sizes that grow and shrink within a block.
pub(super) fn mapped() -> Vec<Op> {
    const MAPPED: &str = "\
create s0; create s1; open @0 s0; open @1 s1; write @0 0 9000 1; fallocate @1 0 9000
sync; clock still
store @0 100 200 2; fsync @0; store @0 4000 3000 3; fdatasync @0; store @0 8900 100 4; commit
store @1 100 200 5; fsync @1; store @1 5000 300 6; commit; write @1 0 5000 7; store @1 300 50 8
fdatasync @1; append @0 40 9; fdatasync @0; append @0 60 10; fsync @0; append @0 30 11; commit
truncate @0 9100; fdatasync @0; truncate @0 9060; fsync @0; store @0 9000 60 12; fsync @0
clock runs; copy @0 0 @1 2000 3000; fsync @1; copy @0 100 @0 5000 2000; fdatasync @0
append @1 700 13; copy @1 200 @0 9000 1500; commit; copy @1 0 @0 20000 1024; fsync @0
store @0 21000 20 14; fsync @0; truncate @0 12000; store @0 11000 500 15; truncate @0 11200
truncate @0 12000; fsync @0; punch @0 4096 4096; store @0 5000 100 16; fdatasync @0; commit
remount; open @0 s0; open @1 s1; clock still; store @0 700 100 17; fsync @0; write @0 700 100 18
store @0 750 100 19; fdatasync @0; store @1 2000 900 20; write @1 2900 100 21; fsync @1
chmod s1 600; store @1 0 1024 22; fsync @1; checkpoint; store @1 0 1024 23; fsync @1; crash
open @0 s0; open @1 s1; clock runs; copy @0 0 @1 0 4096; fsync @1; copy @0 0 @1 0 4096; unlink s0
store @0 0 300 24; fsync @0; close @0; store @1 0 300 25; fdatasync @1; sync
";
    ops(MAPPED)
}

/// A directory whose hash tree splits its leaves, by names that are created, linked and moved into
/// it, with syncs of it and of its files. Some splits begin with cold caches.
pub(super) fn splits() -> Vec<Op> {
    let name_of = |n: usize| format!("d/a-name-that-takes-some-room-in-the-block-of-a-leaf-{n}");
    let mut lines = vec!["mkdir d; mkdir e; create e/x; create e/y".to_owned()];
    // Enough names that blocks of 4 KiB have become a tree.
    lines.extend((0..60).map(|n| format!("create {}", name_of(n))));
    lines.push("sync".to_owned());
    for n in 60..140 {
        let name = name_of(n);
        lines.push(match n % 4 {
            0 => format!("link e/x {name}"),
            1 => format!("create e/n; write e/n 0 100 {n}; rename e/n {name}"),
            2 => format!("mkdir {name}"),
            _ => format!("rename {} {name}", name_of(n - 60)),
        });
        lines.push(match n % 9 {
            2 => "fsyncdir d".to_owned(),
            4 => "commit".to_owned(),
            6 => format!("fsync {}", ["e/x", "e/y"][n % 2]),
            8 if n % 2 == 0 => "remount".to_owned(),
            8 => "crash".to_owned(),
            _ => continue,
        });
    }
    lines.push("checkpoint; rename d e/d; fsyncdir e; sync".to_owned());
    ops(&lines.join("; "))
}

/// Times that stand still during changes, go back, and jump.
pub(super) fn clocks() -> Vec<Op> {
    const CLOCKS: &str = "\
create a; create b; write a 0 3000 1; write b 0 3000 2; sync
clock still; write a 0 900 3; fsync a; chmod a 600; fsync a; chmod a 640; append a 700 4; fsync a
append a 700 5; fdatasync a; truncate a 3000; fsync a; setxattr a user.one 20 6; fsync a
link a c; fsync a; unlink c; fsync a; create d; fsyncdir .; rename d e; fsyncdir .; sync
clock 1000000000.5; write b 0 900 7; fsync b; chmod b 600; fdatasync b; append b 900 8; fsync b
utimes b 1.5 1000000000.5; write b 100 900 9; fsync b; create f; fsync f; unlink f; fsyncdir .
clock 2000000000.000000001; write b 100 800 10; fsync b; mkdir g; fsyncdir g; create g/h; sync
clock 1999999999.999999999; write b 200 700 11; fsync b; create g/i; fsync g/i; fsyncdir g
clock runs; write b 300 600 12; fsync b; chown b 7 8; commit; write a 0 500 13; fdatasync a; sync
";
    ops(CLOCKS)
}

/// A volume with no block left, or a few. What must go on does: overwrites, writes into
/// preallocated blocks, data that was promised a place before others took the rest, syncs, and all
/// that frees something. What has no room is refused, or a write is cut short, and nothing of it is
/// there. Blocks that are freed find new owners at once, and a recovery finds the volume full.
pub(super) fn full() -> Vec<Op> {
    let begin = "mkdir d; create old; create kept; open @0 old; open @1 kept; write @0 0 9000 1; \
        fallocate @1 0 12000; sync";
    let rounds = (0..7).map(|n| {
        let room = [0, 1, 2, 3, 5, 8, 13][n];
        let (seed, at) = (n * 20 + 3, n * 800);
        let s = |more: usize| seed + more;
        // What is done with the full volume, what ends it, and a sync.
        let meanwhile = [
            "append @0 5000 {s}; commit",
            "mkdir d/m{n}; create d/m{n}/f; append @0 1500 {s}",
            "setxattr old user.large 700 {s}; removexattr old user.large",
            "rename new{n} d/moved{n}; append @0 3000 {s}",
            "symlink a/target/of/more/than/sixty/bytes/which/takes/a/block/of/its/own d/l{n}",
            "write @0 20000 2500 {s}; expire",
            "tmpfile @2 d; append @2 3000 {s}; link @2 d/t{n}; fsync @2",
        ][n];
        let ends = [
            "unlink new{n}; append @0 700 {s}; fsync @0; append @0 2000 {s}",
            "punch @0 1024 3072; append @0 900 {s}; commit; append @0 900 {s}",
            "truncate @0 4000; create d/n{n}; write d/n{n} 0 6000 {s}; fsync d/n{n}",
            "crash; open @0 old; open @1 kept",
            "checkpoint; append @0 1000 {s}",
        ][n % 5];
        let fill = |text: &str| {
            let text = text.replace("{n}", &n.to_string());
            text.replace("{s}", &s(9).to_string())
        };
        let sync = ["fsync @0", "fdatasync @0", "sync"][n % 3];
        format!(
            "append @0 2500 {}; fill {room}; create new{n}; write new{n} 0 4000 {}; \
             write @0 300 3000 {}; write @1 {at} 900 {}; {}; fsync @1; {sync}; \
             write @1 {at} 500 {}; {}; {sync}; fill 40; append @0 1100 {}; fill 4; fsync @0; \
             truncate @0 9000; fsync @0",
            s(0),
            s(1),
            s(2),
            s(3),
            fill(meanwhile),
            s(4),
            fill(ends),
            s(5),
        )
    });
    let rounds: Vec<_> = rounds.collect();
    ops(&format!("{begin}; {}; fill 900; sync", rounds.join("; ")))
}
