//! One write to a marked file survives as a whole or not at all, at whatever moment the power goes
//! off: records of 4 KiB to 1 MiB, aligned and not, of several writers.
//!
//! Each writer overwrites its records again and again and sometimes syncs them, while the others
//! end transactions in between. Every word of a record holds the number of the write that it is
//! from. The power goes off at `STETFS_STRESS_CUTS` moments (default 20), each time with all, none
//! and some of the pending changes kept. Then each record must be from one write, and none from
//! before the last sync.

use std::sync::Arc;
use std::thread;

use stetfs::{Caller, Fs, MountOptions, OpenFlags};
use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;
use stetfs_media::sim::{Keep, SimDev, SimOptions};

use crate::volume::{self, Random, image, mount};

const WRITERS: u64 = 3;

/// Offset and length of each record, in bytes.
const RECORDS: [(u64, usize); 6] = [
    (0, 4096),
    (5000, 10_000),
    (16_384, 65_536),
    (100_001, 300_000),
    (1 << 19, 1 << 20),
    ((1 << 21) + 1234, 1 << 20),
];

/// The syncs of one writer: after how many changes of the device each returned, and the number of
/// the last write to each record.
type Synced = Vec<(u64, [u64; RECORDS.len()])>;

fn cuts() -> u64 {
    let cuts = std::env::var("STETFS_STRESS_CUTS").ok();
    cuts.and_then(|n| n.parse().ok()).unwrap_or(20)
}

fn name(writer: u64) -> Vec<u8> {
    format!("file{writer}").into_bytes()
}

fn record(writing: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| writing.to_le_bytes());
    words.take(len).collect()
}

/// Returns the number of the write that a record is from; `None` when it is from several.
fn writing(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let is_whole = bytes.chunks(8).all(|w| *w == word.to_le_bytes()[..w.len()]);
    is_whole.then_some(word)
}

fn write_records(fs: &Fs, dev: &SimDev, ino: InodeNo, seed: u64) -> Synced {
    let c = Caller::root();
    let mut random = Random::new(seed);
    let (mut newest, mut synced) = ([0; RECORDS.len()], Vec::new());
    for number in 1..=24 {
        let at = random.below(RECORDS.len() as u64) as usize;
        let (offset, len) = RECORDS[at];
        let n = fs.write(&c, ino, offset, &record(number, len)).unwrap();
        assert_eq!(n, len, "cut short");
        newest[at] = number;
        if random.below(3) == 0 {
            fs.fsync(ino, true).unwrap();
            synced.push((dev.changes(), newest));
        }
    }
    synced
}

/// Makes the files in a marked directory, each with write 0 of its records. The first file is all
/// holes, the last is preallocated.
fn make(fs: &Fs) -> Vec<InodeNo> {
    let (c, how) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let dir = fs.mkdir(&c, fs.root(), b"marked", 0o755).unwrap().ino;
    fs.set_flags(&c, dir, InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA)
        .unwrap();
    let made = (0..WRITERS).map(|writer| {
        let ino = fs.create(&c, dir, &name(writer), 0o644, how).unwrap().ino;
        assert!(fs.is_atomic(ino).unwrap(), "inherited");
        let (last, len) = RECORDS[RECORDS.len() - 1];
        match writer {
            0 => drop(fs.write(&c, ino, last + len as u64, &[0]).unwrap()),
            1 => {
                for (offset, len) in RECORDS {
                    fs.write(&c, ino, offset, &record(0, len)).unwrap();
                }
            }
            _ => {
                let mode = stetfs::FallocateMode::empty();
                fs.fallocate(&c, ino, mode, 0, last + len as u64).unwrap();
            }
        }
        ino
    });
    let made = made.collect();
    fs.sync().unwrap();
    made
}

fn cut(options: &str, seed: u64) {
    let parsed = || MountOptions::parse(&format!("{options},commit=3600")).unwrap();
    let start = image("-t ext4 -b 4096 -J size=16", 64);
    let dev = Arc::new(SimOptions::default().build(start));
    let fs = mount(dev.clone(), parsed());
    assert!(fs.marked_write_max() >= 1 << 20);
    let files = make(&fs);
    let begin = dev.changes();
    let synced: Vec<Synced> = thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .zip(seed..)
            .map(|(ino, seed)| {
                let (fs, dev) = (&fs, &*dev);
                scope.spawn(move || write_records(fs, dev, *ino, seed))
            })
            .collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    drop(fs);
    let (when, mut random) = ((begin, cuts()), Random::new(!seed));
    volume::cut(&dev, when, &mut random, parsed, |fs, moment, case| {
        judge(
            fs,
            moment,
            &synced,
            &format!("{options}, seed {seed}, {case}"),
        );
    });
}

