// A checksum of sources, for build scripts: it names the code that a program's results come from.
// The build scripts of stetfs-crash and stetfs-lab include this file, the latter by a link, so that
// it is in both packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What makes the file system, relative to a package.
const FILE_SYSTEM: [&str; 8] = [
    "../format/src",
    "../media/src",
    "../ftl/src",
    "../sync/src",
    "../scheme/src",
    "../schemes/src",
    "../journal/src",
    "../core/src",
];

/// Sets `STETFS_SOURCES` to the checksum of the code at these places, relative to the package:
/// all Rust sources of a directory except tests, and single files.
///
/// Comments do not count, or every better sentence would make every result old.
///
/// A package of a release is built without the others beside it. There the version names the code
/// of all of them, since each asks for the others of the same version (`Cargo.toml`).
fn note_sources(places: impl IntoIterator<Item = &'static str>) -> io::Result<()> {
    if !FILE_SYSTEM.iter().all(|place| Path::new(place).is_dir()) {
        println!("cargo::rustc-env=STETFS_SOURCES=release");
        return Ok(());
    }
    let mut files = Vec::new();
    for place in places {
        println!("cargo::rerun-if-changed={place}");
        match Path::new(place) {
            file if file.is_file() => files.push(file.to_owned()),
            directory => find(directory, &mut files)?,
        }
    }
    files.sort();
    // FNV-1a, which is the same everywhere.
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for file in files {
        let name = file.to_string_lossy().into_owned().into_bytes();
        for byte in name.into_iter().chain(code(&fs::read(&file)?)).chain([0]) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=STETFS_SOURCES={sum:016x}");
    Ok(())
}

/// A source without the lines that are blank or only a comment.
fn code(source: &[u8]) -> Vec<u8> {
    let lines = source.split(|&byte| byte == b'\n');
    let is_code = |line: &&[u8]| {
        let line = line.trim_ascii_start();
        !line.is_empty() && !line.starts_with(b"//")
    };
    lines.filter(is_code).collect::<Vec<_>>().join(&b'\n')
}

/// Adds the sources at a place, except tests.
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
