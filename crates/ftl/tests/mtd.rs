//! The layer on a real part behind Linux's MTD layer. `STETFS_MTD=/dev/mtdN` names one, **whose
//! content is lost**; without it these tests report that they are left out. `make test-mtd` runs
//! them in a virtual machine on parts of the kernel's own nandsim, in order, in one thread.
//!
//! Two variables repeat what nandsim was told: `STETFS_MTD_BAD` is an erase block that is bad, and
//! `STETFS_MTD_FLIPS` is set if it flips bits.

#[path = "ftl/chance.rs"]
mod chance;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stetfs_ftl::{Ftl, FtlError, FtlOptions, Inspection, MountOptions};
use stetfs_media::nand::{BlockAddr, MtdNand, Nand, NandError};
use stetfs_media::{BlockDev, Cause, Class, JournalCopy, RemapPair, Tag};

use crate::chance::{Chance, content};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

fn part() -> Option<PathBuf> {
    let path = std::env::var_os("STETFS_MTD").map(PathBuf::from);
    if path.is_none() {
        eprintln!("SKIPPED: STETFS_MTD names no MTD device; see make test-mtd");
    }
    path
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|n| n.parse().expect("a number"))
}

fn open(path: &Path) -> Arc<MtdNand> {
    Arc::new(MtdNand::open(path, false).expect("a part"))
}

#[test]
fn a_part_keeps_the_contract() {
    let Some(path) = part() else { return };
    let nand = open(&path);
    let geometry = nand.geometry();
    let (len, spare_len) = (geometry.page_bytes as usize, geometry.spare_bytes as usize);
    let busy = MtdNand::open(&path, false).err();
    assert!(
        busy.is_some_and(|e| e.to_string().contains("in use")),
        "it is locked"
    );
    if let Some(bad) = number("STETFS_MTD_BAD") {
        let bad = BlockAddr(bad as u32);
        assert_eq!(nand.is_bad(bad), Ok(true));
        let mut spare = vec![0; spare_len];
        let _ = nand.read_spare(geometry.page_at(bad, 0), &mut spare, TAG);
        assert_ne!(spare[geometry.bad_mark as usize], 0xff, "it is marked");
    }
    let block = BlockAddr(1);
    assert_eq!(nand.is_bad(block), Ok(false));
    nand.erase(block, Cause::Gc).expect("an erase");
    let (mut data, mut spare) = (vec![0; len], vec![0; spare_len]);
    let first = geometry.page_at(block, 0);
    let _ = nand
        .read(first, &mut data, &mut spare, TAG)
        .expect("an erased page");
    assert!(data.iter().chain(&spare).all(|byte| *byte == 0xff));
    let mut corrected = 0;
    for index in 0..geometry.pages_per_block {
        let mut record = content(1000 + u64::from(index), spare_len);
        record[geometry.bad_mark as usize] = 0xff;
        let page = geometry.page_at(block, index);
        nand.program(page, &content(index.into(), len), &record, TAG)
            .expect("a program");
    }
    // nandsim flips bits in one read of 1,024.
    for round in 0..if number("STETFS_MTD_FLIPS").is_some() {
        80
    } else {
        1
    } {
        for index in 0..geometry.pages_per_block {
            let mut record = content(1000 + u64::from(index), spare_len);
            record[geometry.bad_mark as usize] = 0xff;
            let page = geometry.page_at(block, index);
            let found = nand.read(page, &mut data, &mut spare, TAG).expect("a read");
            corrected += found.bits;
            assert!(
                data == content(index.into(), len),
                "round {round}, page {page}"
            );
            assert_eq!(spare, record, "round {round}, page {page}");
            let _ = nand.read_spare(page, &mut spare, TAG).expect("a read");
            assert_eq!(spare, record, "round {round}, page {page}");
        }
    }
    assert_eq!(
        corrected > 0,
        number("STETFS_MTD_FLIPS").is_some(),
        "{corrected} bits were corrected"
    );
    nand.erase(block, Cause::Gc).expect("an erase");
    let _ = nand
        .read(first, &mut data, &mut spare, TAG)
        .expect("an erased page");
    assert!(data.iter().chain(&spare).all(|byte| *byte == 0xff));
}

