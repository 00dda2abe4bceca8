//! Journals change hands: the kernel and e2fsck replay ours after a crash, we replay the kernel's.
//!
//! *Ours.* A workload runs on the simulated device and is cut at some moments. The kernel (by a
//! mount), e2fsck and we recover each state that is left. All three must find the same tree, and
//! the model must allow it. *The kernel's.* A workload runs on the kernel's ext4. The file under
//! its loop device is copied while it is mounted, as a power cut would leave it. The kernel and we
//! recover the copy.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use stetfs_crash::record::Record;
use stetfs_crash::subject::Subject;
use stetfs_crash::target::Target;
use stetfs_crash::workloads::script::Script;
use stetfs_media::RamDev;
use stetfs_media::sim::Keep;
use stetfs_scheme::{Ground, Registration};
use stetfs_schemes::find;
use stetfs_testkit::host::{KernelMount, Loop, needs, scratch};
use stetfs_testkit::image::{self, EXT3_1K, EXT4_1K, EXT4_4K, EXT4_PLAIN, Variety, check};
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::posix::Posix;
use stetfs_testkit::world::{BASE, World, tree};

/// Volumes whose journals have every kind of record: 32- and 64-bit tags; no checksum, checksum v1
/// (by mount option), v3.
const VARIETIES: [Variety; 5] = [EXT4_4K, EXT4_1K, EXT4_PLAIN, NARROW, EXT3_1K];

/// Checksums, but block numbers of 32 bits: journal tags v3 without the high word.
const NARROW: Variety = Variety {
    name: "ext4-32bit",
    block: 1024,
    inode: 256,
    features: "^64bit",
    extents: true,
};

/// Returns the scheme whose log the kernel replays, and which replays the kernel's.
fn jbd2() -> &'static Registration {
    find("jbd2").expect("a scheme")
}

fn moments() -> usize {
    std::env::var("STETFS_LAB_CUTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3)
}

/// Returns the tree after the kernel has mounted an image and replayed its journal.
fn by_kernel(image: &Path, dir: &Path, options: &str) -> Result<tree::Tree> {
    let mount = KernelMount::ext4(image, dir, options).context("the kernel's mount")?;
    let seen = tree::of_directory(&mount.dir().join(BASE));
    mount.unmount()?;
    check(image).context("after the kernel's replay")?;
    seen
}

/// Returns the tree after e2fsck: it replays the journal and clears orphans, and must find nothing
/// else wrong.
fn by_e2fsck(image: &Path, dir: &Path) -> Result<tree::Tree> {
    let out = Command::new("e2fsck").arg("-fy").arg(image).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(
        out.status.code().is_some_and(|code| code <= 1),
        "e2fsck -fy: {}\n{text}",
        out.status
    );
    // Recovery brings the counts in the superblock up to date; everything else must be right.
    let excused = [
        "Fix? yes",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "FILE SYSTEM WAS MODIFIED",
    ];
    let wrong = text
        .lines()
        .skip_while(|line| !line.starts_with("Pass 1"))
        .find(|line| {
            let routine = line.is_empty() || line.starts_with("Pass ") || line.contains(" files (");
            !routine && !excused.iter().any(|e| line.contains(e))
        });
    if let Some(line) = wrong {
        bail!("e2fsck found \"{line}\" in\n{text}");
    }
    by_kernel(image, dir, "ro,noatime")
}

/// Returns the tree after our own recovery.
fn by_us(image: &Path, target: &Target, dir: &Path) -> Result<tree::Tree> {
    let dev = Arc::new(RamDev::from_file(image)?);
    let (mut library, _) = Library::mount(dev.clone(), target.options()).context("our mount")?;
    let seen = library.tree();
    library.unmount()?;
    dev.to_file(image)?;
    check(image).context("after our replay")?;
    let theirs = by_kernel(image, dir, "ro,noatime")?;
    let seen = seen?;
    equal("our replay", &seen, "the kernel afterwards", &theirs)?;
    Ok(seen)
}

fn equal(expected: &str, a: &tree::Tree, found: &str, b: &tree::Tree) -> Result<()> {
    let differences = tree::differences(a, b);
    if !differences.is_empty() {
        bail!("{found} is not as {expected}:\n{}", differences.join("\n"));
    }
    Ok(())
}

fn our_journal(target: &Target, script: Script) -> Result<()> {
    let workload = script.workload(target.volume.profile());
    let record = Record::make(target, &target.contents()?, &workload)?;
    let mut subject = Subject::new(target);
    let dir = scratch()?;
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("mnt"))?;
    let mut rng = Rng::new(record.moments());
    for _ in 0..moments() {
        let at_change = rng.below(record.moments());
        let keep = if rng.chance(50) {
            Keep::All
        } else {
            Keep::Random(rng.below(1000))
        };
        let moment = record.tapes.moment(at_change).context("a moment")?;
        let contents = moment.contents(&keep);
        let left = &contents.volume()?;
        for name in ["kernel", "e2fsck", "us"] {
            left.to_file(&at(name))?;
        }
        let mut judged = || -> Result<()> {
            let ours = by_us(&at("us"), target, &at("mnt")).context("stetfs")?;
            // Only we repair a torn superblock; the kernel needs e2fsck first.
            let torn = image::superblock_is_torn(left);
            if !torn {
                let kernel = by_kernel(&at("kernel"), &at("mnt"), "noatime")?;
                equal(
                    "stetfs",
                    &without_ctimes(ours.clone()),
                    "the kernel",
                    &without_ctimes(kernel),
                )?;
                let fixed = by_e2fsck(&at("e2fsck"), &at("mnt"))?;
                equal(
                    "stetfs",
                    &without_ctimes(ours),
                    "e2fsck",
                    &without_ctimes(fixed),
                )?;
            }
            let allowed = record.allowed(at_change);
            let judged = subject.judge(&contents, &record.oracle, &allowed)?;
            judged
                .map(drop)
                .map_err(|(fault, why)| anyhow!("{fault}: {why}"))
        };
        judged().with_context(|| format!("cut at {at_change}, keeping {keep}"))?;
    }
    Ok(())
}

