//! The power is cut at every write of a workload, also during recovery; what is left is recovered and judged.
//!
//! - `STETFS_LAB_CUTS=N` visits at most N moments of each run (default 48; 0: all of them).
//! - `STETFS_LAB_CASE=...` replays one case by the name that a failure printed.
#![forbid(unsafe_code)]

use std::sync::Arc;

use stetfs_lab::crash::explore::{Case, Effort, explore, replay};
use stetfs_lab::crash::lies::{Liar, Lie};
use stetfs_lab::crash::record::{Record, Setting};
use stetfs_lab::crash::script::Script;
use stetfs_lab::host::needs;
use stetfs_lab::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety};
use stetfs_lab::skip_unless;
use stetfs_media::Cause;

fn effort(seed: u64) -> Effort {
    let moments = std::env::var("STETFS_LAB_CUTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(48);
    Effort {
        moments,
        choices: 2,
        nest_every: 4,
        write_every: 5,
        seed,
    }
}

/// Explores the runs of some scripts; every case must be right.
fn survives(variety: Variety, mode: &'static str, scripts: &[Script]) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let (mut judged, mut moments) = (0, 0);
    for (i, script) in scripts.iter().enumerate() {
        let setting = Setting {
            variety,
            mode,
            script: *script,
        };
        let record = Record::make(setting).unwrap_or_else(|error| panic!("{setting:?}: {error:#}"));
        let findings = explore(&record, effort(i as u64), 3).expect("exploring");
        judged += findings.judged;
        moments += findings.moments;
        let shown: Vec<_> = findings
            .wrong
            .iter()
            .map(|(case, why)| format!("STETFS_LAB_CASE={case}\n{why}"))
            .collect();
        assert!(shown.is_empty(), "{}", shown.join("\n\n"));
    }
    println!(
        "{} {mode}: {judged} crash states of {moments} moments",
        variety.name
    );
}

const RANDOM: [Script; 2] = [Script::Random(1), Script::Random(2)];

#[test]
fn journal_mode_on_1k_blocks() {
    survives(
        EXT4_1K,
        "journal",
        &[&Script::WRITTEN[..], &RANDOM].concat(),
    );
}

#[test]
fn journal_mode_on_4k_blocks() {
    survives(
        EXT4_4K,
        "journal",
        &[Script::LogAndReplace, Script::Orphans, Script::Random(3)],
    );
}

#[test]
fn journal_mode_on_ext3() {
    survives(
        EXT3_1K,
        "journal",
        &[Script::Orphans, Script::Revokes, Script::Random(4)],
    );
}

#[test]
fn ordered_mode() {
    survives(
        EXT4_1K,
        "ordered",
        &[&Script::WRITTEN[..], &[Script::Random(5)]].concat(),
    );
}

#[test]
fn ordered_mode_on_ext3() {
    survives(EXT3_1K, "ordered", &[Script::Orphans, Script::Random(6)]);
}

#[test]
fn writeback_mode() {
    survives(
        EXT4_1K,
        "writeback",
        &[Script::LogAndReplace, Script::Revokes, Script::Random(7)],
    );
}

/// Shows that the judge can fail: without a journal it must find data lost or the volume damaged.
#[test]
fn without_a_journal_crashes_are_caught() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    for script in [Script::LogAndReplace, Script::Directory] {
        let setting = Setting {
            variety: EXT4_1K,
            mode: "null",
            script,
        };
        let record = Record::make(setting).expect("a run");
        let findings = explore(
            &record,
            Effort {
                moments: 60,
                ..effort(9)
            },
            1,
        )
        .expect("exploring");
        assert!(
            !findings.wrong.is_empty(),
            "{} cases of {setting:?} and none was wrong",
            findings.judged
        );
        println!(
            "caught as it must be: {} {}",
            findings.wrong[0].0, findings.wrong[0].1
        );
    }
}

/// Tests the tester: with any one of the journal's barriers left out, some crash must be found that breaks the promise.
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
        let setting = Setting {
            variety: EXT4_1K,
            mode,
            script,
        };
        let record = Record::make_on(setting, |dev| Arc::new(Liar::new(dev, lie))).expect("a run");
        let findings = explore(
            &record,
            Effort {
                moments: 0,
                choices: 4,
                ..effort(3)
            },
            1,
        )
        .expect("exploring");
        let Some((case, why)) = findings.wrong.first() else {
            panic!(
                "{} cases of {setting:?} and none showed that {lie:?} is missing",
                findings.judged
            );
        };
        println!(
            "{lie:?} was missed after {} cases, at {case}: {}",
            findings.judged,
            why.lines().next().unwrap_or("")
        );
    }
}

#[test]
fn replay_the_case_in_the_environment() {
    if let Ok(name) = std::env::var("STETFS_LAB_CASE") {
        let case: Case = name.parse().expect("a case's name");
        replay(&case).unwrap_or_else(|error| panic!("{case}: {error:#}"));
    }
}
