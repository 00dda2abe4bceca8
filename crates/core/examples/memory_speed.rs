//! Measures a durable overwrite and a cached read on a volume in memory, or with a cache in memory
//! beside it, next to a bare loop of stores. `--help` says how to run it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use stetfs::{Caller, Fs, MountOptions, OpenFlags, open_media};
use stetfs_format::InodeNo;
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{Cause, Class, Meter, MeterSnapshot, Pmem, Survives, Tag};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
What a durable overwrite and a read cost on a volume in memory, or with a cache in memory beside it.

    memory_speed [--file FILE] [--seconds N] [--rounds N] [--options OPTIONS] [--only ROW] [--warm]

    --file FILE        formatted and removed; should lie in memory (/dev/shm/memory-speed.img)
    --seconds N        how long a row runs in a round (1)
    --rounds N         how often all rows run (5)
    --options OPTIONS  mount options (scheme=shortcut,durability=process)
    --only ROW         that row alone
    --warm             instead: how long a mount with a warm cache of two million blocks takes, as \
    many as 8 GiB have

With a scheme that has memory beside the volume (scheme=ubj, tinca, spindle), its file is FILE.nvm \
with 1 GiB, and what the medium saw is what that saw.

Each operation overwrites a random place of a file of 64 MiB, with words that differ everywhere, \
and makes it durable
(Fs::write, Fs::fsync with datasync), or reads one (Fs::read). The bare loops store the same bytes \
past the cache into the same file, and fence: no
file system can be faster. All blocks of the files have been moved before, so each lies somewhere \
else and their maps are as long as can be.

Columns: operations a second, the best round; that as a share of the bare loop of the same size; \
nanoseconds for one operation
in the quickest 256 in a row of any thread, and of processor time on average over the best round; \
what the medium saw for one, checkpoints
included. Of two threads, the factor over one is in the last column.

With a cache it is aimed at 200,000 overwrites of 4 KiB and 1,500,000 reads a second, two threads \
at 1.6 times one, and a warm mount in 3 s.

What is aimed at with scheme shortcut: 400,000 overwrites of 4 KiB a second, 800,000 of 64 B, two \
threads at 1.6 times one, and at most 4,352 bytes for 4 KiB.
What two cores of a Zen 5 gave, with nothing else on them: 215,000, 398,000, 1.13 times, and 4,326 \
bytes. Other work
on the machine shows in the rates at once, and least in the quickest 256.
";

const BLOCK: usize = 4096;
/// The file's size, in blocks.
const FILE_BLOCKS: u64 = 16_384;
const SIZE: u64 = 1 << 30;
/// Operations between two readings of the clock.
const BATCH: u64 = 256;

/// One line of the table.
struct Row {
    name: &'static str,
    /// The length of an overwrite, in bytes.
    len: usize,
    threads: usize,
    work: Work,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Stores and a fence, without a file system.
    Bare,
    Overwrite,
    Read,
}

const ROWS: [Row; 8] = [
    row("bare 4 KiB", BLOCK, 1, Work::Bare),
    row("bare 64 B", 64, 1, Work::Bare),
    row("bare 4 KiB, 2 threads", BLOCK, 2, Work::Bare),
    row("overwrite 4 KiB", BLOCK, 1, Work::Overwrite),
    row("overwrite 64 B", 64, 1, Work::Overwrite),
    row("overwrite 4 KiB, 2 threads", BLOCK, 2, Work::Overwrite),
    row("read 4 KiB", BLOCK, 1, Work::Read),
    row("read 4 KiB, 2 threads", BLOCK, 2, Work::Read),
];

const fn row(name: &'static str, len: usize, threads: usize, work: Work) -> Row {
    Row {
        name,
        len,
        threads,
        work,
    }
}

/// The result of a row, from its best round.
#[derive(Clone)]
struct Result {
    per_second: f64,
    quick_ns: f64,
    cpu_ns: f64,
    /// The sum over all rounds.
    operations: u64,
    medium: MeterSnapshot,
}

