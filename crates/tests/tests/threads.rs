//! Several threads on one mount.
//!
//! Some threads work in directories of their own, each against a model of its own: what the others
//! do must not show. Others run wild in one common tree, and one syncs all the time. Afterwards
//! each private tree is as its model, e2fsck finds nothing, and the kernel sees what the mount saw.
#![forbid(unsafe_code)]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use stetfs::{Media, MountOptions};
use stetfs_media::sim::SimPmemOptions;
use stetfs_media::{Image, Pmem, RamDev};
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety, check};
use stetfs_testkit::skip_unless;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::{Profile, stream};
use stetfs_testkit::world::{BASE, World, tree};

const PRIVATE: u64 = 2;
const WILD: u64 = 2;

fn steps() -> usize {
    std::env::var("STETFS_LAB_STEPS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(600)
}

/// Against a model; a wrong answer is a panic that names the seed and the step.
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

/// In the common tree: any answer but those that mean damage.
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

fn together(variety: Variety, options: &str, seed: u64) {
    let dir = scratch().expect("a scratch directory");
    let image = dir.path().join("image");
    variety
        .make(&image, 96, if variety.block == 1024 { 2 } else { 8 })
        .expect("a volume");
    let dev = Arc::new(RamDev::from_file(&image).expect("its content"));
    let options = MountOptions::parse(options).expect("good options");
    let about = stetfs_schemes::find(&options.scheme)
        .expect("a scheme")
        .about;
    // So little that caches evict.
    let nvm = about.nvm.map(|_| {
        let options = SimPmemOptions {
            record: false,
            ..SimPmemOptions::default()
        };
        Arc::new(options.build(Image::new(512 * u64::from(variety.block)))) as Arc<dyn Pmem>
    });
    let media = Media {
        home: dev.clone(),
        nvm,
    };
    let (main, _) = Library::mount(media, options).expect("a mount");
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
    dev.to_file(&image).expect("the image");
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

#[test]
fn journal_mode() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    together(EXT4_4K, "data=journal,noatime", 1);
}

#[test]
fn ordered_mode_with_little_memory() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    together(EXT4_1K, "data=ordered,noatime,memory=8M", 2);
}

#[test]
fn writeback_mode_on_ext3() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    together(EXT3_1K, "data=writeback,noatime,memory=8M", 3);
}

#[test]
fn caches_beside_the_volume() {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    together(EXT4_4K, "scheme=ubj,noatime,memory=8M", 4);
    together(EXT4_1K, "scheme=tinca,noatime,memory=8M", 5);
    together(EXT4_1K, "scheme=spindle,noatime,memory=8M", 6);
}
