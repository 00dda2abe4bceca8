//! Volumes with random damage in their metadata give errors and nothing worse: see
//! `stetfs_crash::damage`. The fuzz target `image` tests the same for hours, guided by coverage.
//!
//! STETFS_DAMAGE_CASES (default 400) is the number of damaged volumes of each kind.

use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use stetfs_crash::damage;

/// Longer than any case may take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn damaged_volumes_give_errors_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let cases = std::env::var("STETFS_DAMAGE_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400);
    for (name, image) in damage::volumes(dir.path()).expect("volumes to damage") {
        let targets = damage::used_blocks(&image);
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(&prop::collection::vec(any::<u8>(), 4..80), |bytes| {
            let mut damaged = image.clone();
            damage::apply(&mut damaged, &targets, &bytes);
            let (done, wait) = mpsc::channel();
            let worker = std::thread::spawn(move || {
                damage::survive(damaged);
                let _ = done.send(());
            });
            match wait.recv_timeout(PATIENCE) {
                Err(mpsc::RecvTimeoutError::Timeout) => Err(TestCaseError::fail("it hangs")),
                _ => worker
                    .join()
                    .map_err(|_| TestCaseError::fail("it panicked")),
            }
        });
        outcome.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}
