//! The source is tidy: lines and files have a limited length, every file has its place, the tour of
//! the source shows every file, and no imports form a circle.
#![forbid(unsafe_code)]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/functions.rs"]
mod functions;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most columns of a line of code or text.
const COLUMNS: usize = 100;

/// Most lines of a file of code.
const LINES: usize = 1000;

/// The directories in which people put files.
const PLACES: [&str; 7] = [
    "crates",
    "docs",
    "results",
    "fuzz",
    "packaging",
    "scripts",
    ".ci",
];

/// The files that a package may have beside its directories.
const OF_A_PACKAGE: [&str; 3] = ["Cargo.toml", "build.rs", "sources.rs"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns every file below and beside these directories, by its path from the top, without what
/// tools make.
fn files() -> BTreeSet<PathBuf> {
    let (top, mut found) = (top(), BTreeSet::new());
    let mut todo: Vec<PathBuf> = PLACES.iter().map(|place| top.join(place)).collect();
    let is_made = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        let of_fuzzing = ["corpus", "artifacts", "target"]
            .iter()
            .any(|made| name == *made);
        let of_fuzzing = of_fuzzing && path.parent().is_some_and(|dir| dir.ends_with("fuzz"));
        of_fuzzing || name == "__pycache__"
    };
    let entries = |dir: &Path| {
        let entries =
            fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        entries.map(|entry| entry.expect("an entry").path())
    };
    while let Some(dir) = todo.pop() {
        for path in entries(&dir).filter(|path| !is_made(path)) {
            if path.is_dir() {
                todo.push(path);
            } else {
                found.insert(path.strip_prefix(&top).expect("below").to_owned());
            }
        }
    }
    // In a worktree, .git is a file.
    let beside = entries(&top).filter(|path| path.is_file() && !path.ends_with(".git"));
    found.extend(beside.map(|path| path.strip_prefix(&top).expect("below").to_owned()));
    found
}

