//! Each rule of the contract is broken once, and the part names the rule.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::error::Op;
use crate::sim::Fault;

/// Returns the message with which `misuse` panics, on a part in which page 4 is programmed, block 2
/// is bad, and programming page 12 and erasing block 4 have failed.
fn complaint(misuse: impl Fn(&NandSim)) -> String {
    let nand = NandSim::new(SMALL);
    program(&nand, &SMALL, 4, 1).expect("a program");
    nand.mark_bad(BlockAddr(2), Cause::Gc).expect("a mark");
    nand.inject(Fault::nth(Op::Write, 0));
    program(&nand, &SMALL, 12, 1).expect_err("planned");
    nand.inject(Fault::nth(Op::Erase, 0));
    let failed = nand.erase(BlockAddr(4), Cause::Gc);
    failed.expect_err("planned");
    let before = nand.image();
    let panic = catch_unwind(AssertUnwindSafe(|| misuse(&nand))).expect_err("it is a misuse");
    assert_eq!(nand.image(), before, "and changes nothing");
    *panic.downcast::<String>().expect("a message")
}

#[test]
fn every_rule() {
    let programs = |page| move |nand: &NandSim| drop(program(nand, &SMALL, page, 2));
    let erases = |block| move |nand: &NandSim| drop(nand.erase(BlockAddr(block), Cause::Gc));
    let cases: [(String, &str); 14] = [
        (complaint(programs(24)), "page 24 of 24"),
        (complaint(erases(6)), "erase block 6 of 6"),
        (
            complaint(|nand| drop(nand.is_bad(BlockAddr(6)))),
            "erase block 6 of 6",
        ),
        (
            complaint(|nand| drop(nand.mark_bad(BlockAddr(7), Cause::Gc))),
            "erase block 7 of 6",
        ),
        (
            complaint(|nand| drop(nand.read_spare(PageNo(24), &mut [0; 16], TAG))),
            "page 24 of 24",
        ),
        (
            complaint(|nand| drop(nand.read(PageNo(0), &mut [0; 512], &mut [0; 15], TAG))),
            "512 + 15 bytes for a page of 512 + 16",
        ),
        (
            complaint(|nand| drop(nand.program(PageNo(0), &[0; 511], &[0xff; 16], TAG))),
            "511 + 16 bytes for a page of 512 + 16",
        ),
        (
            complaint(programs(4)),
            "page 4 is programmed twice since the last erase",
        ),
        (complaint(programs(6)), "page 6 is programmed before page 5"),
        (
            complaint(programs(8)),
            "a program in erase block 2, which is Bad",
        ),
        (
            complaint(erases(2)),
            "an erase in erase block 2, which is Bad",
        ),
        (
            complaint(programs(13)),
            "a program in erase block 3, which is Failed",
        ),
        (
            complaint(erases(4)),
            "an erase in erase block 4, which is Failed",
        ),
        (
            complaint(|nand| drop(nand.program(PageNo(0), &[0; 512], &[0xfe; 16], TAG))),
            "page 0 is programmed with 0xfe for the bad block mark",
        ),
    ];
    for (complaint, expected) in cases {
        assert_eq!(complaint, format!("misuse of the NAND part: {expected}"));
    }
}

/// A block whose erase was interrupted must be erased before it is programmed, whatever it looks
/// like.
#[test]
fn half_erased_blocks_are_erased_first() {
    let nand = NandSim::new(SMALL);
    program(&nand, &SMALL, 4, 1).expect("a program");
    nand.rig().power.cut_at(1);
    let cut = nand.erase(BlockAddr(1), Cause::Gc);
    assert_eq!(cut, Err(NandError::PowerLost { op: Op::Erase }));
    let point = nand.crash_point();
    for outcome in point.outcomes() {
        let left = point.crash(*outcome);
        let next = left.block(BlockAddr(1)).expect("memory").next_page;
        let program = || program(&left, &SMALL, 4 + next, 2);
        match outcome {
            Outcome::NotStarted | Outcome::Complete => program().expect("a program"),
            _ => {
                catch_unwind(AssertUnwindSafe(program)).expect_err("it is a misuse");
                left.erase(BlockAddr(1), Cause::Gc).expect("an erase");
                assert_eq!(left.block(BlockAddr(1)).expect("memory").erases, 2);
                super::program(&left, &SMALL, 4, 2).expect("a program");
            }
        }
    }
}

/// A page whose program was interrupted must not be programmed again before an erase, even if it
/// seems to be erased.
#[test]
fn interrupted_programs_count() {
    let nand = NandSim::new(SMALL);
    nand.rig().power.cut_at(0);
    program(&nand, &SMALL, 4, 1).expect_err("the power goes off");
    let point = nand.crash_point();
    for outcome in point.outcomes() {
        let left = point.crash(*outcome);
        let again = catch_unwind(AssertUnwindSafe(|| program(&left, &SMALL, 4, 2)));
        assert_eq!(again.is_ok(), *outcome == Outcome::NotStarted, "{outcome}");
    }
}

#[test]
#[should_panic(expected = "pages of 100 bytes are impossible")]
fn impossible_parts() {
    let mut part = SMALL;
    part.geometry.page_bytes = 100;
    NandSim::new(part);
}

#[test]
#[should_panic(expected = "half_torn cannot become of \"program 0 data/home\"")]
fn impossible_outcomes() {
    let nand = NandSim::new(SMALL);
    program(&nand, &SMALL, 0, 1).expect("a program");
    let _ = nand.tape().crash_point(0).crash(Outcome::HalfTorn);
}

/// A caller that lost power before it could mark a block does not know of the failure: trying again
/// is no misuse, and fails again.
#[test]
fn a_failed_block_that_was_not_marked_fails_again() {
    let nand = NandSim::new(SMALL);
    nand.inject(Fault::nth(Op::Write, 0));
    let page = PageNo(4);
    let failed = program(&nand, &SMALL, page.0, 1);
    assert_eq!(failed, Err(NandError::ProgramFailed { page }));
    let next = PageNo(5);
    let left = || nand.crash_point().crash(Outcome::NotStarted);
    let programmed = program(&left(), &SMALL, next.0, 2);
    assert_eq!(programmed, Err(NandError::ProgramFailed { page: next }));
    let left = left();
    let block = BlockAddr(1);
    let erase = || left.erase(block, Cause::Gc);
    assert_eq!(erase(), Err(NandError::EraseFailed { block }));
    catch_unwind(AssertUnwindSafe(erase)).expect_err("it has been told now");
}
