//! Runs the library's example. e2fsck accepts the image that it leaves.
#![forbid(unsafe_code)]

use std::process::Command;

#[path = "../examples/durable.rs"]
#[allow(dead_code, unreachable_pub)] // its `main`
mod durable;

#[test]
fn the_example_keeps_what_was_synced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    let said = durable::run(&path).expect("the example");
    assert!(said.contains("is there"), "{said}");
    assert!(!said.starts_with("0 transactions"), "{said}");

    let mut e2fsck = Command::new("e2fsck");
    let out = e2fsck.args(["-fn"]).arg(&path).output();
    let out = out.expect("e2fsck, of the package that mke2fs is in");
    assert!(out.status.success(), "{out:?}");

    // Another judge reads it back.
    let mut debugfs = Command::new("debugfs");
    let cat = debugfs
        .args(["-R", "cat /letters/first"])
        .arg(&path)
        .output();
    let text = cat.expect("debugfs, of the same package").stdout;
    assert_eq!(text, b"What fsync confirmed is there.\n");
}
