//! Every moment of a run with every outcome of the request in flight leaves what the table in
//! `outcome.rs` says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::dev::BlockDev;
use crate::error::Op;
use crate::image::Image;
use crate::sim::{Fault, Rig, SimOptions};

/// Fills two blocks, erases them and fills them again, with a program and an erase that fail and a
/// block marked bad.
fn run(nand: &NandSim) -> Result<(), NandError> {
    for (n, page) in (1..).zip([0, 1, 4, 2, 3, 5]) {
        program(nand, &SMALL, page, n)?;
    }
    nand.erase(BlockAddr(0), Cause::Gc)?;
    program(nand, &SMALL, 0, 7)?;
    let failed = program(nand, &SMALL, 6, 8);
    if failed != Err(NandError::ProgramFailed { page: PageNo(6) }) {
        return failed;
    }
    nand.mark_bad(BlockAddr(1), Cause::Gc)?;
    program(nand, &SMALL, 8, 9)?;
    let failed = nand.erase(BlockAddr(2), Cause::Gc);
    if failed
        != Err(NandError::EraseFailed {
            block: BlockAddr(2),
        })
    {
        return failed;
    }
    program(nand, &SMALL, 1, 10)
}

fn part_for_run(rig: &Rig) -> NandSim {
    let nand = NandOptions::new(SMALL).build_on(rig);
    nand.inject(Fault::nth(Op::Write, 7));
    nand.inject(Fault::nth(Op::Erase, 1));
    nand
}

/// The result of reading a page: a content, nothing, an error.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Erased,
    Content(u64),
    /// Something else without an error.
    Wrong,
    Lost,
}

fn find(nand: &NandSim, page: u32) -> Found {
    let got = read(nand, page);
    match got.result {
        Err(NandError::Uncorrectable { .. }) => Found::Lost,
        Err(e) => panic!("{e}"),
        Ok(_) => (1..=10)
            .find(|n| got.is(&content(&SMALL, *n)))
            .map(Found::Content)
            .unwrap_or_else(|| {
                if got.is_erased() {
                    Found::Erased
                } else {
                    Found::Wrong
                }
            }),
    }
}

fn find_all(nand: &NandSim) -> Vec<Found> {
    (0..SMALL.geometry.pages())
        .filter(|page| *page != 4) // carries the bad block mark later on
        .map(|page| find(nand, page))
        .collect()
}

/// The page, or the pages of the block, that a request is about.
fn concerned(entry: &NandEntry) -> Vec<u32> {
    match entry {
        NandEntry::Program { page, .. } | NandEntry::Fade { page } => vec![page.0],
        NandEntry::Erase { block, .. } => (block.0 * 4..block.0 * 4 + 4).collect(),
        NandEntry::MarkBad { .. } => vec![],
    }
}