impl Default for Result {
    fn default() -> Self {
        Self {
            per_second: 0.0,
            quick_ns: f64::INFINITY,
            cpu_ns: f64::INFINITY,
            operations: 0,
            medium: MeterSnapshot::default(),
        }
    }
}

/// The result of one thread.
struct Driven {
    operations: u64,
    cpu_ns: u64,
    /// The shortest time that [`BATCH`] operations took.
    quick_ns: u128,
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

/// Fills with words that differ from the last ones, so that every byte has to be stored.
fn fill(bytes: &mut [u8], n: u64) {
    for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64;
        *word = value.to_le_bytes();
    }
}

/// Calls `store(offset, bytes)` for random offsets until the limit is over.
fn drive(
    limit: Duration,
    len: usize,
    seed: u64,
    fills: bool,
    mut store: impl FnMut(u64, &mut [u8]),
) -> Driven {
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let (mut random, mut bytes) = (Random(seed | 1), vec![0; len]);
    let (start, started) = (Instant::now(), cpu());
    let (mut n, mut last, mut quick_ns) = (0, Duration::ZERO, u128::MAX);
    while last < limit {
        for _ in 0..BATCH {
            if fills {
                fill(&mut bytes, seed ^ n);
            }
            let slots = FILE_BLOCKS * (BLOCK / len) as u64;
            store(random.below(slots) * len as u64, &mut bytes);
            n += 1;
        }
        let now = start.elapsed();
        quick_ns = quick_ns.min((now - last).as_nanos());
        last = now;
    }
    Driven {
        operations: n,
        cpu_ns: cpu() - started,
        quick_ns,
    }
}

/// Runs a row once. `store(thread, offset, bytes)` makes an overwrite durable, or reads.
fn run(
    row: &Row,
    limit: Duration,
    seed: u64,
    meter: &Meter,
    store: impl Fn(usize, u64, &mut [u8]) + Sync,
    result: &mut Result,
) {
    let (before, start) = (meter.snapshot(), Instant::now());
    let store = &store;
    let threads: Vec<Driven> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..row.threads)
            .map(|t| {
                let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + t as u64;
                let fills = row.work != Work::Read;
                scope.spawn(move || {
                    drive(limit, row.len, seed, fills, |at, bytes| store(t, at, bytes))
                })
            })
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("a thread");
        threads.into_iter().map(join).collect()
    });
    let elapsed = start.elapsed().as_secs_f64();
    let operations: u64 = threads.iter().map(|t| t.operations).sum();
    let cpu_ns = threads.iter().map(|t| t.cpu_ns).sum::<u64>() as f64 / operations as f64;
    let quick_ns = threads.iter().map(|t| t.quick_ns).min();
    let quick_ns = quick_ns.expect("a thread") as f64 / BATCH as f64;
    result.per_second = result.per_second.max(operations as f64 / elapsed);
    result.cpu_ns = result.cpu_ns.min(cpu_ns);
    result.quick_ns = result.quick_ns.min(quick_ns);
    result.operations += operations;
    result.medium = std::mem::take(&mut result.medium) + &(meter.snapshot() - &before);
}

fn new_file(fs: &Fs, name: &str) -> InodeNo {
    let c = Caller::root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let made = fs.create(&c, fs.root(), name.as_bytes(), 0o644, rw);
    let ino = made.expect("a file").ino;
    let bytes = vec![7; 1 << 20];
    for at in (0..FILE_BLOCKS * BLOCK as u64).step_by(bytes.len()) {
        fs.write(&c, ino, at, &bytes).expect("a write");
    }
    fs.sync().expect("a sync");
    // Overwrites every block, never two neighbours in succession, so that each gets a place of its
    // own.
    let mut block = vec![0; BLOCK];
    for n in 0..FILE_BLOCKS {
        fill(&mut block, n);
        overwrite(fs, ino, n * 7919 % FILE_BLOCKS * BLOCK as u64, &block);
    }
    ino
}

