//! `stetfs crash -- PROGRAM` that ends early: it reports what it has found, says that this is not
//! all, keeps what it must keep, and leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::Trial;
use crate::run::{Ran, STETFS, has, json, stetfs, tool, wait_until};

/// A program that loses something after each promise.
const PROGRAM: &str = "cd $STETFS_DIR; for n in 1 2 3 4 5 6; do echo $n > f$n; \
    echo $n > $STETFS_MARKS; done";

/// Runs it until `is_so` is true, sends it a signal, and waits.
fn stopped(trial: &Trial, args: &[&str], signal: &str, is_so: &dyn Fn() -> bool) -> Ran {
    let tmp = trial.lab.str("tmp");
    fs::create_dir_all(&tmp).unwrap();
    let [out, err] = ["out", "err"].map(|name| trial.lab.str(name));
    let mut running = Command::new(STETFS)
        .arg("crash")
        .args(args)
        .env("TMPDIR", &tmp)
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(&err).unwrap())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is at work", is_so);
    tool("kill", &["-s", signal, &running.id().to_string()]).ok();
    let status = running.wait().unwrap();
    let left: Vec<_> = fs::read_dir(&tmp).unwrap().flatten().collect();
    assert!(
        left.iter().all(|entry| entry.path().extension().is_some()),
        "{left:?}"
    );
    trial.nothing_is_left();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&tmp), "{mounts}");
    Ran {
        code: status.code().unwrap_or(-1),
        out: fs::read_to_string(out).unwrap(),
        err: fs::read_to_string(err).unwrap(),
    }
}

#[test]
fn what_was_found_until_a_signal_is_told_and_kept() {
    let Some(trial) = Trial::new() else { return };
    let (kept, count) = (trial.lab.str("kept"), trial.lab.str("count"));
    let [report, junit] = ["report", "junit"].map(|name| trial.lab.str(name));
    let asked = |times: usize| {
        let count = fs::read_to_string(&count).unwrap_or_default();
        count.lines().count() >= times
    };
    let lost = format!(
        "echo asked >> {count}; sleep 0.1; for n in $(cat $STETFS_MARKS_FILE); do \
         test -s {{dir}}/f$n || exit 1; done"
    );
    let holds = format!("echo asked >> {count}; sleep 0.1");
    for (signal, check, code) in [
        ("TERM", &lost, 1),
        ("TERM", &holds, 143),
        ("INT", &holds, 130),
        ("HUP", &holds, 129),
    ] {
        let _ = fs::remove_file(&count);
        let _ = fs::remove_file(&kept);
        let args = [
            "--check",
            check,
            "--keep",
            &kept,
            "--model",
            "posix,ext4-ordered",
        ];
        let files = [
            "--json", &report, "--junit", &junit, "--", "sh", "-c", PROGRAM,
        ];
        let args = [&args[..], &files].concat();
        let ran = stopped(&trial, &args, signal, &|| asked(30));
        assert_eq!(ran.code, code, "{ran:#?}");
        assert!(
            ran.out.starts_with("INCOMPLETE: it was interrupted"),
            "{ran:#?}"
        );
        assert!(ran.out.contains("INCOMPLETE posix: "), "{ran:#?}");
        assert!(
            ran.out
                .contains("INCOMPLETE ext4-ordered: nothing was explored"),
            "{ran:#?}"
        );
        assert_eq!(ran.out.contains("finding 1"), code == 1, "{ran:#?}");
        let report = json(&fs::read_to_string(&report).unwrap());
        assert_eq!(report["models"][0]["early"], "stopped");
        let states = report["models"][0]["counts"]["states"].as_u64().unwrap();
        assert!(states > 5, "{report:#}");
        let junit = fs::read_to_string(&junit).unwrap();
        assert!(junit.contains("<skipped message=\"INCOMPLETE"), "{junit}");
        // The recording that is kept is whole, and can be explored.
        let whole = ["crash", "--recording", &kept, "--check", "true"];
        assert!(stetfs(&whole).ok().starts_with("ext4-ordered: "));
    }
}

/// nohup(1) makes its command ignore a hangup.
#[test]
fn a_signal_that_is_ignored_ends_nothing() {
    let Some(trial) = Trial::new() else { return };
    let (kept, go) = (trial.lab.str("kept"), trial.lab.str("go"));
    let script = format!(
        "trap '' HUP; exec {STETFS} crash --keep {kept} --check true -- \
         sh -c 'echo x > $STETFS_DIR/a; touch {go}; sleep 1'"
    );
    let mut running = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    wait_until("it is at work", || Path::new(&go).exists());
    tool("kill", &["-s", "HUP", &running.id().to_string()]).ok();
    assert_eq!(running.wait().unwrap().code(), Some(0));
}

