//! `stetfs crash` in parts: shards that several machines explore and their sum, and an exploration
//! that is interrupted and goes on.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run::{Lab, STETFS, json, stetfs, tool, wait_until};

const WORKLOADS: [&str; 5] = [
    "create f; fsync f",
    "mkdir d; sync",
    "create f; begin; append f 700; fsync f",
    "create f; begin; rename f g; sync",
    "create f; begin; truncate f 3000; sync; unlink f",
];

/// Returns the arguments that explore these workloads on a scheme, in orders that are the same each
/// time.
fn exploration(lab: &Lab, scheme: &str, workloads: &[&str]) -> Vec<String> {
    let start = [
        "crash",
        "--scheme",
        scheme,
        "--order",
        "in-order,each-handle",
        "--jobs",
        "1",
    ];
    let mut args: Vec<String> = start.map(str::to_owned).into();
    for (n, text) in workloads.iter().enumerate() {
        let name = format!("w{n}");
        fs::write(lab.path(&name), text).expect("a workload");
        args.extend(["--workload".to_owned(), lab.str(&name)]);
    }
    args
}

fn with(args: &[String], more: &[&str]) -> Vec<String> {
    let more = more.iter().map(|arg| (*arg).to_owned());
    args.iter().cloned().chain(more).collect()
}

/// Returns the report without its seconds.
fn report(args: &[String], code: i32) -> serde_json::Value {
    let ran = stetfs(&with(args, &["--json", "-"]));
    assert_eq!(ran.code, code, "{ran:#?}");
    let mut one = json(&ran.out)["explorations"][0].take();
    one["seconds"] = 0.into();
    one["states_a_second"] = 0.into();
    one
}

#[test]
fn shards_are_all_workloads_once() {
    let list = |more: &[&str]| -> Vec<String> {
        let args = [&["crash", "--ops", "1", "--scripts", "--list"], more].concat();
        stetfs(&args).ok().lines().map(str::to_owned).collect()
    };
    let whole = list(&[]);
    let mut together = Vec::new();
    for shard in ["1/4", "2/4", "3/4", "4/4"] {
        let part = list(&["--shard", shard]);
        assert!(part.len() > whole.len() / 6, "{shard}: {}", part.len());
        together.extend(part);
    }
    let distinct: BTreeSet<_> = whole.iter().collect();
    assert_eq!((together.len(), distinct.len()), (whole.len(), whole.len()));
    assert_eq!(together.iter().collect::<BTreeSet<_>>(), distinct);
    // The shard depends on what a workload is, not on its place in the list.
    let of_more = list(&["--random", "3", "--shard", "2/4"]);
    assert!(
        list(&["--shard", "2/4"])
            .iter()
            .all(|w| of_more.contains(w))
    );
    for wrong in ["0/4", "5/4", "1", "1/0", "a/b", "1/99999999999"] {
        stetfs(&["crash", "--shard", wrong]).fails(2, &["--shard", "I from 1 to N"]);
    }
}

#[test]
fn the_sum_of_shards_is_the_whole() {
    let lab = Lab::new();
    let args = exploration(&lab, "jbd2", &WORKLOADS);
    let whole = report(&args, 0);
    assert_eq!(whole["counts"]["workloads"], 10, "{whole}");
    let files = ["1", "2", "3"].map(|n| lab.str(n));
    for (n, file) in files.iter().enumerate() {
        let shard = format!("{}/3", n + 1);
        stetfs(&with(&args, &["--shard", &shard, "--json", file])).ok();
    }
    let merge = |files: &[&String]| {
        let start = ["crash", "merge"].map(str::to_owned);
        start
            .iter()
            .chain(files.iter().copied())
            .cloned()
            .collect::<Vec<_>>()
    };
    let [first, second, third] = &files;
    let sum = report(&merge(&[third, first, second]), 0);
    assert_eq!(sum["counts"], whole["counts"]);
    assert_eq!(sum["checksum"], whole["checksum"]);
    // A merged report can be merged again.
    let two = lab.str("two");
    stetfs(&with(&merge(&[first, third]), &["--json", &two])).ok();
    assert_eq!(
        report(&merge(&[second, &two]), 0)["counts"],
        whole["counts"]
    );
    let table = stetfs(&merge(&[&two])).ok();
    let missing = table.lines().find(|line| line.contains("missing"));
    let missing = missing.and_then(|line| line.split_whitespace().last());
    assert_eq!(missing, Some("2"), "{table}");

    let fails = |file: &String, words: &[&str]| {
        let words: Vec<_> = words.iter().copied().chain([file.as_str()]).collect();
        stetfs(&merge(&[first, file])).fails(2, &words);
    };
    fails(&two, &["shard 1 of 3 is in another report too"]);
    let other = |more: &[&str]| {
        let file = lab.str("other");
        stetfs(&with(
            &args,
            &[more, &["--budget", "1", "--json", &file]].concat(),
        ))
        .ok();
        file
    };
    fails(
        &other(&["--shard", "2/3", "--seed", "7"]),
        &["effort.seed is 7, and not 1"],
    );
    fails(
        &other(&["--shard", "2/3", "--share", "7"]),
        &["choice.sample.pairs is 7, and not 100"],
    );
    fails(
        &other(&["--shard", "2/3", "--workload", "log"]),
        &["its own is"],
    );
    fails(&other(&["--shard", "2/4"]), &["shard 2/4", "shards of 3"]);
    fails(&other(&["--data", "ordered"]), &["jbd2 ordered ext4-1k"]);
    let text = fs::read_to_string(first).expect("a report");
    let altered = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        fs::write(lab.path("other"), text.replace(from, to)).expect("a report");
        lab.str("other")
    };
    fails(&altered("\"version\": 3", "\"version\": 2"), &["version 2"]);
    fails(&altered("\"build\": \"", "\"build\": \"9"), &["build"]);
    fails(&altered("\"of\": 3", "\"of\": 9999999999"), &["cannot be"]);
    fails(&altered("{", "["), &["no report of stetfs crash"]);
    fails(&lab.str("nowhere"), &["No such file"]);
    stetfs(&["crash", "merge"]).fails(2, &["FILE"]);
}

