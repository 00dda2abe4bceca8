//! The reports in `results/reports` and the tables in `docs/LAB.md` and `docs/lab`. Some of these
//! were once copied by hand, and were older than the code for a long time.
//!
//! `make lab-tables ARGS=...` makes them anew. `tests/experiments.rs` checks at a small scale that
//! all experiments give what is stored; `make lab-check` does so in full.

use std::fs;
use std::path::Path;

use stetfs_lab::experiment::find;
use stetfs_lab::experiment::stored::{Store, Stored, places};
use stetfs_testkit::document;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Experiments that take a second or two.
const QUICK: [&str; 1] = ["shortcut-example"];

fn differs(store: &Store, ids: impl Iterator<Item = &'static str>) -> Vec<String> {
    let mut wrong = Vec::new();
    for id in ids {
        let experiment = find(id).expect("an experiment");
        let kept = store.read(id).expect("a report");
        let now = Store::run(experiment, experiment.scale, false, None).expect("a report");
        if kept != now {
            wrong.push(format!("{id}: {}", first_difference(&kept, &now)));
        }
    }
    wrong
}

fn first_difference(kept: &Stored, now: &Stored) -> String {
    for (a, b) in kept.tables.iter().zip(&now.tables) {
        if let Some((a, b)) = a.rows.iter().zip(&b.rows).find(|(a, b)| a != b) {
            return format!("kept {a:?}, now {b:?}");
        }
    }
    for (a, b) in kept.checks.iter().zip(&now.checks) {
        if a != b {
            return format!("kept {a:?}, now {b:?}");
        }
    }
    "title, setup, notes or the number of tables and claims".to_owned()
}

#[test]
fn tables_are_those_of_the_reports() {
    let (documents, store) = places(Path::new(ROOT)).expect("docs");
    let mut all = String::new();
    for document in documents {
        let name = document.display().to_string();
        let text = fs::read_to_string(document).expect(&name);
        let made = store.render(&text).expect(&name);
        let wrong = document::difference(&name, &text, &made);
        assert!(
            wrong.is_none(),
            "{}; make lab-tables",
            wrong.unwrap_or_default()
        );
        all += &text;
    }
    for experiment in Store::experiments() {
        let marker = format!("<!-- report {}: ", experiment.id);
        assert!(all.contains(&marker), "{} needs a table", experiment.id);
    }
}

#[test]
fn what_is_not_reached_has_a_reason() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    for experiment in Store::experiments() {
        let stored = store.read(experiment.id).expect("a report");
        assert_eq!((stored.scale, stored.seed), (experiment.scale, 1));
        // For checks that name their claim, docs/claims.json says why.
        for check in stored.checks.iter().filter(|check| check.of.is_none()) {
            assert_eq!(
                check.is_reached(),
                check.why.is_none(),
                "{}: {check:?}",
                experiment.id
            );
        }
    }
}

#[test]
fn quick_reports_are_what_the_code_gives() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    let wrong = differs(&store, QUICK.into_iter());
    assert!(wrong.is_empty(), "{}; make lab-tables", wrong.join("\n"));
}

#[test]
#[ignore = "long: make lab-check"]
fn all_reports_are_what_the_code_gives() {
    let (_, store) = places(Path::new(ROOT)).expect("docs");
    // Measurements in real time are not the same twice.
    let all = Store::experiments().filter(|e| !e.has_real_time);
    let wrong = differs(&store, all.map(|e| e.id));
    assert!(wrong.is_empty(), "{}; make lab-tables", wrong.join("\n"));
}
