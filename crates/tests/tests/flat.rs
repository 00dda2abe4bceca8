//! The memory and descriptors of a process do not grow with what it has done: a thousand mounts,
//! and hundreds of thousands of files.
//!
//! `STETFS_LAB_FILES=N` makes N files (default 60,000); a million take some minutes.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_device};
use stetfs_testkit::host::{needs, run, scratch};
use stetfs_testkit::skip_unless;

/// Bytes for `memory=`, the least that is allowed.
const MEMORY: usize = 8 << 20;

/// Returns resident memory in bytes, and the number of open descriptors. Both checks are in one
/// test, since the threads of a second test would count too.
fn taken() -> (usize, usize) {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok());
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc").count();
    (kib.expect("VmRSS") << 10, descriptors)
}

fn mount(image: &Path) -> Fs {
    let options = MountOptions::parse(&format!("memory={}M", MEMORY >> 20)).expect("options");
    let dev = open_device(image, &options, false).expect("the image");
    Fs::mount(dev, options).expect("a mount").0
}

fn make_file(fs: &Fs, c: &Caller, n: u64) {
    let name = format!("{n}");
    let dir = format!("d{}", n / 5000);
    let dir = match fs.lookup(c, fs.root(), dir.as_bytes()) {
        Ok(found) => found.ino,
        Err(_) => {
            fs.mkdir(c, fs.root(), dir.as_bytes(), 0o755)
                .expect("a directory")
                .ino
        }
    };
    let made = fs.create(c, dir, name.as_bytes(), 0o644, OpenFlags::WRITE);
    let ino = made.expect("a file").ino;
    fs.write(c, ino, 0, &[n as u8; 100]).expect("a write");
    fs.release(ino).expect("a release");
}

#[test]
fn nothing_grows_with_mounts_or_files() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let files = std::env::var("STETFS_LAB_FILES").ok();
    let files: u64 = files.map_or(60_000, |n| n.parse().expect("a number of files"));
    let dir = scratch().expect("a directory");
    let image = dir.path().join("image");
    let size = format!("{}M", 64 + files / 100);
    let inodes = format!("{}", files + 1000);
    let file = image.to_str().expect("a path");
    run(
        "mke2fs",
        &["-q", "-F", "-t", "ext4", "-N", &inodes, file, &size],
    )
    .expect("a volume");
    let c = Caller::root();

    // Compare only after some rounds, when the allocator's own memory has stopped growing.
    let (mut early, mut late) = ((0, 0), (0, 0));
    for n in 0..1000 {
        let fs = mount(&image);
        let made = fs.create(&c, fs.root(), b"file", 0o644, OpenFlags::WRITE);
        fs.release(made.expect("a file").ino).expect("a release");
        fs.unmount().expect("an unmount");
        match n {
            199 => early = taken(),
            999 => late = taken(),
            _ => {}
        }
    }
    println!("200 and 1,000 mounts: {early:?}, {late:?}");
    assert_eq!(early.1, late.1, "descriptors");
    assert!(late.0 < early.0 + (4 << 20), "memory: {early:?} {late:?}");

    let fs = mount(&image);
    let mut most = 0;
    for n in 0..files {
        make_file(&fs, &c, n);
        if n == files / 4 {
            early = taken();
        }
        if n % 1000 == 0 {
            most = most.max(taken().0);
        }
    }
    late = taken();
    println!("a fourth of {files} files, and all: {early:?}, {late:?}; at most {most}");
    assert_eq!(early.1, late.1, "descriptors");
    assert!(most < early.0 + MEMORY, "memory: {early:?}, at most {most}");
    fs.unmount().expect("an unmount");
    stetfs_testkit::image::check(&image).expect("e2fsck");
}
