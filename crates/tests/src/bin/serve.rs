//! Mounts a volume and serves it in the foreground: `serve IMAGE DIR [OPTIONS]`.
//!
//! Does what `stetfs mount -f` does, without its messages. It is built with the tests, so they
//! never run an older server.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::{Context, Result};
use stetfs::Fs;
use stetfs_fuse::Options;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, dir, rest @ ..] = args.as_slice() else {
        anyhow::bail!("usage: serve IMAGE DIR [OPTIONS]");
    };
    let mut options = Options::parse(rest.first().map_or("", String::as_str))?;
    // A test that kills the server deals with the mount point itself.
    options.fuse.auto_unmount = false;
    let image = PathBuf::from(image)
        .canonicalize()
        .with_context(|| image.clone())?;
    let dir = stetfs_fuse::check_dir(&PathBuf::from(dir))?;
    stetfs_fuse::prepare_process(Some(options.core.memory));
    let core = options.core.clone();
    let media = stetfs::open_media(&image, &core, core.read_only)?;
    let (fs, report) = Fs::mount(media, core)?;
    options.fuse.read_only |= report.read_only;
    stetfs_fuse::serve(&fs, &image, &dir, &options.fuse, |_| {
        Ok(stetfs_fuse::background::Waiting::nobody())
    })?;
    Ok(())
}
