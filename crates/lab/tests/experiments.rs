//! The experiments at a small scale, so that they cannot rot: what is exact is exact, the orders of bytes are the paper's, and what is
//! virtual is the same each time.

use serde_json::Value;
use stetfs_lab::experiment::report::Report;
use stetfs_lab::experiment::{EXPERIMENTS, Setting, find};

fn run(id: &str, scale: f64) -> Report {
    let setting = Setting {
        seed: 1,
        scale,
        real_time: false,
        progress: &|_, _, _| {},
    };
    let experiment = find(id).expect("an experiment");
    (experiment.run)(&setting).expect("a report")
}

/// Those of the claims that do not hold.
fn wrong(report: &Report) -> Vec<String> {
    let wrong = report.checks.iter().filter(|check| !check.holds);
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
fn bytes_are_in_the_papers_order() {
    let mut report = run("shortcut-fig5", 1.0 / 128.0);
    report.checks.retain(|check| check.claim.contains("bytes"));
    assert_eq!((report.checks.len(), wrong(&report)), (12, Vec::new()));
}

#[test]
fn a_transaction_a_write_gains_what_the_paper_gains() {
    let report = run("shortcut-fig4", 1.0 / 256.0);
    let of = |what: &str| {
        let mut checks = report.checks.iter();
        checks.find(|c| c.claim.starts_with(what)).expect("a check")
    };
    assert!(of("iozone, each write durable").holds);
    // Where the mean is missed, the report says why.
    let missed = report.checks.iter().filter(|c| !c.holds).count();
    assert_eq!(report.notes.len(), missed);
}

#[test]
fn recovery_is_by_the_log_and_not_by_the_volume() {
    let report = run("shortcut-recovery", 1.0 / 32.0);
    assert_eq!((report.checks.len(), wrong(&report)), (6, Vec::new()));
    assert_eq!(report.recoveries.len(), 20);
}

/// Without what depends on the machine.
fn portable(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("real_ns");
            fields.values_mut().for_each(|v| *v = portable(v.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| *v = portable(v.take())),
        _ => {}
    }
    value
}

#[test]
fn virtual_results_are_the_same_each_time() {
    for experiment in EXPERIMENTS {
        let json = || {
            let report = run(experiment.id, 1.0 / 512.0);
            portable(serde_json::to_value(&report).expect("JSON"))
        };
        let first = json();
        assert_eq!(first["version"], 1);
        assert!(first["charts"][0]["series"][0]["values"].is_array());
        assert_eq!(first, json(), "{}", experiment.id);
    }
}
