//! The promises of a block device, remap, bit errors, and the account of all requests.

use super::*;
use stetfs_ftl::Inspection;
use stetfs_media::nand::{Nand, NandOptions};
use stetfs_media::sim::Fault;
use stetfs_media::{Errno, Op};

fn write(ftl: &Ftl, first: u64, contents: &[u64]) {
    let contents = contents.to_vec();
    carry_out(ftl, &Step::Write { first, contents }).expect("a write");
}

fn read(ftl: &Ftl, page: u64) -> Vec<u8> {
    let mut out = vec![0x5a; PAGE];
    ftl.read_at(page * PAGE as u64, &mut out, TAG)
        .expect("a page");
    out
}

fn remap(ftl: &Ftl, pairs: &[(u64, u64)], journal: JournalCopy) {
    let pair = |(home, journal): &(u64, u64)| RemapPair {
        home: *home,
        journal: *journal,
    };
    let pairs = pairs.iter().map(pair).collect();
    carry_out(ftl, &Step::Remap { pairs, journal }).expect("a remap");
}

#[test]
fn requests_outside_are_refused_by_name() {
    let ftl = create(&Arc::new(NandSim::new(small(96, 8))), 0);
    let (size, mut out) = (ftl.size(), vec![0; PAGE]);
    assert!(matches!(
        ftl.read_at(1, &mut out, TAG),
        Err(MediaError::Misaligned {
            op: Op::Read,
            offset: 1,
            ..
        })
    ));
    assert!(matches!(
        ftl.read_at(size, &mut out, TAG),
        Err(MediaError::PastEnd { op: Op::Read, .. })
    ));
    assert!(matches!(
        ftl.write_at(size - 512, &[0; 1024], TAG),
        Err(MediaError::PastEnd { op: Op::Write, .. })
    ));
    assert!(matches!(
        ftl.write_vectored_at(0, &[&[0; 500], &[0; 12]], TAG),
        Err(MediaError::Misaligned {
            op: Op::Write,
            len: 500,
            ..
        })
    ));
    assert!(matches!(
        ftl.discard(u64::MAX - 511, 512),
        Err(MediaError::PastEnd {
            op: Op::Discard,
            ..
        })
    ));
    let pairs = [RemapPair {
        home: u64::MAX,
        journal: 0,
    }];
    let remap = ftl.remap().expect("it can");
    assert!(matches!(
        remap.remap(&pairs, JournalCopy::Kept),
        Err(MediaError::PastEnd { .. })
    ));
    let too_many: Vec<RemapPair> = (0..ftl.size() / 512)
        .map(|home| RemapPair {
            home,
            journal: home * 7919 % (ftl.size() / 512),
        })
        .collect();
    assert!(too_many.len() > remap.max_pairs());
    write(&ftl, 0, &(1..=too_many.len() as u64).collect::<Vec<_>>());
    assert!(matches!(
        remap.remap(&too_many, JournalCopy::Kept),
        Err(MediaError::Io {
            source: Errno::TOOBIG,
            ..
        })
    ));
    remap
        .remap(&too_many[..remap.max_pairs()], JournalCopy::Kept)
        .expect("so many are promised");
    assert!(!ftl.read_only());
}

/// Remaps that swap, form a ring, name a home twice, have home and journal the same, or an empty
/// journal.
#[test]
fn a_remap_takes_effect_at_once() {
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 0);
    write(&ftl, 0, &[10, 11, 12, 13, 14, 15]);
    remap(&ftl, &[(0, 1), (1, 0)], JournalCopy::Released);
    remap(&ftl, &[(2, 3), (2, 4)], JournalCopy::Kept);
    remap(&ftl, &[(5, 5)], JournalCopy::Released);
    remap(&ftl, &[(3, 100)], JournalCopy::Released);
    let expected = [11, 10, 14, 0, 14, 15];
    let check = |ftl: &Ftl| {
        for (page, n) in expected.iter().enumerate() {
            assert!(read(ftl, page as u64) == content(*n), "page {page}");
        }
    };
    check(&ftl);
    drop(ftl);
    let mut found = Inspection::new(nand.clone()).expect("a layer");
    assert_eq!(found.info().shared_pages, 1);
    let check_of = found.check().expect("a check");
    assert!(check_of.is_clean());
    assert_eq!(check_of.remapped, 3);
    check(&mount(&nand));
}

