//! Explores a recording under a model: its moments, their states, the failures and their causes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs_crash::sharing::Shard;

use crate::call::{Recording, What};
use crate::effect::{Arrangement, Number};
use crate::finding::{Cause, Finding, Reported};
use crate::judge::{Error, Judge, Key, Verdict, Verdicts};
use crate::model::Model;
use crate::states::{Cut, Effort, states};
use crate::tree::Tree;

/// Limits that end an exploration early.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After this time.
    pub time: Option<Duration>,
    /// After the check was asked about this many states.
    pub states: Option<u64>,
    /// After this many findings.
    pub findings: usize,
}

impl Limits {
    /// True if the time is over, or the check will have reached its number of states with `more`
    /// more.
    fn are_spent(&self, way: &Way, more: u64) -> bool {
        self.time.is_some_and(|time| way.begin.elapsed() >= time)
            || self.states.is_some_and(|most| way.asked + more >= most)
    }
}

/// Why an exploration ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Early {
    /// The user wanted to stop.
    Stopped,
    /// The limit of states or of time was reached.
    Budget,
    /// The limit of findings was reached.
    Findings,
}

impl Early {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Stopped => "it was interrupted",
            Self::Budget => "the budget was spent",
            Self::Findings => "enough causes were found",
        }
    }
}

/// How much an exploration has looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Moments at which the power was cut.
    pub moments: usize,
    /// All moments.
    pub moments_all: usize,
    /// Moments at which not every state was looked at.
    pub moments_sampled: usize,
    /// States looked at, of the shard.
    pub states: u64,
    /// Among them, those that equal an earlier state, under any model.
    pub folded: u64,
    /// States for which the check failed.
    pub failing: u64,
    /// States that the kernel has recovered as well, and e2fsck has judged.
    #[serde(default)]
    pub seconded: u64,
}

/// The result under a model.
pub struct Explored {
    /// The model's name.
    pub model: String,
    /// How much was looked at.
    pub counts: Counts,
    /// A finding for each cause.
    pub findings: Vec<Reported>,
    /// Why it ended early, if it did.
    pub early: Option<Early>,
}

impl Explored {
    /// The result of a model that was not begun.
    pub fn nothing(model: String, early: Early) -> Self {
        Self {
            model,
            counts: Counts::default(),
            findings: Vec::new(),
            early: Some(early),
        }
    }
}

/// How far an exploration is.
pub struct Progress<'a> {
    /// How much was looked at so far.
    pub counts: &'a Counts,
    /// The number of causes so far.
    pub findings: usize,
}

/// The judges of an exploration, and its limits.
pub struct Court<'a> {
    /// The judges; they work at the same time.
    pub judges: &'a [Judge],
    /// The verdicts so far.
    pub verdicts: &'a Verdicts,
    /// The states that were looked at, under any model.
    pub looked: &'a Mutex<HashSet<Key>>,
    /// The part of the states that is looked at.
    pub shard: Shard,
    /// When it ends early.
    pub limits: Limits,
    /// Called with the progress.
    pub listener: &'a dyn Fn(Progress<'_>),
    /// Called after each answer of the check.
    pub said: &'a (dyn Fn() + Sync),
}

/// A state that may be judged.
pub struct State<C> {
    /// Its number among the states of all shards, in the order of their enumeration.
    pub number: u64,
    /// The power cut that leaves it.
    pub cut: C,
    /// The files in it.
    pub tree: Tree,
    /// The key by which it is compared.
    pub key: Key,
}

/// The time and the number of the check's answers so far.
pub struct Way {
    begin: Instant,
    asked: u64,
}

impl Way {
    /// A start at this moment.
    pub fn begin() -> Self {
        Self {
            begin: Instant::now(),
            asked: 0,
        }
    }
}

