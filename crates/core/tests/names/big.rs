//! Large directories: every hash, trees of two and three levels, names of one hash over several
//! leaves.

use std::collections::BTreeSet;

use stetfs::{Caller, Error, OpenFlags};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

fn name(i: usize, longest: usize) -> Vec<u8> {
    let mut name = format!("file-{i:07}-").into_bytes();
    name.resize(name.len() + i * 7 % longest, b'x');
    name
}

/// Fills a directory with links to a few files (so that inodes do not run out), removes some, and
/// fills it again; then looks all names up. Returns what debugfs says of the tree.
fn fill(mke2fs: &str, mib: u64, count: usize, longest: usize) -> String {
    let volume = Volume::make(mke2fs, mib);
    let c = Caller::root();
    let root = InodeNo(2);
    let dir = volume.fs.mkdir(&c, root, b"big", 0o755).unwrap().ino;
    let make = |volume: &Volume, i: usize, ino: &mut InodeNo| {
        if i.is_multiple_of(60_000) {
            let entry = volume
                .fs
                .create(
                    &c,
                    root,
                    format!("file{i}").as_bytes(),
                    0o644,
                    OpenFlags::WRITE,
                )
                .unwrap();
            volume.fs.release(entry.ino).unwrap();
            *ino = entry.ino;
        }
        volume
            .fs
            .link(&c, *ino, dir, &name(i, longest))
            .unwrap_or_else(|e| panic!("link {i}: {e}"));
    };
    let mut ino = root;
    let mut present = BTreeSet::new();
    for i in 0..count {
        make(&volume, i, &mut ino);
        present.insert(i);
    }
    let volume = volume.check();
    let mut random = Random::new(9);
    for _ in 0..count / 3 {
        let i = random.below(count);
        let removed = volume.fs.unlink(&c, dir, &name(i, longest));
        if present.remove(&i) {
            removed.unwrap()
        } else {
            assert!(matches!(removed, Err(Error::NotFound)))
        }
    }
    for i in 0..count + 10 {
        let found = volume.fs.lookup(&c, dir, &name(i, longest));
        assert_eq!(found.is_ok(), present.contains(&i), "name {i}");
    }
    let mut listed = BTreeSet::new();
    volume
        .fs
        .readdir(dir, 0, &mut |e| {
            assert!(listed.insert(e.name.to_vec()), "listed twice");
            true
        })
        .unwrap();
    assert_eq!(listed.len(), present.len() + 2);
    let image = volume.checked();
    Volume::debugfs(&image, "htree_dump /big")
}

fn levels(dump: &str) -> &str {
    dump.lines()
        .find_map(|l| l.trim().strip_prefix("Indirect levels: "))
        .unwrap_or_else(|| panic!("{dump}"))
}

#[test]
fn two_levels_by_half_md4() {
    let dump = fill("-t ext4 -b 1024 -O metadata_csum", 64, 12_000, 30);
    assert_eq!(levels(&dump), "1");
}

#[test]
fn two_levels_by_legacy_hash_without_checksums() {
    let dump = fill(
        "-t ext4 -b 1024 -O ^metadata_csum hash_alg=legacy",
        64,
        12_000,
        30,
    );
    assert_eq!(levels(&dump), "1");
}

#[test]
fn two_levels_by_tea_hash_on_ext3() {
    let dump = fill("-t ext3 -b 1024 hash_alg=tea", 64, 12_000, 30);
    assert_eq!(levels(&dump), "1");
}

#[test]
fn three_levels_with_large_dir() {
    let dump = fill(
        "-t ext4 -b 1024 -O metadata_csum,large_dir",
        128,
        60_000,
        220,
    );
    assert_eq!(levels(&dump), "2");
}

#[test]
fn a_hundred_thousand_names() {
    let dump = fill("-t ext4 -b 4096 -O metadata_csum", 128, 100_000, 30);
    assert_eq!(levels(&dump), "1");
}

/// Without `large_dir`, a tree of two levels gets full in the end. The call fails with "no space",
/// and nothing is damaged.
#[test]
fn a_full_index_is_no_space() {
    let volume = Volume::make("-t ext4 -b 1024 -O metadata_csum,^large_dir", 128);
    let c = Caller::root();
    let dir = volume.fs.mkdir(&c, InodeNo(2), b"big", 0o755).unwrap().ino;
    let file = volume
        .fs
        .create(&c, InodeNo(2), b"file", 0o644, OpenFlags::WRITE)
        .unwrap();
    let mut full = None;
    for i in 0..64_900 {
        match volume.fs.link(&c, file.ino, dir, &name(i, 230)) {
            Ok(_) => {}
            Err(Error::NoSpace) => {
                full = Some(i);
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    let full = full.expect("the index never filled up");
    assert!(full > 20_000, "full at {full} names");
    assert!(volume.fs.lookup(&c, dir, &name(full, 230)).is_err());
    volume.check();
}
