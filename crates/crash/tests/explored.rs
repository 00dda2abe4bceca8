//! The tables of `results/explored.md` are made from the reports in `results/explored`. They were
//! once copied by hand, and stayed when code and judge had changed.
//!
//! `make explored` makes the tables anew, and marks reports that are older than the code; `make
//! explored ROWS=...` explores rows anew.

use std::fs;
use std::path::Path;

use stetfs_crash::explored::{Kept, OLD, Row, Store, find, places, tables};
use stetfs_crash::report::{Counts, Fault, Reached, Report, Violation};
use stetfs_testkit::document;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_tables_are_those_of_the_reports_and_the_old_are_marked() {
    let (path, store) = places(Path::new(ROOT));
    let text = fs::read_to_string(path).expect("results/explored.md");
    let made = store.render(&text).expect("tables");
    let wrong = document::difference("results/explored.md", &text, &made);
    assert!(
        wrong.is_none(),
        "{}; make explored",
        wrong.unwrap_or_default()
    );
    assert!(
        text.contains("<!-- explored: "),
        "results/explored.md needs the tables"
    );
}

#[test]
fn each_report_is_of_its_row() {
    let (_, store) = places(Path::new(ROOT));
    for name in store.names().expect("results/explored") {
        let row = Row::all().find(|row| row.id == name);
        let row = row.unwrap_or_else(|| panic!("results/explored/{name}.json is of no row"));
        let kept = store.read(&name).expect("a report");
        let asked = &kept.exploration.asked;
        assert_eq!(asked.target, row.target, "{name}");
        // Reports of older code were made from other choices.
        if !kept.is_old() {
            let (now, then) = ((&row.choice, row.effort()), (&asked.choice, asked.effort));
            assert_eq!(then, now, "{name}");
        }
    }
}

/// A report of a row, as a run makes it.
fn kept(row: &Row) -> Kept {
    let violation = Violation {
        fault: Fault::Contents,
        why: "first line\nand more".to_owned(),
        case: "a case".to_owned(),
        left: "some".to_owned(),
        workload: "log".to_owned(),
        minimized: Some("create f".to_owned()),
    };
    let report = Report {
        reached: Reached::default(),
        counts: Counts {
            workloads: 700,
            workloads_unfinished: 77,
            states: 1_234_567,
            states_left_out: u64::MAX,
            violations: 1,
            ..Counts::default()
        },
        never_ran: Some(vec!["1-op:7".to_owned()]),
        seconds: 600.0,
        jobs: 2,
        violations: vec![violation],
    };
    let plan = row.plan().expect("a plan");
    Kept::new(
        "1234567".to_owned(),
        Some("10m".to_owned()),
        plan.found(report),
    )
}

#[test]
fn a_row_is_marked_when_the_code_has_changed() {
    let row = find(&["jbd2-journal-short".to_owned()])
        .expect("a row")
        .remove(0);
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::new(dir.path().join("explored"));
    let document = "before\n<!-- explored: here -->\nold\n<!-- end -->\nafter\n";
    let render = |kept: &Kept| {
        store.write(&row.id, kept).expect("a report");
        store.render(document).expect("tables")
    };
    let mut kept = kept(&row);
    let fresh = render(&kept);
    for words in [
        "| 1234567 | **no**, 1 never ran | 700 |",
        "jbd2-journal-short: never ran: 1-op:7",
        "| 77 (10m) |",
        "1,234,567",
        "more than 2^64",
        "contents: `a case`",
        "Not made yet: jbd2-ordered-short, ",
    ] {
        assert!(fresh.contains(words), "no {words} in {fresh}");
    }
    assert!(
        !fresh.contains(OLD) && !fresh.contains("and more"),
        "{fresh}"
    );
    assert!(fresh.starts_with("before\n") && fresh.ends_with("<!-- end -->\nafter\n"));
    kept.exploration.asked.build += "0";
    let old = render(&kept);
    assert_eq!(
        old,
        fresh.replace("| 1234567 |", &format!("| 1234567, {OLD} |"))
    );
    assert!(tables(&[], &[]).is_empty());
    // A report from before unrun workloads were recorded, and one of which every workload ran.
    for (never_ran, said) in [(None, "| **no** |"), (Some(Vec::new()), "| yes |")] {
        kept.exploration.report.never_ran = never_ran;
        assert!(render(&kept).contains(said), "{said}");
    }
}

#[test]
fn rows_are_found_by_their_names() {
    let ids = |words: &[&str]| -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let rows = find(&words).expect("rows").into_iter();
        rows.map(|row| row.id).collect()
    };
    assert_eq!(
        ids(&["tinca-pairs", "ubj-pairs"]),
        ["ubj-pairs", "tinca-pairs"]
    );
    assert_eq!(ids(&["all"]).len(), Row::all().count());
    assert!(ids(&[]).is_empty());
    let error = find(&["jbd3".to_owned()]).expect_err("no row");
    assert!(error.to_string().contains("there are jbd2-journal-short"));
}

#[test]
fn every_row_can_be_run() {
    for row in Row::all().filter(|row| row.id.ends_with("short")) {
        let plan = row
            .plan()
            .unwrap_or_else(|error| panic!("{}: {error:#}", row.id));
        assert_eq!(plan.target.to_string(), row.target);
        plan.target.options();
    }
}
