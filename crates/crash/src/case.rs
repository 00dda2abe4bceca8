//! A case, by a name that a failure prints and that replays it: the workload, the cut, and the
//! pieces that the cut left.
//!
//! `SCHEME MODE VOLUME | WORKLOAD | AT KEEP [| AT KEEP]`. WORKLOAD is a name, with an unusual order
//! behind it, or the workload's text. AT is the number of changes before the cut, KEEP the rule for
//! the pending pieces. The second cut falls into the recovery from the first, or, with `| then
//! OPERATIONS |` before it, into these operations after the recovery.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use stetfs_media::sim::Keep;

use super::explore::Wrong;
use super::record::{Front, Record};
use super::report::Fault;
use super::subject::Subject;
use super::target::Target;
use super::turns::Order;
use super::workload::Workload;
use super::workloads::script::Script;
use crate::media::contents::Contents;

/// Stands before the operations after the first cut.
const THEN: &str = "then ";

/// A moment, and the pending pieces that reached the media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The number of changes before it.
    pub at: u64,
    /// The pending pieces that are there.
    pub keep: Keep,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.keep)
    }
}

impl FromStr for Cut {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.trim().split_once(' ');
        let (at, keep) = parts.with_context(|| {
            format!(
                "\"{text}\" is no cut: a number of changes, and which of the pending ones are there"
            )
        })?;
        Ok(Self {
            at: at
                .parse()
                .with_context(|| format!("\"{at}\" is no number of changes"))?,
            keep: keep.trim().parse()?,
        })
    }
}

/// A run, a cut in it, and perhaps a second cut during the recovery from the first.
#[derive(Clone, Debug)]
pub struct Case {
    /// The target.
    pub target: Target,
    /// The workload.
    pub workload: Workload,
    /// The cut; `None` for a workload that goes wrong without one.
    pub cut: Option<Cut>,
    /// The second cut, in the recovery or in `then`.
    pub nested: Option<Cut>,
    /// The operations after the first cut.
    pub then: Option<Workload>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | ", self.target)?;
        let profile = self.target.volume.profile();
        match Script::parse(&self.workload.name) {
            Some(script) if self.workload.is_in_some_order(&script.workload(profile)) => {
                f.write_str(&self.workload.title())?;
            }
            _ => write!(f, "{}", self.workload)?,
        }
        if let Some(cut) = &self.cut {
            write!(f, " | {cut}")?;
        }
        if let Some(then) = &self.then {
            write!(f, " | {THEN}{then}")?;
        }
        if let Some(cut) = &self.nested {
            write!(f, " | {cut}")?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts: Vec<_> = text.split('|').map(str::trim).collect();
        let then = match parts.get(3).and_then(|part| part.strip_prefix(THEN)) {
            Some(ops) => {
                parts.remove(3);
                Some(Workload::parse("replayed", ops).context("what was done then")?)
            }
            None => None,
        };
        ensure!(
            (2..=4).contains(&parts.len()),
            "a case is a target, a workload and up to two cuts, with | between them"
        );
        let target: Target = parts[0].parse()?;
        let (name, order) = match parts[1].split_once(' ') {
            Some((name, order)) => (name, order.parse().ok()),
            None => (parts[1], Some(Order::default())),
        };
        let workload = match (Script::parse(name), order) {
            (Some(script), Some(order)) => script.workload(target.volume.profile()).in_order(order),
            _ => Workload::parse("replayed", parts[1]).context("the workload")?,
        };
        let cut = |n: usize| parts.get(n).map(|text| text.parse()).transpose();
        Ok(Self {
            target,
            workload,
            cut: cut(2)?,
            nested: cut(3)?,
            then,
        })
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The fault and the reason, if something is wrong.
    pub wrong: Option<(Fault, String)>,
    /// If nothing is wrong: the number of operations after which the volume looks like this.
    pub state: Option<usize>,
    /// The allowed states, as numbers of operations.
    pub allowed: std::ops::RangeInclusive<usize>,
    /// The pieces that were there at the first and at the second cut, in words.
    pub left: Vec<String>,
}

impl Replayed {
    fn of_wrong(
        wrong: (Fault, String),
        allowed: std::ops::RangeInclusive<usize>,
        left: Vec<String>,
    ) -> Self {
        Self {
            wrong: Some(wrong),
            state: None,
            allowed,
            left,
        }
    }
}

impl Case {
    /// Carries the case out and judges it again, also by e2fsck.
    ///
    /// # Errors
    /// It cannot be carried out: the tape is shorter than the case says, or a program is missing.
    pub fn replay(&self, front: Option<Front<'_>>) -> Result<Replayed> {
        let fresh = self.target.contents()?;
        let record = match Record::make_behind(&self.target, &fresh, &self.workload, front) {
            Ok(record) => record,
            Err(error) => {
                let Wrong { fault, why, .. } = Wrong::without_cut(&error);
                return Ok(Replayed::of_wrong((fault, why), 0..=0, Vec::new()));
            }
        };
        match &self.cut {
            Some(cut) => self.replay_on(&record, cut, &mut Subject::new(&self.target)),
            None => Ok(Replayed {
                wrong: None,
                state: None,
                allowed: 0..=self.workload.ops.len(),
                left: Vec::new(),
            }),
        }
    }

