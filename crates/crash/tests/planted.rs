//! The judge is judged: every bug that can be planted must be found by the crash explorer. It takes
//! long, so it is run by hand: `make planted`.
//!
//! - `STETFS_LAB_BUG=NAME` plants only that one, `STETFS_LAB_SCHEME=NAME` only in that scheme.
//! - `STETFS_LAB_WORKLOAD=NAME` looks in that workload alone.
//! - `STETFS_LAB_ORDERS=ORDER,...` carries the workloads out in these orders alone.
//! - `STETFS_LAB_STATES=N` gives up a bug after so many states.
//! - `STETFS_LAB_WRITE=1` writes the table of docs/TESTING.md anew.
#![forbid(unsafe_code)]

use std::fmt::Write;

use stetfs_crash::campaign::{Budget, Campaign};
use stetfs_crash::report::Report;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workloads::script::Script;
use stetfs_crash::workloads::sequences::{Sample, sequences};
use stetfs_planted::{BUGS, Bug, BugAbout, plant};
use stetfs_testkit::document;
use stetfs_testkit::host::needs;
use stetfs_testkit::image::EXT4_1K;
use stetfs_testkit::skip_unless;

/// Long random workloads that are tried when the written ones do not show a bug.
const RANDOM: u64 = 24;
/// States after which a bug counts as not found.
const STATES: u64 = 4_000_000;

fn states() -> u64 {
    let given = std::env::var("STETFS_LAB_STATES").ok();
    given.map_or(STATES, |n| n.parse().expect("a number of states"))
}

fn only_workload() -> Option<String> {
    std::env::var("STETFS_LAB_WORKLOAD").ok()
}

fn orders() -> Vec<Order> {
    let given = std::env::var("STETFS_LAB_ORDERS").ok();
    let given = given.unwrap_or_else(|| "in-order,each-handle,overlap1".to_owned());
    let parse = |order: &str| order.parse().expect("an order");
    given.split(',').map(parse).collect()
}

/// Explores with a bug until a violation, first the workloads that are written down, then the
/// sequences of one operation, then random ones, each in every order.
fn hunt(bug: Bug, scheme: &str, mode: &str) -> Report {
    let target = Target::new(scheme, Some(mode), EXT4_1K).expect("a target");
    // Without the bug, so that what it does is done to the workloads.
    let fresh = target.contents().expect("a volume");
    let sample = Sample {
        pairs: 0,
        triples: 0,
        seed: 1,
    };
    let long = |script: Script| script.workload(target.volume.profile());
    // Those that are written down first, since most bugs need a log that is used; random ones last.
    let written = Script::WRITTEN.into_iter().map(long);
    let short = sequences(1, target.volume.rules(), sample).workloads;
    let random = (1..=RANDOM).map(|seed| long(Script::Random(seed)));
    let all = written.chain(short).chain(random);
    let mut workloads: Vec<_> = all.flat_map(|w| w.in_each(&orders())).collect();
    if let Some(name) = only_workload() {
        workloads.retain(|w| w.name == name);
    }
    let campaign = Campaign {
        budget: Budget {
            states: Some(states()),
            time: None,
        },
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        enough: 1,
        ..Campaign::new(target, fresh, workloads)
    };
    plant(Some(bug));
    let report = campaign.run(&|_| {}).expect("a campaign");
    plant(None);
    report
}

/// A row of the table, and whether the bug was found.
fn row(about: &BugAbout, scheme: &str, mode: &str) -> (String, bool) {
    let report = hunt(about.bug, scheme, mode);
    let states = report.counts.states + report.counts.nested;
    let found = report.violations.first();
    let how = match found {
        Some(violation) => format!("{} | {}", violation.workload, violation.fault),
        None => "not found | ".to_owned(),
    };
    let (name, what) = (about.name, about.what);
    let seconds = report.seconds;
    let row = format!("| `{name}` | {what} | {scheme} {mode} | {states} | {seconds:.0} | {how} |");
    println!("{row}");
    if let Some(violation) = found {
        println!("  {}\n  {}", violation.why, violation.case);
    }
    (row, found.is_some())
}

#[test]
#[ignore = "takes long; make planted"]
fn every_planted_bug_is_found() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let only = std::env::var("STETFS_LAB_BUG").ok();
    let only_in = std::env::var("STETFS_LAB_SCHEME").ok();
    let mut table = String::from(
        "| bug | what goes wrong | planted in | states | seconds | found by workload | seen as |\n\
        |---|---|---|---|---|---|---|\n",
    );
    let mut missed = Vec::new();
    for about in BUGS {
        if only.as_deref().is_some_and(|name| name != about.name) {
            continue;
        }
        let shows = about.shows.iter();
        for (scheme, mode) in shows.filter(|(s, _)| only_in.as_deref().is_none_or(|o| o == *s)) {
            let (row, is_found) = row(about, scheme, mode);
            writeln!(table, "{row}").expect("memory");
            if !is_found {
                missed.push(format!("STETFS_LAB_BUG={} ({scheme} {mode})", about.name));
            }
        }
    }
    let is_whole = only.is_none()
        && only_in.is_none()
        && only_workload().is_none()
        && std::env::var_os("STETFS_LAB_ORDERS").is_none();
    if is_whole && std::env::var_os("STETFS_LAB_WRITE").is_some() {
        write_table(&table);
    }
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}

/// Behind its mark in docs/TESTING.md.
fn write_table(table: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TESTING.md");
    let text = std::fs::read_to_string(path).expect("docs/TESTING.md");
    let text = document::render(&text, "<!-- planted bugs: ", |_| Ok(table.to_owned()));
    std::fs::write(path, text.expect("the mark")).expect("docs/TESTING.md");
}
