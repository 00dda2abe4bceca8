//! Mounts the benchmark floor (see `stetfs_bench::floor`) and serves it until it is unmounted.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use stetfs_bench::floor::Floor;
use stetfs_fuse::{OnBlock, Options, check_dir, prepare_process, run_if_asked, serve};

const HELP: &str = "usage: floor [-o OPTIONS] DIR
OPTIONS are those of `stetfs mount` that say how a volume is shown to the kernel (threads=,
nowriteback, noclone_fd, timeout=, readahead=); those that say how it is run change nothing.";

fn main() -> Result<()> {
    run_if_asked();
    let mut options = Options::default();
    let mut dir = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-o" => options = Options::parse(&args.next().context("-o takes options")?)?,
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            other if other.starts_with('-') => bail!("unknown option {other}\n{HELP}"),
            other => dir = Some(PathBuf::from(other)),
        }
    }
    // The floor has no image for which a loop device could stand.
    options.fuse.on_block = OnBlock::Never;
    let dir = check_dir(&dir.context("a mount point is needed")?)?;
    prepare_process(None);
    serve(
        &Floor::new(),
        Path::new("floor"),
        &dir,
        &options.fuse,
        |_| Ok(stetfs_fuse::background::Waiting::nobody()),
    )?;
    Ok(())
}
