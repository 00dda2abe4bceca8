//! One run of a workload on simulated media, with the model beside it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use stetfs_media::BlockDev;

use super::caught::caught;
use super::media::{Contents, Media};
use super::moment::Tapes;
use super::oracle::Oracle;
use super::target::Target;
use super::workload::Workload;
use crate::world::library::Library;
use crate::world::model::Model;
use crate::world::{World, moment};

/// Something in front of the home device, through which the volume under test sees it: a liar, for tests of the judge.
pub type Front<'a> = &'a (dyn Fn(Arc<dyn BlockDev>) -> Arc<dyn BlockDev> + Sync);

/// A run: every change of the media, and the states that the operations went through.
pub struct Record {
    /// What was run on.
    pub target: Target,
    /// Every change of the media.
    pub tapes: Tapes,
    /// What the media held when the setup was durable, or before the mount when there is no setup.
    pub start: Contents,
    /// How many changes there had been then: the power is cut from there on.
    pub begin: u64,
    /// What may be found: state n is that after n operations.
    pub oracle: Oracle,
    /// Of each operation, and of the unmount at the end: how many changes there had been when it began and when it returned.
    marks: Vec<(u64, u64)>,
    /// After so many operations, the newest state that was vouched for.
    vouched: Vec<usize>,
}

/// An answer that is not the model's.
#[derive(Debug, thiserror::Error)]
#[error("operation {number}, \"{line}\", answers {found}; the model says {expected}")]
pub struct WrongAnswer {
    number: usize,
    line: String,
    found: String,
    expected: String,
}

impl Record {
    /// Runs the workload on a volume with these contents, as [`Target::contents`] makes it, and unmounts it.
    ///
    /// # Errors
    /// [`WrongAnswer`], [`Panicked`](super::caught::Panicked), or the volume cannot be mounted or unmounted.
    pub fn make(target: &Target, fresh: &Contents, workload: &Workload) -> Result<Self> {
        Self::make_behind(target, fresh, workload, None)
    }

    /// The same behind something in front of the device.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_behind(
        target: &Target,
        fresh: &Contents,
        workload: &Workload,
        front: Option<Front<'_>>,
    ) -> Result<Self> {
        caught(|| Self::run(target, fresh, workload, front))?
    }

    fn run(
        target: &Target,
        fresh: &Contents,
        workload: &Workload,
        front: Option<Front<'_>>,
    ) -> Result<Self> {
        let media = Media::new(fresh);
        let mut shown = media.shown()?;
        if let Some(front) = front {
            shown.home = front(shown.home);
        }
        let (mut library, _) = Library::mount(shown, target.options()).context("mounting")?;
        let promise = library.fs().data_promise();
        let mut model = Model::new(target.volume.rules());
        model.set_time(moment(0));
        for (i, op) in workload.setup.iter().enumerate() {
            apply(&mut model, &mut library, i, op).context("in the setup")?;
        }
        let (begin, start) = match workload.setup.is_empty() {
            true => (0, fresh.clone()),
            false => {
                library.fs().sync().context("syncing the setup")?;
                (media.changes(), media.contents())
            }
        };
        let done = model.steps();
        let mut states = vec![model.clone()];
        let (mut marks, mut vouched) = (Vec::new(), vec![0]);
        for (i, op) in workload.ops.iter().enumerate() {
            let before = media.changes();
            apply(&mut model, &mut library, i, op)?;
            marks.push((before, media.changes()));
            vouched.push(model.vouched().saturating_sub(done));
            states.push(model.clone());
        }
        let before = media.changes();
        library.unmount().context("unmounting")?;
        marks.push((before, media.changes()));
        vouched.push(workload.ops.len());
        Ok(Self {
            target: target.clone(),
            tapes: media.tapes(),
            start,
            begin,
            oracle: Oracle::new(states, promise),
            marks,
            vouched,
        })
    }

    /// The states that a cut after `at` changes may leave: from the newest that was vouched for before it to
    /// that of the last operation that had begun.
    pub fn allowed(&self, at: u64) -> RangeInclusive<usize> {
        let begun = self.marks.partition_point(|(before, _)| *before <= at);
        let returned = self.marks.partition_point(|(_, after)| *after <= at);
        // The last mark is the unmount's, which changes nothing that can be seen.
        self.vouched[returned]..=begun.min(self.marks.len() - 1)
    }

    /// Moments from the end of the setup to the end of the unmount.
    pub fn moments(&self) -> u64 {
        self.tapes.changes() - self.begin + 1
    }
}

fn apply(
    model: &mut Model,
    library: &mut Library,
    number: usize,
    op: &crate::world::op::Op,
) -> Result<()> {
    let now = moment(model.steps());
    model.set_time(now);
    library.set_time(now);
    let (expected, found) = (model.apply(op), library.apply(op));
    if expected != found {
        bail!(WrongAnswer {
            number: number + 1,
            line: op.to_string(),
            found: format!("{found:?}"),
            expected: format!("{expected:?}"),
        });
    }
    Ok(())
}
