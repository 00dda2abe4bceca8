//! Bad blocks and wrong bits occur as often as the part says, within four standard deviations.

use super::*;

/// Checks that `count` lies within four standard deviations of the number expected of `n` draws
/// with this chance.
fn assert_plausible(what: &str, count: usize, n: usize, chance: f64) {
    let mean = n as f64 * chance;
    let off = 4.0 * (mean * (1.0 - chance)).sqrt();
    assert!(
        (count as f64 - mean).abs() <= off,
        "{what}: {count} of {n}, expected {mean:.1} +- {off:.1}"
    );
}

/// Poisson's distribution, straight from its definition.
fn poisson(mean: f64, count: u32) -> f64 {
    let factorial: f64 = (1..=count).map(f64::from).product();
    (-mean).exp() * mean.powi(count as i32) / factorial
}

#[test]
fn factory_bad_blocks_are_marked() {
    let mut counts = Vec::new();
    for seed in 0..4 {
        let part = parts::JFTL.with_seed(seed);
        let nand = NandSim::new(part);
        let mut spare = [0; 16];
        let mut count = 0;
        for block in (0..part.geometry.blocks).map(BlockAddr) {
            let bad = nand.is_bad(block).expect("memory");
            let first = part.geometry.page_at(block, 0);
            let seen = nand.read_spare(first, &mut spare, TAG);
            assert_eq!(seen, Ok(Corrected::default()));
            assert_eq!(spare[5] != 0xff, bad, "{block}");
            count += usize::from(bad);
        }
        assert_eq!(nand.is_bad(BlockAddr(0)), Ok(false));
        assert_plausible("bad blocks", count, 8192, 0.0097);
        counts.push(count);
    }
    assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
}

#[test]
fn the_first_block_is_good() {
    let mut part = SMALL;
    part.wear.factory_bad_ppm = 1_000_000;
    let nand = NandSim::new(part);
    let bad: Vec<_> = (0..6).map(|b| nand.is_bad(BlockAddr(b))).collect();
    assert_eq!(bad, [false, true, true, true, true, true].map(Ok));
}

/// Erases and programs each block until it goes bad, up to `last` erases. Returns how often each
/// was erased.
fn lives(part: NandPart, last: u32) -> Vec<u32> {
    let nand = NandOptions {
        record: false,
        ..NandOptions::new(part)
    }
    .build();
    let (data, spare) = content(&part, 1);
    let life = |block: BlockAddr| {
        (1..=last)
            .find(|_| {
                nand.erase(block, Cause::Gc).is_err()
                    || (0..part.geometry.pages_per_block)
                        .map(|index| part.geometry.page_at(block, index))
                        .any(|page| nand.program(page, &data, &spare, TAG).is_err())
            })
            .unwrap_or(last + 1)
    };
    (0..part.geometry.blocks)
        .map(|b| life(BlockAddr(b)))
        .collect()
}

#[test]
fn blocks_die_when_they_are_said_to() {
    let mut part = SMALL.with_blocks(1000);
    part.wear.endurance_erases = 20;
    part.wear.early_bad_ppm = 100_000;
    let lives = lives(part, 40);
    let early: Vec<&u32> = lives.iter().filter(|life| **life <= 20).collect();
    assert_plausible("early deaths", early.len(), 1000, 0.1);
    let by_half = early.iter().filter(|life| ***life <= 10).count();
    assert_plausible("in the first half", by_half, early.len(), 0.5);
    // The chance at each erase is 0.7 (n - 20) / 400, twice: once for the erase, once for the
    // programs.
    let survive = |n: u32| {
        let erase = 0.7 * f64::from(n - 20) / 400.0;
        (1.0 - erase) * (1.0 - erase / 4.0).powi(4)
    };
    let at_twice: f64 = (21..=40).map(survive).product();
    assert!((0.4..0.6).contains(&at_twice), "{at_twice}");
    let full = 1000 - early.len();
    let alive = lives.iter().filter(|life| **life > 40).count();
    assert_plausible("alive at twice the endurance", alive, full, at_twice);
    assert!(lives.iter().any(|life| (21..=40).contains(life)));
}

#[test]
fn parts_that_exist_keep_their_blocks() {
    // Promised at the end: 8,032 of 8,192 blocks of JFTL's part, 3,936 of 4,096 of the other one.
    for (part, kept) in [(parts::JFTL, 8032), (parts::MLC, 3936)] {
        part.check().expect("it exists");
        let blocks = part.geometry.blocks as usize;
        let share = f64::from(part.wear.factory_bad_ppm + part.wear.early_bad_ppm) / 1e6;
        let lost = (blocks as f64 * share).round() as usize;
        assert!((kept..kept + 3).contains(&(blocks - lost)), "{lost}");
    }
    assert_eq!(parts::JFTL.geometry.data_bytes(), 128 << 20);
    assert_eq!(parts::MLC.geometry.data_bytes(), 8 << 30);
}

