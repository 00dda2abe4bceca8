//! Several runs share the exploration of a program: shards whose sum is that of one run, and a run
//! that goes on where another one was stopped.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::Trial;
use crate::run::{Ran, STETFS, json, stetfs, tool, wait_until};

/// Two mistakes: a rename whose file was not synced, and a promise that nothing has made durable.
const PROGRAM: &str = "cd \"$STETFS_DIR\" || exit 9
echo old > config; sync config .
for n in 1 2 3; do
    echo \"new $n\" > tmp; mv tmp config
    echo $n >> log; echo $n > \"$STETFS_MARKS\"
done
";

/// A check that notes in a file each time it is asked.
const CHECK: &str = "cd \"$STETFS_DIR\" || exit 9
echo asked >> COUNT
test ! -e config || grep -q 'old\\|new' config || { test -s config || exit 0; exit 1; }
test -s config || test ! -e config || exit 2
for n in $(cat \"$STETFS_MARKS_FILE\"); do grep -qx \"$n\" log || exit 3; done
";

/// A recording that several runs share.
struct Shared {
    trial: Trial,
    recording: String,
    count: String,
}

impl Shared {
    fn new() -> Option<Self> {
        let trial = Trial::new()?;
        let (recording, count) = (trial.lab.str("recording"), trial.lab.str("count"));
        let program = trial.file("program.sh", PROGRAM);
        let check = trial.file("check.sh", &CHECK.replace("COUNT", &count));
        let check = format!("sh {check}");
        let save = ["crash", "--check", &check, "--save", &recording];
        let out = stetfs(&[&save[..], &["--", "sh", &program]].concat()).ok();
        assert_eq!(out, "", "it was to be recorded only");
        let shared = Self {
            trial,
            recording,
            count,
        };
        assert_eq!(shared.asked(), 2, "the check is asked twice without a cut");
        Some(shared)
    }

    /// Returns how often the check was asked since the last call.
    fn asked(&self) -> usize {
        let lines = fs::read_to_string(&self.count).unwrap_or_default();
        let _ = fs::remove_file(&self.count);
        lines.lines().count()
    }

    fn explore(&self, options: &[&str]) -> Ran {
        let models = ["--model", "posix,ext4-ordered", "--mutate"];
        let args = ["crash", "--recording", &self.recording];
        let ran = stetfs(&[&args[..], &models, options].concat());
        self.trial.nothing_is_left();
        ran
    }

    fn report(&self, options: &[&str]) -> Value {
        let ran = self.explore(&[options, &["--json", "-"]].concat());
        assert_eq!(ran.code, 1, "{ran:#?}");
        json(&ran.out)
    }

    /// Explores one shard of three; returns the report's file.
    fn shard(&self, number: usize) -> String {
        let (file, shard) = (format!("shard{number}.json"), format!("{number}/3"));
        let file = self.trial.lab.str(&file);
        let ran = self.explore(&["--shard", &shard, "--json", &file]);
        assert!([0, 1].contains(&ran.code), "{ran:#?}");
        file
    }
}

/// Removes what differs between two runs that find the same.
fn timeless(mut report: Value) -> Value {
    report["seconds"] = Value::Null;
    report
}

/// Takes the remedies out of a report, and returns them.
fn remedies(report: &mut Value) -> Vec<Value> {
    let models = report["models"].as_array_mut().unwrap();
    let findings = models
        .iter_mut()
        .flat_map(|m| m["findings"].as_array_mut().unwrap());
    findings.map(|finding| finding["remedy"].take()).collect()
}

#[test]
fn shards_add_up_to_one_run() {
    let Some(shared) = Shared::new() else { return };
    let mut whole = timeless(shared.report(&[]));
    let counts = |report: &Value| report["models"][0]["counts"].clone();
    assert!(whole["models"][0]["findings"].as_array().unwrap().len() > 1);
    let shards = [1, 2, 3].map(|n| shared.shard(n));
    for file in &shards {
        let part = json(&fs::read_to_string(file).unwrap());
        let states = |report: &Value| counts(report)["states"].as_u64().unwrap();
        assert!((1..states(&whole)).contains(&states(&part)), "{part:#}");
    }
    // In any order.
    let [a, b, c] = &shards;
    let junit = shared.trial.lab.str("junit.xml");
    let sum = stetfs(&["crash", "merge", c, a, b, "--json", "-", "--junit", &junit]);
    assert_eq!(sum.code, 1, "{sum:#?}");
    let mut sum = timeless(json(&sum.out));
    assert_eq!(sum["shards"]["of"], 3);
    sum["shards"] = whole["shards"].clone();
    // A sum has the remedies of all its shards, which may be more than one run needs.
    let (ours, theirs) = (remedies(&mut sum), remedies(&mut whole));
    assert_eq!(sum, whole);
    assert_eq!(ours[0], theirs[0]);
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("<failure"), "{junit}");

    assert!(!junit.contains("skipped"), "{junit}");

    let part = shared.trial.lab.str("part.xml");
    let two = stetfs(&["crash", "merge", a, c, "--junit", &part]);
    assert!(two.out.contains("MISSING: 2 of 3"), "{two:#?}");
    let part = fs::read_to_string(part).unwrap();
    assert!(part.contains("name=\"2 of 3\""), "{part}");
    let merge = |files: &[&str]| stetfs(&[&["crash", "merge"], files].concat());
    merge(&[a, b, a]).fails(2, &["shard 1 of 3 is in another report too"]);
    let other = shared.trial.lab.str("other.json");
    let seed = ["--shard", "2/3", "--seed", "2", "--json", &other];
    shared.explore(&seed);
    merge(&[a, &other]).fails(2, &["other.json", "seed"]);
    let slow = ["--shard", "2/3", "--check-timeout", "9", "--json", &other];
    shared.explore(&slow);
    merge(&[a, &other]).fails(2, &["other.json", "check_timeout"]);
    // Without --mutate.
    let models = ["--model", "posix,ext4-ordered", "--shard", "2/3"];
    let models = [&models[..], &["--json", &other]].concat();
    stetfs(&[&["crash", "--recording", &shared.recording], &models[..]].concat());
    merge(&[a, &other]).fails(2, &["other.json", "mutate"]);
    let model = [
        "--model", "posix", "--mutate", "--shard", "2/3", "--json", &other,
    ];
    stetfs(&[&["crash", "--recording", &shared.recording], &model[..]].concat());
    merge(&[a, &other]).fails(2, &["other.json", "its models are posix"]);
    let schemes = shared.trial.file("schemes.json", "{\"explorations\": []}");
    merge(&[a, &schemes]).fails(2, &["schemes.json", "not a report on a program"]);
    merge(&[&schemes, a]).fails(2, &[]);
    let check = ["crash", "--check", "true", "--shard", "1/2", "--", "true"];
    stetfs(&check).fails(2, &["--save", "--recording"]);
}

