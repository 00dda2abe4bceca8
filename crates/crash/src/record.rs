//! One run of a workload on simulated media, with the model beside it.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::io::Errno;
use stetfs::AtomicFiles;
use stetfs_media::BlockDev;
use stetfs_scheme::DataPromise;

use super::caught::caught;
use super::media::Media;
use super::moment::Tapes;
use super::oracle::{Allowed, Oracle, Placed};
use super::target::Target;
use super::turns::{Order, Turns};
use super::workload::Workload;
use crate::media::contents::Contents;
use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::{Model, Rules, Synced};
use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::tree::{are_alike, differences};
use stetfs_testkit::world::{Outcome, Reply, World, moment};

/// Wraps the home device for the volume under test: with a device that lies, for tests of the
/// judge.
pub type Front<'a> = &'a (dyn Fn(Arc<dyn BlockDev>) -> Arc<dyn BlockDev> + Sync);

/// A run: every change of the media, and the states that the operations went through.
pub struct Record {
    /// What was run on.
    pub target: Target,
    /// Every change of the media.
    pub tapes: Tapes,
    /// The content of the media after the setup, or before the mount when there is no setup.
    pub start: Contents,
    /// The number of changes by then: the power is cut from there on.
    pub begin: u64,
    /// The allowed states: state n is the one after n operations.
    pub oracle: Oracle,
    /// The marks of each operation, and of the unmount at the end.
    marks: Vec<Mark>,
}

/// An operation of a run.
struct Mark {
    /// The number of changes of the media when it began.
    begun: u64,
    /// The number of changes when it returned.
    returned: u64,
    /// The state that is durable when it has returned.
    vouches: usize,
    /// The files whose data is durable when it has returned.
    synced: Synced,
}

/// While a group is open or has just ended, the volume shows something else than the model.
#[derive(Debug, thiserror::Error)]
#[error("after operation {number}, \"{line}\", others see of the group:\n{differences}")]
pub struct WrongTree {
    number: usize,
    line: String,
    differences: String,
}

/// An answer that differs from the model's.
#[derive(Debug, thiserror::Error)]
#[error("operation {number}, \"{line}\", answers {found}; the model says {expected}")]
pub struct WrongAnswer {
    number: usize,
    line: String,
    found: String,
    expected: String,
}

impl Record {
    /// Runs the workload on a volume with these contents, as [`Target::contents`] makes it, and
    /// unmounts the volume.
    ///
    /// # Errors
    /// [`WrongAnswer`], [`WrongTree`], [`Panicked`](super::caught::Panicked), or the volume cannot
    /// be mounted or unmounted.
    pub fn make(target: &Target, fresh: &Contents, workload: &Workload) -> Result<Self> {
        Self::make_behind(target, fresh, workload, None)
    }