impl Court<'_> {
    /// Judges states, by all judges at the same time. Returns the failing states, and the reason if
    /// some states were not judged.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn failing<'s, C>(
        &self,
        states: &'s [State<C>],
        marks: &[&str],
        counts: &mut Counts,
        way: &mut Way,
    ) -> Result<(Vec<&'s State<C>>, Option<Early>), Error> {
        let ours = states.iter();
        let ours: Vec<&State<C>> = ours.filter(|s| self.shard.has(s.key.number())).collect();
        let new = ours.iter().filter(|s| self.verdicts.get(&s.key).is_none());
        let to_judge: BTreeMap<Key, &Tree> = new.map(|s| (s.key, &s.tree)).collect();
        let to_judge: Vec<&Tree> = to_judge.into_values().collect();
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (limits, asked) = (self.limits, &*way);
        let work = |judge: &Judge| -> Result<(), Error> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(tree) = to_judge.get(number) else {
                    return Ok(());
                };
                if limits.are_spent(asked, number as u64) {
                    return Ok(());
                }
                match judge.judge(tree, marks) {
                    Err(Error::Stopped) => {
                        stopped.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                    other => drop(other?),
                }
                (self.said)();
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = self.judges[1..]
                .iter()
                .map(|judge| scope.spawn(|| work(judge)))
                .collect();
            let mine = work(&self.judges[0]);
            let others = others.into_iter().map(|other| match other.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            others.fold(mine, Result::and)
        })?;
        way.asked += to_judge.len() as u64;
        let (mut failing, mut missed) = (Vec::new(), false);
        for state in ours {
            let Some(verdict) = self.verdicts.get(&state.key) else {
                missed = true;
                continue;
            };
            counts.states += 1;
            counts.folded += u64::from(!self.looked.lock().insert(state.key));
            if !verdict.holds() {
                counts.failing += 1;
                failing.push(state);
            }
        }
        let early = if stopped.into_inner() {
            Early::Stopped
        } else {
            Early::Budget
        };
        Ok((failing, missed.then_some(early)))
    }

    /// Reports the progress. Returns the limit that has been reached, if any.
    pub fn is_over(&self, counts: &Counts, findings: usize, way: &Way) -> Option<Early> {
        (self.listener)(Progress { counts, findings });
        if self.limits.are_spent(way, 0) {
            Some(Early::Budget)
        } else {
            (findings >= self.limits.findings).then_some(Early::Findings)
        }
    }

    /// Returns the check's verdict on one tree.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn verdict(&self, tree: &Tree, marks: &[&str]) -> Result<Arc<Verdict>, Error> {
        let verdict = self.judges[0].judge(tree, marks)?;
        (self.said)();
        Ok(verdict)
    }
}

/// Whether the check would notice a missing sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Noticed {
    /// Yes: it then fails.
    Yes,
    /// No: it holds in all states that were to be looked at.
    No,
    /// Not so far: it holds in the states that were looked at, and some were not.
    NotSoFar,
}

impl Noticed {
    /// Combines the answers of two shards.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::NotSoFar, _) | (_, Self::NotSoFar) => Self::NotSoFar,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// Tells for each sync of a recording whether the check would notice if the program left it out.
///
/// # Errors
/// Those of `noticed`, which answers for one recording.
pub fn mutate<E>(
    recording: &Recording,
    noticed: &dyn Fn(&Recording) -> Result<Noticed, E>,
) -> Result<Vec<(usize, Noticed)>, E> {
    let syncs = recording.calls.iter().enumerate();
    let syncs = syncs.filter(|(_, call)| call.is_sync());
    syncs
        .map(|(number, _)| {
            let mut without = recording.clone();
            // A mark has no effects, and this one is none either.
            without.calls[number].what = What::Close {
                file: crate::tree::Object(u32::MAX),
            };
            Ok((number, noticed(&without)?))
        })
        .collect()
}

/// An exploration under the rules of a model.
pub struct Explorer<'a> {
    /// The program's recording.
    pub recording: &'a Recording,
    /// The model.
    pub model: Model,
    /// The judges.
    pub court: &'a Court<'a>,
    /// How many states of a moment are looked at.
    pub effort: Effort,
}

/// At most this many states are judged at once.
const BATCH: usize = 64;

/// At most this many failing states are kept for a cause, to try remedies on.
const KEPT: usize = 256;

