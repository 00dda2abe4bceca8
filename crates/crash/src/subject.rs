//! Recovers a state, reads it, checks its structure, and writes to it.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use stetfs_check::{Checker, FnSource};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock};
use stetfs_media::{BlockDev, Class, Image, Tag};
use stetfs_scheme::RecoveryCase;

use super::caught::caught;
use super::media::Media;
use super::moment::Tapes;
use super::oracle::{Allowed, Observation, Oracle};
use super::report::Fault;
use super::target::Target;
use super::watch::Watched;
use crate::media::contents::Contents;
use crate::media::kind::Kind;
use stetfs_testkit::world::op::{Durable, Op, Payload};
use stetfs_testkit::world::{Reply, World};

/// The outcome of a state. It depends only on the bytes that were read.
pub struct Outcome {
    /// The fault that is one whatever the volume should hold.
    pub broken: Option<(Fault, String)>,
    /// The content of the volume; `None` when it could not be recovered.
    pub seen: Option<Observation>,
    /// Our checker's verdict on the recovered volume; `None` when there is no such volume.
    pub structure: Option<Result<(), String>>,
}

impl Outcome {
    /// Returns the reason why it is wrong, whatever the volume should hold.
    pub fn broken(&self) -> Option<(Fault, String)> {
        self.broken.clone().or_else(|| match &self.structure {
            Some(Err(why)) => Some((Fault::Structure, why.clone())),
            _ => None,
        })
    }

    /// Returns the allowed state that it is.
    ///
    /// # Errors
    /// The fault, and the reason.
    pub fn judge(&self, oracle: &Oracle, allowed: &Allowed) -> Result<usize, (Fault, String)> {
        match (self.broken(), &self.seen) {
            (Some(broken), _) => Err(broken),
            (None, Some(seen)) => oracle
                .judge(seen, allowed)
                .map_err(|why| (Fault::Contents, format!("{why:#}"))),
            (None, None) => unreachable!("a volume that was not seen is broken"),
        }
    }
}

/// A recovery, and what it did.
pub struct Recovery {
    /// The outcome of the state.
    pub outcome: Outcome,
    /// The units that were read and written.
    pub watched: Watched,
    /// The changes from the mount to the unmount, in which the power can be cut again.
    pub tapes: Tapes,
    /// Cases of the scheme's recovery table that the mount reached.
    pub reached: Vec<&'static RecoveryCase>,
    /// The media after the unmount; `None` when it did not come to that.
    pub recovered: Option<Contents>,
}

/// Recovers states of one target.
pub struct Subject {
    target: Target,
    checker: Checker,
    uses: Vec<Op>,
}

