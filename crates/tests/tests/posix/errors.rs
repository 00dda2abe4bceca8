//! Errors that do not depend on who asks.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

use crate::{Case, open, refused, works};

const MODE: Mode = Mode::from_raw_mode(0o755);

fn long(n: usize) -> String {
    "x".repeat(n)
}

/// Returns a path of `n` bytes below the directory, made of `./`.
fn winding(base: &std::path::Path, n: usize) -> String {
    let mut path = base.to_string_lossy().into_owned();
    path.push('/');
    while path.len() + 2 <= n {
        path.push_str("./");
    }
    path
}

pub(crate) const CASES: &[Case] = &[
    works("open: a name of 255 bytes", |d| {
        open(&d.at(&long(255)), OFlags::CREATE | OFlags::RDWR)
    }),
    refused("open: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        open(&d.at(&long(256)), OFlags::CREATE | OFlags::RDWR)
    }),
    refused("mkdir: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::mkdir(d.at(&long(256)), MODE)
    }),
    refused("stat: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::stat(d.at(&long(256))).map(drop)
    }),
    refused("unlink: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::unlink(d.at(&long(256)))
    }),
    refused("symlink: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::symlink("a", d.at(&long(256)))
    }),
    refused("link: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::link(d.file("f"), d.at(&long(256)))
    }),
    refused("rename: to a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::rename(d.file("f"), d.at(&long(256)))
    }),
    refused("mknod: a name of 256 bytes", Errno::NAMETOOLONG, |d| {
        rustix::fs::mknodat(CWD, d.at(&long(256)), FileType::Fifo, MODE, 0)
    }),
    refused("open: a path of 5,000 bytes", Errno::NAMETOOLONG, |d| {
        let path = winding(&d.at(""), 5000);
        rustix::fs::open(path.as_str(), OFlags::RDONLY, MODE).map(drop)
    }),
    works("symlink: a target of 4,095 bytes", |d| {
        rustix::fs::symlink(long(4095).as_str(), d.at("l"))
    }),
    refused(
        "symlink: a target of 4,096 bytes",
        Errno::NAMETOOLONG,
        |d| rustix::fs::symlink(long(4096).as_str(), d.at("l")),
    ),
    refused("symlink: an empty target", Errno::NOENT, |d| {
        rustix::fs::symlink("", d.at("l"))
    }),
    refused("open: no such file", Errno::NOENT, |d| {
        open(&d.at("none"), OFlags::RDONLY)
    }),
    refused("open: no such directory", Errno::NOENT, |d| {
        open(&d.at("none/f"), OFlags::CREATE | OFlags::RDWR)
    }),
    refused("open: O_EXCL on a file", Errno::EXIST, |d| {
        open(&d.file("f"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)
    }),
    refused("open: O_EXCL on a dangling link", Errno::EXIST, |d| {
        open(
            &d.link("none", "l"),
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR,
        )
    }),
    works("open: O_CREAT through a dangling link", |d| {
        open(&d.link("target", "l"), OFlags::CREATE | OFlags::RDWR)?;
        assert!(d.at("target").is_file());
        Ok(())
    }),
    refused("open: O_NOFOLLOW on a link", Errno::LOOP, |d| {
        d.file("f");
        open(&d.link("f", "l"), OFlags::RDONLY | OFlags::NOFOLLOW)
    }),
    refused("open: O_DIRECTORY on a file", Errno::NOTDIR, |d| {
        open(&d.file("f"), OFlags::RDONLY | OFlags::DIRECTORY)
    }),
    refused("open: a directory for writing", Errno::ISDIR, |d| {
        open(&d.dir("d"), OFlags::RDWR)
    }),
    refused("open: O_CREAT on a directory", Errno::ISDIR, |d| {
        open(&d.dir("d"), OFlags::CREATE | OFlags::RDONLY)
    }),
    refused("open: below a file", Errno::NOTDIR, |d| {
        d.file("f");
        open(&d.at("f/g"), OFlags::RDONLY)
    }),
    refused("open: a file with a slash behind", Errno::NOTDIR, |d| {
        d.file("f");
        open(&d.at("f/"), OFlags::RDONLY)
    }),
    refused("open: links in a circle", Errno::LOOP, |d| {
        d.link("b", "a");
        d.link("a", "b");
        open(&d.at("a"), OFlags::RDONLY)
    }),
    refused("stat: through links in a circle", Errno::LOOP, |d| {
        d.link("b", "a");
        d.link("a", "b");
        rustix::fs::stat(d.at("a/f")).map(drop)
    }),
    works("open: 40 links in a row", |d| {
        d.file("l0");
        for i in 1..=40 {
            d.link(&format!("l{}", i - 1), &format!("l{i}"));
        }
        open(&d.at("l40"), OFlags::RDONLY)
    }),
    refused("open: 41 links in a row", Errno::LOOP, |d| {
        d.file("l0");
        for i in 1..=41 {
            d.link(&format!("l{}", i - 1), &format!("l{i}"));
        }
        open(&d.at("l41"), OFlags::RDONLY)
    }),
    refused("open: a socket", Errno::NXIO, |d| {
        rustix::fs::mknodat(CWD, d.at("s"), FileType::Socket, MODE, 0)?;
        open(&d.at("s"), OFlags::RDONLY)
    }),
    refused("mkdir: a file is there", Errno::EXIST, |d| {
        rustix::fs::mkdir(d.file("f"), MODE)
    }),
    refused("mkdir: a dangling link is there", Errno::EXIST, |d| {
        rustix::fs::mkdir(d.link("none", "l"), MODE)
    }),
    refused("mkdir: below a file", Errno::NOTDIR, |d| {
        d.file("f");
        rustix::fs::mkdir(d.at("f/d"), MODE)
    }),
    works("mkdir: a slash behind", |d| {
        rustix::fs::mkdir(d.at("d/"), MODE)
    }),
    refused("mknod: a file is there", Errno::EXIST, |d| {
        rustix::fs::mknodat(CWD, d.file("f"), FileType::Fifo, MODE, 0)
    }),
    refused("rmdir: not empty", Errno::NOTEMPTY, |d| {
        d.dir("d");
        d.file("d/f");
        rustix::fs::rmdir(d.at("d"))
    }),
    refused("rmdir: a file", Errno::NOTDIR, |d| {
        rustix::fs::rmdir(d.file("f"))
    }),
    refused("rmdir: a link to a directory", Errno::NOTDIR, |d| {
        d.dir("d");
        rustix::fs::rmdir(d.link("d", "l"))
    }),
    refused("rmdir: .", Errno::INVAL, |d| {
        d.dir("d");
        rustix::fs::rmdir(d.at("d/."))
    }),
    refused("rmdir: ..", Errno::NOTEMPTY, |d| {
        d.dir("d");
        d.dir("d/e");
        rustix::fs::rmdir(d.at("d/e/.."))
    }),
    refused("unlink: a directory", Errno::ISDIR, |d| {
        rustix::fs::unlink(d.dir("d"))
    }),
    refused("unlink: nothing there", Errno::NOENT, |d| {
        rustix::fs::unlink(d.at("none"))
    }),
    refused("unlink: a slash behind a file", Errno::NOTDIR, |d| {
        d.file("f");
        rustix::fs::unlink(d.at("f/"))
    }),
    refused("link: a directory", Errno::PERM, |d| {
        rustix::fs::link(d.dir("d"), d.at("e"))
    }),
    refused("link: the name is taken", Errno::EXIST, |d| {
        rustix::fs::link(d.file("f"), d.file("g"))
    }),
    refused("link: nothing there", Errno::NOENT, |d| {
        rustix::fs::link(d.at("none"), d.at("g"))
    }),
    refused("link: to another volume", Errno::XDEV, |d| {
        rustix::fs::link("/proc/self/status", d.at("g"))
    }),
    refused("rename: from another volume", Errno::XDEV, |d| {
        let away = std::env::temp_dir().join(format!("stetfs-posix-{}", std::process::id()));
        fs::write(&away, b"").expect("a file elsewhere");
        let result = rustix::fs::rename(&away, d.at("g"));
        fs::remove_file(&away).expect("still there");
        result
    }),
    refused("rename: nothing there", Errno::NOENT, |d| {
        rustix::fs::rename(d.at("none"), d.at("g"))
    }),
    refused("rename: a directory over a file", Errno::NOTDIR, |d| {
        rustix::fs::rename(d.dir("d"), d.file("f"))
    }),
    refused("rename: a file over a directory", Errno::ISDIR, |d| {
        rustix::fs::rename(d.file("f"), d.dir("d"))
    }),
    refused(
        "rename: over a directory that is not empty",
        Errno::NOTEMPTY,
        |d| {
            d.dir("d");
            d.dir("e");
            d.file("e/f");
            rustix::fs::rename(d.at("d"), d.at("e"))
        },
    ),
    works("rename: over an empty directory", |d| {
        rustix::fs::rename(d.dir("d"), d.dir("e"))
    }),
    refused("rename: a directory into itself", Errno::INVAL, |d| {
        d.dir("d");
        rustix::fs::rename(d.at("d"), d.at("d/e"))
    }),
    refused("rename: a directory far into itself", Errno::INVAL, |d| {
        d.dir("d");
        d.dir("d/e");
        rustix::fs::rename(d.at("d"), d.at("d/e/f"))
    }),
    refused("rename: onto a directory above", Errno::NOTEMPTY, |d| {
        d.dir("d");
        d.dir("d/e");
        rustix::fs::rename(d.at("d/e"), d.at("d"))
    }),
    refused("rename: .", Errno::BUSY, |d| {
        d.dir("d");
        rustix::fs::rename(d.at("d/."), d.at("e"))
    }),
    works("rename: onto itself", |d| {
        d.file("f");
        rustix::fs::rename(d.at("f"), d.at("f"))
    }),
    works(
        "rename: onto another name of the same file leaves both",
        |d| {
            rustix::fs::link(d.file("f"), d.at("g"))?;
            rustix::fs::rename(d.at("f"), d.at("g"))?;
            assert!(d.at("f").exists() && d.at("g").exists());
            Ok(())
        },
    ),
    refused(
        "rename: NOREPLACE and the name is taken",
        Errno::EXIST,
        |d| rustix::fs::renameat_with(CWD, d.file("f"), CWD, d.file("g"), RenameFlags::NOREPLACE),
    ),
    works("rename: NOREPLACE", |d| {
        rustix::fs::renameat_with(CWD, d.file("f"), CWD, d.at("g"), RenameFlags::NOREPLACE)
    }),
    refused("rename: EXCHANGE with nothing", Errno::NOENT, |d| {
        rustix::fs::renameat_with(CWD, d.file("f"), CWD, d.at("g"), RenameFlags::EXCHANGE)
    }),
    works("rename: EXCHANGE of a file and a directory", |d| {
        d.dir("d");
        d.file("d/inside");
        rustix::fs::renameat_with(CWD, d.file("f"), CWD, d.at("d"), RenameFlags::EXCHANGE)?;
        assert!(d.at("f/inside").is_file() && d.at("d").is_file());
        Ok(())
    }),
    refused("rename: NOREPLACE with EXCHANGE", Errno::INVAL, |d| {
        let flags = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(CWD, d.file("f"), CWD, d.file("g"), flags)
    }),
    refused("rename: a file with a slash behind", Errno::NOTDIR, |d| {
        d.file("f");
        rustix::fs::rename(d.at("f/"), d.at("g"))
    }),
    refused("readlink: a file", Errno::INVAL, |d| {
        rustix::fs::readlink(d.file("f"), Vec::new()).map(drop)
    }),
    refused("readdir: a file", Errno::NOTDIR, |d| {
        fs::read_dir(d.file("f"))
            .map(drop)
            .map_err(|e| Errno::from_io_error(&e).expect("an errno"))
    }),
    refused("read: a directory", Errno::ISDIR, |d| {
        let dir = rustix::fs::open(d.dir("d"), OFlags::RDONLY, MODE)?;
        rustix::io::read(&dir, &mut [0; 1][..]).map(drop)
    }),
    refused(
        "truncate: to more than any file can have",
        Errno::FBIG,
        |d| {
            let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
            rustix::fs::ftruncate(file, (1 << 44) + 4096)
        },
    ),
    refused("write: beyond what any file can have", Errno::FBIG, |d| {
        let file = OpenOptions::new()
            .write(true)
            .open(d.file("f"))
            .expect("open");
        let written = file.write_at(b"x", 1 << 44);
        written
            .map(drop)
            .map_err(|e| Errno::from_io_error(&e).expect("an errno"))
    }),
    refused("fallocate: of no length", Errno::INVAL, |d| {
        let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 0)
    }),
    refused(
        "fallocate: a hole without KEEP_SIZE",
        Errno::OPNOTSUPP,
        |d| {
            let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
            rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE, 0, 4096)
        },
    ),
    refused("fallocate: open for reading", Errno::BADF, |d| {
        let file = rustix::fs::open(d.file("f"), OFlags::RDONLY, MODE)?;
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 4096)
    }),
    refused(
        "fallocate: beyond what any file can have",
        Errno::FBIG,
        |d| {
            let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
            rustix::fs::fallocate(file, FallocateFlags::empty(), 1 << 44, 4096)
        },
    ),
    refused("lseek: SEEK_DATA at the end", Errno::NXIO, |d| {
        let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
        rustix::fs::seek(file, SeekFrom::Data(7)).map(drop)
    }),
    refused("lseek: SEEK_HOLE beyond the end", Errno::NXIO, |d| {
        let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
        rustix::fs::seek(file, SeekFrom::Hole(8)).map(drop)
    }),
    works("lseek: the end of a file is a hole", |d| {
        let file = rustix::fs::open(d.file("f"), OFlags::RDWR, MODE)?;
        assert_eq!(rustix::fs::seek(file, SeekFrom::Hole(0))?, 7);
        Ok(())
    }),
    refused(
        "setxattr: XATTR_CREATE and it is there",
        Errno::EXIST,
        |d| {
            let path = d.file("f");
            rustix::fs::setxattr(&path, "user.x", b"1", XattrFlags::empty())?;
            rustix::fs::setxattr(&path, "user.x", b"2", XattrFlags::CREATE)
        },
    ),
    refused(
        "setxattr: XATTR_REPLACE and it is not there",
        Errno::NODATA,
        |d| rustix::fs::setxattr(d.file("f"), "user.x", b"1", XattrFlags::REPLACE),
    ),
    refused("setxattr: a user attribute on a link", Errno::PERM, |d| {
        rustix::fs::lsetxattr(d.link("f", "l"), "user.x", b"1", XattrFlags::empty())
    }),
    refused("setxattr: an unknown namespace", Errno::OPNOTSUPP, |d| {
        rustix::fs::setxattr(d.file("f"), "strange.x", b"1", XattrFlags::empty())
    }),
    refused("setxattr: a name of 256 bytes", Errno::RANGE, |d| {
        rustix::fs::setxattr(
            d.file("f"),
            format!("user.{}", long(251)).as_str(),
            b"1",
            XattrFlags::empty(),
        )
    }),
    refused(
        "setxattr: a value of more than 64 KiB",
        Errno::TOOBIG,
        |d| rustix::fs::setxattr(d.file("f"), "user.x", &[1; 65_537], XattrFlags::empty()),
    ),
    refused("setxattr: a value larger than a block", Errno::NOSPC, |d| {
        rustix::fs::setxattr(d.file("f"), "user.x", &[1; 5000], XattrFlags::empty())
    }),
    refused("getxattr: not there", Errno::NODATA, |d| {
        rustix::fs::getxattr(d.file("f"), "user.x", &mut [0; 10][..]).map(drop)
    }),
    refused("getxattr: the buffer is too small", Errno::RANGE, |d| {
        let path = d.file("f");
        rustix::fs::setxattr(&path, "user.x", b"12345", XattrFlags::empty())?;
        rustix::fs::getxattr(&path, "user.x", &mut [0; 4][..]).map(drop)
    }),
    refused("removexattr: not there", Errno::NODATA, |d| {
        rustix::fs::removexattr(d.file("f"), "user.x")
    }),
    refused(
        "setxattr: an ACL of an unknown version",
        Errno::OPNOTSUPP,
        |d| {
            let acl = [9, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255];
            rustix::fs::setxattr(
                d.file("f"),
                "system.posix_acl_access",
                &acl,
                XattrFlags::empty(),
            )
        },
    ),
    refused("setxattr: an ACL of the owner alone", Errno::INVAL, |d| {
        let acl = [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255];
        rustix::fs::setxattr(
            d.file("f"),
            "system.posix_acl_access",
            &acl,
            XattrFlags::empty(),
        )
    }),
    refused("setxattr: a default ACL on a file", Errno::ACCESS, |d| {
        let acl = [
            2u32.to_le_bytes().as_slice(),
            &[1, 0, 7, 0, 255, 255, 255, 255],
            &[4, 0, 5, 0, 255, 255, 255, 255],
            &[32, 0, 5, 0, 255, 255, 255, 255],
        ]
        .concat();
        rustix::fs::setxattr(
            d.file("f"),
            "system.posix_acl_default",
            &acl,
            XattrFlags::empty(),
        )
    }),
    refused(
        "execve: a file that is open for writing",
        Errno::TXTBSY,
        |d| {
            let path = d.at("program");
            fs::copy("/bin/true", &path).expect("a copy");
            let _writer = OpenOptions::new().write(true).open(&path).expect("open");
            let started = std::process::Command::new(&path).status();
            started
                .map(drop)
                .map_err(|e| Errno::from_io_error(&e).expect("an errno"))
        },
    ),
    works("open: a removed working file stays usable", |d| {
        let path = d.file("f");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("open");
        fs::remove_file(&path).expect("unlink");
        file.write_all_at(b"still here", 100_000).expect("write");
        let mut read = [0; 10];
        file.read_exact_at(&mut read, 100_000).expect("read");
        assert_eq!(&read, b"still here");
        assert_eq!(rustix::fs::fstat(&file)?.st_nlink, 0);
        Ok(())
    }),
    refused(
        "mkdir: in a directory that was removed",
        Errno::NOENT,
        |d| {
            let dir = rustix::fs::open(d.dir("d"), OFlags::RDONLY | OFlags::DIRECTORY, MODE)?;
            rustix::fs::rmdir(d.at("d"))?;
            rustix::fs::mkdirat(&dir, "e", MODE)
        },
    ),
    works("readdir: . and .. and every name once", |d| {
        for i in 0..500 {
            d.file(&format!("f{i}"));
        }
        let fd = rustix::fs::open(d.at(""), OFlags::RDONLY | OFlags::DIRECTORY, MODE)?;
        let names: Vec<_> = rustix::fs::Dir::read_from(&fd)?
            .map(|e| e.map(|e| e.file_name().to_owned()))
            .collect::<Result<_, _>>()?;
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!((names.len(), unique.len()), (502, 502));
        Ok(())
    }),
];
