//! `stetfs crash`: what it prints, its exit codes, and that what it prints replays.

use std::fs;

use crate::run::{Lab, json, stetfs};

const WORKLOAD: &str = "\
# A log that is appended to.
setup standard
append A/x 3000
fsync A/x
rename A/x B/y
fsyncdir B
";

fn workload(lab: &Lab) -> String {
    fs::write(lab.path("w"), WORKLOAD).expect("a workload");
    lab.str("w")
}

#[test]
fn a_journal_survives() {
    let lab = Lab::new();
    let file = workload(&lab);
    let mut chains = 0;
    for mode in ["journal", "ordered", "writeback"] {
        let report = stetfs(&["crash", "--data", mode, "--workload", &file, "--json", "-"]).ok();
        let report = json(&report);
        let one = &report["explorations"][0];
        assert_eq!(
            (&one["scheme"], &one["data"]),
            (&"jbd2".into(), &mode.into())
        );
        let counts = &one["counts"];
        let count = |name: &str| {
            counts[name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name}: {one}"))
        };
        assert_eq!((count("workloads"), count("violations")), (3, 0), "{one}");
        assert!(count("states") > 100 && count("nested") > 1000, "{one}");
        assert!(count("recoveries") < count("states_distinct") + count("nested_distinct"));
        assert_eq!(count("e2fsck"), count("e2fsck_agreed"), "{one}");
        // Two states of each workload; not every run can go on from them.
        assert!(count("chains_drawn") == 6 && count("chains") <= 6, "{one}");
        assert!(
            count("chained") >= count("chained_moments")
                && count("chained_moments") >= count("chains")
        );
        chains += count("chains");
    }
    assert!(chains > 0);
    // One job, since of two at once the first could spend the third's part of the budget.
    let one_job = ["--budget", "2000", "--jobs", "1"];
    let table = stetfs(&[&["crash", "--workload", "log"][..], &one_job].concat()).ok();
    assert!(
        table.contains("jbd2 journal ext4-1k") && table.contains("violations"),
        "{table}"
    );
    // The numbers of what was not looked at stand beside the zeros.
    let (_, not) = table.split_once("NOT EXPLORED").expect("what was not");
    let number = |not: &str, words: &str| -> Option<u64> {
        let line = not.lines().find(|line| line.contains(words))?;
        line.split_whitespace().last()?.parse().ok()
    };
    // Each workload has had its first turn before any has its second.
    assert_eq!(number(not, "turns left"), Some(3), "{table}");
    assert_eq!(number(not, "never ran"), Some(0), "{table}");
    let few = stetfs(&["crash", "--workload", "log", "--budget", "1", "--jobs", "1"]).ok();
    assert_eq!(number(&few, "never ran (below)"), Some(3), "{few}");
    let names = "never ran: log, log each-handle, log overlap1";
    assert!(few.contains(names), "{few}");
    assert!(not.contains("Not compared: inode numbers"), "{table}");
}

