//! Who may do what.

use std::fs;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::{Case, LONG_AGO, as_user, open, refused, works};

const MODE: Mode = Mode::from_raw_mode(0o755);
const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const STAFF: u32 = 5001;

fn chmod(path: &std::path::Path, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

fn alice<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    as_user(ALICE, ALICE, &[], call)
}

fn bob<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    as_user(BOB, BOB, &[], call)
}

fn chown(path: &std::path::Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

/// Returns an ACL: owner rwx, one named user, group ---, a mask of rwx, others ---.
fn acl_for(user: u32, perm: u8) -> Vec<u8> {
    let entry = |tag: u16, perm: u8, id: u32| {
        [
            tag.to_le_bytes().as_slice(),
            &u16::from(perm).to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let none = u32::MAX;
    [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, none),
        entry(2, perm, user),
        entry(4, 0, none),
        entry(16, 7, none),
        entry(32, 0, none),
    ]
    .concat()
}

pub(crate) const CASES: &[Case] = &[
    refused("open: others may not read 0640", Errno::ACCESS, |d| {
        d.file("f");
        d.give("f", ALICE, STAFF, 0o640);
        bob(|| open(&d.at("f"), OFlags::RDONLY))
    }),
    works("open: the group may read 0640", |d| {
        d.file("f");
        d.give("f", ALICE, STAFF, 0o640);
        as_user(BOB, BOB, &[STAFF], || open(&d.at("f"), OFlags::RDONLY))
    }),
    refused("open: the group may not write 0640", Errno::ACCESS, |d| {
        d.file("f");
        d.give("f", ALICE, STAFF, 0o640);
        as_user(BOB, STAFF, &[], || open(&d.at("f"), OFlags::WRONLY))
    }),
    refused(
        "open: the owner is bound by the owner's bits",
        Errno::ACCESS,
        |d| {
            d.file("f");
            d.give("f", ALICE, ALICE, 0o077);
            alice(|| open(&d.at("f"), OFlags::RDONLY))
        },
    ),
    refused(
        "open: the group is bound by the group's bits",
        Errno::ACCESS,
        |d| {
            d.file("f");
            d.give("f", ALICE, STAFF, 0o707);
            as_user(BOB, STAFF, &[], || open(&d.at("f"), OFlags::RDONLY))
        },
    ),
    refused(
        "open: a directory without search permission",
        Errno::ACCESS,
        |d| {
            d.dir("d");
            d.file("d/f");
            d.give("d", ALICE, ALICE, 0o700);
            bob(|| open(&d.at("d/f"), OFlags::RDONLY))
        },
    ),
    works("open: search permission is enough for a known name", |d| {
        d.dir("d");
        d.file("d/f");
        d.give("d", ALICE, ALICE, 0o711);
        d.give("d/f", ALICE, ALICE, 0o644);
        bob(|| open(&d.at("d/f"), OFlags::RDONLY))
    }),
    refused("readdir: without read permission", Errno::ACCESS, |d| {
        d.dir("d");
        d.give("d", ALICE, ALICE, 0o711);
        bob(|| open(&d.at("d"), OFlags::RDONLY | OFlags::DIRECTORY))
    }),
    refused(
        "create: in a directory that may not be written",
        Errno::ACCESS,
        |d| {
            d.dir("d");
            d.give("d", ALICE, ALICE, 0o755);
            bob(|| open(&d.at("d/f"), OFlags::CREATE | OFlags::RDWR))
        },
    ),
    refused(
        "mkdir: in a directory that may not be written",
        Errno::ACCESS,
        |d| {
            d.dir("d");
            d.give("d", ALICE, ALICE, 0o755);
            bob(|| rustix::fs::mkdir(d.at("d/e"), MODE))
        },
    ),
    refused(
        "unlink: in a directory that may not be written",
        Errno::ACCESS,
        |d| {
            d.dir("d");
            d.file("d/f");
            d.give("d", ALICE, ALICE, 0o755);
            d.give("d/f", BOB, BOB, 0o644);
            bob(|| rustix::fs::unlink(d.at("d/f")))
        },
    ),
    works(
        "unlink: a file of somebody else where the directory may be written",
        |d| {
            d.dir("d");
            d.file("d/f");
            d.give("d", ALICE, ALICE, 0o777);
            d.give("d/f", ALICE, ALICE, 0o600);
            bob(|| rustix::fs::unlink(d.at("d/f")))
        },
    ),
    refused(
        "unlink: a file of somebody else in a sticky directory",
        Errno::PERM,
        |d| {
            d.dir("d");
            d.file("d/f");
            d.give("d", ALICE, ALICE, 0o1777);
            d.give("d/f", ALICE, ALICE, 0o666);
            bob(|| rustix::fs::unlink(d.at("d/f")))
        },
    ),
    works("unlink: the file's owner in a sticky directory", |d| {
        d.dir("d");
        d.file("d/f");
        d.give("d", ALICE, ALICE, 0o1777);
        d.give("d/f", BOB, BOB, 0o666);
        bob(|| rustix::fs::unlink(d.at("d/f")))
    }),
    works("unlink: the directory's owner in a sticky directory", |d| {
        d.dir("d");
        d.file("d/f");
        d.give("d", ALICE, ALICE, 0o1777);
        d.give("d/f", BOB, BOB, 0o666);
        alice(|| rustix::fs::unlink(d.at("d/f")))
    }),
    refused(
        "rmdir: a directory of somebody else in a sticky directory",
        Errno::PERM,
        |d| {
            d.dir("d");
            d.dir("d/e");
            d.give("d", ALICE, ALICE, 0o1777);
            d.give("d/e", ALICE, ALICE, 0o777);
            bob(|| rustix::fs::rmdir(d.at("d/e")))
        },
    ),
    refused("rename: from a sticky directory", Errno::PERM, |d| {
        d.dir("d");
        d.file("d/f");
        d.give("d", ALICE, ALICE, 0o1777);
        d.give("d/f", ALICE, ALICE, 0o666);
        bob(|| rustix::fs::rename(d.at("d/f"), d.at("g")))
    }),
    refused(
        "rename: over a file of somebody else in a sticky directory",
        Errno::PERM,
        |d| {
            d.dir("d");
            d.file("d/f");
            d.give("d", ALICE, ALICE, 0o1777);
            d.give("d/f", ALICE, ALICE, 0o666);
            bob(|| {
                open(&d.at("mine"), OFlags::CREATE | OFlags::RDWR)?;
                rustix::fs::rename(d.at("mine"), d.at("d/f"))
            })
        },
    ),
    refused(
        "rename: a directory that may not be written into another place",
        Errno::ACCESS,
        |d| {
            // A move to another parent changes its "..".
            d.dir("d");
            d.dir("other");
            d.give("d", ALICE, ALICE, 0o755);
            d.give("other", BOB, BOB, 0o777);
            bob(|| rustix::fs::rename(d.at("d"), d.at("other/d")))
        },
    ),
    refused("chmod: not the owner", Errno::PERM, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        bob(|| chmod(&d.at("f"), 0o777))
    }),
    works("chmod: the owner", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        alice(|| chmod(&d.at("f"), 0o600))
    }),
    works("chmod: set-group-ID of a foreign group is dropped", |d| {
        d.file("f");
        d.give("f", ALICE, STAFF, 0o666);
        alice(|| chmod(&d.at("f"), 0o2755))?;
        assert_eq!(d.mode("f") & 0o7777, 0o755);
        Ok(())
    }),
    works("chmod: set-group-ID of an own group is kept", |d| {
        d.file("f");
        d.give("f", ALICE, STAFF, 0o666);
        as_user(ALICE, ALICE, &[STAFF], || chmod(&d.at("f"), 0o2755))?;
        assert_eq!(d.mode("f") & 0o7777, 0o2755);
        Ok(())
    }),
    refused("chown: giving a file away", Errno::PERM, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        alice(|| chown(&d.at("f"), Some(BOB), None))
    }),
    refused("chown: to a foreign group", Errno::PERM, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        alice(|| chown(&d.at("f"), None, Some(STAFF)))
    }),
    works(
        "chown: to an own group drops set-user-ID and set-group-ID",
        |d| {
            d.file("f");
            d.give("f", ALICE, ALICE, 0o6777);
            as_user(ALICE, ALICE, &[STAFF], || {
                chown(&d.at("f"), None, Some(STAFF))
            })?;
            assert_eq!(d.mode("f") & 0o7777, 0o777);
            Ok(())
        },
    ),
    works("chown: root drops set-user-ID too", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o6755);
        chown(&d.at("f"), Some(BOB), None)?;
        assert_eq!(d.mode("f") & 0o7777, 0o755);
        Ok(())
    }),
    works("chown: set-group-ID without group execution stays", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o2745 & !0o010);
        chown(&d.at("f"), Some(BOB), None)?;
        assert_eq!(d.mode("f") & 0o7777, 0o2745 & !0o010);
        Ok(())
    }),
    works("write: drops set-user-ID and set-group-ID", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o6777);
        bob(|| fs::write(d.at("f"), b"changed")).expect("0777 may be written");
        assert_eq!(d.mode("f") & 0o7777, 0o777);
        Ok(())
    }),
    works("truncate: drops set-user-ID and set-group-ID", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o6777);
        bob(|| {
            let file = rustix::fs::open(d.at("f"), OFlags::WRONLY, MODE)?;
            rustix::fs::ftruncate(file, 3)
        })?;
        assert_eq!(d.mode("f") & 0o7777, 0o777);
        Ok(())
    }),
    refused(
        "truncate: a file that may not be written",
        Errno::ACCESS,
        |d| {
            d.file("f");
            d.give("f", ALICE, ALICE, 0o644);
            bob(|| open(&d.at("f"), OFlags::WRONLY | OFlags::TRUNC))
        },
    ),
    works("create: a set-group-ID directory gives its group", |d| {
        d.dir("d");
        d.give("d", ALICE, STAFF, 0o2777);
        bob(|| {
            open(&d.at("d/f"), OFlags::CREATE | OFlags::RDWR)?;
            rustix::fs::mkdir(d.at("d/e"), MODE)
        })?;
        let group = |name: &str| rustix::fs::stat(d.at(name)).expect("stat").st_gid;
        assert_eq!((group("d/f"), group("d/e")), (STAFF, STAFF));
        assert_eq!(d.mode("d/e") & 0o7777, 0o2755);
        assert_eq!(d.mode("d/f") & 0o7777, 0o644);
        Ok(())
    }),
    works("create: owner and group are the caller's", |d| {
        bob(|| open(&d.at("f"), OFlags::CREATE | OFlags::RDWR))?;
        let stat = rustix::fs::stat(d.at("f"))?;
        assert_eq!((stat.st_uid, stat.st_gid), (BOB, BOB));
        Ok(())
    }),
    works("create: the umask holds", |d| {
        // In a process of its own, since the umask belongs to the process.
        let script = format!("umask 027; : > '{0}/f'; mkdir '{0}/d'", d.at("").display());
        let done = std::process::Command::new("sh")
            .arg("-c")
            .arg(script)
            .status()
            .expect("sh");
        assert!(done.success());
        assert_eq!((d.mode("f") & 0o7777, d.mode("d") & 0o7777), (0o640, 0o750));
        Ok(())
    }),
    refused("utimes: times of a foreign file", Errno::PERM, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        let times = Timestamps {
            last_access: LONG_AGO,
            last_modification: LONG_AGO,
        };
        bob(|| rustix::fs::utimensat(CWD, d.at("f"), &times, AtFlags::empty()))
    }),
    works("utimes: now, on a foreign file that may be written", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        bob(|| {
            let now = rustix::fs::Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_NOW,
            };
            let times = Timestamps {
                last_access: now,
                last_modification: now,
            };
            rustix::fs::utimensat(CWD, d.at("f"), &times, AtFlags::empty())
        })
    }),
    refused("mknod: a device, as a user", Errno::PERM, |d| {
        bob(|| {
            rustix::fs::mknodat(
                CWD,
                d.at("n"),
                FileType::CharacterDevice,
                MODE,
                rustix::fs::makedev(1, 3),
            )
        })
    }),
    works("mknod: a FIFO, as a user", |d| {
        bob(|| rustix::fs::mknodat(CWD, d.at("n"), FileType::Fifo, MODE, 0))
    }),
    works("mknod: a device works and keeps its number", |d| {
        rustix::fs::mknodat(
            CWD,
            d.at("n"),
            FileType::CharacterDevice,
            MODE,
            rustix::fs::makedev(300, 70_000),
        )?;
        let rdev = rustix::fs::stat(d.at("n"))?.st_rdev;
        assert_eq!(
            (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
            (300, 70_000)
        );
        Ok(())
    }),
    refused("setxattr: trusted, as a user", Errno::PERM, |d| {
        d.file("f");
        d.give("f", BOB, BOB, 0o666);
        bob(|| rustix::fs::setxattr(d.at("f"), "trusted.x", b"1", XattrFlags::empty()))
    }),
    refused(
        "setxattr: a file that may not be written",
        Errno::ACCESS,
        |d| {
            d.file("f");
            d.give("f", ALICE, ALICE, 0o644);
            bob(|| rustix::fs::setxattr(d.at("f"), "user.x", b"1", XattrFlags::empty()))
        },
    ),
    refused("setxattr: an ACL of a foreign file", Errno::PERM, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o666);
        bob(|| {
            rustix::fs::setxattr(
                d.at("f"),
                "system.posix_acl_access",
                &acl_for(BOB, 7),
                XattrFlags::empty(),
            )
        })
    }),
    works("ACL: a named user may do what the entry says", |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o600);
        rustix::fs::setxattr(
            d.at("f"),
            "system.posix_acl_access",
            &acl_for(BOB, 6),
            XattrFlags::empty(),
        )?;
        bob(|| open(&d.at("f"), OFlags::RDWR))
    }),
    refused("ACL: and no more", Errno::ACCESS, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o600);
        rustix::fs::setxattr(
            d.at("f"),
            "system.posix_acl_access",
            &acl_for(BOB, 4),
            XattrFlags::empty(),
        )?;
        bob(|| open(&d.at("f"), OFlags::RDWR))
    }),
    refused("ACL: chmod narrows the mask", Errno::ACCESS, |d| {
        d.file("f");
        d.give("f", ALICE, ALICE, 0o600);
        rustix::fs::setxattr(
            d.at("f"),
            "system.posix_acl_access",
            &acl_for(BOB, 6),
            XattrFlags::empty(),
        )?;
        chmod(&d.at("f"), 0o700)?;
        bob(|| open(&d.at("f"), OFlags::RDONLY))
    }),
    works("ACL: a default ACL is inherited", |d| {
        d.dir("d");
        d.give("d", ALICE, ALICE, 0o777);
        rustix::fs::setxattr(
            d.at("d"),
            "system.posix_acl_default",
            &acl_for(BOB, 6),
            XattrFlags::empty(),
        )?;
        alice(|| open(&d.at("d/f"), OFlags::CREATE | OFlags::RDWR))?;
        bob(|| open(&d.at("d/f"), OFlags::RDONLY))
    }),
    refused("access: a file that may not be run", Errno::ACCESS, |d| {
        rustix::fs::access(d.file("f"), rustix::fs::Access::EXEC_OK)
    }),
    refused("execve: without execute permission", Errno::ACCESS, |d| {
        let path = d.at("program");
        fs::copy("/bin/true", &path).expect("a copy");
        chmod(&path, 0o644)?;
        let started = std::process::Command::new(&path).status();
        started
            .map(drop)
            .map_err(|e| Errno::from_io_error(&e).expect("an errno"))
    }),
    works("execve: a program on the volume", |d| {
        let path = d.at("program");
        fs::copy("/bin/true", &path).expect("a copy");
        assert!(
            std::process::Command::new(&path)
                .status()
                .expect("started")
                .success()
        );
        Ok(())
    }),
];
