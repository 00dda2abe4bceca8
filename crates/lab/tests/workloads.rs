//! The generators obey their parameters, make the same calls for the same seed, and take the same
//! virtual time each time.

use std::time::Duration;

use stetfs::Caller;
use stetfs_lab::system::{ADP_S, BLK, BLK_S, Bed, DIFF, EXT3, EXT3_4K, Measured, PCM, Volume};
use stetfs_lab::workload::bonnie;
use stetfs_lab::workload::filebench::Operation;
use stetfs_lab::workload::iozone::Test;
use stetfs_lab::workload::postmark::Outcome;
use stetfs_lab::workload::single::{self, FIRST};
use stetfs_lab::workload::sqlite::{Database, JournalMode};
use stetfs_lab::workload::{
    Bonnie, Counts, Durable, Filebench, Fio, Iozone, Personality, Postmark, Session, Single,
    Updates, Workload,
};
use stetfs_media::MeterSnapshot;

fn volume() -> Volume {
    Volume::make(EXT3_4K, 32, 4).expect("a volume")
}

fn bed(volume: &Volume) -> Bed {
    Bed::new(ADP_S, PCM, volume, 64).expect("a bed")
}

fn names(bed: &Bed) -> Vec<String> {
    let mut names = Vec::new();
    let mut each = |entry: stetfs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    let root = bed.fs().root();
    bed.fs().readdir(root, 0, &mut each).expect("the root");
    names.retain(|name| !name.starts_with('.') && name != "lost+found");
    names
}

#[test]
fn iozone_writes_each_record_once_where_it_belongs() {
    let volume = volume();
    for test in Test::ALL {
        for (record, room) in [(1024, 1024), (3072, 3072), (3072, 4096)] {
            let work = Iozone {
                test,
                file_bytes: 100_000,
                record_bytes: record,
                room_bytes: room,
                seed: 5,
            };
            let bed = bed(&volume);
            let content = || {
                let root = bed.fs().root();
                let file = bed.fs().lookup(&Caller::root(), root, b"iozone.tmp");
                let ino = file.expect("the file").ino;
                let mut bytes = vec![0; 200_000];
                let n = bed.fs().read(ino, 0, &mut bytes).expect("a read");
                bytes.truncate(n);
                bytes
            };
            let mut session = Session::new(bed.fs(), bed.time(), Durable::EachWrite, &|_, _| {});
            work.prepare(&mut session).expect("preparing");
            let records = u64::from(100_000 / room);
            let before = match test {
                Test::Write => vec![0; (records * u64::from(room)) as usize],
                _ => content(),
            };
            let prepared = session.counts().written_bytes;
            work.run(&mut session).expect("running");
            let written = session.counts().written_bytes - prepared;
            assert_eq!(written, records * u64::from(record), "{}", work.name());
            let after = content();
            for (n, (old, new)) in before
                .chunks(room as usize)
                .zip(after.chunks(room as usize))
                .enumerate()
            {
                let at = record as usize;
                let words = old[..at].chunks(8).zip(new[..at].chunks(8));
                assert!(words.into_iter().all(|(a, b)| a != b), "record {n}");
                assert_eq!(old[at..new.len()], new[at..], "behind record {n}");
            }
        }
    }
}

/// Returns calls and bytes of one kind of operation, what is there afterwards, and its commits.
fn perform(operation: single::Operation) -> (Counts, u64, u64, Vec<u64>) {
    let work = Single {
        operation,
        times: 16,
        seed: 3,
    };
    let bed = bed(&volume());
    let durable = Durable::Every(Duration::MAX);
    let mut session = Session::new(bed.fs(), bed.time(), durable, &|_, _| {});
    work.prepare(&mut session).expect("preparing");
    session.sync().expect("a commit");
    work.warm(&mut session).expect("warming up");
    let (before, commits) = (session.counts(), bed.fs().stats().journal.commits);
    work.run(&mut session).expect("running");
    let after = session.counts();
    let counts = Counts {
        operations: after.operations - before.operations,
        written_bytes: after.written_bytes - before.written_bytes,
        read_bytes: after.read_bytes - before.read_bytes,
        ..Default::default()
    };
    let (mut sizes, root) = (Vec::new(), bed.fs().root());
    files_below(&bed, root, &mut sizes);
    let file = bed.fs().lookup(&Caller::root(), root, b"file").expect("it");
    let size = bed.fs().getattr(file.ino).expect("attributes").size;
    (
        counts,
        bed.fs().stats().journal.commits - commits,
        size,
        sizes,
    )
}

