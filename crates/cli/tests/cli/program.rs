//! `stetfs crash -- PROGRAM`: programs with one mistake each, found or forgiven as the model says;
//! programs and checks that misbehave; and the tutorial of docs/CRASH.md.
//!
//! The programs are shell scripts: `sync FILE` calls fsync(2) for it, `mv` is rename(2).

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::mounted::can_mount;
use crate::run::{Lab, Ran, STETFS, has, json, stetfs, tool};
use crate::tx::{LAYERS, can_tx};

/// Runs `stetfs crash` in a directory of its own.
pub(crate) struct Trial {
    pub(crate) lab: Lab,
}

impl Trial {
    /// Returns None, with a message, if nothing can be mounted.
    pub(crate) fn new() -> Option<Self> {
        can_mount().then(|| Self { lab: Lab::new() })
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.lab.str(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs a shell script as the program and another one as the check; both begin in the
    /// directory.
    fn run(&self, options: &[&str], program: &str, check: &str) -> Ran {
        let in_dir = |text: &str| format!("cd \"$STETFS_DIR\" || exit 9\n{text}\n");
        let program = self.file("program.sh", &in_dir(program));
        let check = self.file("check.sh", &in_dir(check));
        let check = format!("sh {check}");
        let keep = self.lab.str("kept");
        let mut args = vec!["crash", "--keep", &keep, "--check", &check];
        args.extend(options);
        args.extend(["--", "sh", &program]);
        let ran = stetfs(&args);
        self.nothing_is_left();
        ran
    }

    /// Returns the report on a program under a model.
    fn report(&self, model: &str, program: &str, check: &str) -> Value {
        let ran = self.run(&["--model", model, "--json", "-"], program, check);
        assert!([0, 1].contains(&ran.code), "{ran:#?}");
        let report = json(&ran.out);
        let found = !report["models"][0]["findings"]
            .as_array()
            .unwrap()
            .is_empty();
        assert_eq!(found, ran.code == 1, "{ran:#?}");
        report
    }

    /// True if the check fails after some power cut.
    fn finds(&self, model: &str, program: &str, check: &str) -> bool {
        self.report(model, program, check)["models"][0]["counts"]["failing"] != 0
    }

    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let ours: Vec<_> = mounts
            .lines()
            .filter(|line| line.contains("stetfs-crash-"))
            .collect();
        // Other tests have mounts too, each below a directory that is still there.
        let gone = |line: &&&str| {
            let dir = line.split(' ').nth(1).unwrap();
            !Path::new(dir).parent().unwrap().exists()
        };
        assert!(ours.iter().filter(gone).count() == 0, "{ours:?}");
    }
}

/// The program's promise that something is done.
const PROMISE: &str = "echo done > \"$STETFS_MARKS\"\n";

/// A check that begins like this demands what was promised.
const KEPT: &str = "grep -q done \"$STETFS_MARKS_FILE\" || exit 0\n";

/// A mistake, and whether it is found under `posix` and under `ext4-ordered`.
#[test]
fn planted_mistakes_are_found_where_a_file_system_does_not_forgive_them() {
    let Some(trial) = Trial::new() else { return };
    let saved = format!("{KEPT}test \"$(cat config)\" = new");
    let whole = "test ! -e config || grep -qx 'old\\|new' config";
    let lines = "test ! -e log || awk 'length != 5999 { exit 1 }' log";
    let long = "head -c 5999 /dev/zero | tr '\\0' x >> log; echo >> log";
    for (mistake, program, check, posix, ext4) in [
        (
            "no fsync of the directory of a new file",
            format!("echo new > config; sync config; {PROMISE}"),
            saved.clone(),
            true,
            // The name is in the transaction that the fsync commits.
            false,
        ),
        (
            "no fsync of the directory after a rename",
            format!("echo new > tmp; sync tmp; mv tmp config; {PROMISE}"),
            saved.clone(),
            true,
            true,
        ),
        (
            "no fsync before a rename to a new name",
            "echo new > tmp; mv tmp config".to_owned(),
            whole.to_owned(),
            true,
            true,
        ),
        (
            "no fsync before a rename over a file",
            "echo old > config; sync; echo new > tmp; mv tmp config".to_owned(),
            "test ! -e config && exit 0; test -s config && grep -qx 'old\\|new' config".to_owned(),
            true,
            // Before the sync the new file may be there without its data.
            true,
        ),
        (
            "fsync of the wrong file",
            format!("echo new > config; echo x > other; sync . ; sync other; {PROMISE}"),
            saved.clone(),
            true,
            true,
        ),
        (
            "an append that tears",
            format!("{long}; sync log .; {long}"),
            lines.to_owned(),
            true,
            true,
        ),
        (
            "a rename that overtakes another one",
            "echo 1 > a; echo 2 > b; sync a b .; mv a data; mv b index".to_owned(),
            "test ! -e index || test -e data".to_owned(),
            true,
            // Names persist in the order in which they were changed.
            false,
        ),
        (
            "none",
            format!("echo new > tmp; sync tmp; mv tmp config; sync .; {PROMISE}"),
            format!("{whole} || exit 1; {saved}"),
            false,
            false,
        ),
    ] {
        let found = |model| trial.finds(model, &program, &check);
        assert_eq!(
            (found("posix"), found("ext4-ordered")),
            (posix, ext4),
            "{mistake}"
        );
    }
}

/// Our own schemes as models: the same mistakes, and a case that is replayed on blocks.
#[test]
fn schemes_of_ours_keep_what_they_promise_and_no_more() {
    let Some(trial) = Trial::new() else { return };
    let right = format!("echo new > tmp; sync tmp; mv tmp config; sync .; {PROMISE}");
    let hasty = format!("echo new > tmp; sync tmp; mv tmp config; {PROMISE}");
    let check = format!(
        "test ! -e config || grep -qx new config || exit 1; {KEPT}test \"$(cat config)\" = new"
    );
    let options = ["--setup", "echo old > {dir}/other"];
    for model in ["jbd2-ordered", "jbd2-journal", "stet", "dj", "shortcut"] {
        assert!(!trial.finds(model, &right, &check), "{model}");
        let ran = trial.run(
            &[&options[..], &["--model", model]].concat(),
            &hasty,
            &check,
        );
        assert_eq!(ran.code, 1, "{model}: {ran:#?}");
        assert!(
            ran.out
                .contains("rename(tmp, config), and everything after it"),
            "{model}: {ran:#?}"
        );
        assert!(
            ran.out.contains("what would help: fsync of . after call 5"),
            "{model}: {ran:#?}"
        );
        let case = ran.out.split('\'').nth(1).unwrap();
        let replayed = stetfs(&["crash", "--replay", case]);
        assert_eq!(replayed.code, 1, "{model}: {replayed:#?}");
        let without = ["crash", "--replay", case, "--check"];
        let there =
            |file: &str| stetfs(&[&without[..], &[&format!("test -e {{dir}}/{file}")]].concat());
        assert_eq!(
            (there("config").code, there("tmp").code, there("other").code),
            (1, 0, 0),
            "{model}"
        );
    }
    // Of several promises between the same two changes of the disk, the first is missing.
    let promises = "echo x > a; echo 1 > $STETFS_MARKS; echo x > b; echo 2 > $STETFS_MARKS";
    let first = "! grep -q 1 $STETFS_MARKS_FILE || test -e a";
    let report = trial.report("jbd2-journal", promises, first);
    let headline = report["models"][0]["findings"][0]["headline"]
        .as_str()
        .unwrap();
    assert!(headline.contains("mark \"1\""), "{report:#}");
    // No sync helps while the file is empty.
    let torn = "test ! -e config || test -s config";
    let report = trial.report("jbd2-journal", "echo x > config; sync config", torn);
    let findings = report["models"][0]["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        assert_eq!(finding["remedy"], Value::Array(Vec::new()), "{report:#}");
        assert_eq!(finding["helpless"], "no_sync", "{report:#}");
    }
    // Data that was not synced, under a name that was committed.
    let late = "echo new > tmp; mv tmp config";
    let finds = |model| trial.finds(model, late, &check);
    assert_eq!(
        (finds("jbd2-writeback"), finds("jbd2-journal")),
        (true, false)
    );
    trial
        .run(&["--model", "null"], late, &check)
        .fails(2, &["no scheme null"]);
}

/// A program that changes two files in one group, if it can have one.
const TWO_FILES: &str = "
import fcntl, os
COMMIT, BEGIN, JOIN = 0xf502, 0x8010e701, 0x4010e702
a, b = (os.open(os.environ['STETFS_DIR'] + '/' + name, os.O_RDWR) for name in 'ab')
try:
    name = bytearray(16)
    fcntl.ioctl(a, BEGIN, name)
    fcntl.ioctl(b, JOIN, bytes(name))
except OSError as error:
    print('no group:', error.strerror)
for file in a, b:
    os.pwrite(file, b'1' * 9000, 0)
try:
    fcntl.ioctl(b, COMMIT)
except OSError:
    os.fsync(a)
    os.fsync(b)
with open(os.environ['STETFS_MARKS'], 'w') as marks:
    marks.write('done\\n')
";

/// A group of changes is one call, which our schemes keep whole. Without the option, and on other
/// file systems, there are no groups.
#[test]
fn a_group_is_one_call_where_there_are_groups() {
    let Some(trial) = Trial::new() else { return };
    if !has("python3") || !has("chattr") || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: files are marked as root, and the program is in Python");
        return;
    }
    let two = trial.file("two.py", TWO_FILES);
    let program = format!("exec python3 {two}");
    let check = format!("cmp -s a b || exit 1; {KEPT}grep -q 1 a");
    let setup = "chattr +j {dir}; head -c 9000 /dev/zero | tr '\\0' 0 > {dir}/a; \
        cp {dir}/a {dir}/b";
    let recorded = |options: &[&str], code| {
        let options = [&["--setup", setup][..], options].concat();
        let ran = trial.run(&options, &program, &check);
        assert_eq!(ran.code, code, "{ran:#?}");
        fs::read_to_string(trial.lab.str("kept")).unwrap()
    };
    let explored = |model: &str| {
        let recording = trial.lab.str("kept");
        stetfs(&["crash", "--recording", &recording, "--model", model])
    };
    let models = "stet,jbd2-ordered,ubj";
    let text = recorded(&["--groups", "--model", models], 0);
    assert_eq!(text.matches("\"Group\"").count(), 1);
    explored("ext4-journal").fails(2, &["ext4-journal has no groups", "--model stet"]);
    let alone = ["--groups", "--setup", setup];
    let ran = trial.run(&alone, &program, &check);
    ran.fails(2, &["ext4-ordered has no groups"]);
    let text = recorded(&["--model", "stet"], 1);
    assert!(text.contains("no group: Inappropriate ioctl") && !text.contains("\"Group\""));
    assert_eq!(explored("ext4-ordered").code, 1);
}

/// In each state, a command under `stetfs tx` has changed everything or nothing.
#[test]
fn a_transaction_of_a_command_is_whole() {
    let Some(trial) = Trial::new() else { return };
    if !can_tx() {
        return;
    }
    let script = "cd $STETFS_DIR; echo 1 > conf; echo 1 > tmp; mv tmp data; rm old; mkdir sub; \
        echo 1 > sub/new";
    let check = format!(
        "now=$(cat conf data; ls -d old sub sub/new 2>&-); \
         test \"$(echo $now)\" = '1 1 sub sub/new' && exit; \
         test \"$(echo $now)\" = '0 0 old' || exit 1; {KEPT}exit 2"
    );
    let setup = "cd {dir}; echo 0 > conf; echo 0 > data; echo 0 > old";
    for (layer, model) in LAYERS.into_iter().zip(["stet,jbd2-ordered", "stet"]) {
        let program = format!("{STETFS} tx --layer {layer} . -- sh -c '{script}' && {PROMISE}");
        let options = ["--groups", "--model", model, "--setup", setup];
        let options = [&options[..], &["--json", "-"]].concat();
        let ran = trial.run(&options, &program, &check);
        assert_eq!(ran.code, 0, "{ran:#?}");
        let report = json(&ran.out);
        for model in report["models"].as_array().unwrap() {
            assert!(model["counts"]["states"].as_u64() > Some(20), "{report:#}");
        }
    }
}

/// The advice is one fsync if one helps; two together, or one in a loop, if it takes them; and none
/// if none helps.
#[test]
fn what_would_help_is_the_fewest_fsyncs_or_that_none_would() {
    let Some(trial) = Trial::new() else { return };
    let remedies = |model: &str, program: &str, check: &str| -> Vec<(Vec<String>, Value)> {
        let report = trial.report(model, program, check);
        let findings = report["models"][0]["findings"].as_array().unwrap();
        let texts = |remedy: &Value| {
            let all = remedy.as_array().unwrap().iter();
            all.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let of = |finding: &Value| (texts(&finding["remedy"]), finding["helpless"].clone());
        findings.iter().map(of).collect()
    };
    let one = remedies(
        "ext4-ordered",
        &format!("echo new > config; {PROMISE}"),
        &format!("{KEPT}grep -q new config"),
    );
    assert!(!one.is_empty());
    for (remedy, helpless) in one {
        assert_eq!((remedy.len(), helpless), (1, Value::Null), "{remedy:?}");
    }
    // Each promise needs an fsync of its own.
    let lines = "echo a >> log; sync .; echo 1 > $STETFS_MARKS; echo b >> log; \
        echo 2 > $STETFS_MARKS";
    let check = "test \"$(wc -l < $STETFS_MARKS_FILE)\" -le \"$(cat log | grep -c '[ab]')\"";
    let two = remedies("posix", lines, check);
    let all = ["fsync of log after call 2,", "fsync of log after call 6,"];
    let is_both = |(remedy, _): &(Vec<String>, Value)| {
        remedy.len() == 2
            && all
                .iter()
                .zip(remedy)
                .all(|(first, text)| text.starts_with(first))
    };
    assert!(two.iter().any(is_both), "{two:?}");
    // So does each round of a loop.
    let rounds = "for n in 1 2 3 4 5; do echo x > f$n; echo $n > $STETFS_MARKS; done";
    let check = "for n in $(cat $STETFS_MARKS_FILE); do grep -q x f$n || exit 1; done";
    for model in ["ext4-ordered", "jbd2-ordered"] {
        let each = remedies(model, rounds, check);
        assert!(!each.is_empty(), "{model}");
        for (remedy, _) in &each {
            let is_each = |text: &String| text.contains("after each of 5 calls like it");
            assert!(
                remedy.len() == 1 && is_each(&remedy[0]),
                "{model}: {each:?}"
            );
        }
    }
    // The power goes off within the write.
    let long = "head -c 5999 /dev/zero | tr '\\0' x >> log; echo >> log";
    let whole = "test ! -e log || awk 'length != 5999 { exit 1 }' log";
    let torn = remedies("ext4-ordered", &format!("{long}; sync log ."), whole);
    assert!(!torn.is_empty());
    for (remedy, helpless) in torn {
        assert_eq!(
            (remedy.len(), helpless),
            (0, Value::from("no_sync")),
            "{remedy:?}"
        );
    }
}

#[test]
fn a_finding_says_what_was_lost_what_would_help_and_how_to_see_it() {
    let Some(trial) = Trial::new() else { return };
    let program = format!("echo new > tmp; sync tmp; mv tmp config; {PROMISE}");
    let check = format!("{KEPT}test -e config || {{ echo gone; exit 4; }}");
    let report = trial.report("ext4-ordered", &program, &check);
    let finding = &report["models"][0]["findings"][0];
    let text = |key: &str| finding[key].as_str().unwrap().to_owned();
    assert!(
        text("headline").contains("not on the disk: rename(tmp, config)"),
        "{report:#}"
    );
    assert_eq!(
        (text("check").as_str(), text("output").as_str()),
        ("ended with exit code 4", "gone")
    );
    let remedy = finding["remedy"].as_array().unwrap();
    assert_eq!(remedy.len(), 1, "{report:#}");
    let remedy = remedy[0].as_str().unwrap();
    assert!(remedy.starts_with("fsync of . after call "), "{remedy}");
    let differences = finding["differences"].as_array().unwrap();
    assert!(
        differences.contains(&"config: is missing".into()),
        "{report:#}"
    );

    // Replay the case from the recording alone.
    let case = format!("{}#{}", trial.lab.str("kept"), text("case"));
    let replayed = stetfs(&["crash", "--replay", &case]);
    assert_eq!(replayed.code, 1, "{replayed:#?}");
    assert!(replayed.out.contains("gone"), "{replayed:#?}");
    let other = stetfs(&["crash", "--replay", &case, "--check", "test -e {dir}/tmp"]);
    assert_eq!(other.code, 0, "{other:#?}");
    // A state that the model never leaves.
    let never = format!("{}#ext4-ordered:1:0", trial.lab.str("kept"));
    stetfs(&["crash", "--replay", &(never + "-99")]).ok_or_fails();
}

impl Ran {
    /// Success and failure are both answers; a panic is none.
    fn ok_or_fails(self) {
        assert!(!self.err.contains("panicked"), "{self:#?}");
    }
}

#[test]
fn promises_come_from_a_fifo_a_command_and_the_output() {
    let Some(trial) = Trial::new() else { return };
    let mark = format!("{} crash mark", crate::run::STETFS);
    let program =
        format!("{mark} 'one 1'; echo x > a; echo two > \"$STETFS_MARKS\"; echo out three");
    let report = |options: &[&str]| {
        let all = [&["--json", "-"], options].concat();
        let check =
            "test \"$(wc -l < \"$STETFS_MARKS_FILE\")\" -le 2 || cat \"$STETFS_MARKS_FILE\"";
        json(&trial.run(&all, &program, check).out)
    };
    assert_eq!(report(&[])["marks"], 2);
    assert_eq!(report(&["--marks-from-stdout", "^out"])["marks"], 3);
    stetfs(&["crash", "mark", "x"]).fails(2, &["nothing records this program"]);
}

#[test]
fn a_check_that_cannot_judge_is_told_before_anything_is_explored() {
    let Some(trial) = Trial::new() else { return };
    let program = "echo x > a";
    let ran = trial.run(&[], program, "echo no; exit 1");
    ran.fails(3, &["fails without any power cut", "exit code 1", "no"]);
    let flag = trial.lab.str("flag");
    let twice = format!("test ! -e {flag} && touch {flag}");
    let ran = trial.run(&[], program, &twice);
    ran.fails(3, &["judges the same state differently"]);
    let ran = trial.run(&["--check-timeout", "0.3"], program, "sleep 100");
    ran.fails(3, &["still running when its time was over"]);
    trial
        .run(&[], program, "kill -9 $$")
        .fails(3, &["killed by signal 9"]);
    // What the check writes is thrown away: the second run finds what the first one found.
    trial
        .run(&[], program, "test ! -e mine && echo y > mine && rm -f a")
        .ok();
}

#[test]
fn programs_that_misbehave_leave_nothing_behind() {
    let Some(trial) = Trial::new() else { return };
    let ran = trial.run(
        &["--timeout", "0.5"],
        "echo x > a; while :; do sleep 0.1; done",
        "true",
    );
    assert!(
        ran.err.contains("still running when its time was over"),
        "{ran:#?}"
    );
    ran.ok();
    let ran = trial.run(&[], "setsid sleep 1000 & echo x > a", "true");
    assert!(ran.err.contains("left 1 processes behind"), "{ran:#?}");
    ran.ok();
    let full = "head -c 30000000 /dev/zero > a; exit 0";
    let ran = trial.run(&["--size", "16M", "--budget", "20"], full, "true");
    assert!([0, 4].contains(&ran.code), "{ran:#?}");
    let ran = trial.run(&[], "echo x > a; kill -9 $$", "true");
    assert!(
        ran.err.contains("the program was killed by signal 9"),
        "{ran:#?}"
    );
    ran.ok();
    let check = ["crash", "--check", "true"];
    let with = |more: &[&str]| stetfs(&[&check, more].concat());
    with(&["--", "/no/such/program"]).fails(2, &["/no/such/program", "No such file"]);
    with(&["--setup", "exit 3;", "--", "true"]).fails(2, &["the setup ended with exit code 3"]);
    with(&["--dir", "/no/such", "--", "true"]).fails(2, &["/no/such"]);
    with(&["--image", "/no/such", "--", "true"]).fails(2, &["/no/such"]);
    with(&["--size", "1M", "--", "true"]).fails(2, &["too small", "16"]);
    with(&["--timeout", "0", "--", "true"]).fails(2, &["--timeout"]);
    with(&[]).fails(2, &["--check and --read need a program"]);
    with(&["--ops", "1", "--", "true"]).fails(2, &["--ops"]);
    stetfs(&["crash", "--replay", "/no/such#posix:1:"]).fails(2, &["/no/such"]);
}

#[test]
fn an_image_is_where_the_program_starts_and_stays_as_it_is() {
    let Some(trial) = Trial::new() else { return };
    let image = trial.lab.volume(&[]);
    let old = trial.file("old", "old\n");
    stetfs(&["cp", &old, &format!("{image}:/config")]).ok();
    let before = fs::read(&image).unwrap();
    let options = [
        "--image",
        &image,
        "--setup",
        "grep -q old {dir}/config && echo s > {dir}/s",
    ];
    let check = "test -e s && grep -qx 'old\\|new' config";
    let ran = trial.run(&options, "echo new > tmp; sync tmp; mv tmp config", check);
    ran.ok();
    assert!(before == fs::read(&image).unwrap());
}

#[test]
fn deleted_syncs_are_noticed_or_not_and_ci_gets_its_report() {
    let Some(trial) = Trial::new() else { return };
    let junit = trial.lab.str("junit.xml");
    let program = format!("echo new > tmp; sync tmp; mv tmp config; sync .; {PROMISE}");
    let check = format!("{KEPT}test -e config");
    let options = ["--model", "posix", "--mutate", "--junit", &junit, "-j", "2"];
    let out = trial.run(&options, &program, &check).ok();
    // The check asks whether the file exists, not what it holds.
    let of = |what: &str| {
        out.lines()
            .find(|line| line.contains(what))
            .unwrap()
            .to_owned()
    };
    assert!(of("fsync(tmp)").ends_with("NOT NOTICED"), "{out}");
    assert!(of("fsync(.)").ends_with(": noticed"), "{out}");
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("tests=\"1\" failures=\"0\""), "{junit}");
}

/// The table of real programs is made from their stored results, and a row that is run again finds
/// what it says.
#[test]
fn the_table_of_programs_is_of_what_is_kept_and_a_row_is_true() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/programs");
    let script = |name: &str| scripts.join(name).to_str().unwrap().to_owned();
    if !has("python3") {
        return;
    }
    tool("python3", &[&script("table.py"), "--check"]).ok();
    let Some(trial) = Trial::new() else { return };
    if tool("python3", &["-c", "import sqlite3"]).code != 0 {
        eprintln!("SKIPPED: python3 has no sqlite3");
        return;
    }
    let keep = trial.lab.str("kept");
    for (journal, synchronous, code) in [("truncate", "full", 0), ("wal", "normal", 1)] {
        let command = |verb: &str| {
            let script = script("sqlite.py");
            ["python3", &script, verb, journal, synchronous].map(str::to_owned)
        };
        let check = command("check").join(" ");
        let mut args = [
            "crash", "--keep", &keep, "--model", "stet", "--check", &check, "--",
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(command("run"));
        let ran = stetfs(&args);
        assert_eq!(ran.code, code, "{journal}, {synchronous}: {ran:#?}");
    }
}

/// The tutorial's programs lead to what it says.
#[test]
fn the_tutorial_is_true() {
    let Some(trial) = Trial::new() else { return };
    if tool("sh", &["-c", "command -v python3"]).code != 0 {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CRASH.md");
    let page = fs::read_to_string(page).unwrap();
    let mut blocks = page.split("\n```python\n# ").skip(1).map(|rest| {
        let (block, _) = rest.split_once("\n```").unwrap();
        let (name, text) = block.split_once('\n').unwrap();
        trial.file(name, text);
        name.to_owned()
    });
    let names: Vec<String> = blocks.by_ref().collect();
    assert_eq!(
        names,
        ["save1.py", "check.py", "save2.py", "save3.py", "save4.py"]
    );
    for (name, locked, others) in [
        ("save1.py", 1, 1),
        ("save2.py", 0, 1),
        ("save3.py", 1, 1),
        ("save4.py", 0, 0),
    ] {
        for (model, code) in [
            ("ext4-dioread-lock", locked),
            ("ext4-ordered", others),
            ("posix", others),
        ] {
            let at = |name: &str| trial.lab.str(name);
            let check = format!("python3 {}", at("check.py"));
            let keep = at("kept");
            let ran = stetfs(&[
                "crash",
                "--model",
                model,
                "--keep",
                &keep,
                "--setup",
                "echo 'colour = green' > {dir}/settings",
                "--check",
                &check,
                "--",
                "python3",
                &at(name),
                "{dir}/settings",
            ]);
            assert_eq!(ran.code, code, "{name}, {model}: {ran:#?}");
        }
    }
}