/// Removes the times of the base directory, which depend on whether orphans are cleared; the model
/// does not know ctime anyway.
fn without_ctimes(mut tree: tree::Tree) -> tree::Tree {
    for facts in tree.values_mut() {
        facts.ctime = None;
    }
    tree
}

#[test]
fn the_kernel_and_e2fsck_replay_our_journal() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck"]));
    let scripts = [Script::Revokes, Script::Orphans, Script::Random(11)];
    for (i, variety) in VARIETIES.into_iter().enumerate() {
        let trials = jbd2().trials.iter().filter(|t| t.ground == Ground::Block);
        for (j, mode) in trials.enumerate() {
            let script = scripts[(i + j) % scripts.len()];
            let target = Target::of(jbd2(), mode, variety);
            if let Err(error) = our_journal(&target.with_whole_log(), script) {
                panic!("{} {mode} {}: {error:#}", variety.name, script.name());
            }
        }
    }
}

fn kernels_journal(variety: Variety, mode: &str, more: &str, script: Script) -> Result<()> {
    let dir = scratch()?;
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("mnt"))?;
    variety.make(&at("image"), 24, if variety.block == 1024 { 1 } else { 4 })?;
    let device = Loop::attach(&at("image"))?;
    let options = format!("noatime,commit=300,data={mode}{more}");
    let mount = KernelMount::ext4(device.device(), &at("mnt"), &options)?;
    let mut kernel = Posix::new("kernel", &at("mnt"), Box::new(|| Ok(())))?;
    kernel
        .apply(&stetfs_testkit::world::op::Op::Sync)
        .context("sync")?;
    let mut copies = 0;
    for (i, op) in script.ops(variety.profile()).iter().enumerate() {
        if !matches!(op, stetfs_testkit::world::op::Op::Remount) {
            let _ = kernel.apply(op);
        }
        if i % 40 == 39 {
            // No sync: the device has what a power cut would leave.
            copy_of_moment(&at("image"), &at("ours"))?;
            fs::copy(at("ours"), at("theirs"))?;
            let target = Target::new("jbd2", Some("journal"), variety)?;
            let expected = at_rest(&at("theirs"), &dir.path().join("mnt2"), &options)?;
            let found = by_us(&at("ours"), &target, &dir.path().join("mnt2"))
                .with_context(|| format!("after step {i}"))?;
            equal(
                "the kernel",
                &without_ctimes(expected),
                "stetfs",
                &without_ctimes(found),
            )
            .with_context(|| format!("after step {i}"))?;
            copies += 1;
        }
    }
    kernel.close_all();
    mount.unmount()?;
    drop(device);
    ensure!(copies > 0, "the script is too short");
    Ok(())
}

/// Copies an image as it is at one moment: the kernel may write to it meanwhile, and then what was
/// copied first would be older than what was copied last.
fn copy_of_moment(image: &Path, copy: &Path) -> Result<()> {
    for _ in 0..100 {
        fs::copy(image, copy)?;
        if fs::read(image)? == fs::read(copy)? {
            return Ok(());
        }
    }
    bail!("the kernel writes to {} all the time", image.display());
}

fn at_rest(image: &Path, dir: &Path, options: &str) -> Result<tree::Tree> {
    fs::create_dir_all(dir)?;
    by_kernel(image, dir, options)
}

#[test]
fn we_replay_the_kernels_journal() {
    skip_unless!(needs(true, false, &["mke2fs", "e2fsck"]));
    let cases = [
        (EXT4_4K, ""),
        (EXT4_1K, ""),
        (NARROW, ""),
        (EXT4_PLAIN, ""),
        (EXT4_PLAIN, ",journal_checksum"),
        (EXT3_1K, ",journal_checksum"),
        (EXT3_1K, ",journal_async_commit"),
    ];
    let scripts = [Script::Revokes, Script::Random(12), Script::Orphans];
    for (i, (variety, more)) in cases.into_iter().enumerate() {
        let modes = jbd2().about.modes.iter().map(|mode| mode.name());
        for (j, mode) in modes.enumerate() {
            if mode == "ordered" && more.contains("async") {
                continue; // the kernel refuses these together
            }
            let script = scripts[(i + j) % scripts.len()];
            if let Err(error) = kernels_journal(variety, mode, more, script) {
                panic!("{} {mode}{more} {}: {error:#}", variety.name, script.name());
            }
        }
    }
}
