//! Measures what journaling costs the host of an image file: scheme `jftl`, which remaps by
//! reflink, against copying and against `jbd2`.
//!
//! `cargo run --release -p stetfs --example reflink -- DIR [ROUNDS [OPTIONS...]]`
//!
//! DIR must be on XFS or Btrfs, and its block device otherwise idle: everything written to that
//! device is counted (`/sys/dev/block/*/stat`). OPTIONS, as for `-o`, replace the configurations
//! below. In each round the configurations take turns, each on a new image. The numbers are medians
//! over the rounds. They include the unmount, since some configurations leave work to it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_device};
use stetfs_format::InodeNo;

/// The same allocator as the command's, so that the numbers hold for the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONFIGURATIONS: [&str; 5] = [
    "scheme=jftl,data=journal",
    "scheme=jftl,data=journal,remap=off",
    "scheme=jbd2,data=journal",
    "scheme=jftl,data=ordered",
    "scheme=jbd2,data=ordered",
];

/// Sizes in MiB of the image and of the file that is overwritten in it, and that file's blocks.
const IMAGE: u64 = 512;
const FILE: u64 = 64;
const BLOCKS: u64 = FILE << 8;

struct Workload {
    name: &'static str,
    /// The number of operations, and the bytes that the caller writes with each.
    count: u64,
    bytes: u64,
    run: fn(&Bench, u64),
}

const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "overwrite 4 KiB at random + fsync",
        count: 4000,
        bytes: 4096,
        run: |b, i| b.overwrite(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS, 4096),
    },
    Workload {
        name: "overwrite 32 KiB at random + fsync",
        count: 1000,
        bytes: 32 << 10,
        run: |b, i| {
            b.overwrite(
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (BLOCKS / 8) * 8,
                32 << 10,
            )
        },
    },
    Workload {
        name: "overwrite 64 KiB at random + fsync",
        count: 1000,
        bytes: 64 << 10,
        run: |b, i| {
            b.overwrite(
                i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (BLOCKS / 16) * 16,
                64 << 10,
            )
        },
    },
    Workload {
        name: "rewrite 1 MiB after the other + fsync",
        count: 256,
        bytes: 1 << 20,
        run: |b, i| b.overwrite(i % FILE * 256, 1 << 20),
    },
    Workload {
        name: "create a file of 4 KiB + fsync",
        count: 2000,
        bytes: 4096,
        run: |b, i| {
            let name = format!("f{i}");
            let rw = OpenFlags::READ | OpenFlags::WRITE;
            let root = b.fs.root();
            let ino = (b.fs.create(&b.c, root, name.as_bytes(), 0o644, rw))
                .expect("create")
                .ino;
            b.fs.write(&b.c, ino, 0, &b.data[..4096]).expect("write");
            b.fs.fsync(ino, false).expect("fsync");
            b.fs.release(ino).expect("release");
        },
    },
];

struct Bench {
    fs: Fs,
    c: Caller,
    file: InodeNo,
    data: Vec<u8>,
}

impl Bench {
    fn overwrite(&self, block: u64, len: usize) {
        let data = &self.data[..len];
        self.fs
            .write(&self.c, self.file, block * 4096, data)
            .expect("write");
        self.fs.fsync(self.file, false).expect("fsync");
    }
}

/// Operations per second, and bytes written by the device for each byte that the caller wrote.
type Result = (f64, f64);

fn run(image: &Path, stat: &Path, options: &str, workload: &Workload) -> Result {
    let _ = std::fs::remove_file(image);
    let new = File::create(image).expect("the image");
    new.set_len(IMAGE << 20).expect("its size");
    let made = Command::new("mke2fs")
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-J",
            "size=32",
            "-E",
            "lazy_itable_init=0",
        ])
        .arg(image)
        .status();
    assert!(made.expect("mke2fs").success());
    let options = MountOptions::parse(options).expect("options");
    let mount = || {
        let dev = open_device(image, &options, false).expect("the image");
        Fs::mount(dev, options.clone()).expect("a mount").0
    };
    let c = Caller::root();
    let data: Vec<u8> = (0..1u32 << 18)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let fs = mount();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let file = fs
        .create(&c, fs.root(), b"file", 0o644, rw)
        .expect("create")
        .ino;
    for i in 0..FILE {
        fs.write(&c, file, i << 20, &data).expect("write");
    }
    fs.release(file).expect("release");
    fs.unmount().expect("unmount");
    drop(fs);
    let settle = || {
        let dir = File::open(image.parent().expect("a directory")).expect("the directory");
        rustix::fs::syncfs(dir).expect("syncfs");
    };
    settle();
    let before = written(stat);
    let fs = mount();
    let bench = Bench { fs, c, file, data };
    let start = Instant::now();
    for i in 0..workload.count {
        (workload.run)(&bench, i);
    }
    bench.fs.unmount().expect("unmount");
    let rate = workload.count as f64 / start.elapsed().as_secs_f64();
    drop(bench);
    settle();
    let bytes = (written(stat) - before) as f64 / (workload.count * workload.bytes) as f64;
    let fsck = Command::new("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .expect("e2fsck");
    assert!(
        fsck.status.success(),
        "{}",
        String::from_utf8_lossy(&fsck.stdout)
    );
    (rate, bytes)
}

/// The path of the statistics of the block device below a directory.
fn device_stat(dir: &Path) -> PathBuf {
    let dir = dir.canonicalize().expect("a directory");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let of_dir = mounts.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let dash = words.iter().position(|w| *w == "-")?;
        dir.starts_with(words[4])
            .then(|| (words[4].len(), words[dash + 2].to_owned()))
    });
    let (_, device) = of_dir.max().expect("a mount point");
    let number = std::fs::metadata(&device).expect("its device").rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"))
}

/// The bytes that the device has written (Documentation/admin-guide/iostats.rst: field 7, in
/// sectors of 512 bytes).
fn written(stat: &Path) -> u64 {
    let text = std::fs::read_to_string(stat).expect("the device's statistics");
    let sectors = text.split_whitespace().nth(6).expect("seven fields");
    sectors.parse::<u64>().expect("a number") * 512
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory on XFS or Btrfs"));
    let rounds = args.next().map_or(5, |n| n.parse().expect("a number"));
    let own: Vec<String> = args.collect();
    let configurations = if own.is_empty() {
        CONFIGURATIONS.map(str::to_owned).to_vec()
    } else {
        own
    };
    let (image, stat) = (dir.join("reflink.img"), device_stat(&dir));
    println!(
        "{:40} {:36} {:>10} {:>16}",
        "", "", "/s", "bytes for a byte"
    );
    for workload in &WORKLOADS {
        let mut results = vec![(Vec::new(), Vec::new()); configurations.len()];
        for _ in 0..rounds {
            for (options, (rates, bytes)) in configurations.iter().zip(&mut results) {
                let (rate, written) = run(&image, &stat, options, workload);
                rates.push(rate);
                bytes.push(written);
            }
        }
        for (options, (rates, bytes)) in configurations.iter().zip(results) {
            let (rate, bytes) = (median(rates), median(bytes));
            println!("{:40} {options:36} {rate:10.0} {bytes:16.2}", workload.name);
        }
    }
    std::fs::remove_file(&image).expect("the image");
}
