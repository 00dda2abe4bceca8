//! The crash explorer must find every planted bug. This takes hours, so it is run by hand: `make
//! planted`.
//!
//! - `STETFS_LAB_BUG=NAME` plants only this bug, `STETFS_LAB_SCHEME=NAME` plants only in this
//!   scheme.
//! - `STETFS_LAB_WORKLOAD=NAME` explores this workload only.
//! - `STETFS_LAB_ORDERS=ORDER,...` runs the workloads in these orders only.
//! - `STETFS_LAB_STATES=N` gives up a bug after N states.
//! - `STETFS_LAB_WRITE=1` writes the results into the table of results/explored.md. Bugs that this
//!   run did not look for keep their row. `STETFS_LAB_WRITE=missing` looks for bugs without a
//!   result there.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use stetfs_crash::campaign::{Budget, Campaign};
use stetfs_crash::report::Report;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workloads::script::Script;
use stetfs_crash::workloads::sequences::{Sample, sequences};
use stetfs_planted::{BUGS, Bug, BugAbout, plant};
use stetfs_scheme::{Registration, Trial};
use stetfs_schemes::SCHEMES;
use stetfs_testkit::document;
use stetfs_testkit::host::needs;
use stetfs_testkit::image::EXT4_1K;
use stetfs_testkit::skip_unless;

/// Random workloads to try when the written ones do not show a bug.
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

/// Explores with a bug until the first violation: written workloads, then the sequences of one
/// operation, then random workloads, each in every order.
fn hunt(bug: Bug, target: &Target) -> Report {
    // Made without the bug, so that the bug acts only on the workloads.
    let fresh = target.contents().expect("a volume");
    let sample = Sample {
        pairs: 0,
        triples: 0,
        seed: 1,
    };
    let long = |script: Script| script.workload(target.volume.profile());
    // Written workloads first, since most bugs need a log that is used.
    let written = Script::written(target).map(long);
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
        by_turns: true,
        ..Campaign::new(target.clone(), fresh, workloads)
    };
    plant(Some(bug));
    let report = campaign.run(&|_| {}).expect("a campaign");
    plant(None);
    report
}

/// A bug, and a trial that is said to show it.
struct Claim {
    about: &'static BugAbout,
    scheme: &'static Registration,
    trial: &'static Trial,
}

impl Claim {
    /// The first cells of its row.
    fn cells(&self) -> String {
        let (name, what) = (self.about.name, self.about.what);
        format!("| `{name}` | {what} | {} |", self.trial)
    }
}

/// All claims, in the order of the bugs, and for each bug in the order of the registry.
fn claims() -> Vec<Claim> {
    let of = |about: &'static BugAbout| {
        SCHEMES.iter().flat_map(move |scheme| {
            let shows = |trial: &&Trial| trial.planted.contains(&about.bug);
            let trials = scheme.trials.iter().filter(shows);
            trials.map(move |trial| Claim {
                about,
                scheme,
                trial,
            })
        })
    };
    BUGS.iter().flat_map(of).collect()
}

/// The rest of a row whose bug nobody has looked for.
const UNKNOWN: &str = "not looked for yet | | |";

const HEAD: &str = "| bug | what goes wrong | planted in | states until found | by workload | \
    seen as |\n|---|---|---|---|---|---|\n";

/// Returns the rest of a claim's row in this document.
fn result(document: &str, claim: &Claim) -> Option<String> {
    let cells = claim.cells();
    let result = document.lines().find_map(|line| line.strip_prefix(&cells));
    let known = result.map(str::trim).filter(|result| *result != UNKNOWN);
    known.map(str::to_owned)
}

/// Returns the document with a row for each claim: the result from `found`, else the old one.
fn with_table(document: &str, found: &HashMap<String, String>) -> String {
    let row = |claim: &Claim| {
        let cells = claim.cells();
        let now = found.get(&cells).cloned();
        let result = now.or_else(|| result(document, claim));
        format!("{cells} {}\n", result.as_deref().unwrap_or(UNKNOWN))
    };
    let rows: String = claims().iter().map(row).collect();
    let table = format!("{HEAD}{rows}");
    let made = document::render(document, "<!-- planted bugs: ", |_| Ok(table.clone()));
    made.expect("the mark")
}

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../results/explored.md");

