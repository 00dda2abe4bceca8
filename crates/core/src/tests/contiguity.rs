//! How far a scheme's relocations fragment files: no further than its terms say.

use std::num::Wrapping;
use std::sync::Arc;

use stetfs_format::InodeNo;
use stetfs_media::{BlockDev, Layer, RamDev, Uncached};
use stetfs_scheme::{Extents, Relocates};

use crate::testing::{Image, KINDS};
use crate::{Caller, Fs, MountOptions, OpenFlags};

/// Volumes with extents and blocks of 4 and of 1 KiB, and one with block pointers.
const VOLUMES: [(&str, &[&str]); 3] = [KINDS[0], KINDS[1], KINDS[5]];

/// Random numbers, the same in every run (Knuth's MMIX).
struct Numbers(Wrapping<u64>);

impl Numbers {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0 * Wrapping(6_364_136_223_846_793_005) + Wrapping(1_442_695_040_888_963_407);
        ((self.0.0 >> 33) % u64::from(n)) as u32
    }
}

/// A file of whole blocks, each filled with a number.
struct Content {
    ino: InodeNo,
    block: usize,
    numbers: Vec<u32>,
}

impl Content {
    fn new(fs: &Fs, name: &[u8], blocks: usize) -> Self {
        let (root, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let mut content = Self {
            ino: fs.create(&root, fs.root(), name, 0o666, rw).unwrap().ino,
            block: fs.statfs().unwrap().block_size as usize,
            numbers: vec![0; blocks],
        };
        content.write(fs, 0..blocks, 1);
        content
    }

    /// Writes blocks, and returns when they are durable.
    fn write(&mut self, fs: &Fs, blocks: std::ops::Range<usize>, number: u32) {
        let bytes = number.to_le_bytes().repeat(blocks.len() * self.block / 4);
        let at = (blocks.start * self.block) as u64;
        assert_eq!(
            fs.write(&Caller::root(), self.ino, at, &bytes).unwrap(),
            bytes.len()
        );
        fs.fsync(self.ino, false).unwrap();
        self.numbers[blocks].fill(number);
    }

    fn check(&self, fs: &Fs) {
        let mut out = vec![0; self.block];
        for (n, number) in self.numbers.iter().enumerate() {
            fs.read(self.ino, (n * self.block) as u64, &mut out)
                .unwrap();
            assert!(
                out == number.to_le_bytes().repeat(self.block / 4),
                "block {n}"
            );
        }
    }
}

/// The number of pieces of the volume that a file lies in, as debugfs sees it.
fn pieces(image: &Image, name: &str, blocks: usize) -> usize {
    let homes: Vec<u64> = image.with_file(|path| {
        let commands = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..blocks).map(|n| format!("bmap {name} {n}\n")).collect();
        std::fs::write(commands.path(), text).unwrap();
        let mut debugfs = std::process::Command::new("debugfs");
        let out = debugfs
            .arg("-f")
            .arg(commands.path())
            .arg(path)
            .output()
            .unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        out.lines()
            .filter(|line| !line.starts_with("debugfs"))
            .map(|n| n.parse().unwrap())
            .collect()
    });
    assert_eq!(homes.len(), blocks);
    1 + homes
        .windows(2)
        .filter(|pair| pair[0] + 1 != pair[1])
        .count()
}

fn switched(fs: &Fs) -> u64 {
    fs.stats()
        .actions
        .iter()
        .find(|action| action.name == "switch")
        .unwrap()
        .taken
}

fn bound(fs: &Fs) -> Extents {
    match fs.terms().relocates {
        Relocates::Sparingly(bound) => bound,
        other => panic!("{other:?}"),
    }
}

