//! `stetfs drain`: brings home the content of a scheme's cache in persistent memory.

use std::path::Path;

use indicatif::ProgressBar;
use serde_json::Value;
use stetfs::MountOptions;
use stetfs_fuse::Command;

use crate::args::Drain;
use crate::disk::Disk;
use crate::failure::{Explain, Result};
use crate::{answer, image, mounts, output, progress};

pub(crate) fn run(args: &Drain) -> Result<()> {
    let path = &args.path;
    if path.is_dir() {
        let written = Left::of(path)?.map_or(Ok(0), |left| mounted(path, left))?;
        return output::line(format_args!(
            "{}: {written} blocks written home; it stays mounted",
            path.display()
        ));
    }
    mounts::check_unused(path)?;
    let disk = Disk::open(path)?;
    let Some(scheme) = disk.private_log_owner() else {
        return output::line(format_args!("{}: everything is home", path.display()));
    };
    let options = MountOptions {
        scheme,
        nvm: args.nvm.clone(),
        ..MountOptions::default()
    };
    let (fs, _) = image::mount(path, options)?;
    let all = fs.stats().cache.map_or(0, |cache| cache.dirty);
    let bar = bar(all);
    let mut left = all;
    while left > 0 {
        left = fs.drain_some()?;
        bar.set_position(all.saturating_sub(left));
    }
    fs.unmount()?;
    bar.finish_and_clear();
    output::line(format_args!(
        "{}: {all} blocks written home; it is a plain ext4 image",
        path.display()
    ))
}

/// The blocks in a mounted volume's cache that are not home.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    blocks: u64,
    /// True if an unmount leaves them in the cache.
    pub(crate) is_kept: bool,
}

impl Left {
    /// Asks the server. Returns None if the scheme has no such cache.
    pub(crate) fn of(dir: &Path) -> Result<Option<Self>> {
        let stats = answer::query_stats(dir)?;
        let stats: Value = serde_json::from_str(&stats)?;
        let cache = &stats["cache"];
        Ok(cache["dirty"].as_u64().map(|blocks| Self {
            blocks,
            is_kept: cache["keeps"] == true,
        }))
    }
}

/// Brings home the blocks that are in a mounted volume's cache now; others may go on writing. Shows
/// the progress, and returns the number of blocks.
pub(crate) fn mounted(dir: &Path, left: Left) -> Result<u64> {
    let bar = bar(left.blocks);
    let mut now = Some(left);
    while let Some(left) = now.filter(|left| left.blocks > 0) {
        stetfs_fuse::command(dir, Command::Drain).during(|| dir.display().to_string())?;
        now = Left::of(dir)?;
        let after = now.map_or(0, |left| left.blocks);
        bar.inc(left.blocks.saturating_sub(after));
        if after >= left.blocks || bar.position() >= bar.length().unwrap_or(0) {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(bar.position())
}

fn bar(blocks: u64) -> ProgressBar {
    let form = "{pos:>10} of {len} blocks written home {bar:30} {eta}";
    progress::bar(form, Some(blocks), false)
}
