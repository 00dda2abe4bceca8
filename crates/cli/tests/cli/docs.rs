//! Help, man pages, completions: one definition, no drift.

use std::fs;

use crate::run::{Lab, has, json, stetfs, tool};

#[test]
fn the_list_of_commands() {
    let help = stetfs(&["--help"]).ok();
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|l| *l != "Commands:")
        .skip(1)
        .take_while(|l| !l.is_empty())
        .map(|l| l.split_whitespace().next().unwrap())
        .collect();
    let expected = [
        "mkfs", "mount", "umount", "mounts", "upgrade", "freeze", "drain", "recover", "fsck",
        "grow", "shrink", "info", "journal", "stats", "wear", "tx", "ls", "cat", "cp", "tar", "mv",
        "ln", "rm", "mkdir", "find", "du", "diff", "schemes", "nand", "below", "crash", "lab",
    ];
    assert_eq!(commands, expected);
    // `lab` is another program's help.
    for command in &expected[..expected.len() - 1] {
        let help = stetfs(&[command, "--help"]).ok();
        assert!(help.contains("Usage: stetfs"), "{help}");
    }
    assert!(
        help.contains("Exit codes") && help.contains("Examples:"),
        "{help}"
    );
}

#[test]
fn wrong_command_lines() {
    stetfs::<&str>(&[]).fails(2, &["Usage:"]);
    stetfs(&["frobnicate"]).fails(2, &["unrecognized subcommand"]);
    stetfs(&["moutn"]).fails(2, &["mount"]);
    stetfs(&["ls"]).fails(2, &["PLACE"]);
}

#[test]
fn man_pages_are_well_formed() {
    let lab = Lab::new();
    let dir = lab.str("man");
    stetfs(&["man", &dir]).ok();
    let mut pages: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    pages.sort();
    assert_eq!(pages.len(), 1 + 39 + 2, "{pages:?}");
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        assert!(
            text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{}",
            page.display()
        );
    }
    if has("mandoc") {
        for page in &pages {
            let lint = tool(
                "mandoc",
                &["-T", "lint", "-W", "error", page.to_str().unwrap()],
            );
            assert_eq!(
                (lint.code, lint.out.as_str()),
                (0, ""),
                "{}",
                page.display()
            );
        }
    }
    if has("man") && has("groff") {
        for page in &pages {
            let ran = tool(
                "man",
                &[
                    "--warnings",
                    "-E",
                    "UTF-8",
                    "-l",
                    "-Tutf8",
                    "-Z",
                    page.to_str().unwrap(),
                ],
            );
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", page.display());
        }
    }
}

#[test]
fn completions_are_scripts() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef stetfs"),
        ("fish", "complete -c stetfs"),
    ] {
        let script = stetfs(&["completions", shell]).ok();
        assert!(script.contains(sign), "{shell}");
        assert!(
            script.contains("mkfs") && script.contains("journal-size"),
            "{shell}"
        );
    }
    let lab = Lab::new();
    fs::write(lab.path("c.bash"), stetfs(&["completions", "bash"]).ok()).unwrap();
    tool("bash", &["-n", &lab.str("c.bash")]).ok();
}

/// Completes as bash does: names that only this program knows, and lists with commas, but nothing
/// hidden.
#[test]
fn names_are_completed() {
    let lab = Lab::new();
    fs::write(lab.path("c.bash"), stetfs(&["completions", "bash"]).ok()).unwrap();
    let complete = |words: &[&str]| {
        let last = words.last().unwrap();
        let before = words[words.len() - 2];
        let script = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={}; _stetfs stetfs '{last}' '{before}'; \
                echo \"${{COMPREPLY[*]}}\"",
            lab.str("c.bash"),
            words.join(" "),
            words.len() - 1
        );
        let out = tool("bash", &["-c", &script]).ok();
        out.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(complete(&["stetfs", "mkfs", "--scheme", "ste"]), ["stet"]);
    assert_eq!(
        complete(&["stetfs", "mount", "-o", "scheme=ub"]),
        ["scheme=ubj"]
    );
    assert_eq!(
        complete(&["stetfs", "mount", "-o", "ro,noatime,data=o"]),
        ["ro,noatime,data=ordered"]
    );
    let all = complete(&["stetfs", "mount", "--"]);
    assert!(all.contains(&"--foreground".to_owned()), "{all:?}");
    assert!(!all.contains(&"--server".to_owned()), "{all:?}");
    assert_eq!(complete(&["stetfs", "tx", "--ins"]), [""; 0]);
    for shell in ["zsh", "fish"] {
        let script = stetfs(&["completions", shell]).ok();
        assert!(!script.contains("server process"), "{shell}");
        assert!(script.contains("scheme=ubj"), "{shell}");
    }
    #[cfg(feature = "crash")]
    assert_eq!(complete(&["stetfs", "crash", "--model", "pos"]), ["posix"]);
}

#[test]
fn schemes_come_from_the_registry() {
    let list = json(&stetfs(&["schemes", "--json"]).ok());
    let names: Vec<&str> = list["schemes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"jbd2") && names.contains(&"null"),
        "{names:?}"
    );
    let table = stetfs(&["schemes"]).ok();
    for name in names {
        assert!(table.contains(name), "{table}");
    }
}
