//! The stress test on volumes with persistent memory beside them. The memory is so small that it is
//! always full. When the power goes off, volume and memory each lose pending changes independently.

use std::sync::Arc;
use std::time::Instant;

use stetfs::{Fs, Media, MountOptions};
use stetfs_media::sim::{Keep, Rig, SimDev, SimPmemOptions};
use stetfs_media::{Image, Pmem, SimPmem};
use stetfs_scheme::{Beside, Ground};
use stetfs_schemes::find;

use crate::volume::{Random, clean, image, unmount};
use crate::worker::{Rules, Worker};
use crate::{THREADS, options, quiet, run, setting, time, trials};

/// For each trial with memory beside the volume that an unmount empties: mke2fs's arguments, the
/// volume's size in MiB, the mount options, and the memory's size in KiB.
fn kinds() -> impl Iterator<Item = (&'static str, u64, String, u64)> {
    let beside = trials(Ground::has_nvm).filter(|(_, trial, _)| !trial.keeps_cache());
    beside.map(|((kind, block, mib), trial, options)| {
        let scheme = MountOptions::parse(&options).map(|options| options.scheme);
        let scheme = find(&scheme.expect("mount options")).expect("a scheme");
        let blocks = match (trial.ground, scheme.about.nvm) {
            (Ground::NvmCache, _) => 1024,
            // The memory holds the whole log.
            (_, Beside::Too(_)) => 512,
            _ => 96,
        };
        (kind, mib, options, blocks * block / 1024)
    })
}

/// A volume and the memory beside it, on one power supply.
struct Pair {
    dev: Arc<SimDev>,
    nvm: Arc<SimPmem>,
}

impl Pair {
    fn new(home: Image, nvm: Image) -> Self {
        let rig = Rig::default();
        let pmem = SimPmemOptions {
            record: false,
            ..SimPmemOptions::default()
        };
        Self {
            dev: Arc::new(quiet().build_on(&rig, home)),
            nvm: Arc::new(pmem.build_on(&rig, nvm)),
        }
    }

    fn mount(&self, options: MountOptions, what: &str) -> Fs {
        let media = Media {
            home: self.dev.clone(),
            nvm: Some(self.nvm.clone() as Arc<dyn Pmem>),
        };
        match Fs::mount(media, options) {
            Ok((fs, _)) => fs,
            Err(e) => panic!("{what}: {e}"),
        }
    }

    /// Makes the media that a cut leaves.
    fn left(&self, home: &Keep, nvm: &Keep) -> Self {
        Self::new(
            self.dev.crash_point().image(|n| home.keeps(n)),
            self.nvm.crash_point().image(|n| nvm.keeps(n)),
        )
    }
}

/// Calls `try_one` with fresh media of each kind, a seed, and the text that replays the run, until
/// the time is over.
fn each(try_one: impl Fn(Pair, &str, u64, &str)) {
    let first = setting("STETFS_STRESS_SEED", 1);
    for (kind, mib, scheme, nvm_kib) in kinds() {
        let scheme = scheme.as_str();
        let made = image(kind, mib);
        let start = Instant::now();
        let mut seed = first;
        while seed == first || start.elapsed() < time() / 4 {
            let what = format!(
                "mke2fs {kind}, -o {scheme}, {nvm_kib} KiB beside, STETFS_STRESS_SEED={seed}"
            );
            let pair = Pair::new(made.clone(), Image::new(nvm_kib << 10));
            try_one(pair, scheme, seed, &what);
            seed += 1;
        }
    }
}

#[test]
fn everything_at_once_with_memory_beside() {
    each(|pair, scheme, seed, what| {
        let fs = pair.mount(options(scheme, 512, &mut Random::new(seed)), what);
        let mut workers: Vec<Worker> = (0..THREADS)
            .map(|n| Worker::new(&fs, n, seed, Rules::QUIET))
            .collect();
        run(&mut workers, 600, what);
        workers.iter().for_each(|w| w.check(&fs, what));
        workers.iter_mut().for_each(Worker::close);
        unmount(&fs, what);
        clean(what, |path| pair.dev.newest().to_file(path).unwrap());
        // After the unmount this is a plain volume, whichever scheme it had.
        let fs = pair.mount(MountOptions::parse("ro").unwrap(), what);
        workers.iter().for_each(|w| w.check(&fs, what));
    });
}

/// The number of power cuts in a run: what a scheme finds may be left from before the cut before.
const LIVES: u64 = 2;

#[test]
fn the_power_of_both_goes_off_again_and_again() {
    each(|pair, scheme, seed, what| {
        let mut random = Random::new(seed);
        let rules = Rules {
            atomic_data: !scheme.contains("data=ordered"),
            ..Rules::CUT
        };
        let (mut pair, mut workers) = (pair, Vec::new());
        for life in 0..LIVES {
            let what = format!("{what}, life {life}");
            let fs = pair.mount(options(scheme, 512, &mut random), &what);
            let mut new: Vec<Worker> = (0..THREADS)
                .map(|n| Worker::new(&fs, life * THREADS + n, seed, rules))
                .collect();
            fs.sync().unwrap();
            let power = &pair.dev.rig().power;
            power.cut_at(power.changes() + 10 + random.below(20_000));
            run(&mut new, 2000, &what);
            power.cut();
            drop(fs);
            workers.extend(new);
            let ways = [
                (Keep::All, Keep::All),
                (Keep::All, Keep::None),
                (Keep::None, Keep::All),
                (Keep::Random(seed), Keep::Random(!seed)),
            ];
            for (home, nvm) in &ways {
                let what = format!("{what}, home {home}, memory {nvm}");
                let mut left = pair.left(home, nvm);
                if seed % 2 == 0 {
                    left = cut_in_recovery(&left, scheme, seed);
                }
                let fs = left.mount(MountOptions::parse(scheme).unwrap(), &what);
                workers.iter().for_each(|w| w.check_cut(&fs, &what));
                unmount(&fs, &what);
                clean(&what, |path| left.dev.newest().to_file(path).unwrap());
            }
            let (home, nvm) = &ways[random.below(ways.len() as u64) as usize];
            pair = pair.left(home, nvm);
        }
    });
}

fn cut_in_recovery(left: &Pair, scheme: &str, seed: u64) -> Pair {
    let power = &left.dev.rig().power;
    power.cut_at(Random::new(seed).below(400));
    let media = Media {
        home: left.dev.clone(),
        nvm: Some(left.nvm.clone() as Arc<dyn Pmem>),
    };
    if let Ok((fs, _)) = Fs::mount(media, MountOptions::parse(scheme).unwrap()) {
        let _ = fs.unmount();
    }
    power.cut();
    left.left(&Keep::Random(seed), &Keep::Random(!seed))
}
