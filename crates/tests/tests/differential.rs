//! The same stream of operations on several file systems: answers and trees must be equal.
//!
//! First the model runs against the kernel's ext4, which makes the model a judge. Then stetfs,
//! mounted by FUSE, runs against the kernel. `STETFS_LAB_SEED` replays one seed,
//! `STETFS_LAB_STREAMS` sets the number of streams.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stetfs_testkit::host::{KernelMount, needs, scratch};
use stetfs_testkit::image::{
    EXT3_1K, EXT3_4K, EXT4_1K, EXT4_4K, EXT4_SMALL_INODES, Variety, check,
};
use stetfs_testkit::mounted::Mounted;
use stetfs_testkit::skip_unless;
use stetfs_testkit::world::draw::stream;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::posix::Posix;
use stetfs_testkit::world::{BASE, Moment, World, moment, tree};

/// Returns the number of streams, from the environment.
fn streams(default: u64) -> u64 {
    std::env::var("STETFS_LAB_STREAMS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

fn seeds(first: u64, count: u64) -> Vec<u64> {
    match std::env::var("STETFS_LAB_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
    {
        Some(seed) => vec![seed],
        None => (first..first + streams(count)).collect(),
    }
}

/// Does `ops` on both worlds; the answers must be equal.
fn in_step(a: &mut dyn World, b: &mut dyn World, ops: &[Op]) -> Result<()> {
    for (i, op) in ops.iter().enumerate() {
        let (x, y) = (a.apply(op), b.apply(op));
        if x != y {
            bail!(
                "step {i} {op:?}: {} says {x:?}, {} says {y:?}",
                a.name(),
                b.name()
            );
        }
    }
    Ok(())
}

fn mount_kernel(image: &Path, dir: &Path) -> Result<Posix> {
    let options = "noatime,user_xattr,acl";
    let mut mount = Some(KernelMount::ext4(image, dir, options)?);
    let (image, at) = (image.to_owned(), dir.to_owned());
    let remount = move || {
        mount.take().context("is mounted")?.unmount()?;
        mount = Some(KernelMount::ext4(&image, &at, options)?);
        Ok(())
    };
    Ok(Posix::new("kernel", dir, Box::new(remount))?)
}

/// Makes a fresh volume in `dir` and has the kernel mount it. Returns the image, its mount point,
/// and the model beside it.
fn model_beside_kernel(variety: Variety, dir: &Path) -> Result<((PathBuf, PathBuf), Model, Posix)> {
    let (image, mnt) = (dir.join("image"), dir.join("mnt"));
    std::fs::create_dir(&mnt)?;
    variety.make(&image, 64, 4)?;
    let kernel = mount_kernel(&image, &mnt)?;
    Ok(((image, mnt), Model::new(variety.rules()), kernel))
}

fn model_and_kernel(variety: Variety, seed: u64) -> Result<()> {
    let dir = scratch()?;
    let ((image, mnt), mut model, mut kernel) = model_beside_kernel(variety, dir.path())?;
    in_step(
        &mut model,
        &mut kernel,
        &stream(seed, 400, variety.profile()),
    )?;
    // Without this sync, SEEK_DATA of the kernel's ext4 overlooks data that has no place yet, in
    // files without extents.
    let _ = kernel.apply(&Op::Sync);
    let differences = tree::differences(&model.tree(), &tree::of_directory(&mnt.join(BASE))?);
    drop(kernel);
    check(&image)?;
    if !differences.is_empty() {
        bail!(
            "model and kernel end differently:\n{}",
            differences.join("\n")
        );
    }
    Ok(())
}

#[test]
fn the_model_agrees_with_the_kernel() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck"]));
    for seed in seeds(1, 3) {
        for variety in [EXT4_4K, EXT4_1K, EXT4_SMALL_INODES, EXT3_1K, EXT3_4K] {
            if let Err(error) = model_and_kernel(variety, seed) {
                panic!("{} with STETFS_LAB_SEED={seed}: {error:#}", variety.name);
            }
        }
    }
}

/// By inode: when file and content were last changed, and the bytes that the file takes. By path:
/// its inode.
#[derive(Default)]
struct Times {
    of: BTreeMap<u64, (Moment, Moment, u64)>,
    inodes: BTreeMap<Vec<u8>, u64>,
}

impl Times {
    fn below(top: &Path) -> Result<Self> {
        let mut times = Self::default();
        let mut todo = vec![Vec::new()];
        while let Some(path) = todo.pop() {
            let full = top.join(OsStr::from_bytes(&path));
            let stat = full.symlink_metadata()?;
            if stat.is_dir() {
                for entry in std::fs::read_dir(&full)? {
                    todo.push(tree::join(&path, entry?.file_name().as_bytes()));
                }
            }
            let mtime = (stat.mtime(), stat.mtime_nsec() as u32);
            let ctime = (stat.ctime(), stat.ctime_nsec() as u32);
            let bytes = stat.blocks() * 512;
            times.of.insert(stat.ino(), (mtime, ctime, bytes));
            times.inodes.insert(path, stat.ino());
        }
        Ok(times)
    }
}

/// Checks that the kernel's times and blocks change whenever the model's do.
fn times_change_alike(variety: Variety, seed: u64) -> Result<()> {
    let dir = scratch()?;
    let ((_, mnt), mut model, mut kernel) = model_beside_kernel(variety, dir.path())?;
    let mut before = Times::below(&mnt.join(BASE))?;
    for (i, op) in stream(seed, 300, variety.profile()).iter().enumerate() {
        // Longer than a tick, which is the resolution of kernels before 6.13.
        std::thread::sleep(Duration::from_millis(11));
        model.set_time(moment(i));
        let (x, y) = (model.apply(op), kernel.apply(op));
        ensure!(x == y, "step {i} {op:?}: {x:?} {y:?}");
        let after = Times::below(&mnt.join(BASE))?;
        // The kernel records a change before it finds that the file cannot be preallocated. In the
        // model an operation that fails changes nothing.
        let paths = model.tree().into_iter().filter(|_| x.is_ok());
        for (path, facts) in paths {
            let ino = after.inodes.get(&path).context("a path of the model")?;
            let (mtime, ctime, bytes) = after.of[ino];
            let old = before.of.get(ino);
            let shown = || format!("step {i} {op:?}: {}", path.escape_ascii());
            for (what, now, then, model) in [
                ("mtime", mtime, old.map(|old| old.0), facts.mtime),
                ("ctime", ctime, old.map(|old| old.1), facts.ctime),
            ] {
                // A time that an operation has set changes if it is another one.
                let by_hand = matches!(op, Op::Utimes { .. }) && what == "mtime";
                let changes = model == Some(moment(i));
                let changed = then != Some(now);
                ensure!(
                    changed == changes || by_hand,
                    "{}: {what}: {changed}",
                    shown()
                );
            }
            if let Some(blocks) = &facts.blocks {
                let least = blocks.iter().map(|(_, n)| n).sum::<u64>() * u64::from(variety.block);
                // Besides these, the map and the attributes take blocks.
                let most = least + least / 8 + 8 * u64::from(variety.block);
                let fits = (least..=most).contains(&bytes);
                ensure!(fits, "{}: {bytes} bytes, {least} to {most}", shown());
            }
        }
        before = after;
    }
    Ok(())
}

#[test]
fn the_model_changes_times_when_the_kernel_does() {
    skip_unless!(needs(true, false, &["mke2fs"]));
    for seed in seeds(20, 1) {
        for variety in [EXT4_4K, EXT3_1K] {
            if let Err(error) = times_change_alike(variety, seed) {
                panic!("{} with STETFS_LAB_SEED={seed}: {error:#}", variety.name);
            }
        }
    }
}

fn mount_stetfs(image: &Path, dir: &Path, mode: &str) -> Result<Posix> {
    let serve = env!("CARGO_BIN_EXE_serve");
    let options = format!("scheme=jbd2,data={mode},noatime");
    let mut mount = Some(Mounted::start(serve, image, dir, &options)?);
    let (image, at) = (image.to_owned(), dir.to_owned());
    let remount = move || {
        mount.take().context("is mounted")?.unmount()?;
        mount = Some(Mounted::start(serve, &image, &at, &options)?);
        Ok(())
    };
    Ok(Posix::new("stetfs", dir, Box::new(remount))?)
}

fn stetfs_and_kernel(variety: Variety, mode: &str, seed: u64) -> Result<()> {
    let dir = scratch()?;
    let at = |name: &str| dir.path().join(name);
    for name in ["kernel", "stetfs"] {
        std::fs::create_dir(at(name))?;
        variety.make(&at(name).with_extension("image"), 64, 4)?;
    }
    let mut kernel = mount_kernel(&at("kernel.image"), &at("kernel"))?;
    let mut stetfs = mount_stetfs(&at("stetfs.image"), &at("stetfs"), mode)?;
    in_step(
        &mut kernel,
        &mut stetfs,
        &stream(seed, 400, variety.profile()),
    )?;
    let _ = kernel.apply(&Op::Sync);
    let expected = without_now(tree::of_directory(&at("kernel").join(BASE))?);
    let mounted = tree::of_directory(&at("stetfs").join(BASE))?;
    equal(
        "the kernel's ext4",
        &expected,
        "stetfs",
        &without_now(mounted.clone()),
    )?;
    drop((kernel, stetfs));
    check(&at("stetfs.image"))?;
    let again = KernelMount::ext4(&at("stetfs.image"), &at("kernel"), "ro,noatime")?;
    equal(
        "stetfs",
        &mounted,
        "the kernel on our volume",
        &tree::of_directory(&again.dir().join(BASE))?,
    )
}

fn equal(expected: &str, a: &tree::Tree, found: &str, b: &tree::Tree) -> Result<()> {
    let differences = tree::differences(a, b);
    if !differences.is_empty() {
        bail!("{found} is not as {expected}:\n{}", differences.join("\n"));
    }
    Ok(())
}

/// Removes the times that two runs cannot share: those within a day of now.
fn without_now(mut tree: tree::Tree) -> tree::Tree {
    let now = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs() as i64);
    for facts in tree.values_mut() {
        for time in [&mut facts.atime, &mut facts.mtime, &mut facts.ctime] {
            *time = time.filter(|(sec, _)| (sec - now).abs() > 86_400);
        }
    }
    tree
}

#[test]
fn a_mount_agrees_with_the_kernel() {
    skip_unless!(needs(true, true, &["mke2fs", "e2fsck"]));
    for seed in seeds(100, 2) {
        for (variety, mode) in [
            (EXT4_4K, "journal"),
            (EXT4_1K, "ordered"),
            (EXT4_SMALL_INODES, "writeback"),
            (EXT3_1K, "journal"),
        ] {
            if let Err(error) = stetfs_and_kernel(variety, mode, seed) {
                panic!(
                    "{} in mode {mode} with STETFS_LAB_SEED={seed}: {error:#}",
                    variety.name
                );
            }
        }
    }
}
