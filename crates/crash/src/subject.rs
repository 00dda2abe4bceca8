//! Recovers a state, reads it, checks its structure, and writes to it.

use std::io;

use anyhow::{Context, Result, ensure};
use stetfs_check::{Checker, FnSource};
use stetfs_media::{BlockDev, Class, Tag};
use stetfs_scheme::RecoveryCase;

use super::caught::caught;
use super::media::Media;
use super::moment::Tapes;
use super::oracle::{Allowed, Observation, Oracle};
use super::report::Fault;
use super::second::Second;
use super::target::Target;
use super::watch::Watched;
use crate::media::contents::Contents;
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
    second: Second,
}

impl Subject {
    /// A subject for this target.
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            checker: Checker::keeping(10),
            uses: uses(),
            second: Second::default(),
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

    /// The opinions of e2fsck.
    pub fn second(&mut self) -> &mut Second {
        &mut self.second
    }

    /// Recovers a state and judges it, also by e2fsck.
    ///
    /// # Errors
    /// e2fsck cannot be run.
    pub fn judge(
        &mut self,
        left: &Contents,
        oracle: &Oracle,
        allowed: &Allowed,
    ) -> Result<Result<usize, (Fault, String)>> {
        let recovery = self.recover(left);
        if let (Some(recovered), Some(ours)) = (&recovery.recovered, &recovery.outcome.structure)
            && let Err(why) = self.second.opinion(recovered, ours)?
        {
            return Ok(Err((Fault::Disagreement, why)));
        }
        let judged = recovery.outcome.judge(oracle, allowed);
        if let (Ok(_), Some(seen)) = (&judged, &recovery.outcome.seen)
            && let Some(Err(why)) = self.second.replay(&self.target, left, seen)?
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
