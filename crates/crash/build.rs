//! A checksum of what explorations of power cuts judge and of what judges them, so that a report
//! says of which code it is: `STETFS_SOURCES`.

include!("sources.rs");

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
    println!("cargo::rerun-if-changed=sources.rs");
    note_sources(JUDGED.into_iter().chain(JUDGES))
}