/// Each operation has a transaction of its own, and nothing else is in it.
#[test]
fn operations_are_made_one_at_a_time() {
    const SIZE: u64 = 8 << 20;
    let made = FIRST + 16;
    for operation in single::Operation::ALL {
        let (counts, commits, size, sizes) = perform(operation);
        use single::Operation;
        let (calls, bytes, longer, files) = match operation {
            Operation::Overwrite(len) => (2, len as u64, 0, made),
            Operation::Change => (2, 100, 0, made),
            Operation::Scattered | Operation::ChangePage => (2, 4096, 0, made),
            Operation::Create => (4, 4096, 0, 2 * made),
            Operation::Append => (2, 4096, made * 4096, made),
            Operation::Unlink => (2, 0, 0, 0),
            Operation::Mkdir | Operation::Rename => (2, 0, 0, made),
        };
        let name = operation.name();
        // Open and close.
        assert_eq!(counts.operations, 16 * calls + 2, "{name}");
        assert_eq!(counts.written_bytes, 16 * bytes, "{name}");
        assert_eq!((counts.read_bytes, commits), (0, 16), "{name}");
        assert_eq!(size, SIZE + longer, "{name}");
        assert_eq!(sizes.len() as u64, files + 1, "{name}");
    }
}

#[test]
fn a_random_order_is_a_permutation_of_its_seed() {
    let order = |seed| Iozone::packed(Test::RandomWrite, 1 << 20, 1024, seed).order();
    let mut sorted = order(1);
    assert_eq!(sorted, order(1));
    assert_ne!(sorted, order(2));
    sorted.sort_unstable();
    assert_eq!(sorted, (0..1024).collect::<Vec<_>>());
}

/// Bytes, calls and contents as the original's source has them.
#[test]
fn bonnie_puts_rewrites_and_writes() {
    const BLOCKS: u64 = 1100;
    let volume = Volume::make(EXT3_4K, 32, 4).expect("a volume");
    for test in bonnie::Test::ALL {
        let work = Bonnie {
            test,
            file_bytes: BLOCKS * 4096 + 5,
            block_bytes: 4096,
        };
        let bed = bed(&volume);
        let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
        work.prepare(&mut session).expect("preparing");
        let before = session.counts();
        work.run(&mut session).expect("running");
        let after = session.counts();
        assert_eq!(after.written_bytes - before.written_bytes, BLOCKS * 4096);
        // Open and close; a rewrite also reads each block, and once finds the end.
        let (calls, read) = match test {
            bonnie::Test::Rewrite => (2 * BLOCKS + 3, BLOCKS * 4096),
            _ => (BLOCKS + 2, 0),
        };
        assert_eq!(after.operations - before.operations, calls, "{test:?}");
        assert_eq!(after.read_bytes - before.read_bytes, read);
        assert_eq!(names(&bed), ["Bonnie.1"]);
        let file = bed
            .fs()
            .lookup(&Caller::root(), bed.fs().root(), b"Bonnie.1");
        let mut bytes = vec![0; (BLOCKS + 1) as usize * 4096];
        let ino = file.expect("the file").ino;
        let len = bed.fs().read(ino, 0, &mut bytes).expect("a read");
        assert_eq!(len as u64, BLOCKS * 4096);
        for (n, block) in bytes[..len].chunks(4096).enumerate() {
            for (at, word) in block.chunks(4).enumerate() {
                let put: Vec<u8> = (4 * at..4 * at + 4).map(|i| (i & 0x7f) as u8).collect();
                let put = i32::from_le_bytes(put.try_into().expect("four"));
                let expected = match test {
                    bonnie::Test::CharacterWrite => put,
                    bonnie::Test::Rewrite => put + i32::from(at == n % 1024),
                    // How often it was this word's turn, this block included.
                    bonnie::Test::BlockWrite => ((n + 1024 - at) / 1024) as i32,
                };
                assert_eq!(word, expected.to_le_bytes(), "{test:?}: {n}, {at}");
            }
        }
    }
}

