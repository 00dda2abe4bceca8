//! Short explorations of power cuts through the engine of `stetfs crash`, and tests of its judges:
//! without a journal, or without any one of its barriers, the judges must find a violation.
//!
//! A failure prints the command that replays it. `STETFS_LAB_CUTS=N` visits at most N moments of
//! each long workload (default 4; 0: all) and takes N of the enumerated sequences.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;

use stetfs_crash::lies::{Liar, Lie};
use stetfs_crash::record::Record;
use stetfs_crash::report::Fault;
use stetfs_crash::sharing::Shard;
use stetfs_crash::states::Effort;
use stetfs_crash::target::Target;
use stetfs_crash::turns::Order;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::script::Script;
use stetfs_crash::workloads::sequences::{Sample, sequences, with_groups};
use stetfs_media::Cause;
use stetfs_scheme::Ground;
use stetfs_schemes::{each_example, each_scheme, find, for_use};
use stetfs_testkit::ground::{orders, simulated};
use stetfs_testkit::host::needs;
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety};
use stetfs_testkit::skip_unless;

use support::{assert_right, assert_survives, cuts, effort, explored, scripts};

/// At most [`cuts`] of the sequences of one operation, of those of two, and of each kind with
/// groups, evenly spread.
fn some_sequences(target: &Target) -> Vec<Workload> {
    let sample = Sample {
        pairs: 0,
        triples: 0,
        seed: 1,
    };
    let rules = target.rules();
    let all = [1, 2].map(|length| sequences(length, rules, sample));
    let spread = all.into_iter().chain(with_groups(rules)).flat_map(|made| {
        let step = made.workloads.len().div_ceil(cuts()).max(1);
        made.workloads.into_iter().step_by(step)
    });
    spread.collect()
}

fn sequences_with_groups(target: &Target) -> impl Iterator<Item = Workload> {
    let made = with_groups(target.rules()).into_iter();
    made.flat_map(|made| made.workloads)
}

/// The file system does the same in every scheme, so that one scheme runs all scripts: those about
/// names and inodes in `data=journal`, those about homes and marks in `data=ordered`, the others in
/// both.
#[test]
fn every_script_in_the_default_scheme() {
    use Script::{
        Alike, Beside, ByTurns, Clocks, Directory, GroupNames, Groups, Inodes, Mapped, Marks,
        OrphanList, Postmark, Rests, Splits, TwoGroups,
    };
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let of_data = |s: &Script| {
        let of_names = [Alike, Directory, GroupNames, Groups, Inodes, OrphanList];
        !of_names.contains(s) && !matches!(s, TwoGroups | Postmark(_) | ByTurns | Splits | Clocks)
    };
    let of_names = |s: &Script| !matches!(s, Beside | Mapped | Marks | Rests);
    let modes = [
        (
            "journal",
            &[1, 2][..],
            Script::WRITTEN
                .into_iter()
                .filter(of_names)
                .collect::<Vec<_>>(),
        ),
        (
            "ordered",
            &[5],
            Script::WRITTEN.into_iter().filter(of_data).collect(),
        ),
    ];
    for (mode, random, written) in modes {
        let target = Target::new("jbd2", Some(mode), EXT4_1K).expect("a target");
        let random = random.iter().copied().map(Script::Random);
        let long: Vec<_> = written.into_iter().chain(random).collect();
        let counts = assert_survives(&target, scripts(EXT4_1K, &long));
        assert!(counts.nested > 0 && counts.audits > 0, "{counts:?}");
    }
}

/// Runs a few scripts and random operations in each trial, on varieties of volume by turns. A trial
/// with an order of writes of its own runs more, and some sequences. A flash trial runs little,
/// since each run takes many times as long.
fn every_trial(scheme: &str) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    use Script::SqliteWal;
    use Script::{
        GroupNames, Groups, LogAndReplace, Orphans, Overwrites, Random, Records, Revokes,
    };
    let scheme = find(scheme).expect("a scheme");
    // Schemes that are not atomic must be caught: see below.
    if !scheme.about.atomic {
        return;
    }
    let others = [EXT4_4K, EXT3_1K].into_iter().cycle();
    let turns = [Revokes, Orphans, Overwrites, SqliteWal]
        .into_iter()
        .cycle();
    let trials = simulated(scheme).zip(turns).zip(others).zip(31..);
    for (((trial, turn), other), seed) in trials {
        let on = |volume: Variety, long: &[Script]| {
            assert_survives(&Target::of(scheme, trial, volume), scripts(volume, long));
        };
        if !trial.has_own_order {
            on(other, &[LogAndReplace]);
            continue;
        }
        if trial.ground == Ground::Flash {
            on(EXT4_1K, &[LogAndReplace]);
            on(other, &[turn]);
            continue;
        }
        if trial.atomic {
            on(EXT4_1K, &[Records]);
        }
        on(EXT4_1K, &[LogAndReplace, turn, Groups]);
        on(other, &[Random(seed), Groups, GroupNames]);
        // Sequences do not unmount, so that a cache would keep nothing.
        if !trial.keeps_cache() {
            let target = Target::of(scheme, trial, EXT4_1K);
            assert_survives(&target, some_sequences(&target));
        }
    }
}

