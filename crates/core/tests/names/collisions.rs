//! More names of one hash than a leaf holds. The leaves after the first have the continuation bit,
//! and every search must go on into them. The "legacy" hash is weak enough to find such names.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use stetfs::{Caller, Error, OpenFlags};
use stetfs_format::{HashVersion, Hasher, InodeNo};

use crate::image::Volume;

const ROOT: InodeNo = InodeNo(2);

/// The state of the legacy hash (`dx_hack_hash` in the kernel) after one more byte below 128.
fn step((h0, h1): (u32, u32), byte: u8) -> (u32, u32) {
    let hash = h1.wrapping_add(h0 ^ factor(byte));
    let hash = if hash >> 31 == 1 {
        hash.wrapping_sub(0x7fff_ffff)
    } else {
        hash
    };
    (hash, h0)
}

fn factor(byte: u8) -> u32 {
    u32::from(byte).wrapping_mul(7_152_373)
}

/// Makes names of 249 bytes with the same hash, by solving for the last two bytes of each.
fn colliding(count: usize) -> Vec<Vec<u8>> {
    let bytes: Vec<u8> = (1..127).filter(|b| !b"./".contains(b)).collect();
    let by_factor: HashMap<u32, u8> = bytes.iter().map(|&b| (factor(b), b)).collect();
    let target = 0x1234_5678u32;
    let start = [b'x'; 240]
        .iter()
        .fold((0x12a3_fe2d, 0x37ab_e8f9), |s, &b| step(s, b));
    let mut names = Vec::new();
    for number in 0u32.. {
        let digits = format!("{number:07}");
        let (h0, h1) = digits.bytes().fold(start, step);
        for &last in &bytes {
            let before = target.wrapping_sub(h0) ^ factor(last);
            let Some(&first) = by_factor.get(&(before.wrapping_sub(h1) ^ h0)) else {
                continue;
            };
            if step(step((h0, h1), first), last).0 == target {
                names.push([&[b'x'; 240][..], digits.as_bytes(), &[first, last]].concat());
            }
        }
        if names.len() >= count {
            break;
        }
    }
    names
}

#[test]
fn one_hash_over_many_leaves() {
    let names = colliding(9);
    let hasher = Hasher {
        version: HashVersion::Legacy,
        unsigned: false,
        seed: [0; 4],
    };
    let hashes: BTreeSet<u32> = names.iter().map(|n| hasher.hash(n).major).collect();
    assert_eq!(hashes.len(), 1, "the names are what they should be");

    let v = Volume::make("-t ext4 -b 1024 -O metadata_csum hash_alg=legacy", 32);
    let c = Caller::root();
    let d = v.fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    let file =
        v.fs.create(&c, ROOT, b"file", 0o644, OpenFlags::WRITE)
            .unwrap()
            .ino;
    v.fs.release(file).unwrap();
    // Other names before and after them put the colliding ones in the middle of a tree.
    let others: Vec<Vec<u8>> = (0..200)
        .map(|i| format!("other{i}-{}", "y".repeat(i % 50)).into_bytes())
        .collect();
    for (i, other) in others.iter().enumerate() {
        v.fs.link(&c, file, d, other).unwrap();
        if let Some(name) = names.get(i / 8) {
            match v.fs.link(&c, file, d, name) {
                Ok(_) => assert_eq!(i % 8, 0),
                Err(Error::Exists) => assert_ne!(i % 8, 0),
                Err(e) => panic!("{e}"),
            }
        }
    }
    let image = v.checked();
    let dump = Volume::debugfs(&image, "htree_dump /d");
    let continued = dump
        .lines()
        .filter(|l| l.contains("Hash 0x2468acf1"))
        .count();
    assert!(continued >= 2, "{continued} continued leaves: {dump}");

    let v = Volume::again(image);
    for name in names.iter().chain(&others) {
        assert_eq!(v.fs.lookup(&c, d, name).unwrap().ino, file);
        assert!(matches!(v.fs.link(&c, file, d, name), Err(Error::Exists)));
    }
    let mut seen = BTreeSet::new();
    let mut cookie = 0;
    loop {
        let mut one = None;
        v.fs.readdir(d, cookie, &mut |e| {
            let first = one.is_none();
            if first {
                one = Some((e.name.to_vec(), e.next));
            }
            first
        })
        .unwrap();
        let Some((name, next)) = one else { break };
        assert!(seen.insert(name), "listed twice");
        cookie = next;
    }
    assert_eq!(seen.len(), names.len() + others.len() + 2);
    for name in names.iter().step_by(2) {
        v.fs.unlink(&c, d, name).unwrap();
    }
    for (i, name) in names.iter().enumerate() {
        assert_eq!(v.fs.lookup(&c, d, name).is_ok(), i % 2 == 1);
    }
    let v = v.check();
    for name in names.iter().step_by(2) {
        v.fs.link(&c, file, d, name).unwrap();
    }
    v.check();
}
