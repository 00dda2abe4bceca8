//! The experiments at a small scale, so that they cannot rot: what is exact is exact, the orders of
//! bytes are the paper's, and what is virtual is the same each time.

use std::path::Path;

use stetfs_lab::experiment::report::{Chart, Report, Verdict};
use stetfs_lab::experiment::stored::{Small, Stored, places};
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

/// Those of the claims that are not reached.
fn wrong(report: &Report) -> Vec<String> {
    let wrong = report.checks.iter().filter(|check| !check.is_reached());
    wrong
        .map(|check| format!("{}: {}, not {}", check.claim, check.ours, check.paper))
        .collect()
}

/// Those of them of which it is not said why.
fn unexplained(report: &Report) -> Vec<&str> {
    let wrong = report.checks.iter().filter(|check| !check.is_reached());
    wrong
        .filter(|check| check.why.is_none())
        .map(|check| check.claim.as_str())
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
    assert_eq!((report.checks.len(), wrong(&report)), (16, Vec::new()));
}

#[test]
fn a_transaction_a_write_gains_what_the_paper_gains() {
    let report = run("shortcut-fig4", 1.0 / 256.0);
    let of = |what: &str| {
        let mut checks = report.checks.iter();
        checks.find(|c| c.claim.starts_with(what)).expect("a check")
    };
    // It commits every 5 s: more is not the same.
    assert_eq!(of("iozone, each write durable").verdict, Verdict::Overshot);
    assert_ne!(of("iozone, commit every 5 s").verdict, Verdict::Overshot);
    assert_eq!(unexplained(&report), Vec::<&str>::new());
}

#[test]
fn recovery_is_by_the_log_and_not_by_the_volume() {
    let report = run("shortcut-recovery", 1.0 / 32.0);
    assert_eq!((report.checks.len(), wrong(&report)), (9, Vec::new()));
    assert_eq!(report.recoveries.len(), 30);
}

#[test]
fn remapping_gives_full_journaling_the_bandwidth_of_ordered_mode() {
    let report = run("jftl-fig7", 1.0 / 16.0);
    let of = |what: &str| {
        let mut checks = report.checks.iter().filter(|c| c.claim.contains(what));
        assert!(
            checks.all(|check| check.is_reached()),
            "{what}: {:?}",
            wrong(&report)
        );
    };
    of("journal+remap is as fast as ordered");
    assert_eq!(unexplained(&report), Vec::<&str>::new());
}

#[test]
fn remapping_is_never_worse_than_copying() {
    let report = run("jftl-fig8", 1.0 / 16.0);
    for row in report
        .runs
        .windows(4)
        .filter(|row| row[0].system == "ordered")
    {
        let rates: Vec<f64> = row.iter().map(|run| run.write_mib_s()).collect();
        let what = format!("{}, {}: {rates:?}", row[0].medium, row[0].workload);
        assert!(rates[3] > rates[2], "{what}");
        // With pages of 16 KiB a few more or less are a tenth of files as small as here.
        let least = if row[0].medium == "JFTL's NAND" {
            0.98
        } else {
            0.85
        };
        assert!(rates[1] > least * rates[0], "{what}");
    }
}

#[test]
fn erases_are_spread_and_hot_data_is_kept_apart() {
    let mut report = run("ftl-wear", 1.0 / 32.0);
    // On so small a part the blocks that are being filled count for too much to compare uniform
    // overwrites with the book.
    report
        .checks
        .retain(|check| check.claim.contains("deviation") || check.claim.contains("hot/cold"));
    assert_eq!((report.checks.len(), wrong(&report)), (6, Vec::new()));
}