macro_rules! tests {
    ($($scheme:ident)*) => {
        $(
            #[test]
            fn $scheme() {
                every_trial(stringify!($scheme));
            }
        )*
    };
}

each_scheme!(tests);
each_example!(tests);

/// Flash with pages of 16 KiB. Data in the controller's memory waits until it fills a page. At a
/// power cut, capacitors program it, and the rest of that page is lost until the next erase.
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

/// Zeroed blocks became unwritten extents in place. A later write to them was taken for new data
/// and written in place before the commit, over the content that the last commit had checksummed.
/// Recovery found that content missing and dropped the whole transaction.
#[test]
fn what_is_committed_is_not_written_over() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let text = "mkdir A 755; create A/x 644; open @2 A/x; write @2 0 5000 11; begin
        open @2 A/x; zero @2 1000 2500; write @2 0 5000 21; fsync @2";
    let workload = Workload::parse("zeroed", text).expect("a workload");
    let target = "shortcut - ext4-1k".parse().expect("a target");
    assert_survives(&target, vec![workload]);
}

/// All sequences with a group, each handle a transaction of its own, in every trial with an order
/// of writes of its own. Few states at each moment, and no second cuts: the full exploration,
/// `stetfs crash --ops groups`, takes days. `STETFS_LAB_SCHEME=NAME` takes one scheme,
/// `STETFS_LAB_SHARD=I/N` one of N parts of the sequences.
#[test]
#[ignore = "takes hours; make crash-groups"]
fn every_sequence_with_a_group() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let only = std::env::var("STETFS_LAB_SCHEME").ok();
    let shard = std::env::var("STETFS_LAB_SHARD").ok();
    let shard = shard.map_or(Shard::WHOLE, |text| text.parse().expect("a shard"));
    let effort = Effort {
        exhaustive: 2,
        prefixes: 3,
        random: 1,
        guided: 3,
        moments: 24,
        nest_every: 0,
        audit_every: 0,
        chains: 0,
        ..effort()
    };
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let schemes = for_use().iter().filter(|s| is_wanted(s.about.name));
    for (scheme, trial) in schemes.flat_map(|s| orders(s).map(move |t| (s, t))) {
        let target = Target::of(scheme, trial, EXT4_1K);
        if !scheme.about.atomic {
            continue;
        }
        let all = sequences_with_groups(&target).zip(0..);
        let all = all.filter(|(_, n)| shard.has(*n)).map(|(w, _)| w);
        let all: Vec<_> = all.map(|w| w.in_order(Order::EachHandle)).collect();
        let count = all.len() as u64;
        let counts = assert_right(&target, explored(&target, all, effort, None));
        assert_eq!(counts.workloads, count);
    }
}

/// The model foretells what each sequence with a group answers, and what other readers see
/// meanwhile. Runs where files can have groups of writes, and where they cannot. No power is cut.
#[test]
fn every_sequence_with_a_group_answers_as_the_model() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for mode in ["journal", "ordered"] {
        let target = Target::new("jbd2", Some(mode), EXT4_1K).expect("a target");
        let fresh = target.contents().expect("a volume");
        let all: Vec<_> = sequences_with_groups(&target).collect();
        let mut wrong = Vec::new();
        for workload in &all {
            if let Err(error) = Record::make(&target, &fresh, workload) {
                wrong.push(format!("{}: {error:#}", workload));
            }
        }
        let (shown, count) = (
            wrong.iter().take(20).cloned().collect::<Vec<_>>(),
            all.len(),
        );
        assert!(
            wrong.is_empty(),
            "{} of {count}: {}",
            wrong.len(),
            shown.join("\n")
        );
    }
}

/// Tests the judge: without a journal it must find data lost or the volume damaged.
#[test]
fn without_a_journal_crashes_are_caught() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let target = Target::new("null", None, EXT4_1K).expect("a target");
    for script in [Script::LogAndReplace, Script::Directory] {
        let report = explored(&target, scripts(EXT4_1K, &[script]), effort(), None);
        let violation = report.violations.first();
        let violation = violation.unwrap_or_else(|| panic!("{:?}", report.counts));
        println!("caught as it must be: {} {}", violation.case, violation.why);
        let case = violation.case.parse();
        let case: stetfs_crash::case::Case = case.expect("what was printed");
        let replayed = case.replay(None).expect("a replay").wrong;
        assert_eq!(replayed.map(|(fault, _)| fault), Some(violation.fault));
    }
}

/// Tests the judge: without any one of the journal's barriers, some crash must break the promise.
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
        let report = explored(&target, scripts(EXT4_1K, &[script]), effort(), Some(&front));
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

/// A hole with edges inside of blocks was made in two transactions when the log was short: one
/// zeroed the edges, the next freed the blocks between them. A cut between the two left a hole that
/// nobody had asked for.
#[test]
fn a_hole_is_made_in_one_transaction() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let text = "setup standard; punch A/x 500 3000; fsync A/x";
    let workload = Workload::parse("hole", text).expect("a workload");
    let target = "jbd2 journal ext4-1k:256".parse().expect("a target");
    assert_survives(&target, vec![workload]);
}
