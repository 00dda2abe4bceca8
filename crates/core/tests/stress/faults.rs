//! Every read of an operation fails once: a half-done change must not become durable.

use std::sync::Arc;

use stetfs::{Caller, FallocateMode, Fs, MountOptions, OpenFlags, RenameFlags, SetAttr, SetXattr};
use stetfs_format::InodeNo;
use stetfs_media::sim::{Fault, Keep, SimDev, SimOptions};
use stetfs_media::{Image, Op};

use crate::volume::{clean, image, mount};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Makes a volume with a file in many pieces, full directories, and attributes.
fn prepared(kind: &str) -> Image {
    let dev = Arc::new(options().build(image(kind, 24)));
    let fs = mount(dev.clone(), MountOptions::default());
    let c = Caller::root();
    for dir in [b"a", b"b"] {
        let dir = fs.mkdir(&c, fs.root(), dir, 0o755).unwrap().ino;
        for n in 0..200 {
            let name = format!("{n:-^60}");
            let ino = fs.create(&c, dir, name.as_bytes(), 0o644, RW).unwrap().ino;
            fs.release(ino).unwrap();
        }
        fs.mkdir(&c, dir, b"empty", 0o755).unwrap();
        let ino = fs.create(&c, dir, b"pieces", 0o644, RW).unwrap().ino;
        for n in 0..400 {
            fs.write(&c, ino, n * 8192, b"piece").unwrap();
        }
        fs.setxattr(&c, ino, b"user.x", &[7; 700], SetXattr::Any)
            .unwrap();
        fs.release(ino).unwrap();
    }
    fs.unmount().unwrap();
    dev.newest()
}

fn options() -> SimOptions {
    SimOptions {
        record: false,
        ..SimOptions::default()
    }
}

type Change = fn(&Fs, &Caller, InodeNo, InodeNo) -> stetfs::Result<()>;

const CHANGES: [(&str, Change); 12] = [
    ("unlink", |fs, c, a, _| fs.unlink(c, a, b"pieces")),
    ("rmdir", |fs, c, a, _| fs.rmdir(c, a, b"empty")),
    ("create", |fs, c, a, _| {
        fs.create(c, a, b"new", 0o644, RW).map(|_| ())
    }),
    ("mkdir", |fs, c, a, _| {
        fs.mkdir(c, a, b"new", 0o755).map(|_| ())
    }),
    ("symlink", |fs, c, a, _| {
        fs.symlink(c, a, b"new", &[b'x'; 300]).map(|_| ())
    }),
    ("rename over a file", |fs, c, a, b| {
        fs.rename(c, a, b"pieces", b, b"pieces", RenameFlags::empty())
    }),
    ("rename a directory", |fs, c, a, b| {
        fs.rename(c, a, b"empty", b, b"new", RenameFlags::empty())
    }),
    ("truncate", |fs, c, a, _| {
        let ino = fs.lookup(c, a, b"pieces")?.ino;
        let set = SetAttr {
            size: Some(100),
            ..SetAttr::default()
        };
        fs.setattr(c, ino, &set).map(|_| ())
    }),
    ("punch", |fs, c, a, _| {
        let ino = fs.lookup(c, a, b"pieces")?.ino;
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        fs.fallocate(c, ino, mode, 5000, 3_000_000)
    }),
    ("fallocate", |fs, c, a, _| {
        let ino = fs.lookup(c, a, b"pieces")?.ino;
        fs.fallocate(c, ino, FallocateMode::empty(), 0, 4_000_000)
            .or_else(crate::worker::unsupported)
    }),
    ("write", |fs, c, a, _| {
        let ino = fs.lookup(c, a, b"pieces")?.ino;
        fs.write(c, ino, 5000, &[1; 20_000]).map(|_| ())
    }),
    ("setxattr", |fs, c, a, _| {
        let ino = fs.lookup(c, a, b"pieces")?.ino;
        fs.setxattr(c, ino, b"user.x", &[8; 600], SetXattr::Any)
    }),
];

#[test]
fn nothing_half_done_is_committed() {
    for kind in ["-t ext4 -b 1024", "-t ext3 -b 1024"] {
        let made = prepared(kind);
        for (name, change) in CHANGES {
            for skip in 0.. {
                let what = format!("mke2fs {kind}: {name} with read {skip} failing");
                if !fails_cleanly(&made, change, skip, &what) {
                    break;
                }
            }
        }
    }
}

/// Returns false when the operation needs no more than `skip` reads.
fn fails_cleanly(made: &Image, change: Change, skip: u64, what: &str) -> bool {
    let dev = Arc::new(options().build(made.clone()));
    let fs = mount(dev.clone(), MountOptions::default());
    let c = Caller::root();
    let (a, b) = (
        fs.lookup(&c, fs.root(), b"a").unwrap().ino,
        fs.lookup(&c, fs.root(), b"b").unwrap().ino,
    );
    dev.inject(Fault::nth(Op::Read, skip));
    let result = change(&fs, &c, a, b);
    // The sync gives data its place.
    let synced = fs.sync();
    let struck = dev.faults_struck() > 0;
    assert!(
        struck || (result.is_ok() && synced.is_ok()),
        "{what}: {result:?} {synced:?}"
    );
    dev.heal();
    drop(fs);
    let left = Arc::new(options().build(dev.crash_point().crash(&Keep::All).image()));
    remount(&left, what);
    struck
}

/// One handle punches a hole: it writes the blocks at both edges and frees those between. Another
/// caller starts a commit when the hole is half made. After a crash, the file is as before or has
/// the whole hole.
#[test]
fn a_hole_is_made_entirely_or_not_at_all() {
    const HOLE: std::ops::Range<usize> = 5000..25_000;
    let made = {
        let dev = Arc::new(options().build(image("-t ext4 -b 4096", 24)));
        let fs = mount(dev.clone(), MountOptions::default());
        let c = Caller::root();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        fs.write(&c, ino, 0, &[7; 40_000]).unwrap();
        fs.release(ino).unwrap();
        fs.unmount().unwrap();
        dev.newest()
    };
    let old = vec![7; 40_000];
    let mut new = old.clone();
    new[HOLE].fill(0);
    for skip in 0.. {
        let what = format!("a hole with read {skip} failing");
        let dev = Arc::new(options().build(made.clone()));
        let fs = mount(dev.clone(), MountOptions::default());
        let c = Caller::root();
        let ino = fs.lookup(&c, fs.root(), b"f").unwrap().ino;
        dev.inject(Fault::nth(Op::Read, skip));
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        let result = fs.fallocate(&c, ino, mode, HOLE.start as u64, HOLE.len() as u64);
        // The other caller's commit.
        let _ = fs.sync();
        let struck = dev.faults_struck() > 0;
        dev.heal();
        drop(fs);
        let left = Arc::new(options().build(dev.crash_point().crash(&Keep::All).image()));
        let fs = mount(left.clone(), MountOptions::default());
        let mut found = vec![0; 40_000];
        fs.read(fs.lookup(&c, fs.root(), b"f").unwrap().ino, 0, &mut found)
            .unwrap();
        assert!(
            found == old || found == new,
            "{what}: a half of it is there"
        );
        assert!(
            result.is_err() || found == new,
            "{what}: confirmed and not there"
        );
        fs.unmount().unwrap();
        if !struck {
            break;
        }
    }
}

fn remount(dev: &Arc<SimDev>, what: &str) {
    let fs = mount(dev.clone(), MountOptions::default());
    fs.unmount().unwrap_or_else(|e| panic!("{what}: {e}"));
    clean(what, |path| dev.newest().to_file(path).unwrap());
}
