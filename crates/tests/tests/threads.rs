//! Several threads on one mount.
//!
//! Some threads work in directories of their own, each against a model of its own: the work of
//! others must not show there. Others run wild in one common tree, and one syncs all the time.
//! Afterwards each private tree equals its model, e2fsck finds nothing, and the kernel sees what
//! the mount saw.
#![forbid(unsafe_code)]

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use stetfs::MountOptions;
use stetfs_scheme::{Registration, Trial};
use stetfs_schemes::{each_example, each_scheme, find};
use stetfs_testkit::ground::{InMemory, orders};
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety, check};
use stetfs_testkit::skip_unless;
use stetfs_testkit::world::draw::stream;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::Profile;
use stetfs_testkit::world::{BASE, World, tree};

const PRIVATE: u64 = 2;
const WILD: u64 = 2;

fn steps() -> usize {
    std::env::var("STETFS_LAB_STEPS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(600)
}

/// Works against a model; a wrong answer panics with the seed and the step.
fn work_alone(library: &mut Library, variety: Variety, seed: u64) {
    let mut model = Model::new(variety.rules());
    for (i, op) in stream(
        seed,
        steps(),
        Profile {
            remounts: false,
            ..variety.profile()
        },
    )
    .iter()
    .enumerate()
    {
        let (expected, found) = (model.apply(op), library.apply(op));
        assert_eq!(expected, found, "seed {seed}, step {i}: {op:?}");
    }
    let found = library.tree().expect("a readable tree");
    let differences = tree::differences(&model.tree(), &found);
    assert!(
        differences.is_empty(),
        "seed {seed}: {}",
        differences.join("\n")
    );
}

/// Works in the common tree; allows every answer that does not mean damage.
fn run_wild(library: &mut Library, variety: Variety, seed: u64) {
    for (i, op) in stream(
        seed,
        steps(),
        Profile {
            remounts: false,
            ..variety.profile()
        },
    )
    .iter()
    .enumerate()
    {
        if let Err(errno @ (Errno::IO | Errno::UCLEAN | Errno::ROFS)) = library.apply(op) {
            panic!("seed {seed}, step {i}: {op:?}: {errno}");
        }
    }
}

fn together(scheme: &Registration, trial: &Trial, variety: Variety, seed: u64) {
    let dir = scratch().expect("a scratch directory");
    let image = dir.path().join("image");
    variety
        .make(&image, 96, if variety.block == 1024 { 2 } else { 8 })
        .expect("a volume");
    let content = fs::read(&image).expect("its content");
    let medium = InMemory::new(trial.ground, &content, variety.block).expect("a medium");
    let list = format!("{},noatime,memory=8M", trial.mount_options(scheme.about));
    let options = MountOptions::parse(&list).expect("good options");
    let media = medium.media();
    let (main, _) = Library::mount(media, options.clone()).expect("a mount");
    let over = AtomicBool::new(false);
    let names: Vec<_> = (0..PRIVATE + WILD).map(|i| format!("w{i}")).collect();
    let mut workers: Vec<_> = names
        .iter()
        .map(|name| main.share(name).expect("a directory"))
        .collect();
    let (private, wild) = workers.split_at_mut(PRIVATE as usize);
    let mut common: Vec<_> = (0..WILD).map(|_| wild[0].again()).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, library) in (0..).zip(private) {
            threads.push(scope.spawn(move || work_alone(library, variety, seed + i)));
        }
        for (i, library) in (0..).zip(&mut common) {
            threads.push(scope.spawn(move || run_wild(library, variety, seed + 100 + i)));
        }
        let syncer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                main.fs().sync().expect("sync");
                thread::yield_now();
            }
        });
        let results: Vec<_> = threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        over.store(true, Ordering::Relaxed);
        syncer.join().expect("the syncer");
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    common
        .iter_mut()
        .chain(&mut workers)
        .for_each(Library::close_all);
    let seen: Vec<_> = workers
        .iter()
        .map(|library| library.tree().expect("a readable tree"))
        .collect();
    let mut main = main;
    main.unmount().expect("unmount");
    if trial.keeps_cache() {
        // Content that an unmount left in the cache goes home.
        let mut options = options;
        options.apply("keep-cache=off").expect("an option");
        let (mut again, _) = Library::mount_as_it_is(medium.media(), options).expect("a mount");
        again.unmount().expect("a drain");
    }
    medium.to_file(&image).expect("the image");
    check(&image).expect("a clean volume");
    if needs(true, false, &[]).is_err() {
        eprintln!("SKIPPED: the kernel's view: root and loop devices are needed");
        return;
    }
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("a mount point");
    let mount = KernelMount::ext4(&image, &mnt, "ro,noatime").expect("the kernel's mount");
    for (name, seen) in names.iter().zip(seen) {
        let theirs = tree::of_directory(&mnt.join(name).join(BASE)).expect("a readable tree");
        let differences = tree::differences(&seen, &theirs);
        assert!(
            differences.is_empty(),
            "{name} under the kernel: {}",
            differences.join("\n")
        );
    }
    mount.unmount().expect("unmount");
}

/// Runs each trial that has an order of writes of its own; varieties of volume take turns.
fn every_trial(scheme: &str) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let scheme = find(scheme).expect("a scheme");
    let varieties = [EXT4_4K, EXT4_1K, EXT3_1K].into_iter().cycle();
    for ((trial, variety), seed) in orders(scheme).zip(varieties).zip(1..) {
        together(scheme, trial, variety, seed);
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
