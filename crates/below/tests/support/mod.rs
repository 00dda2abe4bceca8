//! Volumes for the tests of devices below a journal, and a file system's work that fills the
//! journal.

use std::process::Command;

use stetfs::{Caller, Fs, OpenFlags};
use stetfs_media::RamDev;

pub(crate) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Files that [`work`] makes and deletes.
pub(crate) const FILES: u32 = 13;

/// Whether these programs of e2fsprogs are there; prints a message about one that is not.
pub(crate) fn has(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let found = Command::new(program).arg("-V").output().is_ok();
        if !found {
            eprintln!("SKIPPED: the program {program} is needed");
        }
        found
    })
}

/// A volume of so many MiB made by mke2fs.
pub(crate) fn volume(mib: u64, args: &[&str]) -> RamDev {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(mib << 20).unwrap();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"])
        .args(args)
        .arg(file.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    RamDev::from_file(file.path()).unwrap()
}

/// Makes, changes, shortens and deletes files, each time with an fsync, for several laps of the
/// log. `content` is what round n writes.
pub(crate) fn work(fs: &Fs, rounds: std::ops::Range<u32>, content: impl Fn(u32) -> Vec<u8>) {
    let c = Caller::root();
    for n in rounds {
        let name = format!("file{}", n % FILES);
        if n % 5 == 4 {
            fs.unlink(&c, fs.root(), name.as_bytes()).ok();
            continue;
        }
        let made = fs.create(&c, fs.root(), name.as_bytes(), 0o644, RW);
        let file = made.or_else(|_| fs.lookup(&c, fs.root(), name.as_bytes()));
        let ino = file.unwrap().ino;
        fs.write(&c, ino, u64::from(n % 3) * 4096, &content(n))
            .unwrap();
        fs.fsync(ino, false).unwrap();
    }
}

/// What [`work`] writes unless told otherwise.
pub(crate) fn content(n: u32) -> Vec<u8> {
    (0..20_000).map(|i| (i * n / 7 + n) as u8).collect()
}
