//! Volumes of every kind that other tools made: e2fsck finds nothing, and neither do we.

#[path = "../../format/tests/image/mod.rs"]
mod image;

use std::sync::Mutex;

use image::{Image, KINDS};
use stetfs_check::Checker;

/// Kinds that the decoders' tests do not need.
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
