//! Files that are open without a name: they live on, and the next mount after a crash frees them.

use stetfs::{Caller, Fs, OpenFlags, SetAttr};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

const ROOT: InodeNo = InodeNo(2);

/// Makes a file of `bytes` bytes that stays open.
fn file(fs: &Fs, name: &str, bytes: usize) -> InodeNo {
    let c = Caller::root();
    let entry = fs
        .create(&c, ROOT, name.as_bytes(), 0o644, OpenFlags::WRITE)
        .unwrap();
    fs.write(&c, entry.ino, 0, &vec![7; bytes]).unwrap();
    entry.ino
}

/// Makes a file of 100 MiB that stays open.
fn large_file(fs: &Fs) -> InodeNo {
    let ino = file(fs, "large", 0);
    let chunk = vec![9; 1 << 20];
    for i in 0..100u64 {
        fs.write(&Caller::root(), ino, i << 20, &chunk).unwrap();
    }
    ino
}

fn cut(fs: &Fs, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Caller::root(), ino, &set).unwrap();
}

fn free(fs: &Fs) -> (u64, u64) {
    let s = fs.statfs().unwrap();
    (s.blocks_free, s.files_free)
}

#[test]
fn an_open_file_outlives_its_name() {
    let v = Volume::make("-t ext4 -b 1024", 32);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = file(&v.fs, "f", 5000);
    v.fs.unlink(&c, ROOT, b"f").unwrap();
    let mut out = [0; 10];
    assert_eq!(v.fs.read(ino, 4995, &mut out).unwrap(), 5);
    assert_eq!(v.fs.getattr(ino).unwrap().nlink, 0);
    assert!(free(&v.fs).1 < before.1);
    v.fs.release(ino).unwrap();
    v.fs.sync().unwrap();
    assert_eq!(free(&v.fs), before);
    assert!(v.fs.getattr(ino).is_err());
    v.check();
}

/// Orphans leave the list in any order. Those that a crash leaves are gone after the next mount.
fn crash_with_orphans(mke2fs: &str, seed: u64) {
    let v = Volume::make(mke2fs, 64);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let mut random = Random::new(seed);
    let mut open: Vec<InodeNo> = (0..60)
        .map(|i| {
            let name = format!("f{i}");
            let ino = file(&v.fs, &name, random.below(40_000));
            v.fs.unlink(&c, ROOT, name.as_bytes()).unwrap();
            if i % 7 == 0 {
                v.fs.sync().unwrap();
            }
            ino
        })
        .collect();
    for _ in 0..25 {
        let ino = open.swap_remove(random.below(open.len()));
        v.fs.release(ino).unwrap();
    }
    v.fs.sync().unwrap();
    let v = v.crash();
    assert_eq!(v.report.orphans_deleted, 35);
    assert_eq!(free(&v.fs), before);
    v.check();
}

#[test]
fn orphans_are_freed_after_a_crash() {
    crash_with_orphans("-t ext4 -b 1024 -O metadata_csum", 1);
    crash_with_orphans("-t ext3 -b 1024", 2);
    crash_with_orphans("-t ext4 -b 1024 -O metadata_csum,orphan_file", 3);
}

/// A large file is freed or truncated over several transactions.
#[test]
fn a_large_file_is_freed_in_steps() {
    let v = Volume::make("-t ext3 -b 1024 -J size=4", 160);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = large_file(&v.fs);
    v.fs.sync().unwrap();
    cut(&v.fs, ino, 50 << 20);
    v.fs.release(ino).unwrap();
    v.fs.unlink(&c, ROOT, b"large").unwrap();
    v.fs.sync().unwrap();
    assert_eq!(free(&v.fs), before);
    v.check();
}

/// A file without a name stays an orphan when it was truncated over several transactions.
#[test]
fn what_is_cut_without_a_name_is_freed_after_a_crash() {
    let v = Volume::make("-t ext3 -b 1024 -J size=4", 160);
    let c = Caller::root();
    v.fs.sync().unwrap();
    let before = free(&v.fs);
    let ino = large_file(&v.fs);
    v.fs.unlink(&c, ROOT, b"large").unwrap();
    v.fs.sync().unwrap();
    cut(&v.fs, ino, 1 << 20);
    v.fs.sync().unwrap();
    let v = v.crash();
    assert_eq!(v.report.orphans_deleted, 1);
    assert_eq!(free(&v.fs), before);
    v.check();
}
