//! Writes small files through the library, without a mount, until it is killed; prints each one that an fsync has confirmed.
//!
//! `make demo` uses it where there is no /dev/fuse: `steady_writer IMAGE DIR STATS`. The lines are those that
//! `sha256sum -c` reads, except that the sum is made by the reader: each file holds its own number over and over, so a line is
//! `LENGTH  NAME`. STATS gets the volume's counters as JSON once a second.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, io};

use stetfs::{Caller, Fs, MountOptions, OpenFlags};
use stetfs_media::FileOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let (Some(image), Some(dir), Some(stats)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: steady_writer IMAGE DIR STATS".into());
    };
    let (volume, _) = Fs::mount(
        Arc::new(FileOptions::default().open(&image)?),
        MountOptions::parse("data=journal")?,
    )?;
    let me = Caller::root();
    let parent = volume
        .mkdir(&me, volume.root(), dir.trim_matches('/').as_bytes(), 0o755)?
        .ino;
    let mut out = io::stdout().lock();
    let mut told = Instant::now();
    for n in 1u32.. {
        let name = n.to_string();
        let content = format!("{n}\n").repeat(1 + n as usize * 7919 % 900);
        let file = volume
            .create(&me, parent, name.as_bytes(), 0o644, OpenFlags::WRITE)?
            .ino;
        volume.write(&me, file, 0, content.as_bytes())?;
        volume.fsync(file, false)?;
        volume.release(file)?;
        // Only now has it been promised.
        writeln!(out, "{}  {}/{name}", content.len(), dir.trim_matches('/'))?;
        out.flush()?;
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            std::fs::write(&stats, serde_json::to_string(&volume.stats())?)?;
        }
    }
    Ok(())
}