impl Explorer<'_> {
    /// Explores the recording.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn run(&self) -> Result<Explored, Error> {
        let arrangement = self.model.arrange(self.recording);
        let moments = arrangement.moments(self.recording);
        let mut counts = Counts {
            moments_all: moments.len(),
            ..Counts::default()
        };
        let (mut findings, mut early) = (Vec::new(), None);
        let mut seen = HashSet::new();
        let (mut number, mut way) = (0, Way::begin());
        let last = moments.last().copied();
        'moments: for calls in moments {
            let marks: Vec<&str> = self.recording.marks(calls).collect();
            let of_moment = states(&arrangement, calls, &self.effort);
            counts.moments += 1;
            counts.moments_sampled += usize::from(!of_moment.complete);
            let fresh = |cut: &Cut| seen.insert((marks.len(), cut.there.clone()));
            let mut cuts = of_moment.cuts;
            cuts.retain(fresh);
            let mut left = cuts.len();
            for batch in cuts.chunks(BATCH) {
                let states = self.of(&arrangement, batch, &marks, number);
                number += batch.len() as u64;
                left -= batch.len();
                let court = self.court;
                let (failing, missed) = court.failing(&states, &marks, &mut counts, &mut way)?;
                for state in failing {
                    self.failed(&arrangement, state, &mut findings)?;
                }
                let over = court.is_over(&counts, findings.len(), &way);
                // An end at the last state leaves nothing out.
                let over = over.filter(|_| left > 0 || Some(calls) != last);
                early = missed.or(over);
                if early.is_some() {
                    break 'moments;
                }
            }
        }
        let findings = findings.iter();
        Ok(Explored {
            model: self.model.to_string(),
            counts,
            findings: findings
                .map(|f| f.reported(self.recording, self.model))
                .collect(),
            early,
        })
    }

    /// Returns the states that power cuts leave; the first has this number.
    fn of(
        &self,
        arrangement: &Arrangement,
        cuts: &[Cut],
        marks: &[&str],
        first: u64,
    ) -> Vec<State<Cut>> {
        let states = (first..).zip(cuts).map(|(number, cut)| {
            let end = arrangement.ends[cut.calls];
            let tree = arrangement.tree(self.recording, &cut.there, end);
            State {
                number,
                cut: cut.clone(),
                key: Key::of(&tree, marks),
                tree,
            }
        });
        states.collect()
    }

    /// Handles a failing state. It is made small whatever was found before, so that its cause does
    /// not depend on the shard's other states.
    fn failed(
        &self,
        arrangement: &Arrangement,
        State { number, cut, .. }: &State<Cut>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let small = self.minimize(arrangement, cut)?;
        let cause = Cause::of(self.recording, arrangement, &small);
        if let Some(finding) = findings.iter_mut().find(|finding| finding.cause == cause) {
            finding.again(cut, KEPT);
            return Ok(());
        }
        let passing = self.nearest(arrangement, &small);
        let verdict = self.verdict(arrangement, &small)?;
        let small = (*number, small);
        let mut finding = Finding::new(self.recording, arrangement, small, passing, &verdict);
        finding.again(cut, KEPT);
        findings.push(finding);
        Ok(())
    }

    fn verdict(&self, arrangement: &Arrangement, cut: &Cut) -> Result<Arc<Verdict>, Error> {
        let tree = arrangement.tree(self.recording, &cut.there, arrangement.ends[cut.calls]);
        let marks: Vec<&str> = self.recording.marks(cut.calls).collect();
        self.court.verdict(&tree, &marks)
    }

    /// Makes the losses of a failure as small as possible. Gives lost effects back as long as the
    /// check still fails: first all, then halves, down to single effects. Effects on one object
    /// stand together.
    fn minimize(&self, arrangement: &Arrangement, cut: &Cut) -> Result<Cut, Error> {
        let mut lost = cut.lost(arrangement);
        lost.sort_by_cached_key(|n| {
            let change = &arrangement.effects[*n].change;
            (change.objects(), change.kind())
        });
        let mut small = cut.clone();
        match self.give_back(arrangement, &lost, &mut small) {
            // The effects that were given back until then were not needed.
            Ok(()) | Err(Error::Stopped) => Ok(small),
            Err(why) => Err(why),
        }
    }

    fn give_back(
        &self,
        arrangement: &Arrangement,
        lost: &[Number],
        small: &mut Cut,
    ) -> Result<(), Error> {
        let mut given = small.clone();
        for n in lost {
            arrangement.add(&mut given.there, *n);
        }
        if given == *small {
            return Ok(());
        }
        if !self.verdict(arrangement, &given)?.holds() {
            *small = given;
        } else if lost.len() > 1 {
            let (first, second) = lost.split_at(lost.len() / 2);
            self.give_back(arrangement, first, small)?;
            self.give_back(arrangement, second, small)?;
        }
        Ok(())
    }

    /// Returns the passing state of the same moment whose losses are closest to those of `cut`.
    fn nearest(&self, arrangement: &Arrangement, cut: &Cut) -> Option<Cut> {
        let given = cut.lost(arrangement).into_iter().map(|n| {
            let mut given = cut.clone();
            arrangement.add(&mut given.there, n);
            given
        });
        let mut given: Vec<Cut> = given.collect();
        given.sort_by_cached_key(|cut| std::cmp::Reverse(cut.lost(arrangement).len()));
        let holds = |cut: &Cut| self.verdict(arrangement, cut).is_ok_and(|v| v.holds());
        given.into_iter().find(holds)
    }
}
