//! Files of which one write(2) is one transaction, all or nothing: marked files, or all.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use support::{Volume, counted, open, run, wait_until};

/// Size of a volume, in MiB, that takes a request of 1 MiB in one transaction.
const MIB: u32 = 300;
const KINDS: [&str; 2] = ["-b", "4096"];

const LARGEST: usize = 1 << 20;

fn promised(path: &Path) -> u64 {
    let mut text = [0; 32];
    let name = "system.stetfs.atomic_write_max";
    let len = rustix::fs::getxattr(path, name, &mut text[..]).unwrap();
    std::str::from_utf8(&text[..len]).unwrap().parse().unwrap()
}

/// Where a record lies in a file. It consists of words that each have the number of the write that
/// they are from.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    len: usize,
}

/// From 4 KiB to 1 MiB, aligned and not, none overlapping.
const PLACES: [Place; 6] = [
    Place {
        offset: 0,
        len: 4096,
    },
    Place {
        offset: 5000,
        len: 10_000,
    },
    Place {
        offset: 16_384,
        len: 65_536,
    },
    Place {
        offset: 100_001,
        len: 300_000,
    },
    Place {
        offset: 1 << 19,
        len: LARGEST,
    },
    Place {
        offset: (1 << 21) + 1234,
        len: LARGEST,
    },
];

fn record(writing: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| writing.to_le_bytes());
    words.take(len).collect()
}

/// Returns the number of the write that a record is from; `None` if it is from several.
fn writing(bytes: &[u8]) -> Option<u64> {
    let mut words = bytes.chunks_exact(8);
    let first = words
        .next()
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    let word = first.unwrap_or(0);
    let is_whole = bytes.chunks(8).all(|w| *w == word.to_le_bytes()[..w.len()]);
    is_whole.then_some(word)
}

/// The least number that each place of each file must have: what was synced.
type Floors = Vec<Vec<AtomicU64>>;

/// Writes records until `stops` is set or the server is gone.
fn write_records(file: &File, turn: u64, floors: &[AtomicU64], stops: &AtomicBool) {
    let mut number = 1;
    let mut newest = [0; PLACES.len()];
    while !stops.load(Ordering::Relaxed) {
        let at = ((number * 7 + turn * 3) % PLACES.len() as u64) as usize;
        let place = PLACES[at];
        // The memory does not begin at a page boundary.
        let all = record(number, place.len + 8);
        match file.write_at(&all[8..], place.offset) {
            Ok(n) => assert_eq!(n, place.len, "cut short"),
            Err(_) => return,
        }
        newest[at] = number;
        if number % 5 == turn {
            if file.sync_data().is_err() {
                return;
            }
            for (floor, newest) in floors.iter().zip(newest) {
                floor.store(newest, Ordering::Relaxed);
            }
        }
        number += 1;
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    (0..3).map(|n| dir.join(format!("file{n}"))).collect()
}

/// Kills the server while a thread writes and syncs each file.
fn killed_while_written(volume: &Volume, options: &str, dir: &Path, after: Duration) -> Floors {
    let server = volume.mount(options);
    let floors: Floors = files(dir)
        .iter()
        .map(|_| PLACES.map(|_| AtomicU64::new(0)).into())
        .collect();
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        for ((path, floors), turn) in files(dir).iter().zip(&floors).zip(0..) {
            let (file, stops) = (open(path), &stops);
            scope.spawn(move || write_records(&file, turn, floors, stops));
        }
        thread::sleep(after);
        server.signal(rustix::process::Signal::KILL);
        stops.store(true, Ordering::Relaxed);
    });
    server.crash(&volume.dir);
    floors
}

#[test]
fn a_record_is_there_as_a_whole_when_the_server_was_killed() {
    need!(support::root_and_fuse());
    for (options, is_marked) in [
        ("data=ordered", true),
        ("data=writeback", true),
        ("data=ordered,atomic=all", false),
        ("scheme=stet", true),
    ] {
        let volume = Volume::new(MIB, &KINDS);
        let server = volume.mount(options);
        let dir = if is_marked {
            volume.marked()
        } else {
            volume.dir.clone()
        };
        for path in files(&dir) {
            let file = open(&path);
            for place in PLACES {
                file.write_all_at(&record(0, place.len), place.offset)
                    .unwrap();
            }
        }
        volume.unmount(server);
        for round in 0..3 {
            let after = Duration::from_millis(150 + 90 * round);
            let floors = killed_while_written(&volume, options, &dir, after);
            let server = volume.mount(options);
            for (path, floors) in files(&dir).iter().zip(&floors) {
                let content = fs::read(path).unwrap();
                for (place, floor) in PLACES.iter().zip(floors) {
                    let at = place.offset as usize;
                    let found = writing(&content[at..at + place.len]);
                    let floor = floor.load(Ordering::Relaxed);
                    assert!(
                        found.is_some_and(|found| found >= floor),
                        "{options}, round {round}: {} at {at}: {found:?}, synced was {floor}",
                        path.display()
                    );
                }
            }
            // Each round counts from 0.
            for path in files(&dir) {
                let file = open(&path);
                for place in PLACES {
                    file.write_all_at(&record(0, place.len), place.offset)
                        .unwrap();
                }
            }
            volume.unmount(server);
        }
    }
}