#[test]
fn a_recording_that_is_interrupted_is_kept_and_cleaned_up() {
    let Some(trial) = Trial::new() else { return };
    let (kept, go, pid) = (
        trial.lab.str("kept"),
        trial.lab.str("go"),
        trial.lab.str("pid"),
    );
    let program = format!(
        "cd $STETFS_DIR; echo x > a; env -i setsid sh -c 'echo $$ > {pid}; exec sleep 1000' & \
         sleep 0.2; touch {go}; sleep 1000"
    );
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        for verb in ["--keep", "--save"] {
            let _ = fs::remove_file(&kept);
            let _ = fs::remove_file(&go);
            let args = ["--check", "true", verb, &kept, "--", "sh", "-c", &program];
            let ran = stopped(&trial, &args, signal, &|| Path::new(&go).exists());
            assert_eq!(ran.code, code, "{ran:#?}");
            let left = fs::read_to_string(&pid).unwrap();
            let left = format!("/proc/{}/environ", left.trim());
            assert!(fs::read(left).is_err(), "the daemon is still there");
            if verb == "--save" {
                assert!(ran.err.contains("was not saved") && !Path::new(&kept).exists());
                continue;
            }
            assert!(
                ran.out.starts_with("INCOMPLETE: it was interrupted"),
                "{ran:#?}"
            );
            assert!(ran.out.contains("nothing was explored"), "{ran:#?}");
            let text = fs::read_to_string(&kept).unwrap();
            assert!(
                text.contains("was stopped") && text.contains("\"Make\""),
                "{text}"
            );
        }
    }
    // timeout(1) sends the signal twice, to the program and to its process group.
    if has("timeout") {
        let args = [
            "3", STETFS, "crash", "--keep", &kept, "--check", "true", "--", "sleep", "99",
        ];
        let ran = tool("timeout", &args);
        assert_eq!(ran.code, 124, "{ran:#?}");
        assert!(ran.out.starts_with("INCOMPLETE"), "{ran:#?}");
    }
}

#[test]
fn a_budget_says_in_its_first_word_that_it_was_spent() {
    let Some(trial) = Trial::new() else { return };
    let [kept, one, two] = ["kept", "1.json", "2.json"].map(|name| trial.lab.str(name));
    let save = [
        "crash", "--check", "true", "--save", &kept, "--", "sh", "-c", PROGRAM,
    ];
    stetfs(&save).ok();
    let explore = |options: &[&str]| {
        let args = ["crash", "--recording", &kept, "--model", "posix"];
        stetfs(&[&args[..], options].concat())
    };
    let whole = explore(&["--json", "-"]);
    let judged = json(&whole.ok())["judged"].as_u64().unwrap();
    for budget in ["7", "0s"] {
        let ran = explore(&["--budget", budget]);
        assert_eq!(ran.code, 4, "{ran:#?}");
        assert!(
            ran.out.starts_with("INCOMPLETE: the budget was spent"),
            "{ran:#?}"
        );
        let line = ran.out.lines().nth(1).unwrap();
        let said = line.contains("states explored, 7 of them judged, 0 fail");
        let nothing = line == "INCOMPLETE posix: nothing was explored";
        assert!(if budget == "7" { said } else { nothing }, "{ran:#?}");
    }
    // A budget of as many states as there are covers all of them.
    explore(&["--budget", &judged.to_string()]).ok();
    // With findings, the exit code is that of findings.
    let ran = explore(&["--budget", "30", "--check", "test ! -e {dir}/f2"]);
    assert_eq!(ran.code, 3, "{ran:#?}");
    let fails = "test ! -e {dir}/f2 || test -e {dir}/f6";
    let ran = explore(&["--budget", "30", "--check", fails]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.out.starts_with("INCOMPLETE"), "{ran:#?}");
    let ran = explore(&["--budget", "3", "--mutate"]);
    assert!(!ran.out.contains("NOT NOTICED"), "{ran:#?}");

    explore(&["--shard", "1/3", "--json", &one]).ok();
    explore(&["--shard", "2/3", "--json", &two]).ok();
    let ran = stetfs(&["crash", "merge", &one, &two]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    assert!(ran.out.starts_with("INCOMPLETE: shard"), "{ran:#?}");
    assert!(ran.out.contains("MISSING: 3 of 3"), "{ran:#?}");
    let three = trial.lab.str("3.json");
    let ran = explore(&["--shard", "3/3", "--budget", "1", "--json", &three]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    let ran = stetfs(&["crash", "merge", &one, &two, &three]);
    assert_eq!(ran.code, 4, "{ran:#?}");
    assert!(
        ran.out.starts_with("INCOMPLETE: the budget was spent"),
        "{ran:#?}"
    );
}

#[test]
fn a_slow_check_and_a_program_that_fails_are_said() {
    let Some(trial) = Trial::new() else { return };
    let kept = trial.lab.str("kept");
    let program = ["--", "sh", "-c", "echo x > $STETFS_DIR/a; exit 1"];
    let args = [
        "crash",
        "--keep",
        &kept,
        "--check",
        "sleep 0.6",
        "--budget",
        "2",
    ];
    let ran = stetfs(&[&args[..], &program].concat());
    assert_eq!(ran.code, 4, "{ran:#?}");
    for word in ["the check takes 0.6 s", "-j N", "--budget", "--shard"] {
        assert!(ran.err.contains(word), "{word}: {ran:#?}");
    }
    assert!(
        ran.out.contains("the program ended with exit code 1"),
        "{ran:#?}"
    );
    let again = stetfs(&[
        "crash",
        "--recording",
        &kept,
        "--check",
        "true",
        "--json",
        "-",
    ])
    .ok();
    assert_eq!(json(&again)["ended"], Value::from("ended with exit code 1"));
    let hangs = "grep -q x {dir}/a || sleep 100";
    let args = [
        "crash",
        "--recording",
        &kept,
        "--check",
        hangs,
        "--check-timeout",
        "0.3",
    ];
    let ran = stetfs(&args);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.out.contains("--check-timeout SECONDS"), "{ran:#?}");
}
