//! Sets `STETFS_SOURCES`: a checksum of the sources that determine a cell's numbers, so that a
//! stored cell names the code that ran it. Sources that only show the numbers are left out.

include!("sources.rs");

/// Paths relative to this package.
const MEASURE: [&str; 14] = [
    // SQLite calls through it.
    "../ffi/src",
    // They replay recordings.
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
    // The versions of SQLite and of the compressors.
    "../../Cargo.lock",
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=sources.rs");
    note_sources(FILE_SYSTEM.into_iter().chain(MEASURE))
}
