//! Inodes leave memory and come back; the cached blocks of their files stay theirs.

use std::sync::Arc;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, SetAttr};
use stetfs_format::InodeNo;
use stetfs_media::sim::{SimDev, SimOptions};

use crate::volume::{clean, image, mount};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Makes a volume whose memory has room for few inodes and many blocks, and enough files to push
/// other inodes out.
fn volume() -> (Arc<SimDev>, Fs, Caller) {
    let options = SimOptions {
        record: false,
        ..SimOptions::default()
    };
    let dev = Arc::new(options.build(image("-t ext4 -b 1024 -N 4096", 16)));
    let mut options = MountOptions::parse("noatime").unwrap();
    options.memory = 4 << 20;
    let fs = mount(dev.clone(), options);
    let c = Caller::root();
    for n in 0..2500 {
        let ino = make(&fs, &c, &format!("other{n}"));
        fs.release(ino).unwrap();
    }
    (dev, fs, c)
}

fn make(fs: &Fs, c: &Caller, name: &str) -> InodeNo {
    fs.create(c, fs.root(), name.as_bytes(), 0o644, RW)
        .unwrap()
        .ino
}

fn push_out(fs: &Fs, c: &Caller) {
    for _ in 0..2 {
        for n in 0..2500 {
            fs.lookup(c, fs.root(), format!("other{n}").as_bytes())
                .unwrap();
        }
    }
}

fn resize(fs: &Fs, c: &Caller, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(c, ino, &set).unwrap();
}

fn content(fs: &Fs, ino: InodeNo) -> Vec<u8> {
    let mut out = vec![0xEE; 100_000];
    let n = fs.read(ino, 0, &mut out).unwrap();
    out.truncate(n);
    out
}

#[test]
fn a_truncate_forgets_what_was_cached_before_the_inode_was_loaded() {
    let (dev, fs, c) = volume();
    let ino = make(&fs, &c, "file");
    fs.write(&c, ino, 0, &[1; 20_000]).unwrap();
    fs.release(ino).unwrap();
    fs.sync().unwrap();
    push_out(&fs, &c);
    resize(&fs, &c, ino, 0);
    resize(&fs, &c, ino, 20_000);
    assert!(content(&fs, ino).iter().all(|&b| b == 0));
    fs.unmount().unwrap();
    clean("truncate", |path| dev.newest().to_file(path).unwrap());
}

#[test]
fn a_new_file_has_nothing_of_the_one_that_had_its_number() {
    let (dev, fs, c) = volume();
    let ino = make(&fs, &c, "file");
    fs.write(&c, ino, 0, &[1; 20_000]).unwrap();
    fs.release(ino).unwrap();
    fs.sync().unwrap();
    push_out(&fs, &c);
    fs.unlink(&c, fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    let new = make(&fs, &c, "new");
    assert_eq!(new, ino, "the number is used again");
    resize(&fs, &c, new, 20_000);
    assert!(content(&fs, new).iter().all(|&b| b == 0));
    let taker = make(&fs, &c, "taker of the blocks");
    fs.write(&c, taker, 0, &[2; 20_000]).unwrap();
    fs.sync().unwrap();
    fs.write(&c, new, 5000, &[3; 100]).unwrap();
    let mut wanted = vec![0; 20_000];
    wanted[5000..5100].fill(3);
    assert!(content(&fs, new) == wanted);
    for ino in [new, taker] {
        fs.release(ino).unwrap();
    }
    fs.unmount().unwrap();
    clean("number", |path| dev.newest().to_file(path).unwrap());
    let fs = mount(dev, MountOptions::default());
    assert!(content(&fs, new) == wanted);
    assert!(content(&fs, taker) == [2; 20_000]);
}
