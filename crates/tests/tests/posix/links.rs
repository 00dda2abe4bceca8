//! Link counts, sizes, and other results of stat.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, RenameFlags};

use crate::{Case, works};

const MODE: Mode = Mode::from_raw_mode(0o755);

pub(crate) const CASES: &[Case] = &[
    works("links of files", |d| {
        d.file("f");
        assert_eq!(d.links("f"), 1);
        rustix::fs::link(d.at("f"), d.at("g"))?;
        assert_eq!((d.links("f"), d.links("g")), (2, 2));
        rustix::fs::unlink(d.at("f"))?;
        assert_eq!(d.links("g"), 1);
        Ok(())
    }),
    works("links of directories count subdirectories", |d| {
        d.dir("a");
        assert_eq!(d.links("a"), 2);
        d.dir("a/b");
        d.dir("a/c");
        d.file("a/f");
        assert_eq!(d.links("a"), 4);
        rustix::fs::rmdir(d.at("a/b"))?;
        assert_eq!(d.links("a"), 3);
        Ok(())
    }),
    works("links of directories after renames", |d| {
        d.dir("a");
        d.dir("b");
        d.dir("a/x");
        rustix::fs::rename(d.at("a/x"), d.at("b/x"))?;
        assert_eq!((d.links("a"), d.links("b")), (2, 3));
        d.dir("a/x");
        rustix::fs::rename(d.at("a/x"), d.at("b/x"))?;
        assert_eq!((d.links("a"), d.links("b")), (2, 3));
        Ok(())
    }),
    works(
        "links of directories after exchanging a directory with a file",
        |d| {
            d.dir("a");
            d.dir("b");
            d.dir("a/x");
            d.file("b/x");
            rustix::fs::renameat_with(CWD, d.at("a/x"), CWD, d.at("b/x"), RenameFlags::EXCHANGE)?;
            assert_eq!((d.links("a"), d.links("b")), (2, 3));
            Ok(())
        },
    ),
    works("a replaced file that is open keeps its content", |d| {
        d.file("old");
        fs::write(d.at("new"), b"new content").expect("a file");
        let mut old = File::open(d.at("old")).expect("open");
        rustix::fs::rename(d.at("new"), d.at("old"))?;
        let mut text = String::new();
        old.read_to_string(&mut text).expect("read");
        assert_eq!(text, "content");
        assert_eq!(rustix::fs::fstat(&old)?.st_nlink, 0);
        assert_eq!(fs::read(d.at("old")).expect("read"), b"new content");
        Ok(())
    }),
    works(".. after a directory has moved", |d| {
        d.dir("a");
        d.dir("b");
        d.dir("a/x");
        d.file("b/witness");
        rustix::fs::rename(d.at("a/x"), d.at("b/x"))?;
        assert!(d.at("b/x/../witness").is_file());
        Ok(())
    }),
    works("a symbolic link's size is that of its target", |d| {
        for n in [1, 59, 60, 61, 1000] {
            let path = d.at(&format!("l{n}"));
            rustix::fs::symlink("t".repeat(n).as_str(), &path)?;
            assert_eq!(rustix::fs::lstat(&path)?.st_size as usize, n);
            assert_eq!(rustix::fs::readlink(&path, Vec::new())?.to_bytes().len(), n);
        }
        Ok(())
    }),
    works("holes take no space", |d| {
        let file = File::create(d.at("f")).expect("create");
        file.write_all_at(b"end", 5_000_000_000).expect("write");
        file.sync_all().expect("fsync");
        let stat = rustix::fs::fstat(&file)?;
        assert_eq!(stat.st_size, 5_000_000_003);
        assert!(stat.st_blocks <= 64, "{} blocks", stat.st_blocks);
        Ok(())
    }),
    works("fallocate takes space and gives zeros", |d| {
        let file = rustix::fs::open(d.at("f"), OFlags::CREATE | OFlags::RDWR, MODE)?;
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20)?;
        let stat = rustix::fs::fstat(&file)?;
        assert_eq!(stat.st_size, 0);
        assert!(stat.st_blocks >= 2048, "{} blocks", stat.st_blocks);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20)?;
        assert_eq!(fs::read(d.at("f")).expect("read"), vec![0; 1 << 20]);
        Ok(())
    }),
    works(
        "a hole that was punched reads as zeros and gives space back",
        |d| {
            let file = File::options()
                .create_new(true)
                .read(true)
                .write(true)
                .open(d.at("f"))
                .expect("create");
            file.write_all_at(&vec![7; 1 << 20], 0).expect("write");
            file.sync_all().expect("fsync");
            // With FUSE's writeback cache the kernel learns the number of blocks when the file is
            // closed.
            drop(file);
            let file = File::options().write(true).open(d.at("f")).expect("open");
            let before = rustix::fs::fstat(&file)?.st_blocks;
            rustix::fs::fallocate(
                &file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                100_000,
                800_000,
            )?;
            file.sync_all().expect("fsync");
            let mut expected = vec![7; 1 << 20];
            expected[100_000..900_000].fill(0);
            assert_eq!(fs::read(d.at("f")).expect("read"), expected);
            assert!(rustix::fs::fstat(&file)?.st_blocks + 1500 < before);
            Ok(())
        },
    ),
    works("O_APPEND writes at the end, wherever it is", |d| {
        let path = d.file("f");
        let mut a = File::options().append(true).open(&path).expect("open");
        let mut b = File::options().append(true).open(&path).expect("open");
        a.write_all(b" one").expect("write");
        b.write_all(b" two").expect("write");
        a.write_all(b" three").expect("write");
        assert_eq!(fs::read(&path).expect("read"), b"content one two three");
        Ok(())
    }),
    works("a shared mapping and reads see the same", |d| {
        // Through copy_file_range, which reads and writes in the kernel.
        let source = File::open(d.file("f")).expect("open");
        let target = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(d.at("g"))
            .expect("create");
        let copied = rustix::fs::copy_file_range(&source, None, &target, None, 100)?;
        assert_eq!(copied, 7);
        let mut text = String::new();
        let mut again = &target;
        again.rewind().expect("seek");
        again.read_to_string(&mut text).expect("read");
        assert_eq!(text, "content");
        Ok(())
    }),
    works("statvfs counts what is taken", |d| {
        let before = rustix::fs::statvfs(d.at(""))?;
        let file = File::create(d.at("f")).expect("create");
        file.write_all_at(&vec![3; 4 << 20], 0).expect("write");
        file.sync_all().expect("fsync");
        let after = rustix::fs::statvfs(d.at(""))?;
        let taken = (before.f_bfree - after.f_bfree) * before.f_frsize;
        assert!((4 << 20..5 << 20).contains(&taken), "{taken} bytes");
        assert_eq!(after.f_namemax, 255);
        Ok(())
    }),
];