fn play(set: &Postmark) -> (Outcome, Vec<String>, u64) {
    let bed = bed(&volume());
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
    let outcome = set.play(&mut session).expect("playing");
    let operations = session.counts().operations;
    (outcome, names(&bed), operations)
}

#[test]
fn postmark_does_what_its_parameters_say() {
    let set = Postmark {
        files: 40,
        transactions: 300,
        subdirectories: 3,
        ..Postmark::default()
    };
    let (outcome, names, operations) = play(&set);
    assert_eq!((outcome.created[0], outcome.transactions), (40, 300));
    assert_eq!(outcome.read + outcome.appended, 300);
    let created: u64 = outcome.created.iter().sum();
    assert_eq!(outcome.created[1] + outcome.deleted[0], 300);
    assert_eq!(created, outcome.deleted.iter().sum::<u64>());
    assert!(names.is_empty(), "{names:?}");
    // Half of the transactions each, and sizes in the middle of their range, within four times the
    // deviation.
    for half in [outcome.read, outcome.created[1]] {
        assert!((115..=185).contains(&half), "{outcome:?}");
    }
    let mean = outcome.written_bytes[0] / 40;
    assert!((3_500..7_000).contains(&mean), "{mean}");
    assert_eq!((outcome, operations), {
        let again = play(&set);
        (again.0, again.2)
    });
    assert_ne!(operations, play(&Postmark { seed: 43, ..set }).2);
}

#[test]
fn postmark_without_a_half_and_with_files_of_one_size() {
    let set = Postmark {
        files: 20,
        transactions: 30,
        size_low: 9_000,
        size_high: 9_000,
        bias_read: -1,
        bias_create: 0,
        buffered: false,
        write_block: 1000,
        ..Postmark::default()
    };
    let (outcome, _, operations) = play(&set);
    // There are only deletions: after 20 there is no file left.
    assert_eq!((outcome.transactions, outcome.deleted), (20, [20, 0]));
    assert_eq!(outcome.written_bytes, [180_000; 2]);
    // For each file a creation, nine blocks, a close and a deletion.
    assert_eq!(operations, 20 * (1 + 9 + 1 + 1));
    let buffered = Postmark {
        buffered: true,
        bias_read: 0,
        ..set
    };
    let (outcome, _, operations) = play(&buffered);
    // Files have their full length, so appends leave them as they are. Buffered, a file is written
    // in three calls.
    assert_eq!((outcome.appended, operations), (0, 20 * (1 + 3 + 1 + 1)));
}

/// Returns filebench's name of an operation.
fn flowop(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "createfile",
        Operation::Open => "openfile",
        Operation::Close => "closefile",
        Operation::WriteWhole => "writewholefile",
        Operation::ReadWhole => "readwholefile",
        Operation::Append => "appendfilerand",
        Operation::Fsync => "fsync",
        Operation::Delete => "deletefile",
        Operation::Stat => "statfile",
    }
}

