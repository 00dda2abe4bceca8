//! The stress test on volumes in persistent memory, whose power cuts tear at words.

use std::sync::Arc;
use std::time::Instant;

use stetfs_media::sim::{Keep, SimPmemOptions};
use stetfs_media::{BlockDev, Image, Pmem, PmemDev, SimPmem};
use stetfs_scheme::Ground;

use crate::volume::{self, Random, clean, image, mount, unmount};
use crate::worker::{Rules, Worker};
use crate::{THREADS, options, run, setting, time, trials};

/// For each trial in memory: mke2fs's arguments, size in MiB, mount options.
fn kinds() -> impl Iterator<Item = (&'static str, u64, String)> {
    trials(|ground| ground == Ground::Memory).map(|((kind, _, mib), _, scheme)| (kind, mib, scheme))
}

fn pmem(image: Image) -> (Arc<SimPmem>, Arc<dyn BlockDev>) {
    let options = SimPmemOptions {
        record: false,
        ..SimPmemOptions::default()
    };
    let pmem = Arc::new(options.build(image));
    let dev = Arc::new(PmemDev::new(pmem.clone() as Arc<dyn Pmem>));
    (pmem, dev)
}

#[test]
fn everything_at_once_in_memory() {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, scheme) in kinds() {
        let scheme = scheme.as_str();
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() / 2 {
            let what = format!("mke2fs {kind}, -o {scheme}, STETFS_STRESS_SEED={seed}");
            let (_, dev) = pmem(image(kind, mib));
            let fs = mount(dev.clone(), options(scheme, 512, &mut Random::new(seed)));
            let mut workers: Vec<Worker> = (0..THREADS)
                .map(|n| Worker::new(&fs, n, seed, Rules::QUIET))
                .collect();
            run(&mut workers, 600, &what);
            workers.iter().for_each(|w| w.check(&fs, &what));
            workers.iter_mut().for_each(Worker::close);
            unmount(&fs, &what);
            clean(&what, |path| volume::copy(&*dev, path));
            // After the unmount this is a plain volume, whichever scheme it had.
            let fs = mount(dev, stetfs::MountOptions::parse("ro").unwrap());
            workers.iter().for_each(|w| w.check(&fs, &what));
            seed += 1;
        }
    }
}

#[test]
fn the_power_of_the_memory_goes_off() {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, scheme) in kinds() {
        let scheme = scheme.as_str();
        let made = image(kind, mib);
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() / 2 {
            let what = format!("mke2fs {kind}, -o {scheme}, STETFS_STRESS_SEED={seed}");
            cut_once(&made, scheme, seed, &what);
            seed += 1;
        }
    }
}

fn cut_once(made: &Image, scheme: &str, seed: u64, what: &str) {
    let mut random = Random::new(seed);
    let (pmem, dev) = pmem(made.clone());
    let fs = mount(dev, options(scheme, 512, &mut random));
    let rules = Rules {
        atomic_data: true,
        ..Rules::CUT
    };
    let mut workers: Vec<Worker> = (0..THREADS)
        .map(|n| Worker::new(&fs, n, seed, rules))
        .collect();
    fs.sync().unwrap();
    let power = &pmem.rig().power;
    power.cut_at(power.changes() + 10 + random.below(20_000));
    run(&mut workers, 2000, what);
    power.cut();
    drop(fs);
    judge(&pmem, scheme, &workers, seed, what);
}

/// Mounts what is left, perhaps after a second cut during that mount; compares it with the model,
/// and lets e2fsck check it.
fn judge(cut: &SimPmem, scheme: &str, workers: &[Worker], seed: u64, what: &str) {
    for (i, keep) in [
        Keep::All,
        Keep::None,
        Keep::Random(seed),
        Keep::Random(!seed),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{what}, {keep}");
        let mut left = cut.crash_point().image(|n| keep.keeps(n));
        if i >= 2 {
            left = cut_in_recovery(left, scheme, seed);
        }
        let (pmem, dev) = pmem(left);
        let fs = match stetfs::Fs::mount(dev, stetfs::MountOptions::parse(scheme).unwrap()) {
            Ok((fs, _)) => fs,
            Err(e) => panic!("{what}: {e}"),
        };
        workers.iter().for_each(|w| w.check_cut(&fs, &what));
        unmount(&fs, &what);
        clean(&what, |path| pmem.newest().to_file(path).unwrap());
    }
}

fn cut_in_recovery(left: Image, scheme: &str, seed: u64) -> Image {
    let (pmem, dev) = pmem(left);
    pmem.rig().power.cut_at(Random::new(seed).below(400));
    let mounted = stetfs::Fs::mount(dev, stetfs::MountOptions::parse(scheme).unwrap());
    if let Ok((fs, _)) = mounted {
        let _ = fs.unmount();
    }
    pmem.rig().power.cut();
    let keep = Keep::Random(seed);
    pmem.crash_point().image(|n| keep.keeps(n))
}
