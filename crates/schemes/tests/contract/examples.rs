//! Recovery cases of the two examples that a power cut does not reach.

use std::sync::Arc;

use stetfs_format::checksum::crc32c;
use stetfs_media::{Image, SimDev};
use stetfs_scheme::{Opened, RecoveryReport, SchemeError};
use stetfs_schemes::find;

use crate::rig::{BLOCK, BLOCKS, LOG, Rig, Rng, UUID, World, transaction, volume};

/// Log blocks of the two slots for roots, and the first place, of scheme `shadow` on this rig.
const SLOTS: [u64; 2] = [2, 3];
const FIRST_PLACE: u64 = 4;

/// Returns the byte offset of a log block.
fn log_at(n: u64) -> u64 {
    let first = u64::from(LOG[0].len);
    let block = if n < first {
        LOG[0].start.plus(n)
    } else {
        LOG[1].start.plus(n - first)
    };
    block.0 * BLOCK as u64
}

fn rig(image: &Image) -> (Arc<SimDev>, Rig) {
    let dev = Arc::new(SimDev::new(image.clone()));
    (dev.clone(), Rig::on(dev))
}

/// Returns the medium and the committed contents after each of `commits` commits, as a mount leaves
/// them that is not closed.
fn left(scheme: &str, commits: u32) -> Vec<(Image, World)> {
    let (dev, rig) = rig(&volume());
    let opened = rig.open(find(scheme).expect("a scheme"), false);
    let opened = opened.expect("it opens");
    let (mut world, mut rng) = (World::new(), Rng(3));
    let mut commit = |tid| {
        let txn = transaction(tid, &mut world, &mut rng, opened.terms.wants);
        opened.scheme.commit(&txn).expect("a commit");
        (dev.newest(), world.clone())
    };
    (1..=commits).map(&mut commit).collect()
}

fn open(scheme: &str, rig: &Rig) -> stetfs_scheme::Result<Opened> {
    rig.open(find(scheme).expect("a scheme"), true)
}

/// Recovers; returns whether the world is home then, and the report.
fn recovered(scheme: &str, image: &Image, world: &World) -> (bool, RecoveryReport) {
    let (_, rig) = rig(image);
    let opened = open(scheme, &rig).expect("a recovery");
    (rig.is_home(world), opened.report)
}

/// Asserts that the image is refused for this reason and not changed.
fn assert_refused(scheme: &str, image: &Image, why: &str) {
    let (dev, rig) = rig(image);
    let error = open(scheme, &rig).map(drop).expect_err(why).to_string();
    assert!(error.contains(why), "{error}");
    assert!(
        dev.newest().to_bytes() == image.to_bytes(),
        "{why}: it wrote"
    );
}

fn damaged(image: &Image, log_block: u64) -> Image {
    let (mut image, at) = (image.clone(), log_at(log_block));
    let mut bytes = [0; 64];
    image.read(at, &mut bytes);
    image.write(at, &bytes.map(|byte| !byte));
    image
}

/// Returns the image with another home in the first entry of that map, and a right checksum.
fn with_home(image: &Image, log_block: u64, home: u64) -> Image {
    let (mut image, at) = (image.clone(), log_at(log_block));
    let mut raw = [0; BLOCK];
    image.read(at, &mut raw);
    raw[0x20..0x28].copy_from_slice(&home.to_le_bytes());
    let count = u32::from_le_bytes(raw[0x14..0x18].try_into().expect("four bytes")) as usize;
    let crc = crc32c(crc32c(!0, &UUID), &raw[..0x1c]);
    let crc = crc32c(crc, &raw[0x20..0x20 + 16 * count]);
    raw[0x1c..0x20].copy_from_slice(&crc.to_le_bytes());
    image.write(at, &raw);
    image
}

#[test]
fn everything_that_is_named_gets_home() {
    for (scheme, transactions) in [("template", 1), ("shadow", 4)] {
        let (image, world) = left(scheme, 4).pop().expect("four");
        let (is_home, report) = recovered(scheme, &image, &world);
        assert!(is_home && report.was_needed, "{scheme}: {report:?}");
        assert_eq!(report.transactions, transactions, "{scheme}");
    }
}

#[test]
fn without_the_mark_nothing_counts() {
    for scheme in ["template", "shadow"] {
        let (image, world) = left(scheme, 4).pop().expect("four");
        let (dev, rig) = rig(&image);
        let opened = rig.open(find(scheme).expect("a scheme"), false);
        let report = opened.expect("it opens").report;
        assert!(!report.was_needed && report.transactions == 0, "{report:?}");
        // Nor is anything found after a power cut before the first commit.
        let (is_home, report) = recovered(scheme, &dev.newest(), &world);
        assert!(!is_home && report.blocks == 0, "{scheme}: {report:?}");
    }
}

#[test]
fn a_log_of_somebody_else_is_refused() {
    for (scheme, other) in [("template", "shadow"), ("shadow", "template")] {
        let (image, _) = left(scheme, 4).pop().expect("four");
        assert_refused(other, &image, &format!("was written by scheme {scheme}"));
        assert_refused(scheme, &damaged(&image, 1), "log header");
        let (_, rig) = rig(&image);
        let rig = Rig {
            uuid: [8; 16],
            ..rig
        };
        let error = open(scheme, &rig).map(drop).expect_err("another volume");
        assert!(matches!(error, SchemeError::Unusable(_)), "{error}");
    }
}

/// If the newest root is torn, the one before it counts, and all of its blocks are there.
#[test]
fn of_two_roots_the_newest_that_counts_is_taken() {
    let left = left("shadow", 4);
    for (n, (image, world)) in left.iter().enumerate() {
        // A new log begins with generation 1.
        let newest = SLOTS[(n + 2) % 2];
        assert!(recovered("shadow", image, world).0);
        let before = match n {
            0 => &World::new(),
            n => &left[n - 1].1,
        };
        let (is_home, report) = recovered("shadow", &damaged(image, newest), before);
        assert!(is_home, "{report:?}");
        assert_eq!(report.transactions, n as u32);
        let older = damaged(image, SLOTS[(n + 1) % 2]);
        assert!(recovered("shadow", &older, world).0);
    }
}

#[test]
fn two_damaged_roots_are_an_error() {
    let (image, _) = left("shadow", 4).pop().expect("four");
    let image = damaged(&damaged(&image, SLOTS[0]), SLOTS[1]);
    assert_refused("shadow", &image, "neither of its roots is intact");
}

/// If the map of scheme `template` is torn, everything that was committed before it is home.
#[test]
fn a_damaged_map_means_that_everything_is_home() {
    let left = left("template", 4);
    let (image, _) = &left[3];
    let (is_home, report) = recovered("template", &damaged(image, 2), &left[2].1);
    assert!(is_home && report.blocks == 0, "{report:?}");
}

#[test]
fn a_damaged_copy_is_an_error() {
    for (scheme, place) in [("template", 3), ("shadow", FIRST_PLACE)] {
        let (image, world) = left(scheme, 1).pop().expect("one");
        assert!(recovered(scheme, &image, &world).0);
        assert_refused(scheme, &damaged(&image, place), "is damaged");
    }
}

#[test]
fn a_map_of_blocks_that_no_file_system_logs_is_an_error() {
    for (scheme, at) in [("template", 2), ("shadow", 2)] {
        let (image, _) = left(scheme, 1).pop().expect("one");
        for home in [BLOCKS, u64::MAX, LOG[1].start.0] {
            assert_refused(scheme, &with_home(&image, at, home), &home.to_string());
        }
    }
}
