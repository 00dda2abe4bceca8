//! Agreement with e2fsck under damage.
//!
//! Volumes of several kinds are damaged in two ways: each field of each kind of structure
//! systematically, with new checksums so that the damage gets past them; and anything at random.
//! Each time `e2fsck -fn` and the checker must agree whether the volume is clean. Where they differ
//! for a good reason, [`table`] lists the case; a row that does not occur is an error too.
//!
//! There are 150,000 systematic cases. An ordinary run takes some of them, always including those
//! that the table needs. By hand:
//! - `STETFS_CHECK_EVERY=1` takes each, `STETFS_CHECK_EVERY=10` each tenth;
//! - `STETFS_CHECK_CASES=100000` sets the number of random cases, `STETFS_CHECK_SEED=7` the first
//!   one;
//! - `STETFS_CHECK_VOLUME=ext3` takes only volumes whose name contains `ext3`.
#![allow(unreachable_pub)]

#[path = "../../../format/tests/image/mod.rs"]
mod image;

mod cases;
mod judge;
mod random;
mod structures;
mod table;
mod volumes;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cases::Case;
use judge::Judge;
use table::Table;
use volumes::Volume;

/// An ordinary run takes each 199th systematic case. The number is prime, so that all volumes and
/// fields take part.
const EVERY: u64 = 199;
/// How many random cases an ordinary run takes.
const RANDOM: u64 = 600;

/// Returns a number from the environment, or the default.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Judges cases of all volumes on as many threads as there are processors.
fn judge_all(volumes: &[Volume], cases: &[(usize, Case)], table: &Table) {
    let next = AtomicUsize::new(0);
    let differences = Mutex::new(BTreeSet::new());
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let work = || {
        let mut judges: Vec<Option<Judge>> = volumes.iter().map(|_| None).collect();
        while let Some((at, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let volume = &volumes[*at];
            let judge = judges[*at].get_or_insert_with(|| Judge::new(volume));
            if let Some(difference) = table.difference(&judge.judge(case)) {
                let difference = format!("{difference}\n    {}: {}", volume.name, case.what);
                differences.lock().expect("no panic").insert(difference);
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let differences = differences.into_inner().expect("no panic");
    let (found, all) = (differences.len(), cases.len());
    let text = differences.into_iter().collect::<Vec<_>>().join("\n");
    assert!(found == 0, "{found} of {all} cases differ:\n{text}");
}

#[test]
fn the_checker_agrees_with_e2fsck_about_damage() {
    let volumes = volumes::all();
    if volumes.is_empty() {
        return;
    }
    let table = Table::new();
    let every = number("STETFS_CHECK_EVERY", EVERY);
    let mut at = 0;
    let mut systematic = Vec::new();
    for (volume, index) in volumes.iter().zip(0..) {
        let cases = cases::of(volume, |what| {
            at += 1;
            every > 0 && at % every == 0 || table.needs(volume.name, what)
        });
        systematic.extend(cases.into_iter().map(|case| (index, case)));
    }
    println!("{} of {at} systematic cases", systematic.len());
    judge_all(&volumes, &systematic, &table);
    if volumes::are_complete() && every > 0 {
        table.assert_used();
    }
    let random = random::cases(
        &volumes,
        number("STETFS_CHECK_SEED", 0),
        number("STETFS_CHECK_CASES", RANDOM),
    );
    judge_all(&volumes, &random, &table);
}
