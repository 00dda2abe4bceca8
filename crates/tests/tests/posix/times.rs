//! Which times a call changes, and which it leaves.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::{Case, Dir, LONG_AGO, works};

const MODE: Mode = Mode::from_raw_mode(0o755);

/// Which of mtime and ctime a call changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    Nothing,
    Ctime,
    Both,
}

/// Does `call`; the times of each file must change as stated.
fn changing(
    d: &Dir,
    files: &[(&str, Changes)],
    call: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let before: Vec<_> = files.iter().map(|(name, _)| d.stamps(name)).collect();
    // Longer than the resolution of the kernel's clock.
    sleep(Duration::from_millis(12));
    call()?;
    for ((name, expected), before) in files.iter().zip(before) {
        let after = d.stamps(name);
        let found = match (after.mtime > before.mtime, after.ctime > before.ctime) {
            (false, false) => Changes::Nothing,
            (false, true) => Changes::Ctime,
            (true, true) => Changes::Both,
            (true, false) => panic!("only mtime of {name} changed"),
        };
        assert_eq!(found, *expected, "times of \"{name}\"");
    }
    Ok(())
}

fn long_ago(d: &Dir, name: &str) {
    let times = Timestamps {
        last_access: LONG_AGO,
        last_modification: LONG_AGO,
    };
    rustix::fs::utimensat(CWD, d.at(name), &times, AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
}

use Changes::{Both, Ctime, Nothing};

pub(crate) const CASES: &[Case] = &[
    works("create changes the directory", |d| {
        changing(d, &[("", Both)], || {
            d.file("f");
            Ok(())
        })
    }),
    works("mkdir changes the directory", |d| {
        changing(d, &[("", Both)], || rustix::fs::mkdir(d.at("e"), MODE))
    }),
    works("symlink changes the directory", |d| {
        changing(d, &[("", Both)], || rustix::fs::symlink("x", d.at("l")))
    }),
    works("link changes the directory and the file's ctime", |d| {
        d.file("f");
        changing(d, &[("", Both), ("f", Ctime)], || {
            rustix::fs::link(d.at("f"), d.at("g"))
        })
    }),
    works(
        "unlink changes the directory and the ctime of what remains",
        |d| {
            rustix::fs::link(d.file("f"), d.at("g"))?;
            changing(d, &[("", Both), ("f", Ctime)], || {
                rustix::fs::unlink(d.at("g"))
            })
        },
    ),
    works("rmdir changes the directory", |d| {
        d.dir("e");
        changing(d, &[("", Both)], || rustix::fs::rmdir(d.at("e")))
    }),
    works(
        "rename changes both directories and the file's ctime",
        |d| {
            d.dir("a");
            d.dir("b");
            d.file("a/f");
            rustix::fs::link(d.at("a/f"), d.at("f"))?;
            changing(
                d,
                &[("a", Both), ("b", Both), ("f", Ctime), ("", Nothing)],
                || rustix::fs::rename(d.at("a/f"), d.at("b/f")),
            )
        },
    ),
    works("write changes the file", |d| {
        let file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        changing(d, &[("f", Both), ("", Nothing)], || {
            file.write_all_at(b"new", 0).expect("write");
            Ok(())
        })
    }),
    works("a write of nothing changes nothing", |d| {
        let mut file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        changing(d, &[("f", Nothing)], || {
            assert_eq!(file.write(b"").expect("write"), 0);
            Ok(())
        })
    }),
    works("truncate changes the file", |d| {
        let file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        changing(d, &[("f", Both)], || rustix::fs::ftruncate(&file, 100))
    }),
    works("ftruncate to the same length changes the file", |d| {
        let file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        changing(d, &[("f", Both)], || rustix::fs::ftruncate(&file, 7))
    }),
    works("O_TRUNC changes an empty file", |d| {
        fs::write(d.at("f"), b"").expect("an empty file");
        changing(d, &[("f", Both)], || {
            crate::open(&d.at("f"), OFlags::WRONLY | OFlags::TRUNC)
        })
    }),
    works("fallocate changes the file", |d| {
        let file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        changing(d, &[("f", Both)], || {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000)
        })
    }),
    works("punching a hole changes the file", |d| {
        fs::write(d.at("f"), vec![1; 20_000]).expect("a file");
        let file = OpenOptions::new()
            .write(true)
            .open(d.at("f"))
            .expect("open");
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        changing(d, &[("f", Both)], || {
            rustix::fs::fallocate(&file, mode, 4096, 8192)
        })
    }),
    works("chmod changes ctime", |d| {
        d.file("f");
        changing(d, &[("f", Ctime), ("", Nothing)], || {
            rustix::fs::chmod(d.at("f"), Mode::from_raw_mode(0o600))
        })
    }),
    works("chown changes ctime", |d| {
        d.file("f");
        changing(d, &[("f", Ctime)], || {
            rustix::fs::chown(d.at("f"), Some(rustix::fs::Uid::from_raw(9)), None)
        })
    }),
    works("setxattr changes ctime", |d| {
        d.file("f");
        changing(d, &[("f", Ctime)], || {
            rustix::fs::setxattr(d.at("f"), "user.x", b"1", XattrFlags::empty())
        })
    }),
    works("removexattr changes ctime", |d| {
        rustix::fs::setxattr(d.file("f"), "user.x", b"1", XattrFlags::empty())?;
        changing(d, &[("f", Ctime)], || {
            rustix::fs::removexattr(d.at("f"), "user.x")
        })
    }),
    works(
        "utimes sets what it is told, to the nanosecond, and changes ctime",
        |d| {
            d.file("f");
            let at = |tv_sec, tv_nsec| rustix::fs::Timespec { tv_sec, tv_nsec };
            let times = Timestamps {
                last_access: at(1_234_567_890, 123_456_789),
                last_modification: at(4_000_000_000, 1),
            };
            let before = d.stamps("f");
            sleep(Duration::from_millis(12));
            rustix::fs::utimensat(CWD, d.at("f"), &times, AtFlags::empty())?;
            let after = d.stamps("f");
            assert_eq!(
                (after.atime, after.mtime),
                ((1_234_567_890, 123_456_789), (4_000_000_000, 1))
            );
            assert!(after.ctime > before.ctime);
            Ok(())
        },
    ),
    works("times before 1970 and after 2038", |d| {
        d.file("f");
        let at = |tv_sec| rustix::fs::Timespec { tv_sec, tv_nsec: 5 };
        let times = Timestamps {
            last_access: at(-1_000_000),
            last_modification: at(10_000_000_000),
        };
        rustix::fs::utimensat(CWD, d.at("f"), &times, AtFlags::empty())?;
        let after = d.stamps("f");
        assert_eq!(
            (after.atime, after.mtime),
            ((-1_000_000, 5), (10_000_000_000, 5))
        );
        Ok(())
    }),
    // Reads from the page cache, about which the kernel tells a FUSE server nothing.
    works(
        "reading from the volume changes an atime that is older than mtime",
        |d| {
            let file = File::open(d.file("f")).expect("open");
            file.sync_all().expect("fsync");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            long_ago(d, "f");
            let before = d.stamps("f");
            let mut file = fs::File::open(d.at("f")).expect("open");
            file.read_exact(&mut [0; 7]).expect("read");
            drop(file);
            let after = d.stamps("f");
            assert!(after.atime > before.atime, "{after:?}");
            assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
            Ok(())
        },
    ),
    works("O_NOATIME leaves atime alone", |d| {
        d.file("f");
        long_ago(d, "f");
        let before = d.stamps("f");
        let file = rustix::fs::open(d.at("f"), OFlags::RDONLY | OFlags::NOATIME, MODE)?;
        rustix::io::read(&file, &mut [0; 7][..])?;
        drop(file);
        assert_eq!(d.stamps("f"), before);
        Ok(())
    }),
    works("stat, open and access change nothing", |d| {
        d.file("f");
        changing(d, &[("f", Nothing), ("", Nothing)], || {
            crate::open(&d.at("f"), OFlags::RDWR)?;
            rustix::fs::access(d.at("f"), rustix::fs::Access::READ_OK)?;
            rustix::fs::stat(d.at("f")).map(drop)
        })
    }),
    works("a new file has the time now in all three", |d| {
        let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs() as i64;
        d.file("f");
        let stamps = d.stamps("f");
        for (sec, _) in [stamps.atime, stamps.mtime, stamps.ctime] {
            assert!((sec - now).abs() < 60, "{stamps:?}, and now is {now}");
        }
        Ok(())
    }),
];
