//! A full device, wear, and how much a mount reads.

use super::*;
use stetfs_ftl::Inspection;
use stetfs_media::Errno;
use stetfs_media::nand::{BlockAddr, Nand, NandOptions};

fn untaped(part: NandPart) -> Arc<NandSim> {
    let options = NandOptions {
        record: false,
        ..NandOptions::new(part)
    };
    Arc::new(options.build())
}

/// Writes a page whose content belongs to `n`.
fn write(ftl: &Ftl, page: u64, n: u64) -> Result<(), MediaError> {
    let contents = vec![n];
    carry_out(
        ftl,
        &Step::Write {
            first: page,
            contents,
        },
    )
}

fn fill(ftl: &Ftl) {
    for page in 0..pages_of(ftl) {
        write(ftl, page, page + 1).expect("a page within the capacity");
    }
}

/// Returns the part's own erase counts of the blocks that are neither bad nor the anchors'.
fn erases(nand: &NandSim) -> Vec<u32> {
    let blocks = (8..nand.geometry().blocks).map(BlockAddr);
    let good = blocks.filter(|block| nand.is_bad(*block) == Ok(false));
    good.map(|block| nand.block(block).expect("a block").erases)
        .collect()
}

/// However full the device is, all exported pages can be overwritten again and again.
#[test]
fn a_full_device_can_be_overwritten() {
    for percent in [1, 7, 30] {
        let nand = untaped(small(96, 8));
        let options = FtlOptions {
            over_provisioning_percent: percent,
            ..FtlOptions::default()
        };
        let ftl = Ftl::create(nand, UUID, &options, MountOptions::default()).expect("a layer");
        fill(&ftl);
        let pages = pages_of(&ftl);
        let mut chance = Chance(percent.into());
        let mut held: Vec<u64> = (1..=pages).collect();
        for n in 0..8 * pages {
            let page = chance.below(pages);
            held[page as usize] = n << 20;
            write(&ftl, page, n << 20).expect("an overwrite");
        }
        let all = read_all(&ftl).expect("all of it");
        assert!(all.iter().zip(&held).all(|(page, n)| *page == content(*n)));
    }
}

/// When too many blocks have gone bad, writing ends with the error "no space", and everything
/// written before can be read.
#[test]
fn a_worn_out_part_can_be_read() {
    let mut part = small(64, 8);
    part.wear.endurance_erases = 30;
    let nand = untaped(part);
    let ftl = create(&nand, 0);
    fill(&ftl);
    let pages = pages_of(&ftl);
    let mut held: Vec<u64> = (1..=pages).collect();
    let mut chance = Chance(3);
    let end = (1..1_000_000).find_map(|n| {
        let page = chance.below(pages);
        match write(&ftl, page, n << 20) {
            Ok(()) => held[page as usize] = n << 20,
            Err(e) => return Some(e),
        }
        None
    });
    let is_no_space =
        |e: &MediaError| matches!(e, MediaError::Io { source, .. } if *source == Errno::NOSPC);
    assert!(end.as_ref().is_some_and(is_no_space), "{end:?}");
    assert!(ftl.read_only());
    let all = read_all(&ftl).expect("all of it");
    let differs = all
        .iter()
        .zip(&held)
        .position(|(page, n)| *page != content(*n));
    assert_eq!(differs, None);
    assert_eq!(ftl.wear().spare_blocks, 0);
    drop(ftl);
    let mut found = Inspection::new(nand).expect("a layer");
    assert!(found.check().expect("a check").is_clean());
}

/// Most of the device is written once and a twentieth all the time, but the erases are evenly
/// distributed.
#[test]
fn cold_data_does_not_keep_its_blocks() {
    let nand = untaped(small(128, 8));
    let ftl = create(&nand, 0);
    fill(&ftl);
    let pages = pages_of(&ftl);
    let mut chance = Chance(1);
    for n in 0..100 * pages {
        write(&ftl, chance.below(pages / 20), n << 20).expect("an overwrite");
    }
    let erases = erases(&nand);
    let mean = erases.iter().sum::<u32>() as f64 / erases.len() as f64;
    let least = f64::from(*erases.iter().min().expect("blocks"));
    let most = f64::from(*erases.iter().max().expect("blocks"));
    println!("erases: mean {mean:.1}, from {least} to {most}");
    assert!(mean > 75.0);
    assert!(
        least > 0.9 * mean && most < 1.1 * mean,
        "{least} {mean} {most}"
    );
    // The layer's own counts agree.
    let wear = ftl.wear();
    let mut sorted = erases;
    sorted.sort_unstable();
    assert_eq!(wear.erases, sorted);
    let anchors = wear.anchor_erases.iter().max().expect("anchors");
    assert!(f64::from(*anchors) < 1.1 * mean, "{anchors} of an anchor");
}

/// A mount reads only the map and what is newer than the checkpoint, which is bounded; so it does
/// after a power cut.
#[test]
fn a_mount_reads_a_part_of_the_part() {
    let part = small(1024, 32);
    let nand = untaped(part);
    let ftl = create(&nand, 0);
    fill(&ftl);
    let pages = pages_of(&ftl);
    let mut chance = Chance(1);
    let all = u64::from(part.geometry.pages());
    // Map pages with places and erase counts, directory, anchors; sixteen times as many pages; and
    // what one step may add.
    let map = pages.div_ceil(128) + 8 + 2 + 2;
    let bound = map + 16 * map + 600;
    assert!(bound < all / 6, "the bound says nothing: {bound} of {all}");
    let mut most = 0;
    let mut ftl = Some(ftl);
    for n in 0..16 {
        for i in 0..997 {
            let page = chance.below(pages);
            write(ftl.as_ref().expect("mounted"), page, (n * 997 + i) << 20).expect("a page");
        }
        // The layer is not closed first, as in a power cut.
        let found = Inspection::new(nand.clone()).expect("a layer");
        most = most.max(found.report.pages_read);
    }
    println!("at most {most} of {all} pages read, bound {bound}");
    assert!(most <= bound);
    assert!(most > map, "nothing was scanned");
    ftl.as_ref()
        .expect("mounted")
        .checkpoint()
        .expect("a checkpoint");
    drop(ftl.take());
    let clean = mount(&nand).mount_report();
    println!("after a checkpoint: {clean:?}");
    // Anchors, a page of each block in the pool, blocks that are open.
    assert!(clean.pages_read < map + 8 + 2 * 32 + 64 + 4 * 32);
    assert_eq!(clean.data_pages, 0);
}
