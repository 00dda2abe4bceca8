//! A checksum of what explorations of power cuts judge and of what judges them, so that a report
//! says of which code it is: `STETFS_SOURCES`.

include!("sources.rs");

/// Relative to this package.
const JUDGES: [&str; 6] = [
    "../below/src",
    "../check/src",
    "src",
    "../testkit/src/world",
    "../testkit/src/image.rs",
    "../testkit/src/rng.rs",
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=sources.rs");
    note_sources(FILE_SYSTEM.into_iter().chain(JUDGES))
}
