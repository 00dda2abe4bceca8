//! Volumes of every kind that other tools made: neither e2fsck nor the checker finds anything.

#[path = "../../format/tests/image/mod.rs"]
mod image;

use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Mutex;

use image::{Image, KINDS};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use stetfs_check::Checker;

/// Further kinds, beyond those of the decoders' tests.
const MORE_KINDS: [(&str, &[&str], u64); 8] = [
    (
        "many groups",
        &["-t", "ext4", "-b", "1024", "-g", "512"],
        24,
    ),
    (
        "one group a flex group",
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-G", "1"],
        16,
    ),
    (
        "many inodes",
        &["-t", "ext4", "-b", "1024", "-i", "1024"],
        16,
    ),
    (
        "1024-byte inodes",
        &["-t", "ext4", "-b", "1024", "-I", "1024"],
        16,
    ),
    ("no journal", &["-t", "ext4", "-O", "^has_journal"], 16),
    ("ext3, 4 KiB", &["-t", "ext3", "-b", "4096"], 24),
    (
        "meta_bg, large",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "256",
            "-O",
            "meta_bg,^resize_inode",
        ],
        48,
    ),
    (
        "sparse_super2, resize",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "sparse_super2",
            "-g",
            "1024",
        ],
        24,
    ),
];

fn assert_clean(checker: &mut Checker, image: &Image, what: &str) {
    image.assert_clean(what);
    let bytes = std::fs::read(&image.path).expect("the image");
    let report = checker.check(bytes.as_slice());
    assert!(report.is_clean(), "{what}: {report}");
}

#[test]
fn volumes_by_mke2fs_are_clean() {
    let kinds = KINDS.iter().map(|&(name, args)| (name, args, 24));
    let kinds = Mutex::new(kinds.chain(MORE_KINDS));
    let work = || {
        let mut checker = Checker::new();
        loop {
            let kind = kinds.lock().expect("no panic").next();
            let Some((name, args, mib)) = kind else { break };
            let Some(image) = Image::make(args, mib * 1024) else {
                continue;
            };
            assert_clean(&mut checker, &image, name);
            image.populate();
            assert_clean(&mut checker, &image, &format!("{name}, filled"));
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

/// Makes everything that `mke2fs -d` copies: deep and large directories, hard links, symbolic links
/// of every length, holes, devices.
fn plant(root: &Path) {
    let mut deep = root.to_owned();
    for i in 0..80 {
        deep.push(format!("level-{i}"));
        std::fs::create_dir(&deep).expect("a directory");
        std::fs::write(deep.join("file"), vec![b'x'; i * 100]).expect("a file");
    }
    let large = root.join("large");
    std::fs::create_dir(&large).expect("a directory");
    for i in 0..1500 {
        std::fs::write(large.join(format!("{i}{}", "n".repeat(i % 100))), []).expect("a file");
    }
    for i in 0..50 {
        std::fs::hard_link(large.join("0"), root.join(format!("link-{i}"))).expect("a link");
    }
    for length in [1, 58, 59, 60, 61, 200, 1000] {
        let target = "t".repeat(length);
        symlink(target, root.join(format!("symbolic-{length}"))).expect("a link");
    }
    let sparse = File::create(root.join("sparse")).expect("a file");
    for i in 0..400 {
        sparse.write_all_at(b"data", i * 40_000).expect("room");
    }
    let wide = File::create(root.join("wide")).expect("a file");
    wide.write_all_at(b"end", 1 << 33).expect("room");
    for (name, kind, number) in [
        ("character", FileType::CharacterDevice, makedev(5, 1)),
        ("block", FileType::BlockDevice, makedev(259, 70_000)),
        ("pipe", FileType::Fifo, 0),
    ] {
        let made = mknodat(CWD, root.join(name), kind, Mode::RUSR, number);
        if made.is_err() {
            eprintln!("SKIPPED: a device node (root needed)");
        }
    }
    let value = [b'v'; 300];
    for name in ["wide", "large", "link-3"] {
        let set = setxattr(root.join(name), "user.name", &value, XattrFlags::empty());
        if set.is_err() {
            eprintln!("SKIPPED: attributes on the file system of the temporary directory");
        }
    }
}

#[test]
fn trees_that_mke2fs_copies_are_clean() {
    let root = tempfile::tempdir().expect("a directory");
    plant(root.path());
    let root = root.path().to_str().expect("a path");
    let mut checker = Checker::new();
    for args in [
        ["-t", "ext4", "-b", "1024", "-d", root].as_slice(),
        &["-t", "ext4", "-b", "4096", "-O", "^64bit", "-d", root],
        &["-t", "ext4", "-b", "2048", "-I", "128", "-d", root],
        &["-t", "ext3", "-b", "1024", "-g", "1024", "-d", root],
        &["-t", "ext2", "-b", "1024", "-d", root],
    ] {
        let Some(image) = Image::make(args, 40 << 10) else {
            return;
        };
        // mke2fs versions differ in what they leave for e2fsck to do.
        let (status, output) = image.e2fsck("-fyD");
        assert!(status < 4, "{output}");
        assert_clean(&mut checker, &image, &args.join(" "));
    }
}