    /// Does the same on a recorded run.
    pub(super) fn replay_on(
        &self,
        record: &Record,
        cut: &Cut,
        subject: &mut Subject,
    ) -> Result<Replayed> {
        let short = || anyhow!("there are only {} changes", record.tapes.changes());
        let moment = record.tapes.moment(cut.at).ok_or_else(short)?;
        let mut left = vec![moment.describe(&cut.keep)];
        let mut contents: Contents = moment.contents(&cut.keep);
        if let Some(then) = &self.then {
            return self.replay_then(record, cut, then, left, &contents, subject);
        }
        if let Some(nested) = &self.nested {
            let tapes = subject.recover(&contents).tapes;
            let short = || anyhow!("the recovery makes only {} changes", tapes.changes());
            let moment = tapes.moment(nested.at).ok_or_else(short)?;
            left.push(moment.describe(&nested.keep));
            contents = moment.contents(&nested.keep);
        }
        let allowed = record.allowed(cut.at);
        let judged = subject.judge(&contents, &record.oracle, &allowed)?;
        Ok(Replayed {
            state: judged.as_ref().ok().copied(),
            wrong: judged.err(),
            allowed: allowed.states,
            left,
        })
    }

    /// Goes on after the first cut, and judges the second.
    fn replay_then(
        &self,
        record: &Record,
        cut: &Cut,
        then: &Workload,
        mut left: Vec<String>,
        contents: &Contents,
        subject: &mut Subject,
    ) -> Result<Replayed> {
        let first = subject.recover(contents).outcome;
        let allowed = record.allowed(cut.at);
        let state = match first.judge(&record.oracle, &allowed) {
            Ok(state) => state,
            Err(wrong) => return Ok(Replayed::of_wrong(wrong, allowed.states, left)),
        };
        let model = &record.oracle.states()[state];
        let second = match Record::go_on(&self.target, contents, model, then) {
            Ok(second) => second,
            Err(error) => {
                let Wrong { fault, why, .. } = Wrong::without_cut(&error);
                return Ok(Replayed::of_wrong((fault, why), allowed.states, left));
            }
        };
        let case = Self {
            cut: self.nested.clone(),
            nested: None,
            then: None,
            ..self.clone()
        };
        let Some(cut) = &case.cut else {
            bail!("nothing says when the power was cut again");
        };
        let mut replayed = case.replay_on(&second, cut, subject)?;
        left.append(&mut replayed.left);
        Ok(Replayed { left, ..replayed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_read_back() {
        for text in [
            "jbd2 journal ext4-1k | random7 | 133 random:5",
            "jbd2 ordered ext3-1k | orphans | 4 all | 17 first:3",
            "jbd2 ordered ext4-1k:256 | log | 1 all",
            "null - ext4-4k | setup standard; unlink A/x; sync | 9 only:1,2",
            "jbd2 journal ext4-1k | alike overlap3 | 9 all | then chmod a 600; sync | 7 none",
            "jbd2 journal,journal_async_commit ext4-1k | log | 1 all",
            "stet - ext4-1k | groups each-handle | 3 all",
            "jbd2 journal ext4-1k | group-begin; group-write @0 0 9 1; group-commit lazy | 4 all",
            "jbd2 writeback ext4-1k | create f 644; begin; unlink f",
        ] {
            assert_eq!(text.parse::<Case>().expect("a case").to_string(), text);
        }
        for (text, why) in [
            ("jbd2 journal ext4-1k", "a target, a workload"),
            ("jbd3 journal ext4-1k | log | 1 all", "jbd2"),
            ("jbd2 atomic ext4-1k | log | 1 all", "no mode atomic"),
            ("jbd2 journal ext5 | log | 1 all", "no volume ext5"),
            ("jbd2 journal ext4-1k | bogus | 1 all", "no operation"),
            ("jbd2 journal ext4-1k | log | x all", "no number of changes"),
            ("jbd2 journal ext4-1k | log | 1 some", "none of all"),
        ] {
            let error = format!("{:#}", text.parse::<Case>().expect_err(text));
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