    /// Does the same, with something in front of the device.
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
        let turns = Turns::new(workload.order);
        let mut shown = match workload.order {
            Order::InOrder => media.shown()?,
            Order::EachHandle | Order::Overlap(_) => media.shown_to(&turns)?,
        };
        if let Some(front) = front {
            shown.home = front(shown.home);
        }
        let mounted = target.mount(shown, target.options());
        let (mut library, _) = mounted.context("mounting")?;
        library.make_base().context("making the directory")?;
        let mut model = Model::new(Rules {
            groups: library.fs().promise() == DataPromise::Atomic,
            whole_max: library.fs().marked_write_max(),
            all_marked: library.fs().options().atomic == AtomicFiles::All,
            ..target.volume.rules()
        });
        model.set_time(moment(0));
        for (i, op) in workload.setup.iter().enumerate() {
            let expected = predict(&mut model, &library, op);
            agree(i, op, expected, library.apply(op)).context("in the setup")?;
        }
        let (begin, start) = if workload.setup.is_empty() {
            (0, fresh.clone())
        } else {
            library.fs().sync().context("syncing the setup")?;
            (media.changes(), media.contents())
        };
        let run = (&media, &mut library, &turns);
        Self::finish(target, run, model, workload, begin, start)
    }

    /// Goes on after a power cut that left `left`, which holds a state of the model: mounts the
    /// volume and carries out the operations. The power is cut from the end of the recovery on.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn go_on(
        target: &Target,
        left: &Contents,
        state: &Model,
        workload: &Workload,
    ) -> Result<Self> {
        caught(|| {
            let media = Media::new(left);
            let mounted = target.mount(media.shown()?, target.options());
            let (mut library, _) = mounted.context("mounting what was left")?;
            let mut model = state.clone();
            model.cut_off();
            let (begin, start) = (media.changes(), media.contents());
            let run = (&media, &mut library, &Turns::new(workload.order));
            Self::finish(target, run, model, workload, begin, start)
        })?
    }

    fn finish(
        target: &Target,
        (media, library, turns): (&Media, &mut Library, &Arc<Turns>),
        mut model: Model,
        workload: &Workload,
        begin: u64,
        start: Contents,
    ) -> Result<Self> {
        let promise = library.fs().promise();
        let Steps {
            states,
            between,
            mut marks,
        } = carry_out(workload, turns, media, &mut model, library)?;
        let begun = media.changes();
        library.unmount().context("unmounting")?;
        marks.push(Mark {
            begun,
            returned: media.changes(),
            vouches: workload.ops.len(),
            synced: Synced::All,
        });
        Ok(Self {
            target: target.clone(),
            tapes: media.tapes(),
            start,
            begin,
            oracle: Oracle::new(states, &between, promise),
            marks,
        })
    }

    /// Returns the states that a cut after `at` changes may leave: from the newest that an
    /// operation had made durable by then, to that of the last operation that had begun.
    pub fn allowed(&self, at: u64) -> Allowed {
        let begun = self.marks.partition_point(|mark| mark.begun <= at);
        let mut vouched = 0;
        let mut placed = Placed::default();
        for (state, mark) in (1..).zip(&self.marks) {
            if mark.returned <= at {
                vouched = vouched.max(mark.vouches);
                placed.note(mark.synced, state.min(self.marks.len() - 1));
            }
        }
        Allowed {
            // The last mark is that of the unmount, which changes nothing that can be seen.
            states: vouched..=begun.min(self.marks.len() - 1),
            placed,
        }
    }

    /// Returns the moments at which an operation returned and thereby acknowledged a newer state as
    /// durable.
    pub fn acknowledged(&self) -> impl Iterator<Item = u64> {
        let more = |&(before, mark): &(&Mark, &Mark)| mark.vouches > before.vouches;
        let pairs = self
            .marks
            .iter()
            .zip(self.marks.iter().skip(1))
            .filter(more);
        let returned = pairs.map(|(_, mark)| mark.returned);
        returned.filter(|at| (self.begin..=self.tapes.changes()).contains(at))
    }

    /// Returns the number of moments from the end of the setup to the end of the unmount.
    pub fn moments(&self) -> u64 {
        self.tapes.changes() - self.begin + 1
    }
}

/// Syncs and commits that may run at once, beside the operations of the first thread.
const SYNCS: usize = 3;

/// The steps of a run.
struct Steps {
    /// The state before the first operation, and that after each.
    states: Vec<Model>,
    /// For each operation the states that it goes through.
    between: Vec<Vec<Model>>,
    /// A mark for each operation.
    marks: Vec<Mark>,
}

