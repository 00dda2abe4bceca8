//! A full volume: every call either succeeds or leaves nothing behind.

use stetfs::{Caller, Error, OpenFlags};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume};

const ROOT: InodeNo = InodeNo(2);

/// As an ordinary user, fills the volume with names, symbolic links and directories; removes some,
/// and fills it again.
fn fill(mke2fs: &str, mib: u64) {
    let mut v = Volume::make(mke2fs, mib);
    v.fs.mkdir(&Caller::root(), ROOT, b"home", 0o777).unwrap();
    let c = Caller::user(1000, 1000);
    let mut random = Random::new(5);
    let mut made: Vec<(InodeNo, Vec<u8>, bool)> = Vec::new();
    for round in 0..3 {
        let home = v.fs.lookup(&c, ROOT, b"home").unwrap().ino;
        let mut dirs = vec![home];
        let mut refused = 0;
        for i in 0.. {
            let dir = dirs[random.below(dirs.len())];
            let name = format!("{round}-{i}-{}", "n".repeat(random.below(150))).into_bytes();
            let (result, is_dir) = match random.below(3) {
                0 => (v.fs.mkdir(&c, dir, &name, 0o755), true),
                1 => (v.fs.symlink(&c, dir, &name, &[b't'; 500]), false),
                _ => (v.fs.create(&c, dir, &name, 0o644, OpenFlags::WRITE), false),
            };
            match result {
                Ok(entry) => {
                    if entry.attr.mode & 0o170000 == 0o100000 {
                        v.fs.release(entry.ino).unwrap();
                    }
                    if is_dir && dirs.len() < 50 {
                        dirs.push(entry.ino);
                    }
                    made.push((dir, name, is_dir));
                }
                Err(Error::NoSpace) => {
                    assert!(v.fs.lookup(&c, dir, &name).is_err(), "a name without space");
                    refused += 1;
                    if refused == 20 {
                        break;
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
        v = v.check();
        while made.len() > 100 {
            let (dir, name, is_dir) = made.swap_remove(random.below(made.len()));
            let removed = if is_dir {
                v.fs.rmdir(&c, dir, &name)
            } else {
                v.fs.unlink(&c, dir, &name)
            };
            match removed {
                Ok(()) => {}
                Err(Error::NotEmpty) if random.below(4) > 0 => made.push((dir, name, is_dir)),
                Err(Error::NotEmpty) => {}
                Err(e) => panic!("{e}"),
            }
        }
        v = v.check();
    }
}

#[test]
fn names_until_no_block_is_left() {
    fill("-t ext4 -b 1024 -N 20000 -O metadata_csum -J size=1", 8);
}

#[test]
fn names_until_no_inode_is_left() {
    fill("-t ext4 -b 1024 -N 1000 -O metadata_csum", 32);
}