#[test]
fn states_are_those_of_the_table() {
    let rig = Rig::default();
    let nand = part_for_run(&rig);
    // The content of a part that was stopped before each change.
    let mut before = Vec::new();
    for n in 0..13 {
        let stopped = part_for_run(&Rig::default());
        stopped.rig().power.cut_at(n);
        run(&stopped).expect_err("the power goes off");
        assert!(stopped.rig().power.is_cut());
        before.push(stopped.crash_point());
    }
    run(&nand).expect("the run");
    let tape = nand.tape();
    assert_eq!(tape.len(), 13);
    assert_eq!(nand.changes(), 13);

    for (n, point) in tape.crash_points().enumerate() {
        assert_eq!((point.position(), point.moment()), (n, n as u64));
        let old = point.crash(Outcome::NotStarted);
        let Some(entry) = tape.entries().get(n) else {
            assert_eq!(point.outcomes(), [Outcome::NotStarted]);
            assert_eq!(old.image(), nand.image());
            continue;
        };
        assert_eq!(point.in_flight(), Some(entry));
        let stopped = &before[n];
        let whole = before.get(n + 1).map_or_else(
            || nand.crash_point().crash(Outcome::NotStarted),
            |next| next.crash(Outcome::NotStarted),
        );
        let (old_pages, new_pages) = (find_all(&old), find_all(&whole));
        for outcome in point.outcomes() {
            let left = point.crash(*outcome);
            let case = format!("moment {n}, {entry}, {outcome}");
            assert_eq!(left.image(), tape.crash_point(n).crash(*outcome).image());
            // If the power goes off instead, a planned failure is not known yet.
            let planned = matches!(
                entry,
                NandEntry::Program { failed: true, .. } | NandEntry::Erase { failed: true, .. }
            );
            if !planned {
                assert_eq!(left.image(), stopped.crash(*outcome).image(), "{case}");
            }
            let pages = find_all(&left);
            match outcome {
                Outcome::NotStarted => assert_eq!(pages, old_pages),
                Outcome::Complete => assert_eq!(pages, new_pages, "{case}"),
                _ => {}
            }
            for page in (0..SMALL.geometry.pages()).filter(|page| *page != 4) {
                let at = page as usize - usize::from(page > 4);
                if !concerned(entry).contains(&page) {
                    assert_eq!(pages[at], old_pages[at], "{case}, page {page}");
                    continue;
                }
                let was_there = old_pages[at] != Found::Erased;
                let expected: &[Found] = match outcome {
                    Outcome::NotStarted | Outcome::HalfOld => &[old_pages[at].clone()],
                    Outcome::Complete | Outcome::Marginal => &[new_pages[at].clone()],
                    Outcome::Faint | Outcome::HalfErased => &[Found::Erased],
                    Outcome::Torn => &[Found::Lost],
                    Outcome::HalfTorn if was_there => &[Found::Lost],
                    Outcome::HalfTorn => &[Found::Erased],
                    Outcome::Miscorrected => &[Found::Wrong],
                    Outcome::HalfMixed(_) => &[
                        old_pages[at].clone(),
                        Found::Erased,
                        Found::Lost,
                        Found::Wrong,
                    ],
                };
                let failed = planned && *outcome == Outcome::Marginal;
                assert!(
                    failed || expected.contains(&pages[at]),
                    "{case}, page {page}"
                );
            }
        }
    }
}

/// Every result that a mixed outcome allows does occur.
#[test]
fn mixed_blocks_are_mixed() {
    let nand = NandSim::new(SMALL);
    (0..4).for_each(|page| program(&nand, &SMALL, page, 3).expect("a program"));
    nand.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    let point = nand.tape().crash_point(4);
    let found: Vec<Found> = (0..16)
        .flat_map(|seed| find_all(&point.crash(Outcome::HalfMixed(seed)))[..4].to_vec())
        .collect();
    for kind in [Found::Content(3), Found::Erased, Found::Lost, Found::Wrong] {
        let count = found.iter().filter(|f| **f == kind).count();
        assert!((6..=28).contains(&count), "{kind:?}: {count} of 64");
    }
}

/// In a page that reads wrong without an error, data, spare area or both are wrong.
#[test]
fn deceived_codes_err_in_every_way() {
    let mut ways = [0; 4];
    let nand = NandSim::new(NandPart {
        geometry: NandGeometry {
            pages_per_block: 64,
            ..SMALL.geometry
        },
        ..SMALL
    });
    for page in 0..64 {
        program(&nand, &SMALL, page, 5).expect("a program");
        let point = nand.tape().crash_point(page as usize);
        let got = read(&point.crash(Outcome::Miscorrected), page);
        assert_eq!(got.result, Ok(Corrected { bits: 1 }));
        let (data, spare) = content(&SMALL, 5);
        ways[usize::from(got.data == data) + 2 * usize::from(got.spare == spare)] += 1;
    }
    assert_eq!(ways[3], 0, "right after all");
    assert!(ways[..3].iter().all(|n| *n > 10), "{ways:?}");
}

/// A weakly written page can be read once, by its spare area alone too, and its loss is a change
/// like others.
#[test]
fn marginal_pages_fade() {
    let nand = NandSim::new(SMALL);
    program(&nand, &SMALL, 0, 1).expect("a program");
    let point = nand.tape().crash_point(0);
    let left = point.crash(Outcome::Marginal);
    let first = read(&left, 0);
    assert_eq!(first.result, Ok(Corrected { bits: 1 }));
    assert!(first.is(&content(&SMALL, 1)));
    assert_eq!(find(&left, 0), Found::Lost);
    assert_eq!(left.tape().entries()[0].to_string(), "fade 0");

    let left = point.crash(Outcome::Marginal);
    let mut spare = [0; 16];
    let seen = left.read_spare(PageNo(0), &mut spare, TAG);
    assert_eq!(seen, Ok(Corrected { bits: 1 }));
    assert_eq!(find(&left, 0), Found::Lost);

    let left = point.crash(Outcome::Marginal);
    left.rig().power.cut_at(0);
    assert_eq!(
        read(&left, 0).result,
        Err(NandError::PowerLost { op: Op::Read })
    );
    let again = left.crash_point();
    assert_eq!(again.outcomes(), [Outcome::NotStarted, Outcome::Complete]);
    assert_eq!(
        find(&again.crash(Outcome::NotStarted), 0),
        Found::Content(1)
    );
    assert_eq!(find(&again.crash(Outcome::Complete), 0), Found::Lost);
}

