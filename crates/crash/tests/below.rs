//! Power cuts of schemes below another file system's journal. That file system is stetfs with jbd2.
//! After each cut, the scheme below recovers first, then jbd2.
//!
//! A failure prints the command that replays it. `STETFS_LAB_CUTS=N` visits at most N moments of
//! each workload (default 4; 0: all).
#![forbid(unsafe_code)]

mod support;

use stetfs_crash::case::Case;
use stetfs_crash::report::Counts;
use stetfs_crash::target::Target;
use stetfs_crash::workloads::script::Script;
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

use support::{assert_survives, scripts};

fn survives(target: &str, long: &[Script]) -> Counts {
    let target: Target = target.parse().expect("a target");
    assert_survives(&target, scripts(target.volume, long))
}

/// Runs every written script on the target `STETFS_LAB_TARGET`, such as `jbd2/stet ordered
/// ext4-1k`.
#[test]
#[ignore = "a target of one's own"]
fn a_target() {
    let targets = std::env::var("STETFS_LAB_TARGET").expect("STETFS_LAB_TARGET");
    for text in targets.split(';') {
        let target: Target = text.parse().expect("a target");
        let all: Vec<_> = Script::written(&target).collect();
        survives(text, &all);
    }
}

/// `stet` below each data mode of ext4.
#[test]
fn stet_below() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let turns = [
        ("journal", Script::LogAndReplace),
        ("ordered", Script::Revokes),
        ("writeback", Script::Overwrites),
        ("journal,journal_async_commit", Script::Orphans),
    ];
    for (mode, script) in turns {
        survives(&format!("jbd2/stet {mode} ext4-1k"), &[script]);
    }
}

/// Tinca has every write go through its cache.
#[test]
fn tinca_below() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    survives("jbd2/tinca journal ext4-1k", &[Script::LogAndReplace]);
    survives("jbd2/tinca ordered ext4-1k", &[Script::Revokes]);
}

/// In memory a power cut tears sectors, which ext4 does not expect of a disk.
#[test]
fn data_in_memory_is_not_torn() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    survives("jbd2/shortcut ordered ext4-1k", &[Script::Overwrites]);
}

/// Replays a case that was once wrong.
fn assert_right(case: &str) {
    let case: Case = case.parse().expect("a case");
    let wrong = case.replay(None).expect("a replay").wrong;
    assert!(wrong.is_none(), "{case}: {wrong:?}");
}

/// A checkpoint wrote older content of a block home while a newer commit was under way. The scheme
/// below took that for a change, and undid the commit.
#[test]
fn a_home_that_comes_late_undoes_no_commit() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    assert_right(
        "jbd2/stet journal ext4-1k | order overlap3001; punch @0 0 1048576; sync; \
         create data 644; open @1 data; write @1 0 20000 700; write @1 20000 20000 701; \
         write @1 40000 20000 702; write @1 60000 20000 703; write @1 80000 20000 704; \
         write @1 100000 20000 705; write @1 120000 20000 706; write @1 140000 20000 707; \
         write @1 160000 20000 708; write @1 180000 20000 709; write @1 200000 20000 710; \
         write @1 220000 20000 711; write @1 240000 20000 712; write @1 260000 20000 713; \
         write @1 280000 20000 714; write @1 300000 20000 715; write @1 320000 20000 716; \
         write @1 340000 20000 717; write @1 360000 20000 718; write @1 380000 20000 719; \
         fsync @1; unlink data; close @1; unlink holes; close @0; mkdir m 755 | 27 all",
    );
}

/// A second form of [`a_home_that_comes_late_undoes_no_commit`]: the old content came while the
/// commit was under way.
#[test]
fn a_home_that_comes_during_a_commit_does_not_undo_it() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    assert_right(
        "jbd2/ubj journal ext4-1k | order overlap2001; create o0 644; open @0 o0; \
         write @0 0 30000 1; fsync @0; create o1 644; open @1 o1; write @1 0 30000 2; fsync @1; \
         create o2 644; open @2 o2; write @2 0 30000 3; fsync @2; create cut 644; open @2 cut; \
         write @2 0 60000 9; close @2; sync; unlink o0; unlink o1; unlink o2; sync; close @1; \
         fsyncdir .; truncate cut 1000 | 849 all",
    );
}

/// With `data=writeback`, data may be written after the commit that gives it its place, however old
/// it is.
#[test]
fn writeback_data_comes_after_the_commit() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    assert_right("jbd2 writeback ext4-1k | waits | 14 all");
    assert_right("jbd2/stet writeback ext4-1k | waits | 7 all");
}
