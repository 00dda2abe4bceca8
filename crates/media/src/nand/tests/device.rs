//! Faults, time, and the same luck for the same requests.

use super::*;
use crate::error::Op;
use crate::sim::{Fault, scramble};

#[test]
fn faults_choose_by_kind_place_and_turn() {
    let nand = NandSim::new(SMALL);
    nand.inject(Fault::nth(Op::Read, 1).within(512..1024).times(2));
    (0..3).for_each(|page| program(&nand, &SMALL, page, 1).expect("a program"));
    let results: Vec<bool> = [1, 0, 1, 2, 1, 1]
        .map(|page| read(&nand, page).result.is_ok())
        .to_vec();
    assert_eq!(results, [true, true, false, true, false, true]);
    assert_eq!(nand.faults_struck(), 2);

    nand.inject(Fault::nth(Op::Write, 0).within(16 * 512..u64::MAX));
    program(&nand, &SMALL, 3, 1).expect("not there");
    let page = PageNo(16);
    assert_eq!(
        program(&nand, &SMALL, 16, 1),
        Err(NandError::ProgramFailed { page })
    );
    nand.inject(Fault::nth(Op::Erase, 0).for_good());
    let block = BlockAddr(0);
    assert_eq!(
        nand.erase(block, Cause::Gc),
        Err(NandError::EraseFailed { block })
    );
    nand.heal();
    nand.erase(BlockAddr(1), Cause::Gc).expect("healed");
}

/// Pages programmed in a block before it went bad can be read, and its spare area shows the mark.
#[test]
fn grown_bad_blocks_can_be_saved() {
    let nand = NandSim::new(SMALL);
    program(&nand, &SMALL, 4, 1).expect("a program");
    nand.inject(Fault::nth(Op::Write, 0));
    program(&nand, &SMALL, 5, 2).expect_err("planned");
    assert!(read(&nand, 4).is(&content(&SMALL, 1)));
    assert_eq!(nand.is_bad(BlockAddr(1)), Ok(false), "nobody has marked it");
    nand.mark_bad(BlockAddr(1), Cause::Gc).expect("a mark");
    nand.mark_bad(BlockAddr(1), Cause::Gc).expect("once more");
    assert_eq!(nand.is_bad(BlockAddr(1)), Ok(true));
    let got = read(&nand, 4);
    let mut expected = content(&SMALL, 1);
    expected.1[5] = 0;
    assert!(got.is(&expected));
    assert!(read(&nand, 5).result.is_err());
}

#[test]
fn requests_take_the_time_of_the_part() {
    let part = parts::MLC.flawless().with_blocks(2);
    let nand = NandSim::new(part);
    let clock = &nand.rig().clock;
    let step = |expected: u64| {
        let ns = clock.now_ns();
        move || assert_eq!(clock.now_ns() - ns, expected)
    };
    // 8,640 bytes at 200 MB/s are 43.2 us.
    let check = step(1_300_000 + 43_200);
    program(&nand, &part, 0, 1).expect("a program");
    check();
    let check = step(75_000 + 43_200);
    assert!(read(&nand, 0).is(&content(&part, 1)));
    check();
    let check = step(75_000 + 2_240);
    let mut spare = [0; 448];
    let spare_read = nand.read_spare(PageNo(0), &mut spare, TAG);
    assert_eq!(spare_read, Ok(Corrected::default()));
    check();
    let check = step(3_800_000);
    nand.erase(BlockAddr(0), Cause::Map).expect("an erase");
    check();
    // A failed request is not counted.
    let check = step(0);
    nand.inject(Fault::nth_of_any(0).times(2));
    program(&nand, &part, 0, 1).expect_err("planned");
    nand.erase(BlockAddr(1), Cause::Map).expect_err("planned");
    check();
    let count = nand.meter().snapshot();
    assert_eq!(count.busy_ns(Cause::Map), 3_800_000);
    assert_eq!(count.of(TAG).busy_ns, 1_343_200 + 118_200 + 77_240);
    assert_eq!(count.total_busy_ns(), clock.now_ns());
    // A bus without a rate takes no time.
    let mut part = part;
    part.timing.bus_bytes_per_us = 0;
    let nand = NandSim::new(part);
    program(&nand, &part, 0, 1).expect("a program");
    assert_eq!(nand.rig().clock.now_ns(), 1_300_000);
}

/// Makes random requests on a worn part with many errors. Returns their answers, the time, and the
/// part.
fn busy_run(part: NandPart, requests: u64) -> (Vec<String>, u64, NandSim) {
    let nand = NandOptions {
        erases: 24,
        ..NandOptions::new(part)
    }
    .build();
    let mut answers = Vec::new();
    for n in 0..requests {
        let lot = scramble(n);
        let block = BlockAddr((lot >> 8) as u32 % part.geometry.blocks);
        let state = nand.block(block).expect("memory");
        if state.condition != BlockCondition::Good {
            continue;
        }
        let answer = match lot % 8 {
            0 => format!("{:?}", nand.erase(block, Cause::Gc)),
            1..=4 if state.next_page < part.geometry.pages_per_block => {
                let page = part.geometry.page_at(block, state.next_page);
                format!("{:?}", program(&nand, &part, page.0, n))
            }
            _ => {
                let index = (lot >> 40) as u32 % part.geometry.pages_per_block;
                let got = read(&nand, part.geometry.page_at(block, index).0);
                format!("{:?} {:?} {:?}", got.result, got.data, got.spare)
            }
        };
        answers.push(answer);
    }
    let ns = nand.rig().clock.now_ns();
    (answers, ns, nand)
}

/// A part with short life and many errors.
fn feeble() -> NandPart {
    let mut part = SMALL.with_blocks(64);
    part.wear = NandWear {
        endurance_erases: 25,
        factory_bad_ppm: 50_000,
        early_bad_ppm: 300_000,
        fresh_errors_per_pbit: 20_000_000_000,
        worn_errors_per_pbit: 100_000_000_000,
        disturb_errors_per_pbit: 1_000_000_000,
    };
    part
}

#[test]
fn the_same_seed_has_the_same_luck() {
    let (answers, ns, nand) = busy_run(feeble(), 4000);
    let (again, ns_again, nand_again) = busy_run(feeble(), 4000);
    assert_eq!((&answers, ns), (&again, ns_again));
    assert_eq!(nand.image(), nand_again.image());
    assert_eq!(nand.tape().entries(), nand_again.tape().entries());
    // Every kind of failure has occurred.
    for what in ["ProgramFailed", "EraseFailed", "Uncorrectable", "bits: 1 "] {
        assert!(answers.iter().any(|a| a.contains(what)), "{what}");
    }
    let (others, ..) = busy_run(feeble().with_seed(2), 4000);
    assert_ne!(answers, others);
    // The tape leads to the same part.
    let tape = nand.tape();
    let replayed = tape.crash_point(tape.len()).crash(Outcome::NotStarted);
    assert_eq!(replayed.image(), nand.image());
}