/// The flowops in the order of filebench's own files; `(open readwhole close)` stands for these
/// three.
#[test]
fn personalities_are_those_of_filebench() {
    let lists = [
        (
            Personality::Fileserver,
            "create writewhole close open append close (openreadclose) delete stat",
        ),
        (
            Personality::Webproxy,
            "delete create append close (openreadclose) (openreadclose) (openreadclose) \
                (openreadclose) (openreadclose)",
        ),
        (
            Personality::Varmail,
            "delete create append fsync close open readwhole append fsync close (openreadclose)",
        ),
    ];
    for (personality, list) in lists {
        let list = list.replace("(openreadclose)", "open readwhole close");
        let expected: Vec<String> = list
            .split(' ')
            .map(|word| match word {
                "fsync" => "fsync".to_owned(),
                "append" => "appendfilerand".to_owned(),
                word => format!("{word}file"),
            })
            .collect();
        let found: Vec<&str> = personality
            .operations()
            .iter()
            .map(|o| flowop(*o))
            .collect();
        assert_eq!(found, expected, "{}", personality.name());
    }
    let of = |personality| {
        let f = Filebench::new(personality, 1, 1);
        (
            f.files,
            f.dir_width,
            f.mean_file_bytes,
            f.threads,
            f.append_bytes,
        )
    };
    assert_eq!(
        of(Personality::Fileserver),
        (10_000, 20, 131_072, 50, 16_384)
    );
    assert_eq!(
        of(Personality::Webproxy),
        (10_000, 1_000_000, 16_384, 100, 16_384)
    );
    assert_eq!(
        of(Personality::Varmail),
        (1_000, 1_000_000, 16_384, 16, 16_384)
    );
}

/// Adds the sizes of the files below a directory.
fn files_below(bed: &Bed, dir: stetfs_format::InodeNo, sizes: &mut Vec<u64>) {
    let mut inodes = Vec::new();
    let mut each = |entry: stetfs::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b".." | b"lost+found") {
            inodes.push(entry.ino);
        }
        true
    };
    bed.fs().readdir(dir, 0, &mut each).expect("a directory");
    for ino in inodes {
        let attr = bed.fs().getattr(ino).expect("attributes");
        if stetfs::mode::is_dir(attr.mode) {
            files_below(bed, ino, sizes)
        } else {
            sizes.push(attr.size)
        }
    }
}

/// Returns sizes of the files before and after a run, its counts, and its commits.
fn serve(bench: &Filebench) -> ([Vec<u64>; 2], Counts, u64) {
    let bed = bed(&volume());
    let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
    let mut sizes = [Vec::new(), Vec::new()];
    bench.prepare(&mut session).expect("preparing");
    files_below(&bed, bed.fs().root(), &mut sizes[0]);
    let (before, commits) = (session.counts(), bed.fs().stats().journal.commits);
    bench.run(&mut session).expect("running");
    files_below(&bed, bed.fs().root(), &mut sizes[1]);
    let after = session.counts();
    let counts = Counts {
        operations: after.operations - before.operations,
        written_bytes: after.written_bytes - before.written_bytes,
        read_bytes: after.read_bytes - before.read_bytes,
        ..Default::default()
    };
    (sizes, counts, bed.fs().stats().journal.commits - commits)
}

#[test]
fn filebench_goes_through_its_list() {
    for personality in Personality::ALL {
        let bench = Filebench {
            files: 200,
            dir_width: 6,
            mean_file_bytes: 8 << 10,
            threads: 5,
            append_bytes: 3000,
            ..Filebench::new(personality, 8, 21)
        };
        let name = personality.name();
        let (sizes, counts, commits) = serve(&bench);
        let rounds = 5 * 8;
        let times = |wanted: Operation| {
            let list = personality.operations().iter();
            rounds * list.filter(|o| **o == wanted).count() as u64
        };
        // Four in five of 200, within four times the deviation of 5.7; afterwards as many as
        // before.
        assert!((137..=183).contains(&sizes[0].len()), "{name}: {sizes:?}");
        assert_eq!(sizes[0].len(), sizes[1].len(), "{name}");
        // Each operation is one call, as no file is as long as a piece.
        assert_eq!(counts.operations, bench.operations(), "{name}");
        let mean = sizes[0].iter().sum::<u64>() / sizes[0].len() as u64;
        // A gamma distribution of shape 1.5: the deviation of one size is 0.82 of the mean; that of
        // the mean of this many sizes is a thirteenth of that.
        assert!((6_000..11_000).contains(&mean), "{name}: {mean}");
        let appended = times(Operation::Append) * 1500;
        let written = appended + times(Operation::WriteWhole) * mean;
        let share = counts.written_bytes as f64 / written as f64;
        assert!((0.6..1.5).contains(&share), "{name}: {share}");
        assert!(counts.read_bytes > 0, "{name}");
        // The threads are at different places of the list: hardly any syncs for another.
        assert!(2 * commits >= times(Operation::Fsync), "{name}: {commits}");
        let again = serve(&bench);
        assert_eq!((&again.0, again.1), (&sizes, counts), "{name}");
        let other = Filebench { seed: 22, ..bench };
        assert_ne!(serve(&other).0, sizes, "{name}");
    }
}