fn overwrite(fs: &Fs, ino: InodeNo, at: u64, bytes: &[u8]) {
    fs.write(&Caller::root(), ino, at, bytes).expect("a write");
    fs.fsync(ino, true).expect("a sync");
}

fn format(path: &Path, size: u64, block: usize) {
    let file = std::fs::File::create(path).expect("the file");
    file.set_len(size).expect("its size");
    let made = std::process::Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", &block.to_string()])
        .arg(path)
        .status();
    assert!(made.expect("mke2fs").success());
}

/// The arguments.
struct Args {
    file: PathBuf,
    seconds: f64,
    rounds: u64,
    options: String,
    only: String,
    warm: bool,
}

impl Args {
    /// The mount options, with a new file for the memory beside the volume if the scheme has some.
    fn options(&self, nvm_size: u64) -> MountOptions {
        let mut options = MountOptions::parse(&self.options).expect("mount options");
        let scheme = stetfs_schemes::find(&options.scheme).expect("a scheme");
        if scheme.about.nvm.is_needed() {
            let path = self.file.with_extension("nvm");
            let file = std::fs::File::create(&path).expect("the file");
            file.set_len(nvm_size).expect("its size");
            options.nvm = Some(path);
        }
        options
    }

    fn parse() -> std::result::Result<Self, String> {
        let mut args = Self {
            file: PathBuf::from("/dev/shm/memory-speed.img"),
            seconds: 1.0,
            rounds: 5,
            options: "scheme=shortcut,durability=process".to_owned(),
            only: String::new(),
            warm: false,
        };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            if name == "--help" || name == "-h" {
                print!("{HELP}");
                std::process::exit(0);
            }
            if name == "--warm" {
                args.warm = true;
                continue;
            }
            let value = given.next().ok_or(format!("{name} needs a value"))?;
            let wrong = || format!("{name} {value}");
            match name.as_str() {
                "--file" => args.file = PathBuf::from(value),
                "--seconds" => args.seconds = value.parse().map_err(|_| wrong())?,
                "--rounds" => args.rounds = value.parse().map_err(|_| wrong())?,
                "--options" => args.options = value,
                "--only" => args.only = value,
                _ => return Err(wrong()),
            }
        }
        Ok(args)
    }
}

fn measure(args: &Args) -> Vec<(&'static Row, Result)> {
    let mut results: Vec<_> = ROWS
        .iter()
        .filter(|row| args.only.is_empty() || row.name == args.only)
        .map(|row| (row, Result::default()))
        .collect();
    let bare_file = args.file.with_extension("bare");
    format(&args.file, SIZE, BLOCK);
    format(&bare_file, SIZE, BLOCK);
    let pmem = PmemOptions::default()
        .survives(Survives::ProcessCrash)
        .open(&bare_file)
        .expect("the file");
    let options = args.options(SIZE);
    let nvm_file = options.nvm.clone();
    let media = open_media(&args.file, &options, false).expect("the device");
    let (dev, nvm) = (Arc::clone(&media.home), media.nvm.clone());
    let meter = nvm.as_ref().map_or(dev.meter(), |nvm| nvm.meter());
    let fs = Fs::mount(media, options).expect("a mount").0;
    let files = ["a", "b"].map(|name| new_file(&fs, name));
    let limit = Duration::from_secs_f64(args.seconds);
    let tag = Tag::new(Class::Data, Cause::Home);
    // Round 0 warms up.
    for round in 0..=args.rounds {
        for (row, result) in &mut results {
            let bare = |t: usize, at: u64, bytes: &mut [u8]| {
                let start = t as u64 * FILE_BLOCKS * BLOCK as u64;
                pmem.store_nt(start + at, bytes, tag).expect("a store");
                pmem.fence(Cause::Home).expect("a fence");
            };
            let durable = |t: usize, at: u64, bytes: &mut [u8]| overwrite(&fs, files[t], at, bytes);
            let read = |t: usize, at: u64, bytes: &mut [u8]| {
                fs.read(files[t], at, bytes).expect("a read");
            };
            let n = round + 1;
            match row.work {
                Work::Bare => run(row, limit, n, pmem.meter(), bare, result),
                Work::Overwrite => run(row, limit, n, meter, durable, result),
                Work::Read => run(row, limit, n, meter, read, result),
            }
            if round == 0 {
                *result = Result::default();
            }
        }
    }
    fs.unmount().expect("an unmount");
    let of_nvm = nvm_file.iter();
    for file in [&args.file, &bare_file].into_iter().chain(of_nvm) {
        let _ = std::fs::remove_file(file);
    }
    results
}

