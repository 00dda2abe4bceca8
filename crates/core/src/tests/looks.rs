//! The kernel's view of the same volume: statfs, and stat of every kind of file. Paths as well.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use stetfs_format::Time;

use crate::testing::{Image, KINDS};
use crate::types::mode;
use crate::{Caller, Error, OpenFlags, SetAttr, SetTime};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn statfs_says_what_the_kernel_says() {
    for (kind, args) in KINDS {
        let image = Image::new(64, args);
        let fs = image.mount("");
        let c = Caller::root();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        fs.write(&c, ino, 0, &vec![1; 3_000_000]).unwrap();
        fs.release(ino).unwrap();
        fs.sync().unwrap();
        let ours = fs.statfs().unwrap();
        fs.unmount().unwrap();
        let after = image.mount("ro").statfs().unwrap();
        assert_eq!(ours.blocks_free, after.blocks_free, "{kind}");
        let seen = image.on_kernel("ro", |dir| {
            let out = std::process::Command::new("stat")
                .args(["-f", "-c", "%S %b %f %a %c %d"])
                .arg(dir)
                .output()
                .unwrap();
            String::from_utf8(out.stdout).unwrap()
        });
        let Some(seen) = seen else { return };
        let theirs: Vec<u64> = seen
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let mut wanted = vec![
            after.block_size.into(),
            after.blocks,
            after.blocks_free,
            after.blocks_available,
            after.files,
            after.files_free,
        ];
        if kind.contains("ext3") {
            // On ext3 too, we keep a pool for blocks of the map; the kernel does not.
            assert!(theirs[3] >= wanted[3], "{kind}");
            wanted[3] = theirs[3];
        }
        assert_eq!(theirs, wanted, "{kind}");
    }
}

