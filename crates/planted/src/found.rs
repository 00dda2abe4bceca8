//! Tests that are themselves tested by planted bugs. A bug affects all of a process, so each is
//! planted in a process of its own: this test program, started again.

use std::process::Command;

use crate::{BUGS, Bug, find_bug};

/// What names the bug that a test is to plant.
const PLANTED: &str = "STETFS_PLANTED_BUG";

/// The bug to plant, for the test that [`must_be_found`] starts.
///
/// # Panics
/// `STETFS_PLANTED_BUG` names none: the test was started by hand.
pub fn wanted() -> Bug {
    let name = std::env::var(PLANTED).expect("STETFS_PLANTED_BUG");
    find_bug(&name).expect("STETFS_PLANTED_BUG names a bug").bug
}

/// Runs an ignored test of this program with each of these bugs.
///
/// # Panics
/// The test does not fail with one of them.
pub fn must_be_found(test: &str, bugs: &[Bug]) {
    let this = std::env::current_exe().expect("this program");
    for about in BUGS.iter().filter(|about| bugs.contains(&about.bug)) {
        let bug = about.name;
        let run = Command::new(&this)
            .args([test, "--exact", "--ignored"])
            .env(PLANTED, bug)
            .output();
        let run = run.expect("a test run");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(
            !run.status.success() && said.contains("1 failed"),
            "{bug} was not found: {said}"
        );
    }
}
