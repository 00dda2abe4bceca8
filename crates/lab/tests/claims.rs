//! The papers' claims are counted once each, by the checks that judge them, and the document says
//! what the reports say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stetfs_lab::claims::{Bound, Claims, Judge};
use stetfs_lab::experiment::stored::{Store, places};
use stetfs_testkit::document;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn claims() -> Claims {
    Claims::read(&Path::new(ROOT).join("docs")).expect("docs/claims.json, docs/assumptions.json")
}

#[test]
fn the_document_says_what_the_reports_say() {
    let (_, store) = places(Path::new(ROOT));
    let text = fs::read_to_string(Path::new(ROOT).join("docs/CLAIMS.md")).expect("docs/CLAIMS.md");
    let made = claims().render(&text, &store).expect("tables");
    let wrong = document::difference("docs/CLAIMS.md", &text, &made);
    assert!(
        wrong.is_none(),
        "{}; make lab-tables",
        wrong.unwrap_or_default()
    );
}

/// A figure without a tolerance would be reached by nothing; one below its own tolerance by all.
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

/// Checks of the papers' figures judge one of their claims, and each claim's checks are there; our
/// own aims, and what is beyond the papers, judge none.
#[test]
fn each_check_of_a_paper_judges_a_claim() {
    let (_, store) = places(Path::new(ROOT));
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
            let is_aim = check.paper.contains("aim") || check.claim.contains("stet");
            if !is_aim
                && !BEYOND
                    .iter()
                    .any(|beyond| is_beyond(beyond, experiment.id, &check.claim))
            {
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

/// What the papers say nothing of: parts, modes and tests that they do not have.
const BEYOND: [(&str, &str); 11] = [
    ("ftl-wear", ""),
    ("operations", ""),
    ("dj-sqlite", ""),
    ("jftl-fig7", "rewrite"),
    ("jftl-fig7", "16 KiB NAND"),
    ("jftl-fig8", "16 KiB NAND"),
    ("jftl-fig8", "32 MiB, commit every 5 s"),
    ("jftl-fig8", "commit every 5 s: ordered"),
    ("jftl-fig8", "commit every 5 s: journal+remap outperforms"),
    ("shortcut-recovery", "ext3 on"),
    ("stet-deltas", ""),
];

fn is_beyond((report, words): &(&str, &str), id: &str, check: &str) -> bool {
    *report == id && check.contains(words)
}
