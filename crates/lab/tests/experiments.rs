//! Runs the experiments at a small scale, so that they cannot rot: exact figures are exact, the
//! orders of bytes are the paper's, and virtual results are the same each time.

use std::path::Path;

use stetfs_lab::experiment::report::{Chart, Check, Report};
use stetfs_lab::experiment::setting::Setting;
use stetfs_lab::experiment::stored::{Small, Stored, places};
use stetfs_lab::experiment::{EXPERIMENTS, find};

fn run(id: &str, scale: f64) -> Report {
    let setting = Setting {
        scale,
        is_alone: true,
        ..Setting::default()
    };
    let experiment = find(id).expect("an experiment");
    experiment.run(&setting).expect(id)
}

/// Returns the claims that are not reached.
fn wrong(report: &Report) -> Vec<String> {
    let wrong = report.checks.iter().filter(|check| !check.is_reached());
    wrong
        .map(|check| format!("{}: {}, not {}", check.claim, check.ours, check.paper))
        .collect()
}

#[test]
fn the_worked_examples_are_right_to_the_byte() {
    let report = run("shortcut-example", 1.0);
    assert_eq!((report.checks.len(), wrong(&report)), (5, Vec::new()));
}

#[test]
fn erases_are_spread_and_hot_data_is_kept_apart() {
    let mut report = run("ftl-wear", 1.0 / 32.0);
    // On such a small part, the blocks that are being filled count for too much to compare uniform
    // overwrites with the formula.
    report
        .checks
        .retain(|check| check.claim.contains("deviation") || check.claim.contains("hot/cold"));
    assert_eq!((report.checks.len(), wrong(&report)), (6, Vec::new()));
}

/// The stored results come from another run, on another machine.
#[test]
fn virtual_results_are_the_same_each_time() {
    let (_, store) =
        places(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).expect("docs");
    let (small, mut old) = (Small::read(&store).expect("small.json"), Vec::new());
    for experiment in EXPERIMENTS.iter() {
        if !experiment.is_small {
            continue;
        }
        let report = run(experiment.id, Small::SCALE);
        let has_values = |chart: &Chart| chart.series.iter().all(|s| !s.values.is_empty());
        let charts = &report.charts;
        // A figure of cells may have tables only.
        let is_shown = !charts.is_empty() || !report.cells.is_empty();
        assert!(
            is_shown && charts.iter().all(has_values),
            "{}",
            experiment.id
        );
        let now = Small::checksum(&Stored::from(report)).expect("a checksum");
        if small.of(experiment.id) != Some(now.as_str()) {
            old.push(experiment.id);
        }
    }
    assert!(
        old.is_empty(),
        "these do not give any more what results/reports has of them: make lab-tables ARGS=\"{}\"",
        old.join(" ")
    );
    let is_run = |id: &&str| find(id).is_some_and(|experiment| experiment.is_small);
    let unused: Vec<_> = small.ids().filter(|id| !is_run(id)).collect();
    assert!(
        unused.is_empty(),
        "small.json has what is not run: {unused:?}"
    );
}

/// The paper's statement about its blocks holds where whole bytes differ. With new values, a
/// quarter of the bits is half of the bytes.
#[test]
fn deltas_are_as_small_as_the_paper_says() {
    let report = run("dj-fig4", 1.0);
    let wrong = wrong(&report);
    assert_eq!(report.checks.len(), 4);
    assert!(
        wrong.iter().all(|check| check.contains("new values")),
        "{wrong:?}"
    );
    assert_eq!(run("dj-fig5", 1.0).checks.len(), 0);
}

/// Returns what a figure of cells says of a claim.
fn of<'r>(report: &'r Report, claim: &str) -> Vec<&'r Check> {
    let checks = report.checks.iter();
    let found: Vec<_> = checks.filter(|c| c.of.as_deref() == Some(claim)).collect();
    assert!(!found.is_empty(), "{}: no {claim}", report.experiment);
    found
}

/// Bytes do not depend on the scale, and their order is the paper's.
#[test]
fn bytes_are_in_the_papers_order() {
    let report = run("shortcut-fig5", 1.0 / 512.0);
    for claim in [
        "shortcut-fig5-1k-diff-adps-lead",
        "shortcut-fig5-2k-equal",
        "shortcut-fig5-34k-write-once",
        "shortcut-fig5-adps-always-best",
        "shortcut-inplace-halves-writes",
    ] {
        let found = of(&report, claim);
        assert!(found.iter().all(|check| check.is_reached()), "{found:?}");
    }
}

/// By Delta Journaling's paper, blocks that differ by half go to the card, and with 512 MB there is
/// no checkpoint.
#[test]
fn what_differs_much_goes_to_the_journal() {
    let report = run("dj-fig9", 1.0 / 64.0);
    for claim in ["dj-fig9-50-percent-no-delta", "dj-fig9-512mb-no-checkpoint"] {
        let found = of(&report, claim);
        assert!(found.iter().all(|check| check.is_reached()), "{found:?}");
    }
}

/// A figure runs the seeds that were asked for, and each seed matters: the interval is that of
/// several.
#[test]
fn a_figure_has_an_interval() {
    let experiment = find("ubj-iozone").expect("a figure");
    let scale = 1.0 / 512.0;
    let setting = Setting {
        scale,
        ..Setting::default()
    };
    let report = experiment.run(&setting).expect("a report");
    assert_eq!(report.seeds, 5);
    let found = of(&report, "ubj-iozone-mean");
    assert!(found[0].ours.contains('\u{b1}'), "{found:?}");
    let alone = experiment.run(&Setting {
        is_alone: true,
        seed: 3,
        ..setting
    });
    let alone = alone.expect("a report");
    assert_eq!((alone.seeds, alone.seed), (1, 3));
    let outcomes = |report: &Report, n: usize| report.cells[0].outcomes[n].clone();
    assert_eq!(outcomes(&alone, 0), outcomes(&report, 2));
}