#[test]
fn one_write_is_one_request_wherever_it_begins() {
    need!(support::root_and_fuse());
    let volume = Volume::new(MIB, &KINDS);
    let server = volume.mount("data=ordered");
    let dir = volume.marked();
    let (path, plain) = (dir.join("file"), volume.path("plain"));
    let file = open(&path);
    drop(open(&plain));
    assert_eq!(promised(&path), LARGEST as u64);
    assert_eq!(promised(&plain), 0);
    let bytes = vec![7; LARGEST + 4096];
    for (offset, from, len) in [
        (0, 0, LARGEST),
        (1, 0, LARGEST),
        (4095, 1, LARGEST),
        (LARGEST as u64 * 3, 4095, LARGEST),
        (100, 3, 5000),
    ] {
        let before = counted(&volume, "/server/requests/write");
        file.write_all_at(&bytes[from..from + len], offset).unwrap();
        let requests = counted(&volume, "/server/requests/write") - before;
        assert_eq!(requests, 1, "{len} bytes from {from} at {offset}");
    }
    drop(file);
    volume.unmount(server);
    let server = volume.mount("atomic=none");
    assert_eq!(promised(&path), 0);
    volume.unmount(server);
}

#[test]
fn readers_and_maps_see_what_was_written() {
    need!(support::root_and_fuse());
    need!(support::have("xfs_io"));
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let path = volume.marked().join("file");
    let file = open(&path);
    file.write_all_at(&[1; 20_000], 0).unwrap();
    // A reader gets it from the page cache.
    let reader = File::open(&path).unwrap();
    let read = || {
        let mut bytes = [0; 20_000];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(read(), [1; 20_000]);
    let before = counted(&volume, "/server/requests/read");
    assert_eq!(read(), [1; 20_000]);
    assert_eq!(counted(&volume, "/server/requests/read"), before);
    file.write_all_at(&[2; 5000], 7000).unwrap();
    assert_eq!(read()[6999..12_001], [&[1][..], &[2; 5000], &[1]].concat());
    // A store to a memory map is written, and a map shows what is written.
    let script = [
        "mmap -rw 0 20000",
        "mwrite -S 0x33 100 10",
        "pwrite -S 0x44 105 5",
        "mread -v 100 10",
        "msync -s",
    ];
    let script = script.iter().flat_map(|line| ["-c", line]);
    let out = run(Command::new("xfs_io").args(script).arg(&path));
    let out = String::from_utf8_lossy(&out.stdout);
    assert!(out.contains("33 33 33 33 33 44 44 44 44 44"), "{out}");
    assert_eq!(
        read()[99..111],
        *b"\x01\x33\x33\x33\x33\x33\x44\x44\x44\x44\x44\x01"
    );
    // An append goes to the end, and the times are those of the writes.
    let before = file.metadata().unwrap().modified().unwrap();
    thread::sleep(Duration::from_millis(20));
    let mut how = File::options();
    let log = how
        .append(true)
        .custom_flags(libc::O_DSYNC)
        .open(&path)
        .unwrap();
    std::io::Write::write_all(&mut &log, b"end").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 20_003);
    drop((file, reader, log));
    if support::kernel() >= (6, 18) {
        wait_until("the kernel has asked for times", || {
            fs::metadata(&path).unwrap().modified().unwrap() > before
        });
    }
    volume.unmount(server);
    let server = volume.mount("ro");
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > before);
    volume.unmount(server);
}

#[test]
fn on_a_full_volume_nothing_of_a_write_is_done() {
    need!(support::root_and_fuse());
    let volume = Volume::new(24, &KINDS);
    let server = volume.mount("data=ordered");
    let path = volume.marked().join("file");
    let file = open(&path);
    let (mut end, mut len) = (0, 200_000);
    while len > 1000 {
        match file.write_at(&vec![5; len], end) {
            Ok(n) => {
                assert_eq!(n, len, "cut short");
                end += n as u64;
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                assert_eq!(file.metadata().unwrap().len(), end);
                len /= 2;
            }
        }
    }
    // An overwrite still works.
    assert_eq!(file.write_at(&[6; 100_000], 50).unwrap(), 100_000);
    drop(file);
    volume.unmount(server);
}
