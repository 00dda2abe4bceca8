//! The `stetfs` command.
#![forbid(unsafe_code)]

fn main() {}
