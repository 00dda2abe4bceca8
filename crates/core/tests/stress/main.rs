//! Threads that do everything at once on a small volume with little memory and a short journal, so
//! that commits, checkpoints, eviction and "no space" happen all the time.
//!
//! Each thread has a directory of its own, whose content it knows to the byte. All threads also
//! work in a shared one. A quiet run unmounts the volume, lets e2fsck judge it, and reads it again.
//! In the other runs the power goes off in the middle. Then each thread must find its directory as
//! it was at one moment, not before its last sync.
//!
//! - `STETFS_STRESS_SECONDS=N`: how long each kind of volume is tried (default 1).
//! - `STETFS_STRESS_SEED=N`: the first seed.
#![forbid(unsafe_code)]

mod beside;
mod damaged;
mod faults;
mod forgotten;
mod full;
mod groups;
mod left;
mod memory;
mod records;
mod volume;
mod whole;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stetfs_media::sim::{Fault, Keep, SimDev, SimOptions};
use stetfs_media::{BlockDev, Image, Op, RamDev};
use stetfs_scheme::{Ground, Trial};
use stetfs_schemes::SCHEMES;
use volume::{Random, clean, image, mount, unmount};
use worker::{Rules, Worker};

const THREADS: u64 = 4;

/// mke2fs's arguments, bytes of a block, and size in MiB.
type Kind = (&'static str, u64, u64);

const VOLUMES: [Kind; 4] = [
    ("-t ext4 -b 1024 -J size=1", 1024, 12),
    ("-t ext4 -b 4096 -J size=4", 4096, 24),
    ("-t ext3 -b 1024 -J size=1", 1024, 12),
    ("-t ext3 -b 4096 -J size=4", 4096, 24),
];

/// Each trial on a suitable ground, with its mount options; the kinds of volume take turns.
fn trials(suits: impl Fn(Ground) -> bool) -> impl Iterator<Item = (Kind, &'static Trial, String)> {
    let all = SCHEMES.iter().flat_map(|scheme| {
        let options = |trial: &'static Trial| (trial, trial.mount_options(scheme.about));
        scheme.trials.iter().map(options)
    });
    let suitable = all.filter(move |(trial, _)| suits(trial.ground));
    let kinds = VOLUMES.into_iter().cycle();
    kinds
        .zip(suitable)
        .map(|(kind, (trial, options))| (kind, trial, options))
}

/// For each trial on a block device, and an old kind of volume besides: mke2fs's arguments, size in
/// MiB, mount options, and memory in KiB.
fn kinds() -> impl Iterator<Item = (&'static str, u64, String, u64)> {
    let old = "-t ext4 -b 2048 -I 128 -O ^64bit,^metadata_csum,uninit_bg";
    let all = trials(|ground| ground == Ground::Block);
    let all = all.map(|((kind, block, mib), _, options)| (kind, mib, options, 192 + block / 16));
    [(old, 16, "data=writeback".to_owned(), 512)]
        .into_iter()
        .chain(all)
}

/// The trials whose scheme and mode promise what a journal promises after a power cut.
fn safe_kinds() -> impl Iterator<Item = (&'static str, u64, String, u64)> {
    let is_safe = |options: &str| {
        !["data=writeback", "scheme=null"]
            .iter()
            .any(|o| options.contains(o))
    };
    kinds().filter(move |(_, _, options, _)| is_safe(options))
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

fn time() -> Duration {
    Duration::from_secs(setting("STETFS_STRESS_SECONDS", 1))
}

/// Runs the workers until each has done `steps` steps or the power is off. Aborts the process when
/// no worker makes progress.
fn run(workers: &mut [Worker], steps: u64, what: &str) {
    let done: Vec<AtomicU64> = workers.iter().map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, over) = (&done, &over);
        let guard = scope.spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                let sum = done.iter().map(|d| d.load(Ordering::Relaxed)).sum::<u64>();
                if sum != last {
                    (last, since) = (sum, Instant::now());
                } else if since.elapsed() > Duration::from_secs(60) {
                    eprintln!("{what}: nobody gets on, steps {done:?}");
                    std::thread::sleep(Duration::from_secs(setting("STETFS_STRESS_HOLD", 0)));
                    std::process::abort();
                }
            }
        });
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(done)
            .map(|(worker, done)| {
                scope.spawn(move || {
                    for _ in 0..steps {
                        if !worker.step() {
                            return;
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    done.store(u64::MAX / 64, Ordering::Relaxed);
                })
            })
            .collect();
        let mut panicked = false;
        for thread in threads {
            panicked |= thread.join().is_err();
        }
        over.store(true, Ordering::Relaxed);
        guard.join().unwrap();
        assert!(!panicked, "{what}");
    });
}

/// A simulated device without a tape.
fn quiet() -> SimOptions {
    SimOptions {
        record: false,
        ..SimOptions::default()
    }
}

fn options(data: &str, memory: u64, random: &mut Random) -> stetfs::MountOptions {
    let mut options = stetfs::MountOptions::parse(data).unwrap();
    options.memory = memory << (10 + random.below(3));
    options.commit = Duration::from_millis([5, 50, 5000][random.below(3) as usize]);
    options
}

