//! Power cuts of volumes on a flash translation layer: in the middle of programs and erases of file data, of the log, of remaps, of garbage
//! collection and of the layer's own map. What is left is mounted, compared with the states that the scheme's promise allows, and shown to
//! e2fsck.
//!
//! `STETFS_LAB_CUTS=N` visits at most N moments of each workload (default 40; 0: all).
#![forbid(unsafe_code)]

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use stetfs::MountOptions;
use stetfs_ftl::{Ftl, FtlOptions};
use stetfs_lab::crash::oracle::{Observation, Oracle};
use stetfs_lab::crash::target::Target;
use stetfs_lab::crash::workloads::script::Script;
use stetfs_lab::host::{needs, scratch};
use stetfs_lab::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety, check};
use stetfs_lab::rng::Rng;
use stetfs_lab::skip_unless;
use stetfs_lab::world::World;
use stetfs_lab::world::library::Library;
use stetfs_lab::world::model::Model;
use stetfs_lab::world::op::Op;
use stetfs_media::nand::{NandGeometry, NandPart, NandSim, parts};
use stetfs_media::{BlockDev, Cause, Class, Image, Tag};

/// The paper's part with just enough blocks for the volume, so that garbage is collected all the time.
const PART: NandPart = NandPart {
    geometry: NandGeometry {
        blocks: 960,
        ..parts::JFTL.geometry
    },
    ..parts::JFTL
};

fn cuts() -> u64 {
    let given = std::env::var("STETFS_LAB_CUTS").ok();
    match given.and_then(|n| n.parse().ok()) {
        None => 40,
        Some(0) => u64::MAX,
        Some(n) => n,
    }
}

/// A part with a layer that holds the volume.
fn part_with(volume: &Image) -> Result<Arc<NandSim>> {
    let nand = Arc::new(NandSim::new(PART));
    let ftl = Ftl::create(
        nand.clone(),
        [9; 16],
        &FtlOptions::default(),
        Default::default(),
    )?;
    ensure!(volume.size() <= ftl.size(), "it has {} bytes", ftl.size());
    let mut chunk = [0; 4096];
    for at in (0..volume.size()).step_by(chunk.len()) {
        volume.read(at, &mut chunk);
        if chunk.iter().any(|&byte| byte != 0) {
            ftl.write_at(at, &chunk, Tag::new(Class::Data, Cause::Home))?;
        }
    }
    ftl.flush(Cause::Home)?;
    Ok(nand)
}

/// A run: the part with its tape, and what may be found at each moment.
struct Run {
    nand: Arc<NandSim>,
    oracle: Oracle,
    begin: u64,
    /// Of each operation: changes when it began and when it returned, and the newest state vouched for then.
    marks: Vec<(u64, u64, usize)>,
}

impl Run {
    fn record(target: &Target, volume: &Image, ops: &[Op]) -> Result<Self> {
        let aged = part_with(volume)?.image();
        let nand = Arc::new(NandSim::from_image(&Default::default(), aged)?);
        let ftl = Arc::new(Ftl::mount(nand.clone(), Default::default())?);
        let (mut library, _) = Library::mount_as_it_is(ftl, target.options())?;
        let promise = library.fs().data_promise();
        let begin = nand.changes();
        let mut model = Model::new(target.volume.rules());
        let mut states = vec![model.clone()];
        let mut marks = Vec::new();
        for op in ops.iter().filter(|op| **op != Op::Remount) {
            let before = nand.changes();
            let (expected, found) = (model.apply(op), library.apply(op));
            ensure!(expected == found, "{op}: {found:?}, not {expected:?}");
            marks.push((before, nand.changes(), model.vouched()));
            states.push(model.clone());
        }
        Ok(Self {
            nand,
            oracle: Oracle::new(states, promise),
            begin,
            marks,
        })
    }

    fn allowed(&self, at: u64) -> RangeInclusive<usize> {
        let begun = self.marks.partition_point(|(before, ..)| *before <= at);
        let returned = self.marks.partition_point(|(_, after, _)| *after <= at);
        let vouched = returned.checked_sub(1).map_or(0, |n| self.marks[n].2);
        vouched..=begun
    }
}

/// Mounts what is left, looks, unmounts, and has e2fsck look.
fn judge(
    nand: NandSim,
    options: MountOptions,
    size: u64,
    file: &Path,
    oracle: &Oracle,
    allowed: &RangeInclusive<usize>,
) -> Result<()> {
    let ftl = Ftl::mount(Arc::new(nand), Default::default()).context("mounting the layer")?;
    let ftl = Arc::new(ftl);
    let (mut library, _) = Library::mount_as_it_is(ftl.clone(), options).context("mounting")?;
    let seen = Observation::of(&library)?;
    oracle.judge(&seen, allowed)?;
    library.unmount().context("unmounting")?;
    let mut content = vec![0; size as usize];
    ftl.read_at(0, &mut content, Tag::read(Class::Data))?;
    fs::write(file, content)?;
    check(file)
}

fn survives(options: &str, volume: Variety, script: Script) {
    skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
    let fresh = Target::new("jbd2", None, volume).and_then(|target| target.contents());
    let fresh = fresh.expect("a volume");
    let target = Target::new("jftl", Some(options), volume).expect("a target");
    let ops = script.ops(volume.profile());
    let run = Run::record(&target, fresh.home(), &ops);
    let run = run.unwrap_or_else(|error| panic!("{}: {error:#}", script.name()));
    let dir = scratch().expect("a directory");
    let (file, size) = (dir.path().join("left"), fresh.home().size());
    let tape = run.nand.tape();
    let end = run.nand.changes();
    let step = (end - run.begin).div_ceil(cuts()).max(1);
    let mut points = tape.crash_points();
    let (mut moments, mut states) = (0, 0);
    let start = run.begin + Rng::new(end).below(step);
    for at in (start..=end).step_by(step as usize) {
        let point = points.at_moment(at);
        let allowed = run.allowed(at);
        moments += 1;
        for &outcome in point.outcomes() {
            let left = point.crash(outcome);
            let judged = judge(left, target.options(), size, &file, &run.oracle, &allowed);
            states += 1;
            if let Err(error) = judged {
                panic!(
                    "{target} {}: cut after {at} changes, the one in flight {outcome:?}, states {allowed:?}: {error:#}",
                    script.name()
                );
            }
        }
    }
    println!(
        "{target} {}: {states} states at {moments} of {} moments",
        script.name(),
        end - run.begin + 1
    );
}

#[test]
fn jftl_in_journal_mode() {
    survives("journal", EXT4_1K, Script::LogAndReplace);
    survives("journal", EXT4_1K, Script::Revokes);
    survives("journal", EXT4_4K, Script::Random(31));
    survives("journal", EXT3_1K, Script::Orphans);
}

#[test]
fn jftl_in_ordered_mode() {
    survives("ordered", EXT4_1K, Script::Overwrites);
    survives("ordered", EXT4_1K, Script::Random(32));
}

#[test]
fn the_block_journal_on_flash() {
    survives("journal,remap=off", EXT4_1K, Script::LogAndReplace);
    survives("ordered,remap=off", EXT4_1K, Script::Revokes);
}
