//! Random sequences of operations through the library, against the model in memory, on every
//! variety of volume and in every trial of every scheme. Answers and trees are equal; after the
//! unmount e2fsck finds nothing and the kernel sees the same.
//!
//! A failure shrinks to a short list of operations. `STETFS_LAB_CASES` sets the number of sequences
//! for each variety and trial.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use stetfs::MountOptions;
use stetfs::clock::Clock;
use stetfs_scheme::{Registration, Trial};
use stetfs_schemes::{each_example, each_scheme, find};
use stetfs_testkit::ground::{InMemory, simulated};
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{VARIETIES, Variety, check};
use stetfs_testkit::world::draw::operation;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::{BASE, World, moment, tree};

fn cases() -> u32 {
    std::env::var("STETFS_LAB_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(9)
}

fn options(scheme: &Registration, trial: &Trial) -> MountOptions {
    let list = format!("{},noatime", trial.mount_options(scheme.about));
    MountOptions {
        clock: Clock::still(0),
        ..MountOptions::parse(&list).expect("good options")
    }
}

struct Bed {
    variety: Variety,
    scheme: &'static Registration,
    trial: &'static Trial,
    dir: tempfile::TempDir,
    fresh: Vec<u8>,
}

impl Bed {
    fn new(scheme: &'static Registration, trial: &'static Trial, variety: Variety) -> Result<Self> {
        let dir = scratch()?;
        let image = dir.path().join("fresh");
        variety.make(&image, 48, if variety.block == 1024 { 1 } else { 4 })?;
        fs::create_dir(dir.path().join("mnt"))?;
        Ok(Self {
            variety,
            scheme,
            trial,
            fresh: fs::read(&image)?,
            dir,
        })
    }

    /// Runs one sequence; any difference is an error.
    fn run(&self, ops: &[Op]) -> Result<()> {
        let options = options(self.scheme, self.trial);
        let medium = InMemory::new(self.trial.ground, &self.fresh, self.variety.block)?;
        let mounted = Library::mount(medium.media(), options.clone());
        let (mut library, _) = mounted.context("mounting")?;
        let mut model = Model::new(self.variety.rules());
        for (i, op) in ops.iter().enumerate() {
            model.set_time(moment(i));
            library.set_time(moment(i));
            let (expected, found) = (model.apply(op), library.apply(op));
            ensure!(
                expected == found,
                "step {i} {op:?}: {found:?}, expected {expected:?}"
            );
        }
        let before = library.tree().context("reading the tree")?;
        equal("the model", &model.tree(), "the mount", &before)?;
        library.unmount().context("unmounting")?;
        if self.trial.keeps_cache() {
            // Content that an unmount left in the cache goes home.
            let mut options = options;
            options.apply("keep-cache=off")?;
            let mut library = Library::mount_as_it_is(medium.media(), options)?.0;
            equal("before", &before, "the kept volume", &library.tree()?)?;
            library.unmount().context("draining")?;
        }
        let image = self.dir.path().join("image");
        medium.to_file(&image)?;
        check(&image)?;
        if needs(true, false, &[]).is_ok() {
            self.kernel(&image, &before).context("under the kernel")?;
        }
        Ok(())
    }

    fn kernel(&self, image: &Path, before: &tree::Tree) -> Result<()> {
        let mount = KernelMount::ext4(image, &self.dir.path().join("mnt"), "ro,noatime")?;
        let seen = tree::of_directory(&mount.dir().join(BASE))?;
        mount.unmount()?;
        equal("the mount", before, "the kernel", &seen)
    }
}

fn equal(expected: &str, a: &tree::Tree, found: &str, b: &tree::Tree) -> Result<()> {
    let differences = tree::differences(a, b);
    if !differences.is_empty() {
        bail!("{found} is not as {expected}:\n{}", differences.join("\n"));
    }
    Ok(())
}

/// Runs sequences on one variety of volume in one trial.
fn sequences(scheme: &'static Registration, trial: &'static Trial, variety: Variety) {
    let bed = Bed::new(scheme, trial, variety).expect("a volume");
    let config = Config {
        cases: cases(),
        max_shrink_iters: 20_000,
        max_shrink_time: 40_000,
        failure_persistence: None,
        ..Config::default()
    };
    // Our own generator draws the operations; shrinking leaves some out.
    let seeds = prop::collection::vec(any::<u64>().no_shrink(), 1..250);
    let drawn = move |seed| operation(seed, variety.profile());
    let strategy = seeds.prop_map(move |seeds| seeds.into_iter().map(drawn).collect::<Vec<_>>());
    let mut runner = TestRunner::new(config);
    let result = runner.run(&strategy, |ops| {
        bed.run(&ops)
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    if let Err(TestError::Fail(why, ops)) = result {
        let listed: Vec<_> = ops
            .iter()
            .enumerate()
            .map(|(i, op)| format!("{i}: {op:?}"))
            .collect();
        panic!(
            "{trial} on {}: {why}\nafter shrinking:\n{}",
            variety.name,
            listed.join("\n")
        );
    }
}

/// Pairs each trial of a scheme with varieties of volume by turns: two rounds, each with other
/// partners. Flash takes ten times as long and gets one round.
fn every_trial(scheme: &str) {
    if let Err(missing) = needs(false, false, &["mke2fs", "e2fsck"]) {
        eprintln!("SKIPPED: model test: {missing}");
        return;
    }
    if let Err(missing) = needs(true, false, &[]) {
        eprintln!("SKIPPED: the kernel's view of the model test: {missing}");
    }
    let scheme = find(scheme).expect("a scheme");
    let trials: Vec<_> = simulated(scheme).collect();
    let rounds = if scheme.about.needs_remap {
        1
    } else {
        trials.len().min(2)
    };
    for round in 0..rounds {
        for turn in 0..trials.len().max(VARIETIES.len()) {
            let variety = VARIETIES[turn % VARIETIES.len()];
            sequences(scheme, trials[(turn + round) % trials.len()], variety);
        }
    }
}

macro_rules! tests {
    ($($scheme:ident)*) => {
        $(
            #[test]
            fn $scheme() {
                every_trial(stringify!($scheme));
            }
        )*
    };
}

each_scheme!(tests);
each_example!(tests);
