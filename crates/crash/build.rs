//! A checksum of what explorations of power cuts judge and of what judges them, so that a report
//! says of which code it is: `STETFS_SOURCES`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Relative to this package.
const JUDGED: [&str; 9] = [
    "../format/src",
    "../media/src",
    "../ftl/src",
    "../sync/src",
    "../scheme/src",
    "../schemes/src",
    "../journal/src",
    "../core/src",
    "../check/src",
];
const JUDGES: [&str; 4] = [
    "src",
    "../testkit/src/world",
    "../testkit/src/image.rs",
    "../testkit/src/rng.rs",
];

fn main() -> io::Result<()> {
    let mut files = Vec::new();
    for place in JUDGED.iter().chain(&JUDGES) {
        println!("cargo::rerun-if-changed={place}");
        find(Path::new(place), &mut files)?;
    }
    files.sort();
    // FNV-1a, which is the same everywhere.
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for file in files {
        let name = file.to_string_lossy().into_owned().into_bytes();
        for byte in name.into_iter().chain(fs::read(&file)?).chain([0]) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=STETFS_SOURCES={sum:016x}");
    Ok(())
}

/// The sources at a place, but for tests.
fn find(place: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let stem = place.file_stem().unwrap_or_default().to_string_lossy();
    if stem == "tests" || stem.ends_with("_test") || stem.ends_with("_tests") {
        return Ok(());
    }
    if place.is_dir() {
        for entry in fs::read_dir(place)? {
            find(&entry?.path(), files)?;
        }
    } else if place.extension().is_some_and(|ext| ext == "rs") {
        files.push(place.to_owned());
    }
    Ok(())
}