/// A journal of 64 pages becomes home and none of its pages is programmed again: the log takes a
/// page or two.
#[test]
fn a_remap_programs_the_log_alone() {
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 0);
    write(&ftl, 0, &[1; 64]);
    write(&ftl, 300, &(1..=64).collect::<Vec<_>>());
    ftl.checkpoint().expect("a checkpoint");
    let before = nand.meter().snapshot();
    let pairs: Vec<(u64, u64)> = (0..64).map(|i| (i, 300 + i)).collect();
    remap(&ftl, &pairs, JournalCopy::Released);
    let done = nand.meter().snapshot() - &before;
    assert_eq!(done.total().writes, done.by_cause(Cause::Map).writes);
    assert!(done.total().writes <= 2, "{}", done.total().writes);
    assert_eq!(ftl.stats().remapped_pages, 64);
    for page in 0..64 {
        assert!(read(&ftl, page) == content(page + 1));
        assert!(read(&ftl, 300 + page) == content(0));
    }
}

/// A whole write programs each of its pages once and nothing else. More pages than the part has
/// room for are refused.
#[test]
fn a_whole_write_costs_no_program_more() {
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 0);
    write(&ftl, 0, &[1; 64]);
    ftl.checkpoint().expect("a checkpoint");
    let before = nand.meter().snapshot();
    let runs = vec![(3, vec![11, 12, 13]), (40, vec![14]), (50, vec![15, 16])];
    carry_out(&ftl, &Step::Whole { runs: runs.clone() }).expect("a step");
    let done = nand.meter().snapshot() - &before;
    assert_eq!(done.of(TAG).writes, 6);
    assert_eq!(done.total().writes, 6);
    for (first, contents) in runs {
        for (page, n) in (first..).zip(contents) {
            assert!(read(&ftl, page) == content(n));
        }
    }
    let most = ftl.atomic_write().expect("it can").max_sectors() as u64;
    assert!(most >= 32, "{most}");
    let whole = |len| Step::Whole {
        runs: vec![(0, vec![99; len as usize])],
    };
    let refused = carry_out(&ftl, &whole(most + 1)).expect_err("there is no room");
    assert!(matches!(refused, MediaError::Io { source, .. } if source == Errno::TOOBIG));
    assert!(read(&ftl, 0) == content(1));
    carry_out(&ftl, &whole(most)).expect("a step");
    assert!(read(&ftl, most - 1) == content(99));
}

/// The meter of the part agrees with the layer's own counts, by cause.
#[test]
fn the_meter_has_everything() {
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 0);
    let mut chance = Chance(5);
    let mut host = 0;
    for number in 0..3000 {
        let step = any_step(&mut chance, &ftl, number);
        host += match &step {
            Step::Write { contents, .. } => contents.len() as u64,
            Step::Whole { runs } => runs.iter().map(|run| run.1.len() as u64).sum(),
            _ => 0,
        };
        carry_out(&ftl, &step).expect("a step");
    }
    let (meter, stats) = (nand.meter().snapshot(), ftl.stats());
    assert_eq!(meter.of(TAG).writes, host);
    assert_eq!(stats.host_pages, host);
    assert_eq!(stats.gc_pages, meter.by_cause(Cause::Gc).writes);
    assert_eq!(stats.map_pages, meter.by_cause(Cause::Map).writes);
    assert!(stats.gc_pages > 0 && stats.map_pages > 0);
    let all = meter.total().writes as f64 / host as f64;
    assert!((stats.write_amplification().expect("writes") - all).abs() < 1e-9);
    assert!(meter.total_erases() > 0);
}

