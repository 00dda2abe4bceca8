//! Mounts, walks and writes whole volumes with a few damaged words, clean and crashed. Damage must
//! give an error, never a panic, and in a bounded time.
//!
//! `STETFS_DAMAGED=N` tries N volumes of each kind (default 60).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stetfs::{
    Caller, FallocateMode, Fs, MountOptions, OpenFlags, RenameFlags, SetAttr, SetXattr, Whence,
    mode,
};
use stetfs_format::InodeNo;
use stetfs_media::Image;
use stetfs_media::sim::SimOptions;

use crate::volume::{Random, image};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// On volumes without checksums, damage reaches the code behind the checks.
const KINDS: [&str; 5] = [
    "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,^uninit_bg",
    "-t ext4 -b 4096 -J size=4 -O ^metadata_csum",
    "-t ext4 -b 1024 -J size=1",
    "-t ext3 -b 1024 -J size=1",
    "-t ext4 -b 1024 -J size=1 -O ^metadata_csum,orphan_file",
];

fn options() -> SimOptions {
    SimOptions {
        record: false,
        ..SimOptions::default()
    }
}

/// Makes a volume with something of everything; if `crashed`, with a full log and orphans.
fn prepared(kind: &str, crashed: bool) -> Image {
    let dev = Arc::new(options().build(image(kind, 10)));
    let fs = Fs::mount(dev.clone(), MountOptions::default()).unwrap().0;
    let c = Caller::root();
    let make = |dir, name: &[u8]| fs.create(&c, dir, name, 0o644, RW).unwrap().ino;
    for top in [b"a", b"b"] {
        let dir = fs.mkdir(&c, fs.root(), top, 0o755).unwrap().ino;
        for n in 0..120 {
            let ino = make(dir, format!("{n:-^60}").as_bytes());
            fs.release(ino).unwrap();
        }
        let below = fs.mkdir(&c, dir, b"below", 0o755).unwrap().ino;
        fs.mkdir(&c, below, b"deep", 0o755).unwrap();
        fs.symlink(&c, dir, b"fast", b"below/deep").unwrap();
        fs.symlink(&c, dir, b"slow", &[b'x'; 200]).unwrap();
        let ino = make(dir, b"pieces");
        for n in 0..200 {
            fs.write(&c, ino, n * 8192, b"piece").unwrap();
        }
        fs.setxattr(&c, ino, b"user.small", b"1", SetXattr::Any)
            .unwrap();
        fs.setxattr(&c, ino, b"user.large", &[7; 700], SetXattr::Any)
            .unwrap();
        let _ = fs.fallocate(&c, ino, FallocateMode::KEEP_SIZE, 2 << 20, 100_000);
        fs.link(&c, ino, dir, b"link").unwrap();
        fs.release(ino).unwrap();
        if crashed {
            let ino = make(dir, b"orphan");
            fs.write(&c, ino, 0, &[3; 30_000]).unwrap();
            fs.sync().unwrap();
            fs.unlink(&c, dir, b"orphan").unwrap();
        }
    }
    if crashed {
        fs.sync().unwrap();
    } else {
        fs.unmount().unwrap();
    }
    dev.newest()
}

/// Returns the offsets of words that are not zero, without those that look like the content of a
/// file.
fn words(image: &Image) -> Vec<u64> {
    let bytes = image.to_bytes();
    let is_content =
        |block: &[u8]| block[100..].iter().all(|&b| b == block[100]) && block[0] == b'p';
    bytes
        .chunks(1024)
        .enumerate()
        .filter(|(_, block)| !is_content(block))
        .flat_map(|(n, block)| {
            let at = n as u64 * 1024;
            (0..256u64)
                .filter(|&w| block[w as usize * 4..][..4] != [0; 4])
                .map(move |w| at + w * 4)
        })
        .collect()
}

/// Changes a few words, mostly near the start, where the structures lie close together.
fn damage(image: &mut Image, words: &[u64], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let mut at = words[random.below(words.len() as u64) as usize];
        if random.below(4) == 0 {
            at = at.saturating_sub(4 * random.below(4));
        }
        let mut word = [0; 4];
        image.read(at, &mut word);
        let old = u32::from_le_bytes(word);
        let other = words[random.below(words.len() as u64) as usize];
        image.read(other, &mut word);
        let new = match random.below(9) {
            0 => 0,
            1 => u32::MAX,
            2 => old ^ (1 << random.below(32)),
            3 => old.wrapping_add(1),
            4 => old.wrapping_sub(1),
            5 => random.next() as u32,
            6 => old.rotate_right(16),
            7 => old | 0xFFFF << (16 * random.below(2)),
            _ => u32::from_le_bytes(word),
        };
        image.write(at, &new.to_le_bytes());
    }
}