/// A part with one codeword a page and hardly any in the spare area; 4 wrong bits expected, 8
/// corrected.
fn erring() -> NandPart {
    let mut part = SMALL.with_blocks(64);
    part.geometry.pages_per_block = 32;
    part.ecc.strength_bits = 8;
    part.wear.endurance_erases = 1000;
    part.wear.worn_errors_per_pbit = 1_000_000_000_000_000 / 1024;
    part
}

fn programmed(part: NandPart, erases: u32) -> NandSim {
    let nand = NandOptions {
        erases,
        ..NandOptions::new(part)
    }
    .build();
    for page in 0..part.geometry.pages() {
        program(&nand, &part, page, page.into()).expect("a program");
    }
    nand
}

#[test]
fn wrong_bits_are_poisson_and_corrected_up_to_the_strength() {
    // Half the endurance: a quarter of the errors.
    for (erases, mean) in [(1000, 4.0), (500, 1.0), (0, 0.0)] {
        let part = erring();
        let nand = programmed(part, erases);
        let pages = part.geometry.pages();
        let mut counts = [0; 10];
        for page in 0..pages {
            let got = read(&nand, page);
            let right = got.is(&content(&part, page.into()));
            match got.result {
                Ok(corrected) => {
                    assert!(right && corrected.bits <= 8, "page {page}");
                    counts[corrected.bits as usize] += 1;
                }
                Err(e) => {
                    let page = PageNo(page);
                    assert_eq!(e, NandError::Uncorrectable { page });
                    assert!(!right, "page {page}");
                    counts[9] += 1;
                }
            }
        }
        // The spare area has 128 bits, of which 0.125 are wrong when the page has 4 wrong ones. The
        // part reports the worse of the two counts.
        let spare = mean * 128.0 / 4096.0;
        let below = |mean: f64, n: u32| (0..=n).map(|k| poisson(mean, k)).sum::<f64>();
        let at_most = |n: u32| below(mean, n) * below(spare, n);
        for (n, count) in (0..).zip(counts) {
            let chance = match n {
                0 => at_most(0),
                9 => 1.0 - at_most(8),
                n => at_most(n) - at_most(n - 1),
            };
            assert_plausible(&format!("{n} of {mean}"), count, pages as usize, chance);
        }
    }
}

#[test]
fn uncorrectable_pages_stay_so_and_reads_only_add() {
    let mut part = erring();
    part.geometry.blocks = 2;
    part.wear.disturb_errors_per_pbit = 50_000_000_000;
    let nand = programmed(part, 1000);
    let bits = |page| match read(&nand, page).result {
        Ok(corrected) => corrected.bits,
        Err(_) => 9,
    };
    let mut before: Vec<u32> = (0..32).map(bits).collect();
    let sum = before.iter().sum::<u32>();
    // 32 * 60 reads at 50 in 10^6 each: 0.39 more wrong bits a page.
    for _ in 0..60 {
        let now: Vec<u32> = (0..32).map(bits).collect();
        assert!(before.iter().zip(&now).all(|(b, n)| b <= n));
        before = now;
    }
    assert!(before.iter().sum::<u32>() > sum, "{sum}");
    // A power cut or an erase makes the part forget the reads.
    let all_bits = |nand: &NandSim| -> u32 {
        let bits = |page| match read(nand, page).result {
            Ok(corrected) => corrected.bits,
            Err(_) => 9,
        };
        (0..32).map(bits).sum()
    };
    let again = nand.crash_point().crash(Outcome::NotStarted);
    assert_eq!(all_bits(&again), sum);
    nand.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    for page in 0..32 {
        program(&nand, &part, page, page.into()).expect("a program");
    }
    assert_eq!(all_bits(&nand), all_bits(&programmed(part, 1001)));
}

/// A read of the spare area alone corrects its own codeword.
#[test]
fn spare_areas_are_corrected_by_themselves() {
    let mut part = erring();
    part.ecc.strength_bits = 0;
    let nand = programmed(part, 1000);
    let pages = part.geometry.pages();
    let right = (0..pages).filter(|page| {
        let mut spare = [0; 16];
        let seen = nand.read_spare(PageNo(*page), &mut spare, TAG);
        let same = spare[..] == content(&part, (*page).into()).1;
        assert_eq!(seen.is_ok(), same, "page {page}");
        same
    });
    let chance = (-0.125_f64).exp();
    assert_plausible("spare areas", right.count(), pages as usize, chance);
}
