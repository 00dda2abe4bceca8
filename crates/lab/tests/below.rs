//! `stetfs lab below`: the document is that of the stored numbers; and a live run: a scheme below
//! the kernel's ext4 takes away what it is there to take away.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use stetfs_lab::kernel::Plan;
use stetfs_lab::kernel::below::{Column, Sheet};
use stetfs_lab::kernel::host::check;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

#[test]
fn the_document_has_the_stored_numbers() {
    let text = fs::read(Path::new(DOCS).join("below.json")).expect("docs/below.json");
    let sheet: Sheet = serde_json::from_slice(&text).expect("a sheet");
    assert_eq!(sheet.columns, Column::all());
    assert_eq!(sheet.jobs, Plan::whole().expect("the plan").jobs);
    assert_eq!(sheet.runs.len(), sheet.columns.len() * sheet.jobs.len());
    let kept = fs::read_to_string(Path::new(DOCS).join("lab/below.md")).expect("the document");
    assert!(
        kept == sheet.document(),
        "stetfs lab below --from docs/below.json --document docs/lab/below.md"
    );
}

/// Needs root, /dev/fuse and loop devices.
#[test]
fn each_sync_takes_fewer_bytes_and_flushes_with_a_scheme_below() {
    if let Err(missing) = check("ext4") {
        eprintln!("SKIPPED: {}: {missing:#}", module_path!());
        return;
    }
    let load = "fio file=1M block=4K ops=40 fsync=1";
    let sheet = Sheet::measure(&[], Some(load), 1, &|_| {}).expect("a run");
    let of = |column: &str| {
        let run = sheet.runs.iter().find(|run| run.column == column);
        &run.expect("a run").durable
    };
    for (mode, least) in [("journal", 40), ("ordered", 40)] {
        let (alone, above) = (of(mode), of(&format!("{mode}/stet")));
        assert!(
            alone.flushes >= 2 * least && above.flushes >= least,
            "{sheet:?}"
        );
        assert!(
            above.flushes < alone.flushes,
            "{mode}: {above:?}, alone {alone:?}"
        );
        let (alone, above) = (alone.total().bytes, above.total().bytes);
        assert!(above < alone, "{mode}: {above} bytes, alone {alone}");
    }
}