/// As in mknod(2): EPERM for a directory, EINVAL for an unknown type or one that another call
/// makes. The kernel filters these calls, but a program that uses the library can make them.
#[test]
fn every_type_of_node_is_made_or_refused() {
    let image = Image::new(24, KINDS[0].1);
    let fs = image.mount("");
    let (root, c) = (fs.root(), Caller::root());
    for kind in 0..16_u16 {
        let (name, wanted) = (format!("{kind}"), kind << 12 | 0o640);
        let made = fs.mknod(&c, root, name.as_bytes(), wanted, (0, 0));
        match wanted & mode::S_IFMT {
            0 => assert_eq!(made.unwrap().attr.mode, mode::S_IFREG | 0o640),
            mode::S_IFDIR => assert!(matches!(made, Err(Error::NotPermitted)), "{made:?}"),
            mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK | mode::S_IFCHR | mode::S_IFBLK => {
                assert_eq!(made.unwrap().attr.mode, wanted);
            }
            _ => assert!(matches!(made, Err(Error::Invalid)), "{kind}: {made:?}"),
        }
        let is_there = fs.lookup(&c, root, name.as_bytes()).is_ok();
        let is_made = [0, 1, 2, 6, 8, 12].contains(&kind);
        assert_eq!(is_there, is_made, "{kind}");
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn every_kind_of_file_looks_the_same_to_the_kernel() {
    for (kind, args) in KINDS {
        let image = Image::new(24, args);
        let fs = image.mount("");
        let c = Caller::root();
        let root = fs.root();
        let long = b"x".repeat(500);
        fs.symlink(&c, root, b"fast", b"target").unwrap();
        fs.symlink(&c, root, b"slow", &long).unwrap();
        fs.mknod(&c, root, b"fifo", 0o010_640, (0, 0)).unwrap();
        fs.mknod(&c, root, b"sock", 0o140_640, (0, 0)).unwrap();
        fs.mknod(&c, root, b"char", 0o020_600, (10, 229)).unwrap();
        fs.mknod(&c, root, b"block", 0o060_600, (259, 70_000))
            .unwrap();
        fs.mkdir(&c, root, b"dir", 0o1777).unwrap();
        let file = fs.create(&c, root, b"file", 0o4755, RW).unwrap().ino;
        fs.write(&c, file, 5_000_000, b"end").unwrap();
        fs.link(&c, file, root, b"hard").unwrap();
        let times = SetAttr {
            uid: Some(70_000),
            gid: Some(80_000),
            atime: Some(SetTime::At(Time {
                sec: -5,
                nsec: 123_456_789,
            })),
            mtime: Some(SetTime::At(Time {
                sec: 1 << 33,
                nsec: 999_999_999,
            })),
            ..SetAttr::default()
        };
        fs.setattr(&c, file, &times).unwrap();
        fs.release(file).unwrap();
        assert_eq!(
            fs.readlink(fs.lookup(&c, root, b"slow").unwrap().ino)
                .unwrap(),
            long
        );
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("ro");
        image.on_kernel("ro", |dir| {
            for name in [
                "fast", "slow", "fifo", "sock", "char", "block", "dir", "file", "hard",
            ] {
                let theirs = std::fs::symlink_metadata(dir.join(name)).unwrap();
                let ours = fs.lookup(&c, root, name.as_bytes()).unwrap().attr;
                let what = format!("{name} on {kind}");
                assert_eq!(u32::from(ours.mode), theirs.mode(), "{what}");
                assert_eq!(u64::from(ours.nlink), theirs.nlink(), "{what}");
                assert_eq!((ours.uid, ours.gid), (theirs.uid(), theirs.gid()), "{what}");
                assert_eq!(ours.size, theirs.size(), "{what}");
                assert_eq!(ours.blocks, theirs.blocks(), "{what}");
                assert_eq!(u64::from(ours.ino.0), theirs.ino(), "{what}");
                let time = |sec, nsec: i64| Time {
                    sec,
                    nsec: nsec as u32,
                };
                assert_eq!(
                    ours.atime,
                    time(theirs.atime(), theirs.atime_nsec()),
                    "{what}"
                );
                assert_eq!(
                    ours.mtime,
                    time(theirs.mtime(), theirs.mtime_nsec()),
                    "{what}"
                );
                assert_eq!(
                    ours.ctime,
                    time(theirs.ctime(), theirs.ctime_nsec()),
                    "{what}"
                );
                if theirs.file_type().is_block_device() || theirs.file_type().is_char_device() {
                    let dev = theirs.rdev();
                    let major = (dev >> 8 & 0xfff | dev >> 32 & 0xffff_f000) as u32;
                    let minor = (dev & 0xff | dev >> 12 & 0xffff_ff00) as u32;
                    assert_eq!(ours.rdev, (major, minor), "{what}");
                }
                if mode::is_lnk(ours.mode) {
                    let target = std::fs::read_link(dir.join(name)).unwrap();
                    assert_eq!(
                        fs.readlink(ours.ino).unwrap(),
                        target.as_os_str().as_encoded_bytes()
                    );
                }
            }
        });
    }
}

#[test]
fn paths_are_walked_as_the_kernel_walks_them() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("");
    let c = Caller::root();
    let root = fs.root();
    let a = fs.mkdir(&c, root, b"a", 0o755).unwrap().ino;
    let b = fs.mkdir(&c, a, b"b", 0o755).unwrap().ino;
    let file = fs.create(&c, b, b"file", 0o644, RW).unwrap().ino;
    fs.release(file).unwrap();
    fs.symlink(&c, root, b"up", b"a/b/../b").unwrap();
    fs.symlink(&c, b, b"abs", b"/a").unwrap();
    fs.symlink(&c, b, b"back", b"../../a/b/file").unwrap();
    fs.symlink(&c, root, b"l1", b"l2").unwrap();
    fs.symlink(&c, root, b"l2", b"l1").unwrap();
    fs.symlink(&c, root, b"dangling", b"nothing").unwrap();
    fs.symlink(&c, root, b"tofile", b"a/b/file").unwrap();
    let at = |path: &str, follow| fs.resolve(&c, path.as_bytes(), follow).map(|e| e.ino);
    assert_eq!(at("/", true).unwrap(), root);
    assert_eq!(at("a//b/./file", true).unwrap(), file);
    assert_eq!(at("/up/file", true).unwrap(), file);
    assert_eq!(at("/a/b/abs/b/back", true).unwrap(), file);
    assert_eq!(at("/../..", true).unwrap(), root);
    assert_eq!(at("/up", true).unwrap(), b);
    assert_ne!(at("/up", false).unwrap(), b);
    assert_eq!(at("/up/", false).unwrap(), b);
    assert!(matches!(at("/l1", true), Err(Error::Loop)));
    assert!(at("/l1", false).is_ok());
    assert!(matches!(at("/dangling", true), Err(Error::NotFound)));
    assert!(matches!(at("", true), Err(Error::NotFound)));
    assert!(matches!(at("/a/b/file/", true), Err(Error::NotDirectory)));
    assert!(matches!(at("/a/b/file/x", true), Err(Error::NotDirectory)));
    assert!(matches!(at("/tofile/", true), Err(Error::NotDirectory)));
    assert!(matches!(
        at(&"x/".repeat(3000), true),
        Err(Error::NameTooLong)
    ));
    let parent = |path: &'static str| fs.resolve_parent(&c, path.as_bytes());
    let (dir, name) = parent("/up/new/").unwrap();
    assert_eq!((dir.ino, name), (b, b"new".as_slice()));
    assert!(matches!(parent("/"), Err(Error::Busy)));
    assert!(matches!(parent("/a/.."), Err(Error::Invalid)));
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A directory with as many subdirectories as its link count can express takes no more of them, but
/// still takes files.
#[test]
fn a_directory_that_is_full_of_directories_takes_files() {
    let image = Image::new(16, &["-t", "ext4", "-O", "^dir_nlink"]);
    let (fs, c) = (image.mount(""), Caller::root());
    let dir = fs.mkdir(&c, fs.root(), b"d", 0o755).unwrap().ino;
    let inode = fs.volume().icache.get(dir).unwrap();
    inode.state.write().raw.links_count = 65_000;
    let refused = fs.mkdir(&c, dir, b"sub", 0o755).unwrap_err();
    assert!(matches!(refused, Error::TooManyLinks), "{refused}");
    let made = fs.create(&c, dir, b"f", 0o644, RW).unwrap();
    fs.link(&c, made.ino, dir, b"g").unwrap();
}
