//! Full volumes: all space is used, no promised write fails, and deleted space can be used again at
//! once.

use stetfs_format::InodeNo;

use crate::testing::{Image, KINDS};
use crate::{Caller, Error, FallocateMode, Fs, OpenFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn user() -> Caller {
    Caller::user(1000, 1000)
}

fn make(fs: &Fs, name: &[u8]) -> InodeNo {
    fs.create(&Caller::root(), fs.root(), name, 0o666, RW)
        .unwrap()
        .ino
}

/// The file's content at `offset`.
fn pattern(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (at / 7) as u8 ^ (at >> 12) as u8)
        .collect()
}

/// Appends until the volume is full. Returns the size.
fn fill(fs: &Fs, c: &Caller, ino: InodeNo, from: u64, step: usize) -> u64 {
    let mut at = from;
    loop {
        match fs.write(c, ino, at, &pattern(at, step)) {
            Ok(n) => at += n as u64,
            Err(Error::NoSpace) => return at,
            Err(e) => panic!("{e}"),
        }
    }
}

fn check(fs: &Fs, ino: InodeNo, size: u64) {
    assert_eq!(fs.getattr(ino).unwrap().size, size);
    let mut out = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let n = fs.read(ino, at, &mut out).unwrap();
        assert!(n > 0);
        assert!(out[..n] == pattern(at, n)[..], "content at {at}");
        at += n as u64;
    }
}

#[test]
fn a_volume_can_be_filled_to_the_last_block() {
    for (kind, args) in [KINDS[0], KINDS[1], KINDS[4]] {
        for data in ["journal", "ordered"] {
            let image = Image::new(32, args);
            let fs = image.mount(&format!("data={data}"));
            let (block, ino) = (fs.statfs().unwrap().block_size as usize, make(&fs, b"file"));
            let by_user = fill(&fs, &user(), ino, 0, 300_001);
            fs.sync().unwrap();
            let left = fs.statfs().unwrap();
            assert_eq!(left.blocks_available, 0, "{kind} {data}: {left:?}");
            assert!(
                by_user / block as u64 > left.blocks * 3 / 4,
                "{kind} {data}"
            );
            // Root may use the reserved blocks.
            let size = fill(&fs, &Caller::root(), ino, by_user, 4 * block);
            assert!(size > by_user, "{kind} {data}");
            check(&fs, ino, size);
            // Blocks that have a place can be overwritten.
            let c = user();
            for at in (0..by_user - block as u64).step_by(1 << 20) {
                assert_eq!(fs.write(&c, ino, at, &pattern(at, block)).unwrap(), block);
            }
            fs.sync().unwrap();
            check(&fs, ino, size);
            fs.unmount().unwrap();
            image.assert_clean();
            let fs = image.mount(&format!("data={data}"));
            let ino = fs.resolve(&c, b"/file", true).unwrap().ino;
            check(&fs, ino, size);
            fs.unmount().unwrap();
        }
    }
}

#[test]
fn deleted_space_is_there_at_once() {
    for (kind, args) in [KINDS[0], KINDS[4]] {
        let image = Image::new(32, args);
        let fs = image.mount("");
        let c = Caller::root();
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let ino = make(&fs, b"file");
            sizes.push(fill(&fs, &user(), ino, 0, 1 << 20));
            fs.release(ino).unwrap();
            fs.unlink(&c, fs.root(), b"file").unwrap();
        }
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(most - least < 200_000, "{kind}: {sizes:?}");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Blocks promised by fallocate can be written on a full volume, even in an order that splits the
/// extent at every block.
#[test]
fn preallocated_blocks_can_be_written_when_nothing_is_free() {
    for (kind, args) in [KINDS[0], KINDS[1]] {
        let image = Image::new(64, args);
        let fs = image.mount("data=journal");
        let c = user();
        let (block, ino) = (
            u64::from(fs.statfs().unwrap().block_size),
            make(&fs, b"promised"),
        );
        let len = 16 << 20;
        fs.fallocate(&c, ino, FallocateMode::empty(), 0, len)
            .unwrap();
        fill(&fs, &Caller::root(), make(&fs, b"rest"), 0, 1 << 20);
        fs.sync().unwrap();
        let blocks = len / block;
        for n in (0..blocks).step_by(2).chain((1..blocks).step_by(2)) {
            let at = n * block;
            let done = fs.write(&c, ino, at, &pattern(at, block as usize));
            assert_eq!(
                done.unwrap_or_else(|e| panic!("{kind}: block {n}: {e}")),
                block as usize
            );
        }
        fs.sync().unwrap();
        check(&fs, ino, len);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Makes many small files with a commit each, until the volume is full.
#[test]
fn small_files_fill_a_volume_too() {
    let image = Image::new(16, KINDS[1].1);
    let fs = image.mount("data=ordered");
    let c = user();
    fs.mkdir(&Caller::root(), fs.root(), b"home", 0o777)
        .unwrap();
    let home = fs.resolve(&c, b"/home", true).unwrap().ino;
    for round in 0..2 {
        let mut made = Vec::new();
        for n in 0.. {
            let name = format!("{round}-{n}").into_bytes();
            let ino = match fs.create(&c, home, &name, 0o600, RW) {
                Ok(entry) => entry.ino,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            };
            made.push(name);
            let full = match fs.write(&c, ino, 0, &pattern(n, 4000 + n as usize % 5000)) {
                Ok(_) => fs.fsync(ino, false).map(|()| false).unwrap(),
                Err(Error::NoSpace) => true,
                Err(e) => panic!("{e}"),
            };
            fs.release(ino).unwrap();
            if full {
                break;
            }
        }
        assert!(made.len() > 500);
        for name in made {
            fs.unlink(&c, home, &name).unwrap();
        }
    }
    fs.unmount().unwrap();
    image.assert_clean();
}
