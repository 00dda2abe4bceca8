//! A group of writes to several files survives as a whole or not at all, at whatever moment the
//! power goes off. Once its commit has returned, it survives.
//!
//! Each group writes its number to the same scattered pages of all files. Here every handle is a
//! transaction of its own, so a group that takes two is found.

use std::sync::Arc;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, Schedule, Scheduled};
use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;
use stetfs_media::sim::{SimDev, SimOptions};

use crate::volume::{self, Random, image, mount};

const FILES: usize = 3;
const GROUPS: u64 = 20;
const CUTS: u64 = 25;

/// The offset and length of each write of a group: pages, parts of pages, and several pages.
const PIECES: [(u64, usize); 5] = [
    (0, 4096),
    (12_288, 4096),
    (20_000, 300),
    (65_536, 20_480),
    (262_144, 4096),
];

fn name(file: usize) -> Vec<u8> {
    format!("file{file}").into_bytes()
}

fn bytes(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Makes each handle begin a transaction.
#[derive(Debug)]
struct EachHandle;

impl Schedule for EachHandle {
    fn commits_first(&self) -> bool {
        true
    }

    fn splits(&self) -> bool {
        true
    }

    fn pass(&self) {}

    fn wait(&self) {
        std::thread::yield_now();
    }
}

/// Commits groups. Returns each number of changes of the device after which a group was durable,
/// with that group's number.
fn commit_groups(fs: &Fs, dev: &SimDev, files: &[InodeNo]) -> Vec<(u64, u64)> {
    let c = Caller::root();
    let mut durable = vec![(dev.changes(), 0)];
    for number in 1..=GROUPS {
        let mut group = fs.begin();
        for (at, len) in PIECES {
            for ino in files {
                group.write(&c, *ino, at, &bytes(number, len)).unwrap();
            }
        }
        match number % 3 {
            0 => group.commit_lazy(&c).unwrap(),
            _ => {
                group.commit(&c).unwrap();
                durable.push((dev.changes(), number));
            }
        }
    }
    durable
}

/// Returns the number of the group whose content all files have.
fn judge(fs: &Fs, what: &str) -> u64 {
    let c = Caller::root();
    let mut found = None;
    for file in 0..FILES {
        let ino = fs.lookup(&c, fs.root(), &name(file)).unwrap().ino;
        for (at, len) in PIECES {
            let mut seen = vec![0; len];
            let n = fs.read(ino, at, &mut seen).unwrap();
            seen.truncate(n);
            let first = seen
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word));
            let number = *found.get_or_insert(first);
            let expected = match number {
                0 => vec![0; n],
                _ => bytes(number, len),
            };
            assert!(
                seen == expected,
                "{what}: file {file} at {at}: {first}, others {number}"
            );
        }
    }
    found.unwrap_or_default()
}

fn cut(options: &str, seed: u64) {
    let parsed = || MountOptions::parse(&format!("{options},commit=3600")).unwrap();
    let start = image("-t ext4 -b 4096 -J size=4", 48);
    let dev = Arc::new(SimOptions::default().build(start));
    let fs = mount(dev.clone(), parsed());
    let (c, how) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let make = |file: usize| {
        let ino = fs
            .create(&c, fs.root(), &name(file), 0o644, how)
            .unwrap()
            .ino;
        let marked = InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA;
        fs.set_flags(&c, ino, marked).unwrap();
        ino
    };
    let files: Vec<_> = (0..FILES).map(make).collect();
    fs.sync().unwrap();
    let begin = dev.changes();
    let durable = {
        let _scheduled = Scheduled::by(Arc::new(EachHandle));
        commit_groups(&fs, &dev, &files)
    };
    drop(fs);
    let (when, mut random) = ((begin, CUTS), Random::new(seed));
    volume::cut(&dev, when, &mut random, parsed, |fs, moment, case| {
        let what = format!("{options}, seed {seed}, {case}");
        let found = judge(fs, &what);
        let told = durable.iter().rfind(|(changes, _)| *changes <= moment);
        let floor = told.map_or(0, |(_, number)| *number);
        assert!(found >= floor, "{what}: group {found}, durable was {floor}");
    });
}

#[test]
fn a_group_is_whole_wherever_the_power_goes_off() {
    for (options, seed) in [
        ("data=ordered", 1),
        ("data=writeback", 2),
        ("data=journal", 3),
        ("scheme=stet", 4),
    ] {
        cut(options, seed);
    }
}
