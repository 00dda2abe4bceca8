//! Volumes so full that a file's map cannot grow: the write fails, and a commit never does.

use std::sync::Arc;

use stetfs::{Caller, Error, FallocateMode, MountOptions, OpenFlags};
use stetfs_media::RamDev;

use crate::volume::{clean, image, mount};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Writes every other block of a preallocated file. This splits its extent into as many pieces as
/// the file has blocks.
#[test]
fn writes_into_preallocated_space_never_break_a_commit() {
    let dev = Arc::new(RamDev::from_image(
        &image("-t ext4 -b 1024 -N 64 -J size=4", 320).to_bytes(),
    ));
    let fs = mount(dev.clone(), MountOptions::default());
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"file", 0o644, RW).unwrap().ino;
    // As much as there is space for.
    let whole = fs.fallocate(&c, ino, FallocateMode::empty(), 0, 400 << 20);
    assert!(matches!(whole, Err(Error::NoSpace)), "{whole:?}");
    let blocks = fs.getattr(ino).unwrap().blocks / 2;
    assert!(blocks > 250_000, "{blocks}");
    let mut written = 0u64;
    for n in (0..blocks).step_by(2) {
        match fs.write(&c, ino, n * 1024, &(n as u32).to_le_bytes()) {
            Ok(4) => written = n,
            Err(Error::NoSpace) => break,
            other => panic!("block {n} of {blocks}: {other:?}"),
        }
    }
    fs.sync().unwrap();
    assert!(written > blocks / 8, "refused at {written} of {blocks}");
    for n in (0..written).step_by(4096) {
        let mut out = [0; 4];
        fs.read(ino, n * 1024, &mut out).unwrap();
        assert_eq!(out, (n as u32).to_le_bytes());
    }
    fs.release(ino).unwrap();
    fs.unmount().unwrap();
    clean("full", |path| dev.to_file(path).unwrap());
}