/// Overwrites two files, first in the shortest pieces that may move, then in pieces of all lengths.
/// This may add one extent for each `mean` blocks of the terms.
#[test]
fn random_overwrites_leave_long_extents() {
    let runs = VOLUMES.map(|volume| [(volume, "flash"), (volume, "disk")]);
    for ((kind, args), medium) in runs.into_iter().flatten() {
        let image = Image::new(48, args);
        let mount = || image.mount(&format!("scheme=stet,medium={medium}"));
        let mut fs = mount();
        let bound = bound(&fs);
        let block = fs.statfs().unwrap().block_size as usize;
        let blocks = (6 << 20) / block;
        let mut files = [b"a", b"b"].map(|name| Content::new(&fs, name, blocks));
        let mut numbers = Numbers(Wrapping(7));
        let longest = (1 << 20) / block;
        fs.unmount().unwrap();
        let fresh = ["/a", "/b"].map(|name| pieces(&image, name, blocks));
        let most = fresh[0].max(fresh[1]) + blocks / bound.mean as usize;
        fs = mount();
        for is_mixed in [false, true] {
            let (mut written, before) = (0, switched(&fs));
            while written < 4 * blocks {
                let len = if is_mixed {
                    // Mostly short runs: up to 2, 4, 8 blocks and so on.
                    let most = 2 << numbers.below(longest.ilog2());
                    1 + numbers.below(most)
                } else {
                    bound.run + numbers.below(bound.run / 2 + 1)
                } as usize;
                let at = numbers.below((blocks - len) as u32) as usize;
                files[numbers.below(2) as usize].write(&fs, at..at + len, written as u32 + 2);
                written += len;
            }
            let switched = switched(&fs) - before;
            fs.unmount().unwrap();
            image.assert_clean();
            let now = ["/a", "/b"].map(|name| pieces(&image, name, blocks));
            assert!(
                now.iter().all(|n| *n <= most),
                "{kind}, {medium}: {now:?} of {most}"
            );
            assert!(
                switched as usize > written / 20,
                "{kind}, {medium}: {switched}"
            );
            fs = mount();
            files.iter().for_each(|file| file.check(&fs));
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn what_is_overwritten_twice_is_back() {
    for (kind, args) in VOLUMES {
        for blocks in [20..21, 0..1, 63..64, 15..17, 0..64] {
            let image = Image::new(48, args);
            let mut seen = Vec::new();
            let mut content = None;
            for number in 2..5 {
                let fs = image.mount("scheme=stet,medium=flash");
                let file = content.get_or_insert_with(|| Content::new(&fs, b"file", 64));
                if number > 2 {
                    file.write(&fs, blocks.clone(), number);
                    assert_eq!(switched(&fs), blocks.len() as u64, "{kind}, {blocks:?}");
                }
                fs.unmount().unwrap();
                seen.push(pieces(&image, "/file", 64));
            }
            assert_eq!(seen[0], seen[2], "{kind}, {blocks:?}: {seen:?}");
            assert!(
                seen[1] > seen[0] || blocks.len() == 64,
                "{kind}, {blocks:?}: {seen:?}"
            );
            image.assert_clean();
        }
    }
}

/// A RAM device that reports itself as a disk.
struct Disk(Arc<RamDev>);

impl Layer for Disk {
    fn below(&self) -> &dyn BlockDev {
        &*self.0
    }

    fn jump_bytes(&self) -> u64 {
        stetfs_media::DISK_JUMP_BYTES
    }
}

#[test]
fn the_device_says_how_far_files_may_be_broken_up() {
    let image = Image::new(48, KINDS[0].1);
    let on = |dev: Arc<dyn BlockDev>, options| {
        let fs = Fs::mount(dev, MountOptions::parse(options).unwrap())
            .unwrap()
            .0;
        let relocates = fs.terms().relocates;
        fs.unmount().unwrap();
        relocates
    };
    let disk = || Arc::new(Uncached(Arc::new(Disk(image.dev.clone()))));
    let (sparse, dense) = (Extents { mean: 8, run: 1 }, Extents { mean: 64, run: 64 });
    assert_eq!(
        on(image.device(), "scheme=stet"),
        Relocates::Sparingly(sparse)
    );
    assert_eq!(on(disk(), "scheme=stet"), Relocates::Sparingly(dense));
    assert_eq!(
        on(disk(), "scheme=stet,medium=flash"),
        Relocates::Sparingly(sparse)
    );
    assert_eq!(on(disk(), "scheme=stet,stet=switch"), Relocates::Freely);
}

/// On a disk, a short run stays home and a long one moves.
#[test]
fn on_a_disk_only_long_runs_move() {
    let image = Image::new(48, KINDS[0].1);
    let fs = image.mount("scheme=stet,medium=disk");
    let mut file = Content::new(&fs, b"file", 1024);
    file.write(&fs, 200..263, 2);
    assert_eq!(switched(&fs), 0);
    file.write(&fs, 512..576, 3);
    assert_eq!(switched(&fs), 64);
    // The run's first home is free now.
    file.write(&fs, 512..576, 4);
    assert_eq!(switched(&fs), 128);
    fs.unmount().unwrap();
    assert_eq!(pieces(&image, "/file", 1024), 1);
    image.assert_clean();
}
