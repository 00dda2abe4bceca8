//! Listings during changes: a name that exists all the time is listed exactly once.

use std::collections::{BTreeMap, BTreeSet};

use stetfs::{Caller, Fs, OpenFlags};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

/// Calls readdir once, for at most `most` entries. Moves the cookie on. Returns true at the end.
fn part(
    fs: &Fs,
    dir: InodeNo,
    cookie: &mut u64,
    most: usize,
    seen: &mut BTreeMap<Vec<u8>, u32>,
) -> bool {
    let mut left = most;
    let mut end = true;
    fs.readdir(dir, *cookie, &mut |e| {
        if left == 0 {
            end = false;
            return false;
        }
        left -= 1;
        *cookie = e.next;
        *seen.entry(e.name.to_vec()).or_default() += 1;
        true
    })
    .unwrap();
    end
}

fn create(fs: &Fs, dir: InodeNo, name: &str) {
    let entry = fs
        .create(
            &Caller::root(),
            dir,
            name.as_bytes(),
            0o644,
            OpenFlags::WRITE,
        )
        .unwrap();
    fs.release(entry.ino).unwrap();
}

/// Lists in parts of 1 to 12 entries. Between two parts it adds names, so that the directory
/// splits, and removes names.
fn changing(mke2fs: &str, start: usize, seed: u64) {
    let volume = Volume::make(mke2fs, 64);
    let (fs, c) = (&volume.fs, Caller::root());
    let dir = fs.mkdir(&c, InodeNo(2), b"d", 0o755).unwrap().ino;
    let mut names: BTreeSet<String> = (0..start).map(|i| format!("name{i}")).collect();
    names.iter().for_each(|n| create(fs, dir, n));
    let mut always = names.clone();
    let mut ever = names.clone();
    let mut random = Random::new(seed);
    let mut seen = BTreeMap::new();
    let mut cookie = 0;
    let mut made = 0;
    while !part(fs, dir, &mut cookie, 1 + random.below(12), &mut seen) {
        for _ in 0..random.below(8) {
            if made < 3 * start.max(100) {
                let name = format!("more{made}-{}", "y".repeat(made % 60));
                create(fs, dir, &name);
                names.insert(name.clone());
                ever.insert(name);
                made += 1;
            }
        }
        for _ in 0..random.below(5) {
            let Some(name) = names.iter().nth(random.below(names.len())).cloned() else {
                continue;
            };
            fs.unlink(&c, dir, name.as_bytes()).unwrap();
            names.remove(&name);
            always.remove(&name);
        }
    }
    for name in &always {
        assert_eq!(
            seen.get(name.as_bytes()),
            Some(&1),
            "{name} was there all the time"
        );
    }
    for dots in [".", ".."] {
        assert_eq!(seen.remove(dots.as_bytes()), Some(1), "{dots}");
    }
    for (name, times) in &seen {
        assert!(ever.contains(std::str::from_utf8(name).unwrap()));
        assert_eq!(
            *times,
            1,
            "{} was listed {times} times",
            String::from_utf8_lossy(name)
        );
    }
    assert!(always.len() < start || start < 20, "nothing was removed");
    volume.check();
}

#[test]
fn listing_while_an_indexed_directory_changes() {
    changing("-t ext4 -b 1024 -O metadata_csum", 2000, 1);
}

#[test]
fn listing_while_a_block_becomes_indexed() {
    for seed in 0..20 {
        changing("-t ext4 -b 1024 -O metadata_csum", 12, seed);
    }
}

#[test]
fn listing_while_a_linear_directory_changes() {
    changing("-t ext4 -b 1024 -O ^dir_index", 600, 3);
}

#[test]
fn listing_by_legacy_hash() {
    changing("-t ext4 -b 1024 hash_alg=legacy", 2000, 4);
}

/// A listing from any earlier cookie returns the same rest (telldir, seekdir).
#[test]
fn every_cookie_can_be_gone_back_to() {
    for mke2fs in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^dir_index"] {
        let volume = Volume::make(mke2fs, 32);
        let dir = volume
            .fs
            .mkdir(&Caller::root(), InodeNo(2), b"d", 0o755)
            .unwrap()
            .ino;
        (0..300).for_each(|i| create(&volume.fs, dir, &format!("n{i}")));
        let all = |cookie| {
            let mut all = Vec::new();
            volume
                .fs
                .readdir(dir, cookie, &mut |e| {
                    all.push((e.name.to_vec(), e.ino, e.kind, e.next));
                    true
                })
                .unwrap();
            all
        };
        let listing = all(0);
        assert_eq!(listing.len(), 302);
        for (i, (name, ino, kind, next)) in listing.iter().enumerate() {
            assert_eq!(all(*next), listing[i + 1..], "behind entry {i}");
            assert!(*next >> 63 == 0, "a cookie is not negative");
            assert_eq!(
                *kind,
                if volume.fs.getattr(*ino).unwrap().is_dir() {
                    4
                } else {
                    8
                }
            );
            assert!(!name.is_empty());
        }
    }
}
