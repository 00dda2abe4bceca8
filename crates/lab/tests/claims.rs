//! Each of the papers' claims is counted once, by the checks that judge it, and the document agrees
//! with the reports.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stetfs_lab::claims::{Bound, Claim, Claims, Judge, Standing};
use stetfs_lab::experiment::stored::{Store, places};
use stetfs_testkit::document;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn claims() -> Claims {
    Claims::read(&Path::new(ROOT).join("docs")).expect("docs/claims.json, docs/assumptions.json")
}

#[test]
fn the_document_says_what_the_reports_say() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let text = fs::read_to_string(Path::new(ROOT).join("docs/CLAIMS.md")).expect("docs/CLAIMS.md");
    let made = claims().render(&text, &store).expect("tables");
    let wrong = document::difference("docs/CLAIMS.md", &text, &made);
    assert!(
        wrong.is_none(),
        "{}; make lab-tables",
        wrong.unwrap_or_default()
    );
}

/// Nothing would reach a figure without a tolerance, and everything one below its own tolerance.
#[test]
fn each_figure_has_a_tolerance() {
    for claim in claims().claims {
        let has_figure = claim.values.iter().any(|value| value.number.is_some());
        let tolerance = claim.tolerance.unwrap_or_default();
        assert!(
            !has_figure || (0.0..=0.5).contains(&tolerance) && tolerance > 0.0,
            "{claim:?}"
        );
        assert!(
            claim.until.is_some() == claim.until_is_said.is_some(),
            "{claim:?}"
        );
        let needs = |kind| matches!(kind, Bound::About | Bound::AtLeast | Bound::AtMost);
        let values = claim.values.iter();
        assert!(values.clone().count() > 0, "{claim:?}");
        assert!(
            values.clone().all(|v| !needs(v.kind) || v.number.is_some()),
            "{claim:?}"
        );
    }
}

/// Each check of a paper's figure judges one of the paper's claims, and each claim's checks exist.
/// Our own aims, and what goes beyond the papers, judge no claim.
#[test]
fn each_check_of_a_paper_judges_a_claim() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let claims = claims();
    let named: BTreeSet<&Judge> = claims
        .claims
        .iter()
        .flat_map(|claim| &claim.checks)
        .collect();
    let mut all = BTreeSet::new();
    for experiment in Store::experiments() {
        let stored = store.read(experiment.id).expect("a report");
        for check in stored.checks {
            if check.of.is_none() && !BEYOND.contains(&experiment.id) {
                all.insert(Judge {
                    report: experiment.id.to_owned(),
                    check: check.claim,
                });
            }
        }
    }
    let unnamed: Vec<_> = all.iter().filter(|judge| !named.contains(judge)).collect();
    assert!(unnamed.is_empty(), "these judge no claim: {unnamed:#?}");
    let gone: Vec<_> = named
        .into_iter()
        .filter(|judge| !all.contains(*judge))
        .collect();
    assert!(
        gone.is_empty(),
        "claims name these, which are not there or are aims: {gone:#?}"
    );
}

/// Experiments about which the papers say nothing.
const BEYOND: [&str; 1] = ["ftl-wear"];

/// A claim that is not reached is settled, not determined or contradicted, and a sweep confirms
/// that. No claim is open.
#[test]
fn what_is_not_reached_has_a_verdict() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let claims = claims();
    let judged = claims.judge(&store).expect("verdicts");
    let of = |standing| -> Vec<&str> {
        let its = judged.iter().filter(|judged| judged.standing == standing);
        its.map(|judged| judged.claim.id.as_str()).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(of(Standing::Missed), none);
    assert_eq!(of(Standing::Open), none);
}

/// Each verdict that a sweep shows has its plots in the tree, and they are those of its report.
#[test]
fn plots_are_those_of_the_reports() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let claims = claims();
    let judged = claims.judge(&store).expect("verdicts");
    let mut names = BTreeSet::new();
    for plot in judged.iter().flat_map(|judged| &judged.plots) {
        let file = format!("{}.svg", plot.name);
        let kept = fs::read_to_string(Path::new(ROOT).join("docs/lab/plots").join(&file));
        let now = plot.svg().expect(&file);
        assert!(
            kept.is_ok_and(|kept| kept == now),
            "{file}: make lab-tables"
        );
        // The plot has the paper's band, or its figure as a line.
        assert!(!plot.bands.is_empty() || !plot.lines.is_empty(), "{file}");
        names.insert(file);
    }
    let kept = fs::read_dir(Path::new(ROOT).join("docs/lab/plots")).expect("plots");
    let kept = kept.map(|entry| entry.expect("an entry").file_name());
    let kept: BTreeSet<_> = kept
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    assert_eq!(kept, names);
}

/// A verdict that the sweep does not confirm is an error.
#[test]
fn a_verdict_needs_its_sweep() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let mut claims = claims();
    let is_swept = |claim: &&mut Claim| {
        let otherwise = claim.otherwise.as_ref();
        otherwise.is_some_and(|o| o.by.is_some() && o.verdict == Standing::NotDetermined)
    };
    let claim = claims.claims.iter_mut().find(is_swept);
    let claim = claim.expect("one that is not determined");
    claim.otherwise.as_mut().expect("it has one").verdict = Standing::Contradicted;
    let error = claims.judge(&store).map(drop).expect_err("a wrong verdict");
    assert!(error.to_string().contains("does not show"), "{error:#}");
}