impl Subject {
    /// A subject for this target.
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            checker: Checker::keeping(10),
            uses: uses(),
        }
    }

    /// Mounts the volume, which recovers it; reads it, unmounts it, and checks it. Then mounts it
    /// again, writes, and checks it once more. A panic on the way is a fault too.
    pub fn recover(&mut self, left: &Contents) -> Recovery {
        let media = Media::new(left);
        let mut steps = Steps::default();
        let broken = match caught(|| self.run(&media, &mut steps)) {
            Ok(Ok(())) => None,
            Ok(Err((fault, error))) => Some((fault, format!("{error:#}"))),
            Err(panicked) => Some((Fault::Panic, panicked.to_string())),
        };
        Recovery {
            outcome: Outcome {
                broken,
                seen: steps.seen,
                structure: steps.structure,
            },
            watched: media.watched(),
            reached: steps.reached,
            tapes: steps.tapes.unwrap_or_else(|| media.tapes()),
            recovered: steps.recovered,
        }
    }

    /// Recovers a state and judges it, also by e2fsck; `scratch` is a file for e2fsck.
    ///
    /// # Errors
    /// e2fsck cannot be run.
    pub fn judge(
        &mut self,
        left: &Contents,
        oracle: &Oracle,
        allowed: &Allowed,
        scratch: &Path,
    ) -> Result<Result<usize, (Fault, String)>> {
        let recovery = self.recover(left);
        if let (Some(recovered), Some(ours)) = (&recovery.recovered, &recovery.outcome.structure)
            && let Err(why) = second_opinion(recovered, ours, scratch)?
        {
            return Ok(Err((Fault::Disagreement, why)));
        }
        let judged = recovery.outcome.judge(oracle, allowed);
        if let (Ok(_), Some(seen)) = (&judged, &recovery.outcome.seen)
            && let Some(Err(why)) = second_replay(&self.target, left, seen, scratch)?
        {
            return Ok(Err((Fault::Replay, why)));
        }
        Ok(judged)
    }

    fn run(&mut self, media: &Media, steps: &mut Steps) -> Result<(), (Fault, anyhow::Error)> {
        let recovery = |error: anyhow::Error| (Fault::Recovery, error);
        let shown = media.shown_watched().map_err(recovery)?;
        let options = self.target.judging_options();
        let mounted = self.target.mount(shown.clone(), options.clone());
        steps.reached = match &mounted {
            Ok((_, report)) => report.recovery.reached.clone(),
            Err(_) => RecoveryCase::last_reached(),
        };
        let (mut library, _) = mounted
            .context("mounting what was left")
            .map_err(recovery)?;
        let seen = Observation::of(&library).map_err(recovery)?;
        library
            .unmount()
            .context("unmounting what was recovered")
            .map_err(recovery)?;
        steps.tapes = Some(media.tapes());
        steps.seen = Some(seen);
        steps.recovered = Some(media.contents());
        let structure = check(&mut self.checker, &*shown.home);
        steps.structure = Some(structure.clone());
        if structure.is_err() {
            // The oracle's caller reports damage, beside e2fsck's opinion. What comes after damage
            // means nothing.
            return Ok(());
        }
        drop(shown);
        self.use_it(media, options)
            .map_err(|error| (Fault::Use, error))
    }

    /// Writes to the recovered volume and reads it back.
    fn use_it(&mut self, media: &Media, options: stetfs::MountOptions) -> Result<()> {
        let shown = media.shown_watched()?;
        let (mut library, report) = self
            .target
            .mount(shown.clone(), options)
            .context("mounting again")?;
        ensure!(
            !report.recovery.was_needed,
            "recovery was needed after a clean unmount"
        );
        if library.room()? < USE_BLOCKS {
            library.fill(USE_BLOCKS).context("making room")?;
        }
        for op in &self.uses {
            library
                .apply(op)
                .with_context(|| format!("after recovery, {op}"))?;
        }
        let read = library.apply(&READ);
        let right = Ok(Reply::Bytes(PAYLOAD.bytes()));
        ensure!(read == right, "after recovery, {READ} gives {read:?}");
        library.unmount().context("unmounting again")?;
        check(&mut self.checker, &*shown.home)
            .map_err(|why| anyhow::anyhow!("after recovery and use: {why}"))
    }
}

#[derive(Default)]
struct Steps {
    reached: Vec<&'static RecoveryCase>,
    seen: Option<Observation>,
    tapes: Option<Tapes>,
    recovered: Option<Contents>,
    structure: Option<Result<(), String>>,
}

/// Blocks that must be free for the use of a recovered volume.
const USE_BLOCKS: u64 = 64;

const PAYLOAD: Payload = Payload {
    seed: 77,
    len: 6000,
};

const READ: Op = Op::Read {
    slot: 0,
    offset: 100,
    len: PAYLOAD.len,
};

/// Returns the operations that a recovered volume must take.
fn uses() -> Vec<Op> {
    let dir = "after-the-crash";
    let path = |name: &str| format!("{dir}/{name}");
    let create = |name| Op::Create {
        path: path(name),
        mode: 0o600,
        exclusive: true,
    };
    vec![
        Op::Mkdir {
            path: dir.into(),
            mode: 0o755,
        },
        create("f"),
        Op::Open {
            slot: 0,
            path: path("f"),
            truncate: false,
        },
        Op::Write {
            slot: 0,
            offset: 100,
            payload: PAYLOAD,
            durable: Durable::No,
        },
        Op::Fsync { slot: 0 },
        create("g"),
        Op::Unlink { path: path("g") },
    ]
}