/// Mounts a volume whose cache has two million blocks.
fn warm(args: &Args) {
    const NVM: u64 = 2 << 30;
    format(&args.file, 4 << 30, 1024);
    let mut options = args.options(NVM);
    let nvm_file = options.nvm.clone().expect("a scheme with a cache");
    let keep = ("keep-cache".to_owned(), "on".to_owned());
    options.scheme_options.push(keep);
    let mount = || {
        let media = open_media(&args.file, &options, false).expect("the device");
        Fs::mount(media, options.clone()).expect("a mount").0
    };
    let fs = mount();
    let c = Caller::root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let ino = fs
        .create(&c, fs.root(), b"large", 0o644, rw)
        .expect("a file")
        .ino;
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    while fs
        .stats()
        .cache
        .is_some_and(|cache| cache.cached < cache.blocks - 4096)
    {
        fill(&mut bytes, at);
        fs.write(&c, ino, at, &bytes).expect("a write");
        at += bytes.len() as u64;
        if at.is_multiple_of(16 << 20) {
            fs.sync().expect("a sync");
        }
    }
    fs.unmount().expect("an unmount");
    drop(fs);
    let start = Instant::now();
    let fs = mount();
    let took = start.elapsed();
    let cache = fs.stats().cache.expect("a cache");
    println!(
        "mounted in {:.0} ms with {} blocks in the cache, {} of them not home",
        took.as_secs_f64() * 1e3,
        cache.cached,
        cache.dirty
    );
    drop(fs);
    for file in [&args.file, &nvm_file] {
        let _ = std::fs::remove_file(file);
    }
}

fn main() -> std::process::ExitCode {
    let args = match Args::parse() {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("memory_speed: {wrong}; see --help");
            return std::process::ExitCode::from(2);
        }
    };
    if args.warm {
        warm(&args);
        return std::process::ExitCode::SUCCESS;
    }
    let results = measure(&args);
    let rate = |len: usize, threads: usize, work: Work| {
        let same = |r: &Row| r.len == len && r.threads == threads && r.work == work;
        let found = results.iter().find(|(row, _)| same(row));
        found.map_or(f64::NAN, |(_, result)| result.per_second)
    };
    println!(
        "{:27} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>6}",
        "", "/s", "of bare", "quick ns", "cpu ns", "bytes", "lines", "fences", "of one"
    );
    for (row, result) in &results {
        let n = result.operations as f64;
        print!(
            "{:27} {:>10.0} {:>8.2} {:>8.0} {:>8.0} {:>8.0} {:>7.1} {:>7.2}",
            row.name,
            result.per_second,
            result.per_second / rate(row.len, row.threads, Work::Bare),
            result.quick_ns,
            result.cpu_ns,
            result.medium.total().write_bytes as f64 / n,
            result.medium.total().lines as f64 / n,
            result.medium.total_fences() as f64 / n,
        );
        match row.threads {
            1 => println!(),
            _ => println!(" {:>6.2}", result.per_second / rate(row.len, 1, row.work)),
        }
    }
    std::process::ExitCode::SUCCESS
}