#[test]
fn fio_reads_and_writes_as_it_is_told() {
    for (read_percent, fsync_every, expected) in [
        (0, 0, 0..=0),
        (30, 4, 240..=360),
        (70, 0, 640..=760),
        (100, 7, 1000..=1000),
    ] {
        let job = Fio {
            file_bytes: 1 << 20,
            block_bytes: 4096,
            read_percent,
            operations: 1000,
            fsync_every: fsync_every as f64,
            seed: 3,
        };
        let play = |seed| {
            let bed = bed(&volume());
            let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
            job.prepare(&mut session).expect("preparing");
            let before = session.counts();
            let done = job.drive(&mut session, seed).expect("running");
            let mut sizes = Vec::new();
            files_below(&bed, bed.fs().root(), &mut sizes);
            assert_eq!(sizes, [1 << 20]);
            let after = session.counts();
            let read = after.read_bytes - before.read_bytes;
            let written = after.written_bytes - before.written_bytes;
            assert_eq!((read, written), (done.reads * 4096, done.writes * 4096));
            done
        };
        let done = play(3);
        assert_eq!(done.reads + done.writes, 1000);
        assert!(expected.contains(&done.reads), "{done:?}");
        let syncs = done.writes.checked_div(fsync_every).unwrap_or(0);
        assert_eq!(done.fsyncs, syncs);
        assert_eq!(play(3), done);
    }
}

#[test]
fn virtual_time_is_the_same_each_time() {
    let volume = volume();
    let postmark = Postmark {
        files: 20,
        transactions: 60,
        ..Postmark::default()
    };
    let iozone = Iozone::packed(Test::RandomWrite, 256 << 10, 3072, 9);
    let works: [&dyn Workload; 2] = [&postmark, &iozone];
    for system in [EXT3, BLK, DIFF, BLK_S, ADP_S] {
        for work in works {
            for durable in [Durable::EachWrite, Durable::Every(Duration::from_millis(2))] {
                let run = || -> (u64, u64, MeterSnapshot) {
                    let bed = Bed::new(system, PCM, &volume, 64).expect("a bed");
                    let run: Measured = bed.measure(work, durable, &|_, _| {}).expect("a run");
                    (run.virtual_ns, run.commits, run.device)
                };
                let (first, second) = (run(), run());
                assert!(first.0 > 0);
                assert_eq!(first, second, "{} {}", system.name, work.name());
            }
        }
    }
}

/// SQLite itself finds the updates.
#[test]
fn updates_are_in_the_database() {
    let volume = volume();
    for mode in [JournalMode::Delete, JournalMode::Truncate, JournalMode::Wal] {
        let work = Updates {
            mode,
            rows: 200,
            updates: 60,
            seed: 9,
        };
        let bed = bed(&volume);
        let mut session = Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {});
        work.prepare(&mut session).expect("preparing");
        let content = |session: &mut Session<'_>| {
            let database = Database::open(session, "updates.db", mode, 1);
            let database = database.expect("the database");
            database.check_integrity().expect("an intact one");
            let all = "SELECT group_concat(hex(content), ' ') FROM (SELECT content FROM things \
                ORDER BY id)";
            let all: String = database.value(all).expect("its rows");
            database.close(session).expect("to close it");
            all.split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        let before = content(&mut session);
        work.run(&mut session).expect("running");
        let after = content(&mut session);
        let changed = before.iter().zip(&after).filter(|(old, new)| old != new);
        // 60 draws of 200 rows meet 52 of them on average, with a deviation of 2.6.
        let changed = changed.count();
        assert!((42..=60).contains(&changed), "{}: {changed}", work.name());
        assert!(after.len() == 200 && after.iter().all(|content| content.len() == 200));
    }
}