fn text(path: &Path) -> String {
    fs::read_to_string(top().join(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

/// Returns the numbers of lines that are too long. Rows of tables cannot be broken, and documents
/// that a program makes may have lines of any length.
fn too_long(path: &Path, text: &str) -> Vec<usize> {
    let is_row = |line: &str| {
        let words = line.trim_start();
        words
            .trim_start_matches(['/', '!'])
            .trim_start()
            .starts_with('|')
    };
    let (mut is_made, mut long) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        if has_ending(path, "md") && line.starts_with("<!--") {
            is_made = !line.contains("end -->");
            continue;
        }
        if !is_made && !is_row(line) && line.chars().count() > COLUMNS {
            long.push(number + 1);
        }
    }
    long
}

#[test]
fn lines_fit() {
    let mut wrong = Vec::new();
    for path in files() {
        if has_ending(&path, "rs") || has_ending(&path, "md") {
            let text = text(&path);
            let shown = path.display();
            let long = too_long(&path, &text).into_iter();
            wrong.extend(long.map(|n| format!("{shown}:{n}: more than {COLUMNS} columns")));
            let blank = text
                .lines()
                .enumerate()
                .filter(|(_, line)| line.ends_with([' ', '\t']));
            wrong.extend(blank.map(|(n, _)| format!("{shown}:{}: ends with a blank", n + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_can_be_held_in_mind() {
    let lines = |path: &PathBuf| text(path).lines().count();
    let code = files().into_iter().filter(|path| has_ending(path, "rs"));
    let long: Vec<_> = code.filter(|path| lines(path) > LINES).collect();
    assert!(long.is_empty(), "more than {LINES} lines: {long:?}");
}

#[test]
fn the_judge_of_lines_can_fail() {
    let (long, row) = (
        "x".repeat(COLUMNS + 1),
        format!("    /// | {} |", "x".repeat(COLUMNS)),
    );
    let made = format!("short\n{long}\n{row}\n<!-- made -->\n{long}\n<!-- end -->\n{long}\n");
    assert_eq!(too_long(Path::new("a.md"), &made), [2, 7]);
    assert_eq!(too_long(Path::new("a.rs"), &made), [2, 5, 7]);
}

/// Returns the anchor of a heading, as GitHub spells it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the links of a document that lead to no file or to no heading.
fn dead_links(path: &Path, text: &str) -> Vec<String> {
    let target = |rest: &str| rest.split_once(')').map(|(target, _)| target.to_owned());
    let links = text.split("](").skip(1).filter_map(target);
    let is_alive = |link: &String| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let file = match file {
            "" => path.to_owned(),
            file => path.parent().expect("a place").join(file),
        };
        let anchors = || {
            let text = fs::read_to_string(top().join(&file)).unwrap_or_default();
            let headings = text.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            anchors.any(|anchor| anchor == heading)
        };
        top().join(&file).exists() && (heading.is_empty() || anchors())
    };
    let here = links.filter(|link| !link.contains("://") && !link.contains(char::is_whitespace));
    here.filter(|link| !is_alive(link)).collect()
}

/// A plot was once renamed, and the document went on showing the old one.
#[test]
fn links_lead_somewhere() {
    let documents = files().into_iter().filter(|path| has_ending(path, "md"));
    let wrong: Vec<_> = documents
        .flat_map(|path| {
            let dead = dead_links(&path, &text(&path));
            dead.into_iter()
                .map(move |link| format!("{}: {link}", path.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_judge_of_links_can_fail() {
    let text =
        "[a](README.md) [b](none.md) [c](README.md#two-commands) [d](README.md#none) [e](#h)";
    let dead = dead_links(Path::new("README.md"), text);
    assert_eq!(dead, ["none.md", "README.md#none", "#h"]);
}

/// Tests and tools must leave their files elsewhere.
#[test]
fn nothing_lies_about() {
    let endings = [
        "rs", "toml", "md", "json", "sh", "c", "h", "py", "go", "mjs", "html", "css", "js", "svg",
    ];
    let at_the_top = [
        "Makefile",
        "Cargo.lock",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        ".gitignore",
        // Where GitHub looks for it.
        "action.yml",
    ];
    let is_known = |path: &PathBuf| {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        match parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>()[..] {
            [name] => at_the_top.contains(&name) || endings.iter().any(|e| has_ending(path, e)),
            [".ci", "run"] => true,
            ["results", "traces", _] => has_ending(path, "txt"),
            ["crates", _, name] => OF_A_PACKAGE.contains(&name),
            // pip's name for the requirements of a program in Python.
            ["scripts", _, "requirements.txt"] => true,
            ["scripts", "programs", "go", _, "go.mod" | "go.sum"] => true,
            // What a package's build tools want has the names that they look for.
            ["packaging", "debian" | "systemd", ..] | ["packaging", "rpm", "stetfs.spec"] => true,
            _ => endings.iter().any(|ending| has_ending(path, ending)),
        }
    };
    let strays: Vec<_> = files().into_iter().filter(|path| !is_known(path)).collect();
    assert!(strays.is_empty(), "what are these? {strays:?}");
}

/// ARCHITECTURE names every file of each crate, and no file that does not exist.
#[test]
fn the_tour_shows_what_is_there() {
    let tour = text(Path::new("ARCHITECTURE.md"));
    let mut wrong = Vec::new();
    for crate_dir in fs::read_dir(top().join("crates")).expect("crates") {
        let name = crate_dir.expect("a crate").file_name();
        let name = name.to_string_lossy();
        let begin = format!("### crates/{name}:");
        let Some((_, section)) = tour.split_once(&begin) else {
            wrong.push(format!("there is no \"{begin}\""));
            continue;
        };
        let section = section.split("\n#").next().unwrap_or_default();
        let source = top().join("crates").join(&*name).join("src");
        // Names are between backquotes, in rows of the table.
        let rows = section.lines().filter(|line| line.starts_with('|'));
        let quoted = rows.flat_map(|row| {
            row.split('|')
                .nth(1)
                .unwrap_or("")
                .split('`')
                .skip(1)
                .step_by(2)
        });
        let named: BTreeSet<&str> = quoted.collect();
        let gone = named.iter().filter(|entry| !source.join(entry).exists());
        wrong.extend(gone.map(|entry| format!("crates/{name}/src/{entry} is not there")));
        for entry in fs::read_dir(&source).expect("sources") {
            let entry = entry.expect("an entry");
            let file = entry.file_name().to_string_lossy().into_owned();
            let stem = file.trim_end_matches(".rs");
            let is_known = ["lib", "main", "bin", "tests"].contains(&stem)
                || stem.ends_with("_test")
                || stem.ends_with("_tests")
                || named
                    .iter()
                    .any(|n| *n == file || n.split('/').next() == Some(stem));
            if !is_known {
                wrong.push(format!("crates/{name}/src/{file} is not in the tour"));
            }
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md:\n{}", wrong.join("\n"));
}
