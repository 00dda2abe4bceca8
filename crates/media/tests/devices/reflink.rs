//! Files on file systems with reflinks keep the promises of remapping, on XFS and Btrfs with
//! default options. Tests report that they are left out if such a file system cannot be made or
//! mounted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::statvfs;
use stetfs_media::{BlockDev, Cause, Errno, FileDev, JournalCopy, MediaError, Op, RemapPair};

use crate::conformance::TAG;
use crate::files::Scratch;
use crate::loops::{Loop, Mount};

const UNIT: u64 = 4096;
/// Size of the file in units.
const UNITS: u64 = 256;

/// Runs a test with a directory on each such file system.
fn on_each(test: impl Fn(&Path)) {
    for kind in ["xfs", "btrfs"] {
        let scratch = Scratch::new();
        let image = scratch.image("medium", 400 << 20);
        let made = Command::new(format!("mkfs.{kind}"))
            .args(["-q", "-f"])
            .arg(&image)
            .output();
        match made {
            Ok(made) if made.status.success() => {}
            other => {
                eprintln!("SKIPPED: mkfs.{kind}: {other:?}");
                continue;
            }
        }
        let Some(device) = Loop::over(&image, 512) else {
            continue;
        };
        let dir = scratch.path("mount");
        let Some(_mount) = Mount::new(kind, "noatime", &device.0, &dir) else {
            continue;
        };
        test(&dir);
    }
}

/// Opens a new file in which every unit holds its number.
fn numbered(dir: &Path, direct: bool) -> FileDev {
    let path = dir.join("file");
    let file = File::create(&path).expect("a file");
    for n in 0..UNITS {
        let unit = [n as u8; UNIT as usize];
        file.write_all_at(&unit, n * UNIT).expect("a write");
    }
    FileDev::options()
        .direct(direct)
        .open(&path)
        .expect("it can be opened")
}

fn unit_at(dev: &FileDev, n: u64) -> Vec<u8> {
    let mut out = vec![0; UNIT as usize];
    dev.read_at(n * UNIT, &mut out, TAG).expect("a read");
    out
}

fn assert_holds(dev: &FileDev, n: u64, content: u64) {
    let is = unit_at(dev, n);
    let all = is.iter().all(|b| *b == content as u8);
    assert!(all, "unit {n} holds {} and not {content}", is[0]);
}

/// Converts pairs of units to pairs of sectors.
fn pairs(dev: &FileDev, units: &[(u64, u64)]) -> Vec<RemapPair> {
    let sectors = UNIT / u64::from(dev.sector_size());
    let pair = |(home, journal): &(u64, u64), i| RemapPair {
        home: home * sectors + i,
        journal: journal * sectors + i,
    };
    let of = |unit| (0..sectors).map(move |i| pair(unit, i));
    units.iter().flat_map(of).collect()
}

fn remap(dev: &FileDev, units: &[(u64, u64)], journal: JournalCopy) -> Result<(), MediaError> {
    let remap = dev.remap().expect("a file system with reflinks");
    assert!(!remap.is_atomic());
    assert_eq!(u64::from(remap.granularity()), UNIT);
    remap.remap(&pairs(dev, units), journal)
}

#[test]
fn homes_get_the_content_and_share_it() {
    on_each(|dir| {
        for direct in [false, true] {
            let dev = numbered(dir, direct);
            dev.flush(Cause::Home).expect("a flush");
            let free = |dev: &FileDev| {
                dev.flush(Cause::Home).expect("a flush");
                statvfs(dir).expect("statvfs").f_bfree
            };
            let before = free(&dev);
            // A run, single pairs, a hole as home, and one home twice: the later pair counts.
            let end = UNITS * UNIT;
            let hole = File::options()
                .write(true)
                .open(dir.join("file"))
                .expect("the file");
            rustix::fs::fallocate(
                &hole,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                end - 2 * UNIT,
                UNIT,
            )
            .expect("a hole");
            let writes = dev.meter().snapshot().total().write_bytes;
            let list = [
                (10, 100),
                (11, 101),
                (12, 102),
                (50, 200),
                (UNITS - 2, 99),
                (7, 99),
                (7, 98),
            ];
            remap(&dev, &list, JournalCopy::Kept).expect("a remap");
            assert_eq!(dev.meter().snapshot().total().write_bytes, writes);
            for (home, holds) in [
                (10, 100),
                (11, 101),
                (12, 102),
                (50, 200),
                (UNITS - 2, 99),
                (7, 98),
            ] {
                assert_holds(&dev, home, holds);
                assert_holds(&dev, holds, holds);
            }
            assert_holds(&dev, 13, 13);
            assert!(free(&dev) >= before, "nothing was copied");
            // A write to either address leaves the other alone.
            dev.write_at(100 * UNIT, &[1; UNIT as usize], TAG)
                .expect("a write");
            dev.write_at(11 * UNIT, &[2; UNIT as usize], TAG)
                .expect("a write");
            assert_holds(&dev, 10, 100);
            assert_holds(&dev, 100, 1);
            assert_holds(&dev, 101, 101);
            assert_holds(&dev, 11, 2);
        }
    });
}

