//! Writes small files through the library, without a mount, until it is killed; and checks
//! afterwards that they are there.
//!
//! `make demo` uses it where there is no /dev/fuse.
//!
//! - `steady_writer write IMAGE NAME STATS` makes a directory of that name in the image and files
//!   in it, and prints the path of each once an fsync has confirmed it. STATS gets the volume's
//!   counters as JSON.
//! - `steady_writer check DIR` reads such paths from standard input, looks for each below DIR, and
//!   prints how many there were.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use stetfs::{Caller, Fs, MountOptions, OpenFlags};
use stetfs_media::FileOptions;

/// The pause between two files, so that a few seconds do not use up the inodes of a small volume.
const PAUSE: Duration = Duration::from_micros(500);

/// Number of files after which the counters are written again.
const STATS_EVERY: u32 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", image, name, stats] => write(image, name, stats),
        ["check", dir] => check(Path::new(dir)),
        _ => Err("usage: steady_writer write IMAGE NAME STATS | check DIR".into()),
    }
}

/// Returns the content of file number `n`.
fn content(n: u32) -> Vec<u8> {
    format!("{n}\n")
        .repeat(1 + n as usize * 7919 % 900)
        .into_bytes()
}

fn write(image: &str, name: &str, stats: &str) -> Result<(), Box<dyn Error>> {
    let dev = FileOptions::default().open(image)?;
    let (volume, _) = Fs::mount(Arc::new(dev), MountOptions::parse("data=journal")?)?;
    let me = Caller::root();
    let dir = volume
        .mkdir(&me, volume.root(), name.as_bytes(), 0o755)?
        .ino;
    let mut out = io::stdout().lock();
    for n in 1u32.. {
        let file = volume
            .create(&me, dir, n.to_string().as_bytes(), 0o644, OpenFlags::WRITE)?
            .ino;
        volume.write(&me, file, 0, &content(n))?;
        volume.fsync(file, false)?;
        volume.release(file)?;
        // Only now may it be promised.
        writeln!(out, "{name}/{n}")?;
        out.flush()?;
        if n % STATS_EVERY == 0 {
            fs::write(stats, serde_json::to_string(&volume.stats())?)?;
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn check(dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut found = 0;
    for line in io::stdin().lock().split(b'\n') {
        // The writer may have been killed within a line. Then that file was not reported yet, or a
        // shorter name was, which exists too.
        let line = String::from_utf8(line?)?;
        let Some(n) = line.rsplit('/').next().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let path = dir.join(&line);
        if fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))? != content(n) {
            return Err(format!("{}: it holds something else", path.display()).into());
        }
        found += 1;
    }
    println!("{found}");
    Ok(())
}
