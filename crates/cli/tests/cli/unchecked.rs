//! `stetfs crash -- PROGRAM` without a check: what the run shows without a power cut is the judge.

use serde_json::Value;
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

use crate::program::Trial;
use crate::run::{Ran, json, stetfs};

/// Runs a shell script in the directory of the files, with these options.
fn run(trial: &Trial, options: &[&str], script: &str) -> Ran {
    let script = format!("cd \"$STETFS_DIR\" || exit 9\n{script}\n");
    let (script, kept) = (trial.file("program.sh", &script), trial.lab.str("kept"));
    let setup = ["crash", "--keep", &kept, "--setup", "printf old >{dir}/f"];
    let ran = stetfs(&[&setup[..], options, &["--", "sh", &script]].concat());
    trial.nothing_is_left();
    ran
}

/// The findings under a model: how the state was found, and what it shows.
fn found(trial: &Trial, options: &[&str], script: &str) -> Vec<(String, String)> {
    let ran = run(trial, &[options, &["--json", "-"]].concat(), script);
    assert!([0, 1].contains(&ran.code), "{ran:#?}");
    let report = json(&ran.out);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["models"][0]["findings"].as_array().unwrap();
    assert_eq!(findings.is_empty(), ran.code == 0, "{ran:#?}");
    let said = |finding: &Value| (text(&finding["check"]), text(&finding["output"]));
    findings.iter().map(said).collect()
}

#[test]
fn files_are_as_they_were_at_some_moment() {
    let Some(trial) = Trial::new() else {
        return;
    };
    let never = "found what no moment of the run shows";
    let old = "found what the run shows only before a promise";
    let (posix, ordered) = (["--model", "posix"], ["--model", "ext4-ordered"]);
    let locked = ["--model", "ext4-dioread-lock"];
    let replaced = "printf new >f.tmp; mv f.tmp f";
    let synced = "printf new >f.tmp; sync f.tmp; mv f.tmp f";
    let promised = "; sync .; echo saved >$STETFS_MARKS";
    for (options, script, expected) in [
        (
            &posix,
            replaced.to_owned(),
            Some((
                never,
                "f: a file of 0 bytes; in the run it was a file of 3 bytes",
            )),
        ),
        (
            &ordered,
            replaced.to_owned(),
            Some((never, "f: a file of 3 bytes, but never with this content")),
        ),
        (&locked, replaced.to_owned(), None),
        // What is under the temporary name meanwhile is nobody's business.
        (&posix, synced.to_owned(), None),
        (&posix, format!("{synced}{promised}"), None),
        (
            &ordered,
            format!("{synced}; echo saved >$STETFS_MARKS"),
            Some((
                old,
                "f: a file of 3 bytes, as only before the promise \"saved\"",
            )),
        ),
        (
            &posix,
            "printf NEW | dd of=f conv=notrunc,fsync 2>&-; rm f; sync .; : >g".to_owned(),
            None,
        ),
        (
            &posix,
            "printf 0123 >>f".to_owned(),
            Some((never, "f: a file of 7 bytes, but never with this content")),
        ),
    ] {
        let all = found(&trial, options, &script);
        match expected {
            None => assert!(all.is_empty(), "{options:?} {script}: {all:?}"),
            Some((how, what)) => {
                let is_it = |(found, output): &(String, String)| found == how && output == what;
                assert!(all.iter().any(is_it), "{options:?} {script}: {all:?}");
            }
        }
    }
}

#[test]
fn what_is_read_is_what_is_read_at_some_moment() {
    let Some(trial) = Trial::new() else {
        return;
    };
    // Two halves that belong together; the reader takes the second copy when the first is broken.
    let reader = trial.file(
        "read.sh",
        "cd \"$STETFS_DIR\"; grep -x 'new..' f 2>&- || grep -x 'new..' g 2>&- || cat f",
    );
    let read = format!("sh {reader}");
    let options = ["--read", &read, "--model", "posix"];
    let copied = "printf 'new01\\n' >g; sync g; sync .; printf 'new01\\n' >f";
    assert_eq!(found(&trial, &options, copied), []);
    let all = found(&trial, &options, "printf 'new01\\n' >f");
    assert!(!all.is_empty());
    // The recording knows how it was judged, and so does a replay of a case.
    let kept = trial.lab.str("kept");
    let again = stetfs(&[
        "crash",
        "--recording",
        &kept,
        "--model",
        "posix",
        "--json",
        "-",
    ]);
    assert_eq!(again.code, 1, "{again:#?}");
    let report = json(&again.out);
    assert_eq!(report["rule"], "prints");
    let case = report["models"][0]["findings"][0]["case"].as_str().unwrap();
    let replayed = stetfs(&["crash", "--replay", &format!("{kept}#{case}")]);
    assert_eq!(replayed.code, 1, "{replayed:#?}");
    assert!(
        replayed.out.contains("no moment of the run"),
        "{replayed:#?}"
    );
}

/// The program's calls are made again on the kernel's own ext4, whose every write is recorded.
#[test]
fn the_kernel_itself_is_a_model() {
    let Some(trial) = Trial::new() else {
        return;
    };
    skip_unless!(needs(true, true, &["losetup", "mount", "e2fsck"]));
    let script = "printf new >f.tmp; mv f.tmp f; sync .; echo saved >$STETFS_MARKS; rm f";
    for model in ["kernel-dioread-lock", "kernel-journal/stet"] {
        let ran = run(&trial, &["--model", model, "--json", "-"], script);
        assert_eq!(ran.code, 0, "{ran:#?}");
        let report = json(&ran.out);
        let of = |count: &str| report["models"][0]["counts"][count].as_u64().unwrap();
        assert!(of("states") > 4 && of("seconded") > 0, "{report:#}");
    }
    // Without the sync the promise is not kept, and a replay shows that state again.
    let script = "printf new >f.tmp; mv f.tmp f; echo saved >$STETFS_MARKS; rm f";
    let ran = run(
        &trial,
        &["--model", "kernel-journal", "--json", "-"],
        script,
    );
    assert_eq!(ran.code, 1, "{ran:#?}");
    let report = json(&ran.out);
    let case = report["models"][0]["findings"][0]["case"].as_str().unwrap();
    let kept = trial.lab.str("kept");
    let replayed = stetfs(&["crash", "--replay", &format!("{kept}#{case}")]);
    assert_eq!(replayed.code, 1, "{replayed:#?}");
    let shard = ["--recording", &kept, "--model", "kernel", "--shard", "1/2"];
    stetfs(&[&["crash"], &shard[..]].concat()).fails(2, &["does not do the same twice"]);
    let none = format!("{kept}#kernel-journal:at-syncs:1:0");
    stetfs(&["crash", "--replay", &none]).fails(2, &["has left no such state"]);
}

#[test]
fn what_cannot_judge_is_refused() {
    let Some(trial) = Trial::new() else {
        return;
    };
    for (read, why) in [
        ("date +%N", "two things about the same state"),
        ("cat {dir}/nothing", "fails on what the program left"),
        ("", "the command is empty"),
    ] {
        let ran = run(&trial, &["--read", read], "printf new >f");
        assert!(ran.code == 3 || ran.code == 2, "{ran:#?}");
        assert!(ran.err.contains(why), "{ran:#?}");
    }
    let both = run(&trial, &["--read", "true", "--check", "true"], "true");
    assert_eq!(both.code, 2, "{both:#?}");
}