#[test]
fn everything_at_once() {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, data, memory) in kinds() {
        let data = data.as_str();
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() {
            let what = format!("mke2fs {kind}, -o {data}, STETFS_STRESS_SEED={seed}");
            let mut random = Random::new(seed);
            let made = image(kind, mib);
            // The cache keeps what it read from a device that the host does not cache.
            let dev: Arc<dyn BlockDev> = match seed % 2 {
                0 => Arc::new(RamDev::from_image(&made.to_bytes())),
                _ => Arc::new(quiet().build(made)),
            };
            let fs = mount(dev.clone(), options(data, memory, &mut random));
            let mut workers: Vec<Worker> = (0..THREADS)
                .map(|n| Worker::new(&fs, n, seed, Rules::QUIET))
                .collect();
            run(&mut workers, 600, &what);
            workers.iter().for_each(|w| w.check(&fs, &what));
            workers.iter_mut().for_each(Worker::close);
            unmount(&fs, &what);
            clean(&what, |path| volume::copy(&*dev, path));
            let fs = mount(dev, stetfs::MountOptions::parse("ro").unwrap());
            workers.iter().for_each(|w| w.check(&fs, &what));
            seed += 1;
        }
    }
}

#[test]
fn the_power_goes_off() {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, data, memory) in safe_kinds() {
        let data = data.as_str();
        let made = image(kind, mib);
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() {
            let what = format!("mke2fs {kind}, -o {data}, STETFS_STRESS_SEED={seed}");
            cut_once(&made, data, memory, seed, &what);
            seed += 1;
        }
    }
}

fn cut_once(made: &Image, data: &str, memory: u64, seed: u64, what: &str) {
    let mut random = Random::new(seed);
    let dev = Arc::new(quiet().build(made.clone()));
    let fs = mount(dev.clone(), options(data, memory, &mut random));
    let rules = Rules {
        atomic_data: data.contains("data=journal"),
        ..Rules::CUT
    };
    let mut workers: Vec<Worker> = (0..THREADS)
        .map(|n| Worker::new(&fs, n, seed, rules))
        .collect();
    fs.sync().unwrap();
    dev.cut_at(dev.changes() + 10 + random.below(3000));
    run(&mut workers, 2000, what);
    dev.cut();
    drop(fs);
    judge(&dev, data, &workers, seed, what);
}

/// Mounts what is left of a volume, compares it with the model, and lets e2fsck check it.
fn judge(dev: &SimDev, data: &str, workers: &[Worker], seed: u64, what: &str) {
    for keep in [Keep::All, Keep::None, Keep::Random(seed)] {
        let what = format!("{what}, {keep}");
        let left = dev.crash_point().crash(&keep).image();
        let dev: Arc<SimDev> = Arc::new(dev.options().build(left));
        let again: Arc<dyn BlockDev> = dev.clone();
        let options = stetfs::MountOptions::parse(data).unwrap();
        let fs = match stetfs::Fs::mount(again, options) {
            Ok((fs, _)) => fs,
            Err(e) => panic!("{what}: {e}"),
        };
        workers.iter().for_each(|w| w.check_cut(&fs, &what));
        unmount(&fs, &what);
        clean(&what, |path| dev.newest().to_file(path).unwrap());
    }
}

/// One request of the device fails. No worker loses more than what was not confirmed, and nothing
/// half done becomes durable.
#[test]
fn the_device_fails() {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, data, memory) in safe_kinds() {
        let data = data.as_str();
        let made = image(kind, mib);
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() {
            for op in [Op::Read, Op::Write, Op::Flush] {
                let what =
                    format!("{op} fails, mke2fs {kind}, -o {data}, STETFS_STRESS_SEED={seed}");
                fail_once(&made, data, memory, seed, op, &what);
            }
            seed += 1;
        }
    }
}

fn fail_once(made: &Image, data: &str, memory: u64, seed: u64, op: Op, what: &str) {
    let mut random = Random::new(seed);
    let dev = Arc::new(quiet().build(made.clone()));
    let fs = mount(dev.clone(), options(data, memory, &mut random));
    let rules = Rules {
        atomic_data: data.contains("data=journal"),
        ..Rules::CUT
    };
    let mut workers: Vec<Worker> = (0..2).map(|n| Worker::new(&fs, n, seed, rules)).collect();
    fs.sync().unwrap();
    dev.inject(Fault::nth(
        op,
        random.below(if op == Op::Read { 300 } else { 600 }),
    ));
    run(&mut workers, 500, what);
    // A background thread may be the one that gets the error first.
    let has_struck = op != Op::Read && dev.faults_struck() > 0;
    let start = Instant::now();
    while fs.sync().is_ok() && has_struck {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: nobody was told"
        );
    }
    dev.heal();
    drop(fs);
    judge(&dev, data, &workers, seed, what);
}

/// Unmounts while others work: their operations count or not, and the image is sound either way.
#[test]
fn unmounting_in_the_middle() {
    let made = image("-t ext4 -b 1024 -J size=1", 12);
    let first = setting("STETFS_STRESS_SEED", 1);
    let start = Instant::now();
    let mut seed = first;
    while seed < first + 20 || start.elapsed() < time() {
        let what = format!("STETFS_STRESS_SEED={seed}");
        let rules = Rules {
            unmounted: true,
            ..Rules::CUT
        };
        let dev = Arc::new(quiet().build(made.clone()));
        let fs = mount(
            dev.clone(),
            options("data=ordered", 1024, &mut Random::new(seed)),
        );
        let mut workers: Vec<Worker> = (0..THREADS)
            .map(|n| Worker::new(&fs, n, seed, rules))
            .collect();
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(move || while worker.step() {});
            }
            std::thread::sleep(Duration::from_millis(10 + seed % 40));
            unmount(&fs, &what);
        });
        clean(&what, |path| dev.newest().to_file(path).unwrap());
        seed += 1;
    }
}
