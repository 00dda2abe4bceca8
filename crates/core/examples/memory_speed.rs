//! What a durable overwrite costs on a volume in memory, beside the bare loop of stores: `memory_speed [FILE] [SECONDS] [OPTIONS]`.
//!
//! The file should lie in memory (default: a new one in /dev/shm); it is formatted. Options are mount options
//! (default `scheme=shortcut,durability=process`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_device};
use stetfs_format::InodeNo;
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{Cause, Class, Pmem, Survives, Tag};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BLOCK: usize = 4096;
/// Blocks of a file.
const FILE_BLOCKS: u64 = 16_384;
const SIZE: u64 = 1 << 30;

/// How often a second `work(i)` is done.
fn rate(seconds: u64, mut work: impl FnMut(u64)) -> f64 {
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut n = 0;
    while start.elapsed() < limit {
        for _ in 0..64 {
            work(n);
            n += 1;
        }
    }
    n as f64 / start.elapsed().as_secs_f64()
}

/// A small generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Other words everywhere, so that every byte has to be stored.
fn fill(bytes: &mut [u8], n: u64) {
    for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64;
        *word = value.to_le_bytes();
    }
}

fn bare(path: &PathBuf, seconds: u64) -> f64 {
    let pmem = PmemOptions::default()
        .survives(Survives::ProcessCrash)
        .open(path)
        .expect("the file");
    let (mut random, mut block) = (Random(88_172_645_463_325_252), [0; BLOCK]);
    let tag = Tag::new(Class::Data, Cause::Home);
    rate(seconds, |n| {
        fill(&mut block, n);
        let at = random.below(FILE_BLOCKS) * BLOCK as u64;
        pmem.store_nt(at, &block, tag).expect("a store");
        pmem.fence(Cause::Log).expect("a fence");
    })
}

fn file(fs: &Fs, name: &str) -> InodeNo {
    let c = Caller::root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let ino = fs
        .create(&c, fs.root(), name.as_bytes(), 0o644, rw)
        .expect("a file")
        .ino;
    let bytes = vec![7; 1 << 20];
    for at in (0..FILE_BLOCKS * BLOCK as u64).step_by(bytes.len()) {
        fs.write(&c, ino, at, &bytes).expect("a write");
    }
    fs.sync().expect("a sync");
    ino
}

fn overwrite(fs: &Fs, ino: InodeNo, len: usize, seconds: u64, seed: u64) -> f64 {
    let c = Caller::root();
    let (mut random, mut bytes) = (Random(seed | 1), vec![0; len]);
    rate(seconds, |n| {
        fill(&mut bytes, n);
        let slots = FILE_BLOCKS * (BLOCK / len) as u64;
        let at = random.below(slots) * len as u64;
        fs.write(&c, ino, at, &bytes).expect("a write");
        fs.fsync(ino, true).expect("a sync");
    })
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = PathBuf::from(args.first().map_or("/dev/shm/memory-speed.img", |s| s));
    let seconds = args.get(1).map_or(3, |s| s.parse().expect("seconds"));
    let options = args
        .get(2)
        .map_or("scheme=shortcut,durability=process", |s| s);
    let mke2fs = || {
        let file = std::fs::File::create(&path).expect("the file");
        file.set_len(SIZE).expect("its size");
        let made = std::process::Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .arg(&path)
            .status();
        assert!(made.expect("mke2fs").success());
    };
    mke2fs();
    let alone = bare(&path, seconds);
    println!("bare loop, 4 KiB past the cache + fence: {alone:9.0} /s");
    mke2fs();
    let options = MountOptions::parse(options).expect("mount options");
    let dev = open_device(&path, &options, false).expect("the device");
    let fs = Fs::mount(Arc::clone(&dev), options).expect("a mount").0;
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    // Until the file is in pieces, each overwrite makes a new one.
    overwrite(&fs, a, BLOCK, seconds, 1);
    overwrite(&fs, b, BLOCK, seconds, 2);
    let before = dev.meter().snapshot();
    let one = overwrite(&fs, a, BLOCK, seconds, 3);
    fs.sync().expect("a sync");
    let done = dev.meter().snapshot() - &before;
    println!(
        "4 KiB overwrites, each durable:          {one:9.0} /s, {:.2} of the bare loop",
        one / alone
    );
    let n = one * seconds as f64;
    println!(
        "    {:.0} bytes, {:.1} lines, {:.2} fences each",
        done.total().write_bytes as f64 / n,
        done.total().lines as f64 / n,
        done.total_fences() as f64 / n
    );
    let small = overwrite(&fs, a, 64, seconds, 4);
    println!("64 B overwrites, each durable:           {small:9.0} /s");
    let two: f64 = std::thread::scope(|scope| {
        let threads = [(a, 5), (b, 6)].map(|(ino, seed)| {
            scope.spawn({
                let fs = &fs;
                move || overwrite(fs, ino, BLOCK, seconds, seed)
            })
        });
        threads
            .into_iter()
            .map(|t| t.join().expect("a thread"))
            .sum()
    });
    println!(
        "4 KiB, two threads on two files:         {two:9.0} /s, {:.2} of one",
        two / one
    );
    fs.unmount().expect("an unmount");
    let _ = std::fs::remove_file(&path);
}
