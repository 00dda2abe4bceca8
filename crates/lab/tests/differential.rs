//! The same stream of operations on several file systems: answers and trees must be equal.
//!
//! First the model against the kernel's ext4, which makes the model a judge; then stetfs, mounted by FUSE, against the kernel.
//! `STETFS_LAB_SEED` replays one seed, `STETFS_LAB_STREAMS` sets how many are run.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, Result, bail};
use stetfs_lab::host::{KernelMount, needs, scratch};
use stetfs_lab::image::{EXT3_1K, EXT3_4K, EXT4_1K, EXT4_4K, EXT4_SMALL_INODES, Variety, check};
use stetfs_lab::skip_unless;
use stetfs_lab::world::model::Model;
use stetfs_lab::world::op::{Op, stream};
use stetfs_lab::world::posix::Posix;
use stetfs_lab::world::{BASE, World, tree};

/// Number of streams, from the environment.
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

/// Does `ops` on both; the answers must be equal.
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

fn model_and_kernel(variety: Variety, seed: u64) -> Result<()> {
    let dir = scratch()?;
    let (image, mnt) = (dir.path().join("image"), dir.path().join("mnt"));
    std::fs::create_dir(&mnt)?;
    variety.make(&image, 64, 4)?;
    let mut model = Model::new(variety.rules());
    let mut kernel = mount_kernel(&image, &mnt)?;
    in_step(
        &mut model,
        &mut kernel,
        &stream(seed, 400, variety.profile()),
    )?;
    // Without, SEEK_DATA of the kernel's ext4 overlooks data without a place yet in files without extents.
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
