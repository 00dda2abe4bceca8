//! Short explorations of power cuts, through the engine of `stetfs crash`, and tests of its judges:
//! without a journal, and without any one of a journal's barriers, they must find something.
//!
//! A failure prints the command that replays it. `STETFS_LAB_CUTS=N` visits at most N moments of
//! each long workload (default 20; 0: all) and takes N of the enumerated sequences.
#![forbid(unsafe_code)]

use std::num::NonZero;
use std::sync::Arc;

use stetfs_crash::campaign::Campaign;
use stetfs_crash::lies::{Liar, Lie};
use stetfs_crash::media::Kind;
use stetfs_crash::record::Front;
use stetfs_crash::report::{Counts, Fault, Report};
use stetfs_crash::states::Effort;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::script::Script;
use stetfs_crash::workloads::sequences::{Sample, sequences};
use stetfs_media::Cause;
use stetfs_testkit::host::needs;
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety};
use stetfs_testkit::skip_unless;

fn cuts() -> usize {
    let cuts = std::env::var("STETFS_LAB_CUTS").ok();
    match cuts.and_then(|n| n.parse().ok()) {
        None => 20,
        Some(0) => usize::MAX,
        Some(n) => n,
    }
}

fn explored(target: &Target, workloads: Vec<Workload>, front: Option<Front<'_>>) -> Report {
    let fresh = target.contents().expect("a volume");
    let campaign = Campaign {
        effort: Effort {
            moments: cuts(),
            e2fsck_every: 64,
            audit_every: 256,
            orders: 4,
            ..Effort::default()
        },
        jobs: std::thread::available_parallelism().map_or(1, NonZero::get),
        enough: 1,
        minimized: 1,
        front,
        ..Campaign::new(target.clone(), fresh, workloads)
    };
    campaign
        .run(&|_| {})
        .unwrap_or_else(|error| panic!("{target}: {error:#}"))
}

/// The same on a volume of the usual shape.
fn survives(scheme: &str, mode: Option<&str>, volume: Variety, workloads: Vec<Workload>) {
    let target = Target::new(scheme, mode, volume).expect("a target");
    let counts = assert_survives(&target, workloads);
    assert!(counts.nested > 0 && counts.audits > 0, "{counts:?}");
}

/// Explores workloads; every state must be right.
fn assert_survives(target: &Target, workloads: Vec<Workload>) -> Counts {
    let report = explored(target, workloads, None);
    let shown: Vec<_> = report
        .violations
        .iter()
        .map(|v| format!("{}: {}\nstetfs crash --replay '{}'", v.fault, v.why, v.case))
        .collect();
    assert!(shown.is_empty(), "{}", shown.join("\n\n"));
    let counts = report.counts;
    assert!(counts.states > 0 && counts.e2fsck > 0, "{counts:?}");
    println!(
        "{target}: {} workloads, {} states and {} after a second cut, {} recoveries",
        counts.workloads, counts.states, counts.nested, counts.recoveries
    );
    counts
}

/// One in each order, by turns.
fn scripts(volume: Variety, scripts: &[Script]) -> Vec<Workload> {
    let orders = [Order::InOrder, Order::Overlap(1), Order::EachHandle];
    let orders = orders.into_iter().cycle();
    let workload =
        |(script, order): (&Script, _)| script.workload(volume.profile()).in_order(order);
    scripts.iter().zip(orders).map(workload).collect()
}

/// So many of the sequences of one operation and of two, spread over all of them.
fn some_sequences(volume: Variety) -> Vec<Workload> {
    let sample = Sample {
        pairs: 0,
        triples: 0,
        seed: 1,
    };
    let spread = |length| {
        let all = sequences(length, volume.rules(), sample).workloads;
        let step = all.len().div_ceil(cuts()).max(1);
        all.into_iter().step_by(step)
    };
    spread(1).chain(spread(2)).collect()
}

#[test]
fn journal_mode_on_1k_blocks() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let random = [Script::Random(1), Script::Random(2)];
    let long = scripts(EXT4_1K, &[&Script::WRITTEN[..], &random].concat());
    survives("jbd2", Some("journal"), EXT4_1K, long);
    survives("jbd2", Some("journal"), EXT4_1K, some_sequences(EXT4_1K));
}

#[test]
fn journal_mode_on_other_volumes() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    for (volume, random) in [(EXT4_4K, 3), (EXT3_1K, 4)] {
        let long = [
            Script::LogAndReplace,
            Script::Orphans,
            Script::Revokes,
            Script::Random(random),
        ];
        survives("jbd2", Some("journal"), volume, scripts(volume, &long));
    }
}

