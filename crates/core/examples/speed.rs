//! What the library's common paths cost on a volume in memory, one thread: operations a second, and
//! processor time of this thread for each, which says more on a busy machine (the journal's own
//! thread is not in it).
//!
//! `cargo run --release -p stetfs --features testing --example speed [options]
//! [row]`, where options are as for `-o`.

use std::time::{Duration, Instant};

use stetfs::testing::Image;
use stetfs::{Caller, Fs, MountOptions, OpenFlags};

/// The allocator of the command, so that the numbers are its own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long each row runs, at least.
const RUN: Duration = Duration::from_millis(1000);

struct Bench {
    fs: Fs,
    c: Caller,
    only: Option<String>,
}

impl Bench {
    /// Runs `op(i)` for a while and prints how often a second, in units of `per`.
    fn row(&self, name: &str, mut op: impl FnMut(u64)) {
        if self
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            return;
        }
        let (start, cpu) = (Instant::now(), cpu_ns());
        let mut n = 0;
        while start.elapsed() < RUN {
            for _ in 0..64 {
                op(n);
                n += 1;
            }
        }
        let rate = n as f64 / start.elapsed().as_secs_f64();
        let cpu = (cpu_ns() - cpu) / n;
        println!("{name:40} {rate:>12.0} /s  {cpu:>9} ns");
    }
}

/// Processor time of this thread so far.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|ns| ns.parse().ok())
        .unwrap_or(0)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let options = MountOptions::parse(&args.next().unwrap_or_default()).expect("options");
    let only = args.next();
    let image = Image::new(3072, &["-t", "ext4", "-J", "size=128"]);
    let (fs, report) = Fs::mount(image.device(), options).expect("mount");
    println!("{} {:?}", report.scheme, report.data);
    let bench = Bench {
        fs: fs.clone(),
        c: Caller::root(),
        only,
    };
    let (fs, c) = (&bench.fs, &bench.c);
    let root = fs.root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let file = fs.create(c, root, b"file", 0o644, rw).expect("create").ino;
    const BLOCKS: u64 = 16_384;
    let big = vec![7u8; 1 << 20];
    for i in 0..BLOCKS / 256 {
        fs.write(c, file, i << 20, &big).expect("write");
    }
    fs.sync().expect("sync");
    let block = [3u8; 4096];
    let mut out = [0u8; 4096];
    let mut x = 1u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };

    bench.row("getattr", |_| {
        fs.getattr(file).expect("getattr");
    });
    bench.row("lookup", |_| {
        fs.lookup(c, root, b"file").expect("lookup");
    });
    bench.row("lookup + getattr", |_| {
        let e = fs.lookup(c, root, b"file").expect("lookup");
        fs.getattr(e.ino).expect("getattr");
    });
    bench.row("read 4 KiB, home", |_| {
        fs.read(file, random() % BLOCKS * 4096, &mut out)
            .expect("read");
    });
    bench.row("overwrite 4 KiB, no sync", |_| {
        fs.write(c, file, random() % 256 * 4096, &block)
            .expect("write");
    });
    bench.row("read 4 KiB, cached", |_| {
        fs.read(file, random() % 256 * 4096, &mut out)
            .expect("read");
    });
    bench.row("overwrite 4 KiB + fsync", |_| {
        fs.write(c, file, random() % BLOCKS * 4096, &block)
            .expect("write");
        fs.fsync(file, false).expect("fsync");
    });
    bench.row("create + unlink", |_| {
        let e = fs.create(c, root, b"name", 0o644, rw).expect("create");
        fs.release(e.ino).expect("release");
        fs.unlink(c, root, b"name").expect("unlink");
    });
    bench.row("create + write 4 KiB + unlink", |_| {
        let e = fs.create(c, root, b"name", 0o644, rw).expect("create");
        fs.write(c, e.ino, 0, &block).expect("write");
        fs.release(e.ino).expect("release");
        fs.unlink(c, root, b"name").expect("unlink");
    });
    bench.row("create + write 4 KiB + fsync", |i| {
        let e = fs
            .create(c, root, format!("f{i}").as_bytes(), 0o644, rw)
            .expect("create");
        fs.write(c, e.ino, 0, &block).expect("write");
        fs.fsync(e.ino, false).expect("fsync");
        fs.release(e.ino).expect("release");
    });
    let mut mib = vec![0u8; 1 << 20];
    bench.row("read 1 MiB, home", |i| {
        fs.read(file, (i % (BLOCKS / 256)) << 20, &mut mib)
            .expect("read");
    });
    let seq = fs.create(c, root, b"seq", 0o644, rw).expect("create").ino;
    let mut at = 0;
    bench.row("append 1 MiB, with commits", |_| {
        if at >= 1 << 30 {
            fs.setattr(
                c,
                seq,
                &stetfs::SetAttr {
                    size: Some(0),
                    ..Default::default()
                },
            )
            .expect("truncate");
            at = 0;
        }
        fs.write(c, seq, at, &mib).expect("write");
        at += 1 << 20;
    });
    let start = Instant::now();
    fs.unmount().expect("unmount");
    println!("unmount {:?}", start.elapsed());
    image.assert_clean();
}
