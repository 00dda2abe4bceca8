//! Mounts the benchmark floor (see `stetfs_bench::floor`) and serves it until it is unmounted.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::{Context, bail};
use stetfs_bench::floor::{Tuning, mount};

fn main() -> anyhow::Result<()> {
    let mut tuning = Tuning::default();
    let mut dir = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--threads" => {
                tuning.threads = args.next().context("--threads takes a number")?.parse()?
            }
            "--no-clone" => tuning.clone_fd = false,
            "--no-writeback" => tuning.writeback = false,
            "--no-open" => tuning.no_open = true,
            "--open" => tuning.no_open = false,
            "--help" | "-h" => {
                println!(
                    "usage: floor [--threads N] [--no-clone] [--no-writeback] [--no-open|--open] \
                        DIR"
                );
                return Ok(());
            }
            other if other.starts_with('-') => bail!("unknown option {other}"),
            other => dir = Some(PathBuf::from(other)),
        }
    }
    let dir = dir.context("a mount point is needed")?;
    mount(&dir, tuning).with_context(|| format!("mounting the floor on {}", dir.display()))
}