#[test]
fn what_was_interrupted_goes_on() {
    let lab = Lab::new();
    // Reducing a failure takes its time.
    for (scheme, workloads, code) in [("jbd2", &WORKLOADS[..], 0), ("null", &WORKLOADS[..2], 1)] {
        let args = exploration(&lab, scheme, workloads);
        let whole = report(&args, code);
        let count = |report: &serde_json::Value, name: &str| report["counts"][name].as_u64();
        // A quarter of the states at a time.
        let states = count(&whole, "states").zip(count(&whole, "nested"));
        let states = states
            .map(|(a, b)| (a + b) / 4)
            .expect("states")
            .to_string();
        let file = lab.str(scheme);
        let resumed = with(&args, &["--resume", &file]);
        let ran = stetfs(&with(&resumed, &["--budget", &states, "--json", "-"]));
        let part = json(&ran.out)["explorations"][0].take();
        assert!(count(&part, "workloads_unfinished") > Some(0), "{part}");
        assert!(count(&part, "workloads") > Some(0), "{part}");
        for _ in 0..2 {
            let now = report(&resumed, code);
            assert_eq!(now["counts"], whole["counts"], "{scheme}");
            assert_eq!(now["violations"], whole["violations"], "{scheme}");
        }
        // A second run of the same command finds nothing to do, and another command is refused.
        let kept = fs::read(&file).expect("what is done");
        for (more, words) in [
            (["--seed", "7"], "its effort.seed is 1, and not 7"),
            (
                ["--triples", "7"],
                "its choice.sample.triples is 1000, and not 7",
            ),
            (["--shard", "1/2"], "it is of shard 1/1, and not of 1/2"),
            (["--volume", "ext4-4k"], "not of this exploration: it is of"),
        ] {
            stetfs(&with(&resumed, &more)).fails(2, &[&file, words, "another file"]);
        }
        assert_eq!(fs::read(&file).expect("what is done"), kept);
    }
    fs::write(lab.path("photo"), "not a state").expect("a file");
    let photo = with(
        &exploration(&lab, "jbd2", &WORKLOADS),
        &["--resume", &lab.str("photo")],
    );
    stetfs(&photo).fails(2, &["photo", "no report of stetfs crash"]);
    assert_eq!(fs::read(lab.path("photo")).expect("it"), b"not a state");
}

#[test]
fn a_signal_ends_it_and_keeps_what_is_done() {
    let lab = Lab::new();
    let file = lab.str("state");
    let args = ["crash", "--ops", "1", "--jobs", "1", "--resume", &file];
    // A workload is finished after its second turn, and none has that before all have had their
    // first. On a busy machine that takes more than two rounds.
    let signals = [("-INT", 130), ("-TERM", 143)];
    let mut whole = 0;
    for (round, (signal, code)) in signals.into_iter().cycle().enumerate() {
        assert!(round < 40, "no workload is whole after {round} rounds");
        let child = Command::new(STETFS)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stetfs");
        wait_until("the exploration begins", || lab.path("state").exists());
        std::thread::sleep(Duration::from_secs(4));
        tool("kill", &[signal, &child.id().to_string()]).ok();
        let ran = child.wait_with_output().expect("its end");
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
        let table = String::from_utf8_lossy(&ran.stdout);
        assert!(table.contains("NOT EXPLORED"), "{ran:?}");
        let state = json(&fs::read_to_string(&file).expect("the state"));
        let done = &state["explorations"][0]["done"];
        let turns = done["turns"].as_array().expect("a list");
        whole = turns.iter().filter(|turn| turn[1] == 1).count();
        assert_eq!(done["counts"]["workloads"].as_u64(), Some(whole as u64));
        if round > 0 && whole > 0 {
            break;
        }
    }
    assert!(whole > 0);
    // No other file is left beside it.
    assert_eq!(
        fs::read_dir(lab.path("")).expect("the directory").count(),
        1
    );
}