fn document() -> String {
    std::fs::read_to_string(PATH).expect("results/explored.md")
}

/// The table once lacked two schemes silently.
#[test]
fn each_bug_is_claimed_and_each_claim_is_in_the_table() {
    let claims = claims();
    for about in BUGS {
        let is_claimed = claims.iter().any(|claim| claim.about.bug == about.bug);
        let others = [stetfs_ftl::PLANTED, stetfs_below::PLANTED];
        let is_elsewhere = others.iter().any(|planted| planted.contains(&about.bug));
        assert!(is_claimed || is_elsewhere, "{} shows nowhere", about.name);
    }
    let text = document();
    let wrong = document::difference(
        "results/explored.md",
        &text,
        &with_table(&text, &HashMap::new()),
    );
    let how = "STETFS_LAB_WRITE=missing make planted";
    assert!(wrong.is_none(), "{}; {how}", wrong.unwrap_or_default());
}

#[test]
fn a_table_keeps_what_is_known() {
    let empty = "<!-- planted bugs: here -->\n<!-- end -->\n";
    let unknown = with_table(empty, &HashMap::new());
    let claims = claims();
    assert!(claims.iter().all(|claim| result(&unknown, claim).is_none()));
    let found = HashMap::from([(claims[1].cells(), "12 | log | contents |".to_owned())]);
    let known = with_table(&unknown, &found);
    assert_eq!(result(&known, &claims[0]), None);
    let kept = result(&with_table(&known, &HashMap::new()), &claims[1]);
    assert_eq!(kept.as_deref(), Some("12 | log | contents |"));
}

/// Looks for a claim's bug. Returns the rest of its row, and true if the bug was found.
fn look(claim: &Claim) -> (String, bool) {
    let report = hunt(
        claim.about.bug,
        &Target::of(claim.scheme, claim.trial, EXT4_1K),
    );
    let states = report.counts.states + report.counts.nested;
    let found = report.violations.first();
    let how = match found {
        Some(violation) => format!("{} | {}", violation.workload, violation.fault),
        None => "not found |".to_owned(),
    };
    let row = format!("{states} | {how} |");
    println!("{} {row} {:.0} s", claim.cells(), report.seconds);
    if let Some(violation) = found {
        println!("  {}\n  {}", violation.why, violation.case);
    }
    (row, found.is_some())
}

#[test]
#[ignore = "takes long; make planted"]
fn every_planted_bug_is_found() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let set = |name| std::env::var(name).ok();
    let (only, only_in) = (set("STETFS_LAB_BUG"), set("STETFS_LAB_SCHEME"));
    let writes = set("STETFS_LAB_WRITE");
    let as_usual = only_workload().is_none() && set("STETFS_LAB_ORDERS").is_none();
    assert!(
        writes.is_none() || as_usual,
        "the table is of all workloads and orders"
    );
    let is = |asked: &Option<String>, name| asked.as_deref().is_none_or(|asked| asked == name);
    let write = |found: &HashMap<String, String>| {
        let table = with_table(&document(), found);
        std::fs::write(PATH, table).expect("results/explored.md");
    };
    if writes.is_some() {
        // Gives new claims their rows.
        write(&HashMap::new());
    }
    let mut missed = Vec::new();
    for claim in claims() {
        let (bug, scheme) = (claim.about.name, claim.scheme.about.name);
        let is_missing = || result(&document(), &claim).is_none();
        let is_wanted = writes.as_deref() != Some("missing") || is_missing();
        if !(is(&only, bug) && is(&only_in, scheme) && is_wanted) {
            continue;
        }
        let (row, is_found) = look(&claim);
        if !is_found {
            missed.push(format!("STETFS_LAB_BUG={bug} STETFS_LAB_SCHEME={scheme}"));
        }
        if writes.is_some() {
            // Written at once, since a run takes hours and may be stopped.
            write(&HashMap::from([(claim.cells(), row)]));
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}