#[test]
fn the_layer_is_a_plain_device() {
    let Some(path) = part() else { return };
    let nand = open(&path);
    let ftl = Ftl::create(
        nand.clone(),
        [3; 16],
        &FtlOptions::default(),
        MountOptions::default(),
    );
    let mut ftl = ftl.expect("a layer");
    let page = ftl.sector_size() as usize;
    let pages = ftl.size() / page as u64;
    let mut now = vec![0u64; pages as usize];
    let mut chance = Chance(1);
    let mut n = 0;
    for round in 0..4 {
        // Enough steps to write everything several times.
        for _ in 0..pages * 2 / 3 {
            n += 1;
            let first = match chance.below(3) {
                0 => chance.below(pages),
                _ => chance.below(pages / 8),
            };
            let count = 1 + chance.below(4.min(pages - first));
            let range = first as usize..(first + count) as usize;
            let (at, len) = (first * page as u64, count * page as u64);
            match chance.below(16) {
                0 => {
                    ftl.discard(at, len).expect("a trim");
                    now[range].fill(0);
                }
                1 | 2 => {
                    let pairs: Vec<RemapPair> = (0..count)
                        .map(|i| RemapPair {
                            home: first + i,
                            journal: chance.below(pages),
                        })
                        .collect();
                    let journal =
                        [JournalCopy::Kept, JournalCopy::Released][chance.below(2) as usize];
                    let remap = ftl.remap().expect("it can");
                    remap.remap(&pairs, journal).expect("a remap");
                    let held: Vec<u64> = pairs.iter().map(|p| now[p.journal as usize]).collect();
                    if journal == JournalCopy::Released {
                        pairs.iter().for_each(|p| now[p.journal as usize] = 0);
                    }
                    pairs
                        .iter()
                        .zip(held)
                        .for_each(|(p, held)| now[p.home as usize] = held);
                }
                _ => {
                    let numbers = (0..count).map(|i| n * 8 + i);
                    let bytes: Vec<u8> = numbers.clone().flat_map(|n| content(n, page)).collect();
                    ftl.write_at(at, &bytes, TAG).expect("a write");
                    now[range]
                        .iter_mut()
                        .zip(numbers)
                        .for_each(|(now, n)| *now = n);
                }
            }
        }
        ftl.flush(Cause::Home).expect("a flush");
        drop(ftl);
        let check = Inspection::new(nand.clone()).and_then(|mut found| found.check());
        let check = check.expect("a sound layer");
        assert!(check.is_clean(), "round {round}: {check:?}");
        ftl = Ftl::mount(nand.clone(), MountOptions::default()).expect("a layer");
        let mut found = vec![0; page];
        for (at, n) in (0u64..).zip(&now) {
            ftl.read_at(at * page as u64, &mut found, TAG)
                .expect("a read");
            assert!(found == content(*n, page), "round {round}: page {at}");
        }
    }
    let meter = nand.meter().snapshot();
    assert!(
        meter.total_erases() > u64::from(nand.geometry().blocks),
        "garbage was collected"
    );
    eprintln!(
        "{}: {} pages programmed, {} read, {} erases",
        nand.describe(),
        meter.total().writes,
        meter.total().reads,
        meter.total_erases()
    );
}

/// `STETFS_MTD_SMALL` names a part with too few free out-of-band bytes, if there is one.
#[test]
fn what_does_not_fit_is_refused_by_name() {
    let Some(path) = std::env::var_os("STETFS_MTD_SMALL") else {
        eprintln!("SKIPPED: STETFS_MTD_SMALL names no MTD device");
        return;
    };
    let refused = MtdNand::open(&path, true).err().expect("it cannot be used");
    assert!(matches!(refused, NandError::NotUsable { .. }), "{refused}");
    assert!(refused.to_string().contains("out-of-band"), "{refused}");
}

/// Runs after the others, because it marks a block bad.
#[test]
fn z_a_block_that_is_marked_bad_is_not_used() {
    let Some(path) = part() else { return };
    let nand = open(&path);
    let bad = BlockAddr(nand.geometry().blocks - 1);
    nand.mark_bad(bad, Cause::Gc).expect("a mark");
    assert_eq!(nand.is_bad(bad), Ok(true));
    assert!(nand.erase(bad, Cause::Gc).is_err(), "the kernel keeps it");
    let made = Ftl::create(
        nand.clone(),
        [4; 16],
        &FtlOptions::default(),
        MountOptions::default(),
    );
    drop(made.expect("a layer"));
    let wear = Inspection::new(nand.clone()).expect("a layer").wear();
    assert!(wear.bad_blocks >= 1);
    // A part that never held a layer is reported as not formatted.
    for block in (0..8).map(BlockAddr) {
        if nand.is_bad(block) == Ok(false) {
            nand.erase(block, Cause::Gc).expect("an erase");
        }
    }
    let found = Inspection::new(nand).err();
    assert_eq!(found, Some(FtlError::NotFormatted));
}
