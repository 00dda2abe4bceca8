//! A recording of `stetfs crash --keep FILE -- PROGRAM`: the program's own calls with their bytes,
//! attributes and groups.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use stetfs_format::InodeNo;
use stetfs_powercut::call::{Recording, What};
use stetfs_powercut::model::Had;
use stetfs_powercut::player::{self, Player};
use stetfs_powercut::record::Saved;
use stetfs_powercut::tree::{Object, Tree};

use super::pace::{Pace, Waits};
use crate::workload::contract::Workload;
use crate::workload::session::{Counts, Session};

/// A recording as a workload. It is an error if the volume does not hold at the end what the
/// program had left.
pub struct Recorded {
    name: String,
    recording: Recording,
    pace: Pace,
    /// The inodes of what was there before; `None` until that is made.
    inodes: Mutex<Option<BTreeMap<Object, InodeNo>>>,
}

impl Recorded {
    /// Reads a recording.
    ///
    /// # Errors
    /// The file is no recording.
    pub fn read(path: &Path, pace: Pace) -> Result<Self> {
        let name = path.display().to_string();
        let saved = Saved::read(path).with_context(|| name.clone())?;
        ensure!(
            !saved.recording.calls.is_empty(),
            "{name}: the program made no calls"
        );
        Ok(Self {
            name,
            recording: saved.recording,
            pace,
            inodes: Mutex::new(None),
        })
    }
}

/// Returns when a call was made.
fn time((seconds, nanos): (i64, u32)) -> Option<Duration> {
    Some(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

impl Workload for Recorded {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        let inodes = self.recording.before.write(session.fs());
        let inodes = inodes.context("writing what was there before the program")?;
        *self.inodes.lock() = Some(inodes);
        Ok(())
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let inodes = self.inodes.lock().clone();
        let inodes = inodes.context("nothing was prepared")?;
        let calls = &self.recording.calls;
        let clock = Waits::new(self.pace, time(calls[0].time), session);
        let mut player = Player::new(session.fs(), &self.recording, inodes, player::Pace::AtSyncs);
        for (number, call) in calls.iter().enumerate() {
            clock.wait(time(call.time), session)?;
            let done = player.play(number, &call.what);
            done.with_context(|| self.recording.line(number))?;
            if session.syncs_each_write() && matches!(call.what, What::Write { .. }) {
                session.sync()?;
            }
            session.was_called(counts(&call.what))?;
            session.tell(number as u64 + 1, calls.len() as u64);
        }
        Ok(())
    }

    fn is_judged(&self) -> bool {
        true
    }

    fn judge(&self, session: &mut Session<'_>) -> Result<()> {
        let (there, _) = Tree::read(session.fs())?;
        let differ = there.differences(&Had::new(&self.recording).at_the_end());
        ensure!(
            differ.is_empty(),
            "the volume does not hold what the program left: {}",
            differ.join(", ")
        );
        Ok(())
    }
}

/// Counts a call; a promise to the outside counts as nothing.
fn counts(what: &What) -> Counts {
    let written = |what: &What| match what {
        What::Write { bytes, .. } => bytes.0.len() as u64,
        _ => 0,
    };
    let of = |operations, written_bytes| Counts {
        operations,
        written_bytes,
        ..Counts::default()
    };
    match what {
        What::Mark { .. } => of(0, 0),
        What::Group { steps } => {
            let bytes = steps.iter().map(|step| written(&step.what)).sum();
            of(steps.len() as u64, bytes)
        }
        what => of(1, written(what)),
    }
}