/// The recipe of docs/CRASH-SHARED.md, word by word.
#[test]
fn the_recipe_for_gnu_parallel_is_true() {
    let Some(shared) = Shared::new() else { return };
    if !tool("parallel", &["--version"]).out.starts_with("GNU") {
        eprintln!("SKIPPED: GNU parallel is not installed");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CRASH-SHARED.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, recipe) = page.split_once("```sh\n# parallel\n").unwrap();
    let (recipe, _) = recipe.split_once("```").unwrap();
    let script = format!(
        "cd {} && PATH={}:$PATH\nln -s {} stetfs\n\
            printf '#!/bin/sh\\n' | tee check.sh > my-program\n\
            echo 'echo x > $1/a; echo x > $STETFS_MARKS' >> my-program\n\
            echo '! grep -q x $STETFS_MARKS_FILE || grep -q x $STETFS_DIR/a' >> check.sh\n\
            chmod +x check.sh my-program\n{recipe}",
        shared.trial.lab.str("."),
        shared.trial.lab.str("."),
        STETFS,
    );
    let ran = tool("sh", &["-c", &script]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(
        ran.out.contains("\nall 8 shards\next4-ordered: "),
        "{ran:#?}"
    );
}

#[test]
fn a_run_that_was_stopped_goes_on_and_asks_nothing_twice() {
    let Some(shared) = Shared::new() else { return };
    let whole = timeless(shared.report(&[]));
    let in_one = shared.asked();
    let file = shared.trial.lab.str("said");
    let resume = ["--resume", &file];
    shared.explore(&[&resume[..], &["--budget", "9"]].concat());
    let first = shared.asked();
    assert!((9..in_one).contains(&first), "{first} of {in_one}");
    let report = timeless(shared.report(&resume));
    assert_eq!(report, whole);
    // Not counting the two that judge the state without a cut.
    assert_eq!(first + shared.asked() - 2, in_one);
    shared.report(&resume);
    assert_eq!(shared.asked(), 2);

    let other = ["--resume", &file, "--check", "true"];
    shared.explore(&other).fails(2, &["said", "its check is"]);
    fs::write(&file, "{}").unwrap();
    let ran = shared.explore(&resume);
    ran.fails(2, &["holds no verdicts of a check"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
}

/// A slow check judges few states in that time, and the machine may die at any moment.
#[test]
fn what_a_slow_check_says_is_kept_within_seconds() {
    let Some(shared) = Shared::new() else { return };
    let file = shared.trial.lab.str("said");
    let args = ["crash", "--recording", &shared.recording, "--resume", &file];
    let slow = format!("sleep 0.5; echo asked >> {}", shared.count);
    let mut running = Command::new(STETFS)
        .args(args)
        .args(["--model", "posix", "--check", &slow])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let kept = || fs::read_to_string(&file).is_ok_and(|kept| kept.contains("\"tree\""));
    wait_until("what the check says is kept", kept);
    let asked = shared.asked();
    tool("kill", &["-TERM", &running.id().to_string()]).ok();
    running.wait().unwrap();
    shared.trial.nothing_is_left();
    // States are judged in batches of 64.
    assert!(asked < 32, "{asked} states were judged before that");
}
