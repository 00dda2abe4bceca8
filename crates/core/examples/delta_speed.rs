//! What Delta Journaling costs the processor: comparing and compressing a block, and a durable
//! overwrite. `--help` says how to run it.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use stetfs::{Caller, Fs, Media, MountOptions, OpenFlags};
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{Pmem, RamDev, Survives};
use stetfs_schemes::delta::{COMPRESSORS, difference};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
What Delta Journaling costs the processor.

    delta_speed [--file FILE] [--rounds N] [--options OPTIONS]

    --file FILE        16 MiB for NVRAM, made and removed; should lie in memory \
    (/dev/shm/delta-speed)
    --rounds N         the quickest of so many rounds counts (200)
    --options OPTIONS  mount options (scheme=dj,data=journal,durability=process)

The first rows take a block of 4 KiB and what it was before, which differ in 10 % of the bits: in \
one run of bytes that were inverted, in many
pieces of 8 to 64 such bytes, or in pieces with new values. Commits overwrite a block of a file \
with the second kind of difference and make it
durable (Fs::write, Fs::fsync with datasync), on a volume in the process's memory with NVRAM in \
FILE; of these 64 commits make a round.

Columns: nanoseconds in the quickest round, and on average over all of them, of processor time. \
For a commit also its blocks, the bytes that it
stores in NVRAM, and what it wrote to the volume, checkpoints included.

What is aimed at: 150 ns to compare, 2,000 ns to compare and compress, 5,000 ns for a commit.
What a core of a Zen 5 gave with other work on it: see docs/LAB.md.
";

const BLOCK: usize = 4096;
/// Percent of the bits that differ.
const DIFFERS: usize = 10;
const VOLUME: u64 = 64 << 20;
const NVRAM: u64 = 16 << 20;
/// Blocks of the file.
const FILE_BLOCKS: u64 = 256;
/// Of what is measured, in a round.
const BATCH: usize = 64;

/// A small generator (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// How blocks differ.
#[derive(Clone, Copy)]
enum Kind {
    Run,
    Pieces,
    NewValues,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Run, Self::Pieces, Self::NewValues];

    fn name(self) -> &'static str {
        match self {
            Self::Run => "one run inverted",
            Self::Pieces => "pieces inverted",
            Self::NewValues => "pieces with new values",
        }
    }

    /// Changes a block by so much.
    fn change(self, block: &mut [u8], random: &mut Random) {
        let mut left = match self {
            Self::Run | Self::Pieces => BLOCK * DIFFERS / 100,
            // Of new values half of the bits differ.
            Self::NewValues => 2 * BLOCK * DIFFERS / 100,
        };
        while left > 0 {
            let len = match self {
                Self::Run => left,
                _ => (8 + random.below(57)).min(left),
            };
            let at = random.below(BLOCK - len + 1);
            for byte in &mut block[at..at + len] {
                *byte ^= match self {
                    Self::NewValues => random.next() as u8,
                    _ => 0xff,
                };
            }
            left -= len;
        }
    }
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of one of `n` in the quickest round, and of processor time on average.
fn time(rounds: u64, n: usize, mut round: impl FnMut()) -> (f64, f64) {
    round();
    let (mut quickest, started) = (f64::INFINITY, cpu_ns());
    for _ in 0..rounds {
        let start = Instant::now();
        round();
        quickest = quickest.min(start.elapsed().as_nanos() as f64 / n as f64);
    }
    let cpu = (cpu_ns() - started) as f64 / (rounds * n as u64) as f64;
    (quickest, cpu)
}

fn compress(rounds: u64) {
    let mut random = Random(1);
    let mut old = vec![0; BLOCK];
    old.fill_with(|| random.next() as u8);
    let mut xor = vec![0; BLOCK];
    for kind in Kind::ALL {
        let blocks: Vec<Vec<u8>> = (0..BATCH)
            .map(|_| {
                let mut new = old.clone();
                kind.change(&mut new, &mut random);
                new
            })
            .collect();
        let (quickest, cpu) = time(rounds, BATCH, || {
            for new in &blocks {
                black_box(difference(&old, new, black_box(&mut xor)));
            }
        });
        row(&format!("compare: {}", kind.name()), quickest, cpu, "");
        for with in &COMPRESSORS[..2] {
            let (mut small, mut bytes) = (Vec::new(), 0);
            let (quickest, cpu) = time(rounds, BATCH, || {
                bytes = 0;
                for new in &blocks {
                    let bits = difference(&old, new, &mut xor);
                    if black_box(bits) * 4 < 8 * BLOCK as u64 {
                        with.compress(&xor, black_box(&mut small));
                    }
                    bytes += small.len();
                }
            });
            let name = format!("compare and {}: {}", with.name(), kind.name());
            row(&name, quickest, cpu, &format!("{} bytes", bytes / BATCH));
        }
    }
}