fn judge(fs: &Fs, moment: u64, synced: &[Synced], what: &str) {
    let c = Caller::root();
    let dir = fs.lookup(&c, fs.root(), b"marked").unwrap().ino;
    for (writer, synced) in (0..).zip(synced) {
        let ino = fs.lookup(&c, dir, &name(writer)).unwrap().ino;
        let told = synced.iter().rfind(|(changes, _)| *changes <= moment);
        let floors = told.map_or([0; RECORDS.len()], |(_, newest)| *newest);
        for ((offset, len), floor) in RECORDS.into_iter().zip(floors) {
            let mut bytes = vec![0; len];
            let n = fs.read(ino, offset, &mut bytes).unwrap();
            assert_eq!(n, len, "{what}: file {writer}");
            let found = writing(&bytes);
            assert!(
                found.is_some_and(|found| found >= floor),
                "{what}: file {writer} at {offset}: {found:?}, synced was {floor}"
            );
        }
    }
}

#[test]
fn a_record_is_whole_wherever_the_power_goes_off() {
    for (options, seed) in [
        ("data=ordered", 1),
        ("data=writeback", 2),
        ("data=journal", 3),
        ("scheme=stet", 4),
    ] {
        cut(options, seed);
    }
}

/// When a file is no longer marked, or is gone, its blocks are written in place by their next
/// owner. Their content in the log must not come back.
#[test]
fn what_was_logged_does_not_come_back() {
    let (c, how) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let options = || MountOptions::parse("data=ordered,commit=3600").unwrap();
    let dev = Arc::new(SimOptions::default().build(image("-t ext4 -b 4096 -J size=4", 24)));
    let fs = mount(dev.clone(), options());
    let create = |name: &[u8]| fs.create(&c, fs.root(), name, 0o644, how).unwrap().ino;
    let flags = |ino| fs.getattr(ino).unwrap().flags;
    let mark = |ino, is_marked| {
        let mut flags = flags(ino);
        flags.set(InodeFlags::JOURNAL_DATA, is_marked);
        fs.set_flags(&c, ino, flags).unwrap();
    };
    let file = create(b"unmarked");
    mark(file, true);
    for byte in 1..4 {
        fs.write(&c, file, 0, &[byte; 40_960]).unwrap();
        fs.fsync(file, true).unwrap();
    }
    mark(file, false);
    assert!(!fs.is_atomic(file).unwrap());
    fs.write(&c, file, 0, &[4; 40_960]).unwrap();
    fs.fsync(file, true).unwrap();
    // The blocks of this file go to another one.
    let gone = create(b"gone");
    mark(gone, true);
    for byte in 5..8 {
        fs.write(&c, gone, 0, &[byte; 409_600]).unwrap();
        fs.fsync(gone, true).unwrap();
    }
    fs.unlink(&c, fs.root(), b"gone").unwrap();
    fs.release(gone).unwrap();
    fs.sync().unwrap();
    let next = create(b"next");
    let room = (fs.stats().blocks_free - 200) * 4096;
    let most = usize::try_from(room).unwrap();
    let bytes = vec![9; 1 << 20];
    for at in (0..most).step_by(bytes.len()) {
        let len = bytes.len().min(most - at);
        fs.write(&c, next, at as u64, &bytes[..len]).unwrap();
    }
    fs.fsync(next, true).unwrap();
    drop(fs);
    let left = SimOptions::default().build(dev.crash_point().state(&Keep::All));
    let fs = mount(Arc::new(left), options());
    let content = |name: &[u8], len: usize| {
        let ino = fs.lookup(&c, fs.root(), name).unwrap().ino;
        let mut bytes = vec![0; len];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), len);
        bytes
    };
    assert!(content(b"unmarked", 40_960).iter().all(|b| *b == 4));
    assert!(content(b"next", most).iter().all(|b| *b == 9));
}
