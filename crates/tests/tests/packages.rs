//! Everything that is installed is built once, and contains only what it needs.
//!
//! Cargo turns on every feature that any package of a call asks for. So a crate that two programs
//! share is compiled once only if both ask for the same features of it and of all that it depends
//! on. `make install` once compiled everything above the schemes twice, since the lab asked for
//! more of two compressors than the command did; and the command contained proptest and a C
//! library.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

const COMMAND: [&str; 1] = ["stetfs-cli"];
/// The packages that `make install` builds after the command.
const BESIDE: [&str; 2] = ["stetfs-lab", "stetfs-ffi"];
const BENCH: [&str; 1] = ["stetfs-bench"];

/// Returns each package of these programs, as cargo names it, with its features; both of what is in
/// the programs and of what runs while they are built, which may differ.
fn packages(of: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut tree = Command::new("cargo");
    tree.args(["tree", "--locked", "--offline", "--edges", "normal,build"])
        .args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{f}"])
        .args(of.iter().flat_map(|package| ["-p", package]))
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let out = tree.output().expect("cargo");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    let row = |line: &str| {
        let (package, features) = line.split_once('|')?;
        Some((package.to_owned(), features.to_owned()))
    };
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (package, features) in text.lines().filter_map(row) {
        found.entry(package).or_default().insert(features);
    }
    let has = |name: &str| found.keys().any(|package| package.starts_with(name));
    assert!(of.iter().all(|name| has(name)), "{text}");
    found
}

#[test]
fn what_is_installed_is_compiled_once() {
    skip_unless!(needs(false, false, &["cargo"]));
    let command = packages(&COMMAND);
    for others in [&BESIDE[..], &BENCH[..]] {
        let beside = packages(others);
        let is_shared = |package: &&String| beside.contains_key(*package);
        assert!(command.keys().filter(is_shared).count() > 50, "{others:?}");
        for (package, features) in &command {
            let theirs = beside.get(package).unwrap_or(features);
            // zstd asks for threads in the crate that compiles C; no library depends on that. png
            // asks for more of two checksums and of the older miniz_oxide; only flate2, miniz_oxide
            // and imago depend on those.
            let harmless = ["cc v", "crc32fast v", "miniz_oxide v0.8", "simd-adler32 v"];
            let is_harmless = harmless.iter().any(|name| package.starts_with(name));
            assert!(
                features.is_subset(theirs) || is_harmless,
                "{package} is compiled for stetfs-cli with {features:?} and for {others:?} with \
                    {theirs:?}: give it these features in the workspace's Cargo.toml"
            );
        }
    }
}

#[test]
fn the_command_has_what_it_needs() {
    skip_unless!(needs(false, false, &["cargo"]));
    let command = packages(&COMMAND);
    for name in ["proptest", "zstd", "lz4_flex", "rusqlite", "plotters"] {
        let begin = format!("{name} v");
        let is_it = |package: &&String| package.starts_with(&begin);
        assert_eq!(command.keys().find(is_it), None);
    }
}
