//! Gives the shared library its soname, the one that cargo-c gives it. By the soname the dynamic
//! linker tells incompatible versions of the library apart.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = |part: &str| env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    // The part of the version that must change when the interface does (https://semver.org, "Major
    // version zero").
    let compatible = match (version("MAJOR"), version("MINOR")) {
        (major, minor) if major == "0" && minor == "0" => format!("0.0.{}", version("PATCH")),
        (major, minor) if major == "0" => format!("0.{minor}"),
        (major, _) => major,
    };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstetfs.so.{compatible}");
}