#[test]
fn asynchronous_commits() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let long = [Script::LogAndReplace, Script::Revokes, Script::SqliteWal];
    let mode = Some("journal,journal_async_commit");
    survives("jbd2", mode, EXT4_1K, scripts(EXT4_1K, &long));
}

#[test]
fn ordered_mode() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let long = [&Script::WRITTEN[..], &[Script::Random(5)]].concat();
    survives("jbd2", Some("ordered"), EXT4_1K, scripts(EXT4_1K, &long));
    survives("jbd2", Some("ordered"), EXT4_1K, some_sequences(EXT4_1K));
    let old = [Script::Orphans, Script::Random(6)];
    survives("jbd2", Some("ordered"), EXT3_1K, scripts(EXT3_1K, &old));
}

#[test]
fn writeback_mode() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let long = [Script::LogAndReplace, Script::Revokes, Script::Random(7)];
    survives("jbd2", Some("writeback"), EXT4_1K, scripts(EXT4_1K, &long));
    survives("jbd2", Some("writeback"), EXT4_1K, some_sequences(EXT4_1K));
}

#[test]
fn shortcut_in_each_variant() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    for more in ["adp-s", "adp-s,fences=paper", "blk-s", "diff", "blk"] {
        let mode = format!("-,variant={more}");
        let target = Target::new("shortcut", Some(&mode), EXT4_1K).expect("a target");
        let long = [Script::LogAndReplace, Script::Revokes, Script::Random(8)];
        assert_survives(&target, scripts(EXT4_1K, &long));
        assert_survives(&target, some_sequences(EXT4_1K));
    }
    let old = Target::new("shortcut", None, EXT3_1K).expect("a target");
    assert_survives(
        &old,
        scripts(EXT3_1K, &[Script::Orphans, Script::Random(9)]),
    );
}

/// The examples of CONTRIBUTING.md.
#[test]
fn schemes_to_copy() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let long = [Script::LogAndReplace];
    survives("template", None, EXT4_1K, scripts(EXT4_1K, &long));
    survives("template", None, EXT4_1K, some_sequences(EXT4_1K));
    let long = [Script::LogAndReplace, Script::Revokes];
    survives("shadow", None, EXT4_1K, scripts(EXT4_1K, &long));
    survives("shadow", None, EXT4_1K, some_sequences(EXT4_1K));
}

/// Cuts in the middle of programs and erases of file data, of the log, of remaps, of garbage
/// collection and of the layer's own map.
#[test]
fn volumes_on_flash() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let on = |scheme: &str, mode: &str, volume: Variety, long: &[Script]| {
        let target = Target::new(scheme, Some(mode), volume).expect("a target");
        let target = target.on(Kind::Nand).expect("a target");
        assert_survives(&target, scripts(volume, long));
    };
    use Script::{LogAndReplace, Orphans, Overwrites, Random, Revokes};
    on("jftl", "journal", EXT4_1K, &[LogAndReplace, Revokes]);
    on("jftl", "journal", EXT4_4K, &[Random(31)]);
    on(
        "jftl",
        "journal,remap=batch",
        EXT4_1K,
        &[LogAndReplace, Revokes],
    );
    on("jftl", "journal", EXT3_1K, &[Orphans]);
    on("jftl", "ordered", EXT4_1K, &[Overwrites, Random(32)]);
    on("jftl", "journal,remap=off", EXT4_1K, &[LogAndReplace]);
    on("jftl", "ordered,remap=off", EXT4_1K, &[Revokes]);
    on("jbd2", "writeback", EXT4_1K, &[LogAndReplace]);
}

/// The same on a part with pages of 16 KiB: what waits in a controller's memory for its page to be
/// full is programmed by its capacitors, and the rest of the page is lost until the next erase.
#[test]
fn volumes_on_flash_in_units() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let on = |text: &str, script: Script| {
        let target: Target = text.parse().expect("a target");
        assert_eq!(target.to_string(), text);
        assert_survives(&target, scripts(EXT4_4K, &[script]));
    };
    on("jftl journal ext4-4k@nand16k", Script::LogAndReplace);
    on("jftl ordered ext4-4k@nand16k", Script::Revokes);
    on("jbd2 journal ext4-4k@nand16k", Script::LogAndReplace);
}

/// Caches in memory beside the device, so small that they evict.
#[test]
fn caches() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    use Script::{LogAndReplace, Orphans, Overwrites, Random, Revokes};
    for (scheme, ext3_mode, long) in [
        ("ubj", "-,cow=range", [LogAndReplace, Revokes, Random(51)]),
        ("tinca", "-", [Overwrites, Revokes, Random(52)]),
        ("spindle", "-", [LogAndReplace, Orphans, Random(53)]),
    ] {
        for (volume, mode) in [(EXT4_1K, "-"), (EXT3_1K, ext3_mode)] {
            let target = Target::new(scheme, Some(mode), volume).expect("a target");
            assert_survives(&target, scripts(volume, &long));
        }
        let target = Target::new(scheme, None, EXT4_1K).expect("a target");
        assert_survives(&target, some_sequences(EXT4_1K));
    }
}

