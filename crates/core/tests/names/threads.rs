//! Many threads on one tree: no deadlock, and a sound volume afterwards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stetfs::{Caller, Error, Fs, OpenFlags, RenameFlags};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

const ROOT: InodeNo = InodeNo(2);

/// Errors that a call may return while others change the same names.
fn expected(e: &Error) -> bool {
    matches!(
        e,
        Error::NotFound
            | Error::Exists
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::NotPermitted
            | Error::Invalid
            | Error::Stale
            | Error::NoSpace
    )
}

fn some_dir(fs: &Fs, c: &Caller, random: &mut Random) -> InodeNo {
    let mut dir = ROOT;
    for _ in 0..random.below(4) {
        let name = format!("d{}", random.below(4));
        match fs.lookup(c, dir, name.as_bytes()) {
            Ok(entry) if entry.attr.is_dir() => dir = entry.ino,
            _ => break,
        }
    }
    dir
}

fn step(fs: &Fs, c: &Caller, random: &mut Random) -> Result<(), Error> {
    let (a, b) = (some_dir(fs, c, random), some_dir(fs, c, random));
    let name = |random: &mut Random| {
        let kind = ["d", "f"][random.below(2)];
        format!("{kind}{}", random.below(4)).into_bytes()
    };
    let (x, y) = (name(random), name(random));
    match random.below(12) {
        0..2 => fs.mkdir(c, a, &x, 0o755).map(|_| ()),
        2..4 => {
            let entry = fs.create(c, a, &x, 0o644, OpenFlags::WRITE)?;
            if random.below(2) == 0 {
                let _ = fs.unlink(c, a, &x);
            }
            fs.release(entry.ino)
        }
        4 => fs.unlink(c, a, &x),
        5 => fs.rmdir(c, a, &x),
        6 => {
            let ino = fs.lookup(c, a, &x)?.ino;
            fs.link(c, ino, b, &y).map(|_| ())
        }
        7 => fs.rename(c, a, &x, b, &y, RenameFlags::EXCHANGE),
        8 => fs.readdir(a, 0, &mut |_| true),
        _ => fs.rename(c, a, &x, b, &y, RenameFlags::empty()),
    }
}

#[test]
fn renames_of_everything_everywhere() {
    let v = Volume::make("-t ext4 -b 1024 -O metadata_csum", 32);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let (fs, done, stop) = (v.fs.clone(), &done, &stop);
            scope.spawn(move || {
                let c = Caller::root();
                let mut random = Random::new(seed + 1);
                for _ in 0..4000 {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    match step(&fs, &c, &mut random) {
                        Err(e) if !expected(&e) => panic!("{e}"),
                        _ => done.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        scope.spawn(|| {
            // A deadlock must fail the test, not hang it.
            let (mut last, mut since) = (0, Instant::now());
            while last < 6 * 4000 {
                std::thread::sleep(Duration::from_millis(50));
                let now = done.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > Duration::from_secs(60) {
                    eprintln!("no operation came to its end for a minute, {now} were made");
                    std::process::abort();
                }
            }
        });
    });
    v.check();
}