/// Carries out the operations of a workload in its order.
fn carry_out(
    workload: &Workload,
    turns: &Arc<Turns>,
    media: &Media,
    model: &mut Model,
    library: &mut Library,
) -> Result<Steps> {
    let setup = model.steps();
    let data_apart = library.fs().promise().is_apart();
    let handle = library.fs().handle_write_max();
    let places_new = library.fs().terms().places_new;
    let mut states = vec![model.clone()];
    let mut between = Vec::new();
    let mut marks: Vec<Mark> = Vec::new();
    let returned = Mutex::new(Vec::new());
    let drained = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let drive = turns.drive();
        for (i, op) in workload.ops.iter().enumerate() {
            if turns.overlap() && turns.chance(30) {
                turns.until(SYNCS - 1);
                let (number, drained) = (turns.add(), &drained);
                let drain = library.drain();
                scope.spawn(move || {
                    let done = turns.run(number, || caught(|| drain.run()));
                    drained.lock().push(done);
                });
                turns.stop(Some(number));
            }
            let begun = media.changes();
            let mut before = model.clone();
            before.tick();
            let expected = predict(model, library, op);
            let mut most = usize::MAX;
            let mut returned_at = u64::MAX;
            let sync = turns.overlap().then(|| library.sync_op(op));
            match sync.flatten() {
                Some(Ok(sync)) => {
                    turns.until(SYNCS - 1);
                    let (number, returned) = (turns.add(), &returned);
                    scope.spawn(move || {
                        let done = turns.run(number, || {
                            let done = caught(|| sync.run());
                            (done, media.changes())
                        });
                        returned.lock().push((i, done));
                    });
                    turns.stop(Some(number));
                }
                _ => {
                    if matches!(op, Op::Remount | Op::Crash) {
                        turns.until(0);
                    }
                    let found = library.apply(op);
                    returned_at = media.changes();
                    most = taken(op, &before, &expected, &found, library)?;
                    let expected = match found {
                        _ if most == usize::MAX => expected,
                        Err(error) => {
                            *model = before.clone();
                            model.refuse(op, error)
                        }
                        Ok(_) => {
                            *model = before.clone();
                            model.apply_some(op, most)
                        }
                    };
                    agree(i, op, expected, found)?;
                }
            }
            marks.push(Mark {
                begun,
                returned: returned_at,
                vouches: model.vouched(data_apart).saturating_sub(setup),
                synced: model.synced(),
            });
            if before.has_group() || model.has_group() || most != usize::MAX {
                look(i, op, model, library)?;
            }
            between.push(before.between(op, handle, places_new, most));
            states.push(model.clone());
            if turns.overlap() && turns.chance(50) {
                turns.stop(None);
            }
        }
        turns.until(0);
        drop(drive);
        Ok::<_, anyhow::Error>(())
    })?;
    for done in drained.into_inner() {
        done?.context("committing and writing home in the background")?;
    }
    for (i, (done, at)) in returned.into_inner() {
        let found = done?.map_err(|error| error.kind().errno());
        if found == Err(Errno::STALE) {
            // The file was removed before its sync began, since nothing tells the library that it
            // is still in use. Such a sync makes nothing durable.
            continue;
        }
        agree(
            i,
            &workload.ops[i],
            Ok(Reply::Done),
            found.map(|()| Reply::Done),
        )?;
        marks[i].returned = at;
    }
    Ok(Steps {
        states,
        between,
        marks,
    })
}

/// No operation of a workload may be refused for lack of room while more blocks than this are free.
/// What counts as free may be kept for maps and for data that waits for a place.
const SPARE: u64 = 64;

/// Returns how many bytes of an operation happened, since the model knows neither how much a
/// transaction holds nor how much room there is: 0 if it was refused for that, `usize::MAX` if the
/// answer should be the model's.
fn taken(
    op: &Op,
    before: &Model,
    expected: &Outcome,
    found: &Outcome,
    library: &Library,
) -> Result<usize> {
    let is_refused = match (expected, found) {
        (_, Err(Errno::FBIG)) if is_in_group(op) => return Ok(0),
        (Ok(_), Err(Errno::NOSPC)) => true,
        (Ok(Reply::Count(wanted)), Ok(Reply::Count(taken))) => taken < wanted,
        _ => false,
    };
    if !is_refused || !before.needs_room(op) || library.room()? > SPARE {
        return Ok(usize::MAX);
    }
    match found {
        Ok(Reply::Count(taken)) => Ok(*taken),
        _ => Ok(0),
    }
}

fn is_in_group(op: &Op) -> bool {
    matches!(
        op,
        Op::GroupDo(_) | Op::GroupWrite { .. } | Op::GroupCommit { .. }
    )
}

/// Applies an operation to the model, at the library's time, and returns the model's answer.
fn predict(model: &mut Model, library: &Library, op: &Op) -> Outcome {
    library.set_time(model.tick());
    model.apply(op)
}

/// Checks what others see of a group: nothing before its commit, all of it afterwards.
fn look(number: usize, op: &Op, model: &Model, library: &Library) -> Result<()> {
    let (expected, seen) = (model.tree(), library.tree()?);
    if are_alike(&expected, &seen) {
        return Ok(());
    }
    bail!(WrongTree {
        number: number + 1,
        line: op.to_string(),
        differences: differences(&expected, &seen).join("\n"),
    })
}

fn agree(number: usize, op: &Op, expected: Outcome, found: Outcome) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    bail!(WrongAnswer {
        number: number + 1,
        line: op.to_string(),
        found: format!("{found:?}"),
        expected: format!("{expected:?}"),
    })
}