#[test]
fn what_is_wrong_is_shown_and_replays() {
    let lab = Lab::new();
    let (file, report) = (workload(&lab), lab.str("report"));
    let ran = stetfs(&[
        "crash",
        "--scheme",
        "null",
        "--workload",
        &file,
        "--json",
        &report,
    ]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    let line = ran
        .out
        .lines()
        .find_map(|line| line.trim().strip_prefix("stetfs crash --replay '"));
    let case = line
        .unwrap_or_else(|| panic!("{ran:#?}"))
        .trim_end_matches('\'');
    let replayed = stetfs(&["crash", "--replay", case]);
    assert_eq!(replayed.code, 1, "{replayed:#?}");
    assert!(replayed.out.contains("VIOLATION"), "{replayed:#?}");
    let report = json(&fs::read_to_string(report).expect("the report"));
    let first = &report["explorations"][0]["violations"][0];
    assert_eq!(first["case"], case);
    // The reduced workload can be read back, and fails too.
    let minimized = first["minimized"].as_str().expect("a smaller workload");
    fs::write(lab.path("small"), minimized).expect("a workload");
    let small = stetfs(&["crash", "--scheme", "null", "--workload", &lab.str("small")]);
    assert_eq!(small.code, 1, "{small:#?}");
    let (before, _) = case.rsplit_once('|').expect("a cut");
    stetfs(&["crash", "--replay", &format!("{before}| 1000000 all")]).fails(2, &["there are only"]);
}

#[test]
fn what_cannot_be_run_says_why() {
    let lab = Lab::new();
    fs::write(lab.path("w"), "setup standard\nfrobnicate A/x\n").expect("a workload");
    let file = lab.str("w");
    for (args, words) in [
        (
            vec!["--workload", &file],
            ["line 2", "no operation \"frobnicate\""],
        ),
        (vec!["--workload", "/nowhere"], ["/nowhere", "No such file"]),
        (vec!["--scheme", "jbd3"], ["jbd3", "jbd2"]),
        (vec!["--data", "atomic"], ["no mode atomic", "ordered"]),
        (vec!["--volume", "ext5"], ["no volume ext5", "ext4-1k"]),
        (
            vec!["--replay", "jbd2 journal ext4-1k"],
            ["a target", "a workload"],
        ),
        (vec!["--ops", "4"], ["--ops", "1, 2 or 3"]),
        (
            vec!["--workload", "groups", "--data", "ordered"],
            ["groups of writes", "atomic=all"],
        ),
        (vec!["--budget", "soon"], ["--budget", "10m"]),
    ] {
        stetfs(&[&["crash"], &args[..]].concat()).fails(2, &words);
    }
}

/// Groups of writes are replayed as they are written, and left out where a scheme has none.
#[test]
fn groups_are_explored_where_they_can_be() {
    let lab = Lab::new();
    let text = "group-begin; group-write A/x 0 900; group-write B/y 0 900; group-commit";
    fs::write(lab.path("w"), format!("setup standard; {text}")).expect("a workload");
    let file = lab.str("w");
    stetfs(&["crash", "--workload", &file]).ok();
    let atomic = ["crash", "--data", "ordered", "-o", "atomic=all"];
    stetfs(&[&atomic[..], &["--workload", &file]].concat()).ok();
    let case = format!("stet - ext4-1k | setup standard; {text} | 1000000 all");
    stetfs(&["crash", "--replay", &case]).fails(2, &["there are only"]);
    let list = |mode| stetfs(&["crash", "--ops", "groups", "--data", mode, "--list"]).ok();
    // In three orders; docs/EXPLORER.md says how many.
    assert_eq!(list("journal").lines().count(), 3 * (4546 + 182));
    assert_eq!(list("writeback").lines().count(), 3 * (2089 + 98));
    let few = [
        "crash",
        "--ops",
        "groups",
        "--data",
        "writeback",
        "--budget",
        "1s",
    ];
    let table = stetfs(&few).ok();
    let said = "jbd2 writeback ext4-1k: groups wrote only to files that they made";
    assert!(table.contains(said), "{table}");
}

#[test]
fn workloads_are_listed_and_read_back() {
    let lab = Lab::new();
    let list = stetfs(&["crash", "--ops", "1", "--list"]).ok();
    assert!(list.lines().count() > 200, "{list}");
    let line = list.lines().nth(7).expect("a workload");
    let (name, text) = line.split_once(": ").expect("a name");
    assert!(name.starts_with("1-op"), "{line}");
    fs::write(lab.path("w"), text).expect("a workload");
    stetfs(&["crash", "--workload", &lab.str("w")]).ok();
    let help = stetfs(&["crash", "--help"]).ok();
    assert!(
        help.contains("fallocate FILE OFFSET LEN") && help.contains("sqlite-wal"),
        "{help}"
    );
}
