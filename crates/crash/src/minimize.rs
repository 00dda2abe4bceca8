//! Finds the smallest workload that still fails in the same way, and the simplest state in which it
//! does.
//!
//! It drops operations in halves, quarters and so on down to single ones (Zeller, Hildebrandt, IEEE
//! Trans. Software Engineering 28(2), 2002): first those in which the power is cut, then those of
//! the setup. Then it looks for the simplest failing state of the remaining workload: a single cut
//! before a double one, everything or nothing before a prefix, a prefix before any other set; and
//! of such a set as few pieces as possible.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use stetfs_media::sim::Keep;

use super::case::{Case, Cut};
use super::explore::{Findings, Wrong, explore};
use super::record::{Front, Record};
use super::report::Fault;
use super::states::{self, Effort};
use super::subject::Subject;
use super::target::Target;
use super::workload::Workload;
use crate::media::contents::Contents;
use stetfs_testkit::world::op::Op;

/// Explores candidates until the deadline.
pub(super) struct Minimizer<'a> {
    pub(super) target: &'a Target,
    pub(super) fresh: &'a Contents,
    pub(super) front: Option<Front<'a>>,
    pub(super) effort: Effort,
    pub(super) deadline: Instant,
}

impl Minimizer<'_> {
    /// Returns the smallest case that was found to fail with `fault`, and how it then fails. `None`
    /// when the workload was not found to fail so within the deadline.
    ///
    /// # Errors
    /// e2fsck cannot be run.
    pub(super) fn minimize(
        &self,
        workload: &Workload,
        fault: Fault,
    ) -> Result<Option<(Case, Wrong)>> {
        let mut subject = Subject::new(self.target);
        let mut best = workload.clone();
        let mut found = None;
        if let Some(wrong) = self.fails(&best, fault, &mut subject)? {
            found = Some(wrong);
            self.drop_ops(&mut best, Part::Ops, fault, &mut found, &mut subject)?;
            self.drop_ops(&mut best, Part::Setup, fault, &mut found, &mut subject)?;
        }
        let Some(wrong) = found else { return Ok(None) };
        if best != *workload {
            best.name = "minimized".to_owned();
        }
        let mut case = Case {
            target: self.target.clone(),
            workload: best,
            cut: wrong.cut.clone(),
            nested: wrong.nested.clone(),
            then: None,
        };
        let wrong = self.simplify_state(&mut case, wrong, &mut subject)?;
        Ok(Some((case, wrong)))
    }

    /// Drops runs of operations as long as the rest fails in the same way.
    fn drop_ops(
        &self,
        best: &mut Workload,
        part: Part,
        fault: Fault,
        found: &mut Option<Wrong>,
        subject: &mut Subject,
    ) -> Result<()> {
        let mut run = part.of(best).len().div_ceil(2);
        while run > 0 {
            let mut at = 0;
            while at < part.of(best).len() {
                if Instant::now() > self.deadline {
                    return Ok(());
                }
                let mut candidate = best.clone();
                let ops = part.of(&mut candidate);
                let end = (at + run).min(ops.len());
                ops.drain(at..end);
                match self.fails(&candidate, fault, subject)? {
                    Some(wrong) => {
                        *best = candidate;
                        *found = Some(wrong);
                    }
                    None => at += run,
                }
            }
            run /= 2;
        }
        Ok(())
    }

    /// Returns the simplest state in which a workload fails with `fault`.
    fn fails(
        &self,
        workload: &Workload,
        fault: Fault,
        subject: &mut Subject,
    ) -> Result<Option<Wrong>> {
        if workload.ops.is_empty() {
            return Ok(None);
        }
        let made = Record::make_behind(self.target, self.fresh, workload, self.front);
        let record = match made {
            Ok(record) => record,
            Err(error) => {
                let wrong = Wrong::without_cut(&error);
                return Ok((wrong.fault == fault).then_some(wrong));
            }
        };
        let effort = Effort {
            chains: 0,
            ..self.effort.fitted(workload, self.target)
        };
        let go_on = &mut |_: &_| Instant::now() <= self.deadline;
        let all = (effort, states::Part::WHOLE);
        let Findings { wrong, .. } = explore(&record, workload, all, subject, go_on)?;
        Ok(wrong.into_iter().find(|wrong| wrong.fault == fault))
    }

    /// Removes pieces from the sets that the cuts keep or lose, as long as the case fails in the
    /// same way.
    fn simplify_state(
        &self,
        case: &mut Case,
        wrong: Wrong,
        subject: &mut Subject,
    ) -> Result<Wrong> {
        let (Some(cut), Ok(record)) = (
            case.cut.clone(),
            Record::make_behind(self.target, self.fresh, &case.workload, self.front),
        ) else {
            return Ok(wrong);
        };
        let Some(moment) = record.tapes.moment(cut.at) else {
            return Ok(wrong);
        };
        let pieces: Vec<usize> = moment.relevant().iter().map(|piece| piece.number).collect();
        let mut best = wrong;
        for keep in simpler(&cut.keep, &pieces) {
            if Instant::now() > self.deadline {
                break;
            }
            let tried = Cut { at: cut.at, keep };
            let candidate = Case {
                cut: Some(tried.clone()),
                ..case.clone()
            };
            let Ok(replayed) = candidate.replay_on(&record, &tried, subject) else {
                continue;
            };
            if let Some((fault, why)) = replayed.wrong
                && fault == best.fault
            {
                *case = candidate;
                best = Wrong {
                    why,
                    cut: Some(tried),
                    ..best
                };
                break;
            }
        }
        Ok(best)
    }
}

/// Returns rules that are easier to understand than `keep`, the simplest first.
fn simpler(keep: &Keep, pieces: &[usize]) -> Vec<Keep> {
    let rank = |keep: &Keep| match keep {
        Keep::All | Keep::None => 0,
        Keep::First(_) => 1,
        Keep::Without(those) | Keep::Only(those) => 1 + those.len(),
        Keep::Random(_) => usize::MAX,
    };
    let kept: BTreeSet<usize> = pieces.iter().copied().filter(|n| keep.keeps(*n)).collect();
    let lost: BTreeSet<usize> = pieces.iter().copied().filter(|n| !keep.keeps(*n)).collect();
    let one = |a: &usize| BTreeSet::from([*a]);
    let mut choices = vec![Keep::All, Keep::None];
    choices.extend(pieces.iter().skip(1).map(|n| Keep::First(*n)));
    choices.extend(pieces.iter().map(|n| Keep::Without(one(n))));
    choices.extend(pieces.iter().map(|n| Keep::Only(one(n))));
    choices.push(if kept.len() <= lost.len() {
        Keep::Only(kept)
    } else {
        Keep::Without(lost)
    });
    choices.retain(|choice| rank(choice) < rank(keep));
    choices
}

/// A part of a workload.
#[derive(Clone, Copy)]
enum Part {
    Ops,
    Setup,
}

impl Part {
    fn of(self, workload: &mut Workload) -> &mut Vec<Op> {
        match self {
            Self::Ops => &mut workload.ops,
            Self::Setup => &mut workload.setup,
        }
    }
}