/// A page with nearly as many wrong bits as the code corrects is read and moved; the next read
/// finds it good.
#[test]
fn a_page_is_moved_before_it_is_lost() {
    let mut part = small(96, 8);
    part.ecc.strength_bits = 4;
    part.wear.endurance_erases = 10;
    part.wear.fresh_errors_per_pbit = 100_000_000_000;
    part.wear.worn_errors_per_pbit = 100_000_000_000;
    // Each read adds a bit in 10^5 at the end of the endurance.
    part.wear.disturb_errors_per_pbit = 10_000_000_000;
    let options = NandOptions {
        record: false,
        erases: 2,
        part,
    };
    let nand = Arc::new(options.build());
    let ftl = create(&nand, 0);
    write(&ftl, 0, &(1..=64).collect::<Vec<_>>());
    let before = ftl.stats().gc_pages;
    for round in 0..400 {
        for page in 0..64 {
            assert!(
                read(&ftl, page) == content(page + 1),
                "round {round}, page {page}"
            );
        }
    }
    let moved = ftl.stats().gc_pages - before;
    assert!(moved > 64, "{moved} pages were moved");
}

/// An unreadable page gives an error, never something else, even after it was moved; writing it
/// again repairs it.
#[test]
fn what_is_lost_stays_lost_until_it_is_written() {
    const LOST: u64 = 3;
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 0);
    let pages = pages_of(&ftl);
    write(&ftl, LOST, &[1]);
    write(&ftl, 0, &(1..=LOST).collect::<Vec<_>>());
    write(&ftl, LOST + 1, &(1..pages - LOST).collect::<Vec<_>>());
    let first = nand.tape();
    let place = first.entries().iter().find_map(|entry| match entry {
        stetfs_media::nand::NandEntry::Program { page, tag, .. } if *tag == TAG => Some(*page),
        _ => None,
    });
    let at = u64::from(place.expect("it was programmed").0) * PAGE as u64;
    nand.inject(
        Fault::nth(Op::Read, 0)
            .within(at..at + PAGE as u64)
            .for_good(),
    );
    let offset = LOST * PAGE as u64;
    let lost = |ftl: &Ftl| {
        let read = ftl.read_at(offset, &mut [0; PAGE], TAG);
        read.expect_err("it is lost")
    };
    let is_io = |e: &MediaError| {
        let MediaError::Io { source, offset, .. } = e else {
            return false;
        };
        *source == Errno::IO && *offset == LOST * PAGE as u64
    };
    assert!(is_io(&lost(&ftl)));
    // Long enough for garbage collection to move everything, so that the unreadable place belongs
    // to another page.
    let mut chance = Chance(8);
    for n in 0..8 * pages {
        let page = chance.below(pages - 1);
        write(&ftl, page + u64::from(page >= LOST), &[n << 20]);
    }
    nand.heal();
    assert!(is_io(&lost(&ftl)));
    drop(ftl);
    let mut found = Inspection::new(nand.clone()).expect("a layer");
    // Other pages that came to lie there are lost, too.
    assert!(
        found
            .check()
            .expect("a check")
            .lost
            .contains(&(LOST as u32))
    );
    let ftl = mount(&nand);
    assert!(is_io(&lost(&ftl)));
    write(&ftl, LOST, &[77]);
    assert!(read(&ftl, LOST) == content(77));
}

/// A page that is written several times before a flush is programmed once.
#[test]
fn the_write_buffer_swallows_what_is_written_again() {
    let nand = Arc::new(NandSim::new(small(96, 8)));
    let ftl = create(&nand, 8);
    assert!(ftl.volatile_cache());
    for n in 0..100 {
        write(&ftl, 3, &[n]);
    }
    assert!(read(&ftl, 3) == content(99));
    assert_eq!(ftl.stats().host_pages, 0);
    ftl.flush(Cause::Home).expect("a flush");
    assert_eq!(ftl.stats().host_pages, 1);
    drop(ftl);
    assert!(read(&mount(&nand), 3) == content(99));
}
