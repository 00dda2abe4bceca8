//! No new function is longer than a screen, and no new test sleeps. The lists of exceptions only
//! become shorter: an entry that is no longer true fails as well.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{files, has_ending, text};

/// Most lines of a function, from `fn` to its last brace.
const MOST_LINES: usize = 70;

/// Functions that were longer when the limit came. None is added here; one that gets short is taken
/// off.
const LONG: [(&str, &str); 14] = [
    ("crates/core/src/group/names.rs", "rename"),
    ("crates/core/src/mount/mmp.rs", "claim"),
    ("crates/core/src/mount/mod.rs", "plan"),
    ("crates/core/src/namei/rename.rs", "move_name"),
    ("crates/core/src/options.rs", "apply_value"),
    ("crates/crash/src/record.rs", "carry_out"),
    ("crates/ftl/src/recovery.rs", "replay"),
    ("crates/schemes/src/jbd2/recovery.rs", "replay"),
    ("crates/schemes/src/parts/owner.rs", "claim"),
    ("crates/schemes/src/spindle.rs", "commit"),
    ("crates/schemes/src/ubj.rs", "commit"),
    ("crates/testkit/src/world/library.rs", "other_op"),
    ("crates/testkit/src/world/library/change.rs", "apply"),
    ("crates/testkit/src/world/model.rs", "apply"),
];

/// Files with tests that sleep because nothing tells them of the event that they wait for.
const SLEEPING: [&str; 18] = [
    "crates/cli/tests/cli/damaged.rs",
    "crates/cli/tests/cli/parts.rs",
    "crates/cli/tests/cli/run.rs",
    "crates/core/tests/names/threads.rs",
    "crates/core/tests/stress/main.rs",
    "crates/format/tests/image/mod.rs",
    "crates/fuse/tests/atomic.rs",
    "crates/fuse/tests/endings.rs",
    "crates/fuse/tests/full.rs",
    "crates/fuse/tests/hung.rs",
    "crates/fuse/tests/support/mod.rs",
    "crates/fuse/tests/syncs.rs",
    "crates/journal/tests/limits/main.rs",
    "crates/media/tests/devices/loops.rs",
    "crates/media/tests/devices/pmem.rs",
    "crates/tests/tests/differential.rs",
    "crates/tests/tests/reflink.rs",
    "crates/tests/tests/sqlite.rs",
];

/// Collects the functions of this code that are too long, except those in test modules.
fn long_in(code: TokenStream, found: &mut Vec<(String, usize)>) {
    let code: Vec<TokenTree> = code.into_iter().collect();
    let word = |n: usize| match code.get(n) {
        Some(TokenTree::Ident(word)) => word.to_string(),
        _ => String::new(),
    };
    // The function that has begun and whose body has not come yet.
    let mut begun: Option<(String, usize)> = None;
    for (n, token) in code.iter().enumerate() {
        match token {
            TokenTree::Ident(keyword) if keyword == "fn" && !word(n + 1).is_empty() => {
                begun = Some((word(n + 1), keyword.span().start().line));
            }
            TokenTree::Punct(end) if end.as_char() == ';' => begun = None,
            TokenTree::Group(group) => {
                let is_block = group.delimiter() == Delimiter::Brace;
                let of_tests = n >= 2 && word(n - 2) == "mod" && word(n - 1).ends_with("tests");
                if is_block && let Some((name, first)) = begun.take() {
                    let lines = group.span_close().end().line + 1 - first;
                    if lines > MOST_LINES {
                        found.push((name, lines));
                    }
                }
                if !of_tests {
                    long_in(group.stream(), found);
                }
            }
            _ => {}
        }
    }
}

/// True if a file has only tests.
fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let has = |part: &str| path.components().any(|p| p.as_os_str() == part);
    has("tests") || name.ends_with("_test") || name.ends_with("_tests") || name == "tests"
}

fn code() -> impl Iterator<Item = std::path::PathBuf> {
    let files = files().into_iter();
    files.filter(|path| path.starts_with("crates") && has_ending(path, "rs"))
}

#[test]
fn functions_fit_a_screen() {
    let known: BTreeSet<(String, String)> = LONG
        .iter()
        .map(|(path, name)| ((*path).to_owned(), (*name).to_owned()))
        .collect();
    let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
    for path in code().filter(|path| !is_test(path)) {
        let mut long = Vec::new();
        let tokens = text(&path).parse().expect("code");
        long_in(tokens, &mut long);
        let shown = path.display().to_string();
        for (name, lines) in long {
            let of_file = (shown.clone(), name.clone());
            if !known.contains(&of_file) {
                wrong.push(format!(
                    "{shown}: {name} has {lines} lines, at most {MOST_LINES}"
                ));
            }
            found.insert(of_file);
        }
    }
    for (path, name) in known.difference(&found) {
        wrong.push(format!("{path}: {name} is short now: take it off LONG"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tests_wait_for_what_happens() {
    let known: BTreeSet<String> = SLEEPING.map(str::to_owned).into();
    // In two pieces, so that this file does not contain it.
    let sleep = concat!("thread::sleep", "(");
    let sleeps = |path: &Path| text(path).contains(sleep);
    let found = code().filter(|path| is_test(path) && sleeps(path));
    let found: BTreeSet<String> = found.map(|path| path.display().to_string()).collect();
    let new = found.difference(&known);
    let mut wrong: Vec<String> = new
        .map(|path| format!("{path}: a test sleeps; let it wait for what it waits for"))
        .collect();
    let gone = known.difference(&found);
    wrong.extend(gone.map(|path| format!("{path}: no longer sleeps: take it off SLEEPING")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_judge_of_functions_can_fail() {
    let body = "\n".repeat(MOST_LINES);
    let code = format!(
        "fn short() {{}} impl A {{ fn long(a: [u8; 3]) -> B {{ {body} }} }} trait C {{ fn d(); }} \
            mod tests {{ fn of_a_test() {{ {body} }} }}"
    );
    let mut found = Vec::new();
    long_in(code.parse().expect("code"), &mut found);
    assert_eq!(found, [("long".to_owned(), MOST_LINES + 1)]);
}