/// Returns our checker's verdict.
fn check(checker: &mut Checker, dev: &dyn BlockDev) -> Result<(), String> {
    let read = |offset: u64, out: &mut [u8]| {
        dev.read_bytes_at(offset, out, Tag::read(Class::Data))
            .map_err(io::Error::other)
    };
    let report = checker.check(&FnSource::new(dev.size(), read));
    if report.is_clean() {
        Ok(())
    } else {
        Err(report.to_string())
    }
}

/// Lets e2fsck replay the journal of a state instead of us, and compares the volume with `ours`,
/// the result of our recovery. Orphans are left to our mount in both. Returns `None` when e2fsck
/// cannot replay the journal: the volume is no plain one with JBD2's journal, or its superblock or
/// its newest commit record is torn.
///
/// # Errors
/// The file cannot be written or read, or e2fsck cannot be run.
pub fn second_replay(
    target: &Target,
    left: &Contents,
    ours: &Observation,
    file: &Path,
) -> Result<Option<Result<(), String>>> {
    let is_jbd2 = target.lower.is_none() && target.scheme.is_jbd2(&target.scheme_options());
    if !is_jbd2 || target.home != Kind::Block {
        return Ok(None);
    }
    let volume = left.volume()?;
    if stetfs_testkit::image::superblock_is_torn(&volume) {
        return Ok(None);
    }
    volume.to_file(file).context("an image for e2fsck")?;
    if let Err(error) = stetfs_testkit::image::replay(file) {
        return Ok(Some(Err(format!("{error:#}"))));
    }
    let replayed = Image::from_file(file)?;
    if has_errors(&replayed)? {
        return Ok(None);
    }
    let replayed = Contents::of_block_device(replayed);
    Ok(Some(
        compare(target, &replayed, ours).map_err(|error| format!("{error:#}")),
    ))
}

/// True if e2fsck reports a corrupt transaction. It does so for a torn commit record, which counts
/// as never written to us. It then forgets the orphans.
fn has_errors(volume: &Image) -> Result<bool> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    volume.read(SUPERBLOCK_OFFSET, &mut raw);
    let superblock = Superblock::decode(&raw).context("what e2fsck has replayed")?;
    Ok(superblock.state.contains(State::ERROR))
}

/// Mounts the volume that e2fsck has replayed, and compares it with `ours`.
fn compare(target: &Target, replayed: &Contents, ours: &Observation) -> Result<()> {
    let shown = Media::new(replayed).shown()?;
    let (library, _) = target
        .mount(shown, target.options())
        .context("mounting what e2fsck has replayed")?;
    let seen = Observation::of(&library)?;
    let differ = seen.differences_from(ours);
    ensure!(
        differ.is_empty(),
        "where e2fsck has replayed the journal, and expected as we have replayed it:\n{}",
        differ.join("\n")
    );
    Ok(())
}

/// Returns e2fsck's opinion of a volume, as an error where it differs from `ours`, our checker's
/// verdict.
///
/// # Errors
/// The file cannot be written, or e2fsck cannot be run.
pub fn second_opinion(
    recovered: &Contents,
    ours: &Result<(), String>,
    file: &Path,
) -> Result<Result<(), String>> {
    let volume = match recovered.volume() {
        Ok(volume) => volume,
        // For example a part with a lost page that nobody has read so far.
        Err(error) => {
            return Ok(Err(format!(
                "the recovered volume cannot be read: {error:#}"
            )));
        }
    };
    volume.to_file(file).context("an image for e2fsck")?;
    let theirs = stetfs_testkit::image::check(file).map_err(|error| format!("{error:#}"));
    Ok(match (ours, theirs) {
        (Ok(()), Ok(())) | (Err(_), Err(_)) => Ok(()),
        (Ok(()), Err(theirs)) => Err(format!("our checker finds nothing, but {theirs}")),
        (Err(ours), Ok(())) => Err(format!("e2fsck -fn finds nothing, but our checker: {ours}")),
    })
}
