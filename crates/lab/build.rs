//! A checksum of what a cell's numbers come of, so that one that is kept says of which code it is:
//! `STETFS_SOURCES`. What shows them is not among it.

include!("../crash/sources.rs");

/// Relative to this package.
const MEASURE: [&str; 14] = [
    // SQLite calls through it.
    "../ffi/src",
    // What recordings are done again by.
    "../powercut/src/player.rs",
    "../powercut/src/call.rs",
    "../powercut/src/tree.rs",
    "src/cell/load.rs",
    "src/cell/machine.rs",
    "src/cell/run.rs",
    "src/text.rs",
    "src/system",
    "src/system/processors.json",
    "src/workload",
    "../testkit/src/image.rs",
    "../testkit/src/rng.rs",
    // SQLite's version, and that of what compresses.
    "../../Cargo.lock",
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=../crash/sources.rs");
    note_sources(FILE_SYSTEM.into_iter().chain(MEASURE))
}