/// Reads everything that can be reached, within limits.
fn walk(fs: &Fs, c: &Caller) -> Vec<(InodeNo, Vec<u8>)> {
    let mut all = Vec::new();
    let mut dirs = vec![(fs.root(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        let mut names = Vec::new();
        let _ = fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 400
        });
        for name in names {
            let Ok(entry) = fs.lookup(c, dir, &name) else {
                continue;
            };
            let ino = entry.ino;
            if let Ok(list) = fs.listxattr(c, ino) {
                for name in list.split(|&b| b == 0).filter(|n| !n.is_empty()) {
                    let _ = fs.getxattr(c, ino, name);
                }
            }
            let _ = fs.readlink(ino);
            let mut out = vec![0; 50_000];
            for offset in [0, 8100, entry.attr.size.saturating_sub(20_000), 1 << 44] {
                let _ = fs.read(ino, offset, &mut out);
            }
            let _ = fs.seek(ino, 0, Whence::Hole);
            let _ = fs.seek(ino, 5000, Whence::Data);
            let mut extents = 0;
            let _ = fs.fiemap(ino, 0, u64::MAX, &mut |_| {
                extents += 1;
                extents < 2000
            });
            let is_dot = matches!(&name[..], b"." | b"..");
            if mode::is_dir(entry.attr.mode) && !is_dot && depth < 6 && all.len() < 1000 {
                dirs.push((ino, depth + 1));
            }
            all.push((dir, name));
        }
    }
    all
}

fn change(fs: &Fs, c: &Caller, names: &[(InodeNo, Vec<u8>)], random: &mut Random) {
    for n in 0..60 {
        let Some((dir, name)) = names.get(random.below(names.len().max(1) as u64) as usize) else {
            return;
        };
        let (other, _) = &names[random.below(names.len() as u64) as usize];
        let new = format!("new{n}").into_bytes();
        let ino = fs.lookup(c, *dir, name).map_or(InodeNo(2), |e| e.ino);
        let range = (random.below(3 << 20), 1 + random.below(1 << 20));
        let _ = match random.below(14) {
            0 => fs.unlink(c, *dir, name),
            1 => fs.rmdir(c, *dir, name),
            2 => fs.mkdir(c, *dir, &new, 0o755).map(|_| ()),
            3 => fs
                .create(c, *dir, &new, 0o644, RW)
                .and_then(|e| fs.release(e.ino)),
            4 => fs.symlink(c, *dir, &new, &[b'y'; 100]).map(|_| ()),
            5 => fs.rename(c, *dir, name, *other, &new, RenameFlags::empty()),
            6 => fs.link(c, ino, *other, &new).map(|_| ()),
            7 => fs.write(c, ino, range.0, &[1; 5000]).map(|_| ()),
            8 => fs.append(c, ino, &[1; 5000]).map(|_| ()),
            9 => {
                let set = SetAttr {
                    size: Some(range.0 / 10),
                    ..SetAttr::default()
                };
                fs.setattr(c, ino, &set).map(|_| ())
            }
            10 => {
                let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                fs.fallocate(c, ino, mode, range.0, range.1)
            }
            11 => fs.fallocate(c, ino, FallocateMode::ZERO_RANGE, range.0, range.1),
            12 => fs.setxattr(c, ino, b"user.new", &[9; 300], SetXattr::Any),
            _ => fs.sync(),
        };
    }
}

/// The number of volumes that could be mounted.
static MOUNTED: AtomicU64 = AtomicU64::new(0);

fn try_one(image: Image, seed: u64) {
    let dev = Arc::new(options().build(image));
    let mount =
        MountOptions::parse(["", "data=journal", "errors=remount-ro", "ro"][seed as usize % 4])
            .unwrap();
    let Ok((fs, _)) = Fs::mount(dev, mount) else {
        return;
    };
    MOUNTED.fetch_add(1, Relaxed);
    let c = Caller::root();
    let names = walk(&fs, &c);
    change(&fs, &c, &names, &mut Random::new(seed));
    walk(&fs, &c);
    let _ = fs.trim(&c, 0, u64::MAX, 0);
    let _ = fs.unmount();
}

#[test]
fn damage_is_answered_with_errors() {
    let tries = crate::setting("STETFS_DAMAGED", 60);
    let first = crate::setting("STETFS_STRESS_SEED", 1);
    let failed = Arc::new(Mutex::new(Vec::new()));
    for kind in KINDS {
        for crashed in [false, true] {
            let made = prepared(kind, crashed);
            let words = words(&made);
            let what = format!("mke2fs {kind}, crashed: {crashed}");
            let (done, finished) = channel();
            let list = failed.clone();
            std::thread::spawn(move || {
                for seed in first..first + tries {
                    let mut image = made.clone();
                    damage(&mut image, &words, &mut Random::new(seed));
                    if catch_unwind(AssertUnwindSafe(|| try_one(image, seed))).is_err() {
                        list.lock().unwrap().push((what.clone(), seed));
                    }
                    let _ = done.send((what.clone(), seed));
                }
            });
            let mut last = (kind.to_owned(), first);
            loop {
                match finished.recv_timeout(Duration::from_secs(60)) {
                    Ok(now) => last = now,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => panic!("it hangs after {last:?}"),
                }
            }
        }
    }
    assert!(
        MOUNTED.load(Relaxed) > tries,
        "too few can be mounted at all"
    );
    let failed = failed.lock().unwrap();
    assert!(failed.is_empty(), "panics: {failed:?}");
}