fn row(name: &str, quickest: f64, cpu: f64, more: &str) {
    println!("{name:42} {quickest:>9.0} {cpu:>9.0}  {more}");
}

fn volume() -> RamDev {
    let dir = std::env::temp_dir().join(format!("delta-speed-{}", std::process::id()));
    let file = std::fs::File::create(&dir).expect("a file");
    file.set_len(VOLUME).expect("its size");
    let made = std::process::Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096"])
        .arg(&dir)
        .status();
    assert!(made.expect("mke2fs").success());
    let dev = RamDev::from_file(&dir).expect("the volume");
    std::fs::remove_file(&dir).expect("to remove it");
    dev
}

fn commit(args: &Args) {
    let nvm_file = std::fs::File::create(&args.file).expect("the file");
    nvm_file.set_len(NVRAM).expect("its size");
    let options = MountOptions::parse(&args.options).expect("mount options");
    let nvm: Arc<dyn Pmem> = Arc::new(
        PmemOptions::default()
            .survives(Survives::ProcessCrash)
            .open(&args.file)
            .expect("the file"),
    );
    let home: Arc<RamDev> = Arc::new(volume());
    let scheme = stetfs_schemes::find(&options.scheme).expect("a scheme");
    let has_nvm = scheme.about.nvm.is_needed();
    let media = Media {
        home: home.clone(),
        nvm: has_nvm.then(|| nvm.clone()),
    };
    let fs = Fs::mount(media, options).expect("a mount").0;
    let c = Caller::root();
    let rw = OpenFlags::READ | OpenFlags::WRITE;
    let made = fs.create(&c, fs.root(), b"file", 0o644, rw);
    let ino = made.expect("a file").ino;
    let mut random = Random(2);
    let mut blocks = vec![vec![0; BLOCK]; FILE_BLOCKS as usize];
    for (n, block) in blocks.iter_mut().enumerate() {
        block.fill_with(|| random.next() as u8);
        fs.write(&c, ino, (n * BLOCK) as u64, block)
            .expect("a write");
    }
    fs.sync().expect("a sync");
    let before = fs.stats();
    let (quickest, cpu) = time(args.rounds, BATCH, || {
        for _ in 0..BATCH {
            let n = random.below(blocks.len());
            Kind::Pieces.change(&mut blocks[n], &mut random);
            fs.write(&c, ino, (n * BLOCK) as u64, &blocks[n])
                .expect("a write");
            fs.fsync(ino, true).expect("a sync");
        }
    });
    let (changes, _) = time(args.rounds, BATCH, || {
        for _ in 0..BATCH {
            let n = random.below(blocks.len());
            Kind::Pieces.change(black_box(&mut blocks[n]), &mut random);
        }
    });
    let after = fs.stats();
    let commits = after.journal.commits - before.journal.commits;
    let each = |n: u64| n as f64 / commits as f64;
    let blocks = |s: &stetfs::Stats| s.journal.meta_blocks + s.journal.data_blocks;
    let nvm_bytes = |s: &stetfs::Stats| {
        let nvm = s.nvm.as_ref().map(|nvm| nvm.traffic.total().write_bytes);
        nvm.unwrap_or(0)
    };
    let more = format!(
        "{:.2} blocks, {:.0} bytes of NVRAM, {:.0} of the volume; of the time {changes:.0} ns are \
            the caller's change",
        each(blocks(&after) - blocks(&before)),
        each(nvm_bytes(&after) - nvm_bytes(&before)),
        each(after.device.total().write_bytes - before.device.total().write_bytes),
    );
    row("commit of an overwritten block", quickest, cpu, &more);
    fs.unmount().expect("an unmount");
    let _ = std::fs::remove_file(&args.file);
}

/// The arguments.
struct Args {
    file: PathBuf,
    rounds: u64,
    options: String,
}

impl Args {
    fn parse() -> Result<Self, String> {
        let mut args = Self {
            file: PathBuf::from("/dev/shm/delta-speed"),
            rounds: 200,
            options: "scheme=dj,data=journal,durability=process".to_owned(),
        };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            if name == "--help" || name == "-h" {
                print!("{HELP}");
                std::process::exit(0);
            }
            let value = given.next().ok_or(format!("{name} needs a value"))?;
            match name.as_str() {
                "--file" => args.file = PathBuf::from(value),
                "--rounds" => args.rounds = value.parse().map_err(|_| format!("{name} {value}"))?,
                "--options" => args.options = value,
                _ => return Err(format!("{name} {value}")),
            }
        }
        Ok(args)
    }
}

fn main() -> std::process::ExitCode {
    let args = match Args::parse() {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("delta_speed: {wrong}; see --help");
            return std::process::ExitCode::from(2);
        }
    };
    println!("{:42} {:>9} {:>9}", "", "quick ns", "cpu ns");
    compress(args.rounds);
    commit(&args);
    std::process::ExitCode::SUCCESS
}