/// What is kept was made by another run, on another machine.
#[test]
fn virtual_results_are_the_same_each_time() {
    let (_, store) = places(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
    let (small, mut old) = (Small::read(&store).expect("small.json"), Vec::new());
    for experiment in EXPERIMENTS {
        // That one is about real time alone.
        if experiment.id == "dj-fig5" {
            continue;
        }
        let report = run(experiment.id, Small::SCALE);
        let has_values = |chart: &Chart| chart.series.iter().all(|s| !s.values.is_empty());
        let charts = &report.charts;
        assert!(
            !charts.is_empty() && charts.iter().all(has_values),
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
        "these do not give any more what docs/reports has of them: make lab-tables ARGS=\"{}\"",
        old.join(" ")
    );
}

/// What the paper says of its blocks is so where whole bytes differ; where values are new, a
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

#[test]
fn delta_journaling_gains_what_the_paper_gains() {
    let report = run("dj-fig9", 1.0 / 8.0);
    let papers = report.checks.iter();
    let papers: Vec<_> = papers
        .filter(|check| !check.claim.contains("stet"))
        .collect();
    let of = |verdict| papers.iter().filter(move |check| check.verdict == verdict);
    assert_eq!((papers.len(), of(Verdict::Short).count()), (6, 0));
    // Without a checkpoint, as with 512 MB, virtual time is that of the NVRAM alone.
    let overshot = of(Verdict::Overshot).filter(|check| check.claim.contains("of 512 MB"));
    assert_eq!((of(Verdict::Overshot).count(), overshot.count()), (2, 2));
    assert_eq!(unexplained(&report), Vec::<&str>::new());
}

#[test]
fn what_differs_much_goes_to_the_journal() {
    let mut report = run("dj-table1", 1.0 / 64.0);
    assert_eq!(unexplained(&report), Vec::<&str>::new());
    // A full NVRAM has no room for a descriptor either, so the next commit makes a checkpoint
    // instead of filling the journal. And of W1's journal writes most are blocks in the paper of
    // which it says nothing.
    report
        .checks
        .retain(|check| !check.claim.contains("than with 75 %"));
    let fitted = report.checks.iter().filter(|check| check.fitted.is_some());
    assert_eq!(fitted.count(), 2);
    let wrong = wrong(&report);
    assert_eq!((report.checks.len(), wrong.len()), (6, 1), "{wrong:?}");
    assert!(wrong[0].starts_with("W1"), "{wrong:?}");
}

#[test]
fn an_update_of_a_database_costs_a_fifth() {
    let report = run("dj-sqlite", 1.0 / 16.0);
    assert_eq!((report.checks.len(), wrong(&report)), (8, Vec::new()));
}

/// Those that commits make count too.
#[test]
fn a_full_nvram_makes_a_checkpoint() {
    let report = run("dj-fig8", 1.0 / 64.0);
    let zipf = report.runs.iter().take(4);
    let checkpoints: Vec<u64> = zipf.map(|run| run.checkpoints).collect();
    assert!(checkpoints.is_sorted_by(|a, b| a >= b), "{checkpoints:?}");
    assert!(checkpoints[3] > 0, "{checkpoints:?}");
}

/// By JBD2's format: a descriptor and a commit block, and between them each block that has changed;
/// that is flushed before the commit block is written, unless this has a checksum of everything.
#[test]
fn an_operation_costs_jbd2_its_blocks() {
    let report = run("operations", Small::SCALE);
    let table = |title: &str| {
        let mut tables = report.tables.iter();
        tables
            .find(|t| t.title.starts_with(title))
            .expect("a table")
    };
    for sector in ["512 B", "4 KiB"] {
        let durable = table(&format!(
            "an operation on a disk, sectors of {sector}: until durable"
        ));
        for (name, changed) in [
            // The inode, for its times, and data.
            ("overwrite 4 KiB", 2),
            ("overwrite 4 KiB, after", 2),
            ("overwrite 1 KiB", 2),
            ("write 100 B", 2),
            ("change 100 B", 2),
            ("overwrite 64 KiB", 17),
            // Both bitmaps, the descriptor, the inode and the directory's, the directory, data.
            ("create", 7),
            // The bitmap, the descriptor, the inode, data.
            ("append", 4),
            // As when it is made, but for data.
            ("unlink", 6),
            ("mkdir", 7),
            // The directory, its inode and the file's.
            ("rename", 3),
        ] {
            let mut rows = durable.rows.iter();
            let row = rows.find(|row| row[0].starts_with(name)).expect("a row");
            let bytes = (changed + 2) * 4096;
            assert_eq!(
                row[1..3],
                [format!("{bytes}, 2"), format!("{bytes}, 1")],
                "{row:?}"
            );
        }
    }
    assert_eq!(unexplained(&report), Vec::<&str>::new());
}