/// Deltas in a little memory beside the device, both of which lose what they lose.
#[test]
fn delta_journaling() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    use Script::{LogAndReplace, Orphans, Overwrites, Random, Revokes};
    let on = |mode: &str, volume: Variety, workloads: Vec<Workload>| {
        let target = Target::new("dj", Some(mode), volume).expect("a target");
        assert_survives(&target, workloads);
    };
    let long = [LogAndReplace, Revokes, Random(41)];
    on("journal", EXT4_1K, scripts(EXT4_1K, &long));
    on("journal", EXT4_1K, some_sequences(EXT4_1K));
    let long = [Overwrites, Revokes, Random(42)];
    on("ordered", EXT4_1K, scripts(EXT4_1K, &long));
    on("ordered", EXT4_1K, some_sequences(EXT4_1K));
    let ranges = "journal,decide=size,compress=ranges";
    on(ranges, EXT4_4K, scripts(EXT4_4K, &[LogAndReplace]));
    on(
        "journal,threshold=100",
        EXT3_1K,
        scripts(EXT3_1K, &[Orphans]),
    );
}

/// Zeroed blocks became unwritten where they were; what was then written to them was taken for new
/// and put in its place before the commit, over what the last commit had there: its recovery found
/// it missing and dropped the whole transaction.
#[test]
fn what_is_committed_is_not_written_over() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let text = "mkdir A 755; create A/x 644; open @2 A/x; write @2 0 5000 11; begin
        open @2 A/x; zero @2 1000 2500; write @2 0 5000 21; fsync @2";
    let workload = Workload::parse("zeroed", text).expect("a workload");
    let target = "shortcut - ext4-1k".parse().expect("a target");
    assert_survives(&target, vec![workload]);
}

/// Shows that the judge can fail: without a journal it must find data lost or the volume damaged.
#[test]
fn without_a_journal_crashes_are_caught() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let target = Target::new("null", None, EXT4_1K).expect("a target");
    for script in [Script::LogAndReplace, Script::Directory] {
        let report = explored(&target, scripts(EXT4_1K, &[script]), None);
        let violation = report.violations.first();
        let violation = violation.unwrap_or_else(|| panic!("{:?}", report.counts));
        println!("caught as it must be: {} {}", violation.case, violation.why);
        let case = violation.case.parse();
        let case: stetfs_crash::case::Case = case.expect("what was printed");
        let replayed = case.replay(None).expect("a replay").wrong;
        assert_eq!(replayed.map(|(fault, _)| fault), Some(violation.fault));
    }
}

/// Tests the tester: with any one of the journal's barriers left out, some crash must be found that
/// breaks the promise.
#[test]
fn a_missing_barrier_is_caught() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let lies = [
        ("journal", Script::LogAndReplace, Lie::Flush(Cause::Log)),
        (
            "journal",
            Script::LogAndReplace,
            Lie::Durable(Cause::CommitRecord),
        ),
        ("journal", Script::Random(3), Lie::Flush(Cause::Checkpoint)),
        ("ordered", Script::Overwrites, Lie::Flush(Cause::Log)),
    ];
    for (mode, script, lie) in lies {
        let target = Target::new("jbd2", Some(mode), EXT4_1K).expect("a target");
        let front = move |dev| Arc::new(Liar::new(dev, lie)) as Arc<_>;
        let report = explored(&target, scripts(EXT4_1K, &[script]), Some(&front));
        let Some(violation) = report.violations.first() else {
            panic!(
                "{target} {}: nothing showed that {lie:?} is missing: {:?}",
                script.name(),
                report.counts
            );
        };
        assert_ne!(violation.fault, Fault::Answer, "{}", violation.why);
        println!(
            "{lie:?} was missed after {} states, at {}: {}",
            report.counts.states,
            violation.case,
            violation.why.lines().next().unwrap_or("")
        );
    }
}

/// A hole whose edges lie inside of blocks was made in two transactions where the log was short:
/// one zeroed the edges, the next freed the blocks between them, and a cut between the two left a
/// hole that nobody had asked for.
#[test]
fn a_hole_is_made_in_one_transaction() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let text = "setup standard; punch A/x 500 3000; fsync A/x";
    let workload = Workload::parse("hole", text).expect("a workload");
    let target = "jbd2 journal ext4-1k:256".parse().expect("a target");
    assert_survives(&target, vec![workload]);
}