#[test]
fn outcomes_print_and_read_back() {
    let nand = NandSim::new(SMALL);
    run(&part_for_run(&Rig::default())).expect("the run");
    program(&nand, &SMALL, 0, 1).expect("a program");
    nand.erase(BlockAddr(0), Cause::Gc).expect("an erase");
    let tape = nand.tape();
    let all = tape.entries().iter().flat_map(Outcome::all_of);
    let mut names: Vec<String> = all.map(Outcome::to_string).collect();
    names.push("half_mixed:77".to_owned());
    for name in &names {
        assert_eq!(name.parse::<Outcome>().expect("a name").to_string(), *name);
    }
    for wrong in ["", "half_mixed", "half_mixed:x", "Torn", "torn:1"] {
        assert!(wrong.parse::<Outcome>().is_err(), "{wrong}");
    }
}

/// The order of all changes, and the moment of a cut, are shared with the other media of the
/// machine.
#[test]
fn a_cut_hits_all_media_at_one_moment() {
    let rig = Rig::default();
    let nand = NandOptions::new(SMALL).build_on(&rig);
    let dev = SimOptions::default().build_on(&rig, Image::new(4096));
    let write = |byte| dev.write_at(0, &[byte; 512], TAG);
    program(&nand, &SMALL, 0, 1).expect("a program");
    write(1).expect("a write");
    write(2).expect("a write");
    program(&nand, &SMALL, 1, 2).expect("a program");
    let tape = nand.tape();
    assert_eq!(tape.numbers(), [0, 3]);
    let mut points = tape.crash_points();
    let in_flight: Vec<(usize, bool)> = (0..=4)
        .map(|moment| points.at_moment(moment))
        .map(|point| (point.position(), point.in_flight().is_some()))
        .collect();
    assert_eq!(
        in_flight,
        [(0, true), (1, false), (1, false), (1, true), (2, false)]
    );
    catch_unwind(AssertUnwindSafe(|| points.at_moment(2))).expect_err("it lies behind");

    rig.power.cut_at(5);
    write(3).expect("a write");
    write(4).expect_err("the power goes off");
    let cut = |op| Err(NandError::PowerLost { op });
    assert_eq!(program(&nand, &SMALL, 2, 3), cut(Op::Write));
    assert_eq!(nand.erase(BlockAddr(0), Cause::Gc), cut(Op::Erase));
    assert_eq!(nand.mark_bad(BlockAddr(0), Cause::Gc), cut(Op::Write));
    assert_eq!(nand.is_bad(BlockAddr(0)).map(drop), cut(Op::Read));
    assert_eq!(read(&nand, 0).result.map(drop), cut(Op::Read));
    assert!(nand.crash_point().in_flight().is_none(), "it was the other");
}

#[test]
fn traces_are_lines() {
    let nand = part_for_run(&Rig::default());
    run(&nand).expect("the run");
    let lines: Vec<String> = nand
        .tape()
        .entries()
        .iter()
        .map(|e| e.to_string())
        .collect();
    let expected = [
        "program 3 data/home",
        "program 5 data/home",
        "erase 0 gc",
        "program 0 data/home",
        "program 6 data/home failed",
        "mark_bad 1 gc",
        "program 8 data/home",
        "erase 2 gc failed",
        "program 1 data/home",
    ];
    assert_eq!(lines[4..], expected);
}

/// Thousands of states share what they have in common.
#[test]
fn states_are_cheap() {
    let part = parts::JFTL.flawless();
    let nand = NandSim::new(part);
    for page in 0..200 {
        program(&nand, &part, page, page.into()).expect("a program");
    }
    let tape = nand.tape();
    let states: Vec<NandSim> = tape
        .crash_points()
        .flat_map(|point| {
            let outcomes = point.outcomes().iter();
            outcomes
                .map(|outcome| point.crash(*outcome))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(states.len(), 200 * 6 + 1);
    let unshared = states[600].image().unshared_pages(&states[606].image());
    assert!(unshared.len() <= 4, "{unshared:?}");
}