#[test]
fn what_was_just_written_is_remapped_without_a_flush() {
    on_each(|dir| {
        for direct in [false, true] {
            let dev = numbered(dir, direct);
            // The home is in the page cache too, and dirty.
            dev.write_at(30 * UNIT, &[77; UNIT as usize], TAG)
                .expect("a write");
            dev.write_at(130 * UNIT, &[88; UNIT as usize], TAG)
                .expect("a write");
            remap(&dev, &[(30, 130)], JournalCopy::Kept).expect("a remap");
            assert_holds(&dev, 30, 88);
        }
    });
}

#[test]
fn released_copies_read_as_zeros() {
    on_each(|dir| {
        let dev = numbered(dir, false);
        remap(&dev, &[(10, 100), (20, 101)], JournalCopy::Released).expect("a remap");
        for (unit, holds) in [
            (10, 100),
            (20, 101),
            (100, 0),
            (101, 0),
            (99, 99),
            (102, 102),
        ] {
            assert_holds(&dev, unit, holds);
        }
        let remap = dev.remap().expect("it can");
        remap.release(102 * UNIT, UNIT).expect("released");
        dev.write_at(102 * UNIT, &[5; UNIT as usize], TAG)
            .expect("a write");
        assert_holds(&dev, 102, 5);
        assert_holds(&dev, 103, 103);
    });
}

#[test]
fn lists_that_do_not_fit_are_refused_and_change_nothing() {
    on_each(|dir| {
        let dev = numbered(dir, false);
        let past = remap(&dev, &[(10, 100), (UNITS, 101)], JournalCopy::Kept);
        assert!(
            matches!(past, Err(MediaError::PastEnd { op: Op::Remap, .. })),
            "{past:?}"
        );
        let both = [
            &[(10, 100), (100, 50)][..],
            &[(10, 11), (11, 12), (12, 13)],
            &[(40, 41), (42, 43), (60, 61), (43, 10)],
        ];
        for list in both {
            let refused = remap(&dev, list, JournalCopy::Kept);
            let is_inval = matches!(
                refused,
                Err(MediaError::Io {
                    op: Op::Remap,
                    source: Errno::INVAL,
                    ..
                })
            );
            assert!(is_inval, "{list:?}: {refused:?}");
        }
        let sectors = UNIT / u64::from(dev.sector_size());
        let part: Vec<RemapPair> = pairs(&dev, &[(10, 100)]).split_off(1);
        let shifted = (0..sectors).map(|i| RemapPair {
            home: 10 * sectors + i,
            journal: 100 * sectors + 1 + i,
        });
        for list in [part, shifted.collect()] {
            let refused = dev.remap().expect("it can").remap(&list, JournalCopy::Kept);
            let is_named = match refused {
                Err(MediaError::Misaligned {
                    op: Op::Remap,
                    sector,
                    ..
                }) => u64::from(sector) == UNIT,
                _ => false,
            };
            assert!(is_named, "{refused:?}");
        }
        for n in 0..UNITS {
            assert_holds(&dev, n, n);
        }
        remap(&dev, &[], JournalCopy::Released).expect("nothing to do");
    });
}

#[test]
fn a_file_system_without_reflinks_and_a_file_for_reading_cannot() {
    let scratch = Scratch::new();
    on_each(|dir| {
        drop(numbered(dir, false));
        let read_only = FileDev::options().read_only(true).open(dir.join("file"));
        assert!(read_only.expect("it can be opened").remap().is_none());
    });
    let image = scratch.image("medium", 16 << 20);
    let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status();
    assert!(made.is_ok_and(|status| status.success()));
    let Some(device) = Loop::over(&image, 512) else {
        return;
    };
    let block_device = FileDev::options()
        .open(&device.0)
        .expect("it can be opened");
    assert!(block_device.remap().is_none());
    drop(block_device);
    let dir = scratch.path("mount");
    let Some(_mount) = Mount::new("ext4", "noatime", &device.0, &dir) else {
        return;
    };
    assert!(numbered(&dir, false).remap().is_none());
}
