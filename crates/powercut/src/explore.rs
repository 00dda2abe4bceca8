//! Explores a recording under a model: its moments, their states, the failures and their causes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use crate::states::{Cut, Effort, moments, states};
use crate::tree::Tree;

/// Where an exploration ends before everything was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After this time.
    pub time: Option<Duration>,
    /// After the check was asked of so many states.
    pub states: Option<u64>,
    /// After so many findings.
    pub findings: usize,
}

/// What an exploration has looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Moments at which the power was cut.
    pub moments: usize,
    /// Moments that there are.
    pub moments_all: usize,
    /// Moments of which not every state was looked at.
    pub moments_sampled: usize,
    /// States looked at: those of the shard.
    pub states: u64,
    /// Of these, those to which an equal one was looked at before, under any model.
    pub folded: u64,
    /// States of which the check said that the promises do not hold.
    pub failing: u64,
}

/// What was found under a model.
pub struct Explored {
    /// The model's name.
    pub model: String,
    /// What was looked at.
    pub counts: Counts,
    /// One of each cause.
    pub findings: Vec<Reported>,
    /// Everything was looked at that was to be.
    pub finished: bool,
}

/// What is told on the way.
pub struct Progress<'a> {
    /// What was looked at so far.
    pub counts: &'a Counts,
    /// Causes so far.
    pub findings: usize,
}

/// Who judges the states of an exploration, and how many of them.
pub struct Court<'a> {
    /// Who asks the check; several at once.
    pub judges: &'a [Judge],
    /// What was judged already.
    pub verdicts: &'a Verdicts,
    /// Which states were looked at, under any model.
    pub looked: &'a Mutex<HashSet<Key>>,
    /// Which states are looked at.
    pub shard: Shard,
    /// How long.
    pub limits: Limits,
    /// Who is told how far it is.
    pub listener: &'a dyn Fn(Progress<'_>),
    /// Who is told that the check has said something.
    pub said: &'a (dyn Fn() + Sync),
}

/// A state that may be judged.
pub struct State<C> {
    /// In the order in which the states of all shards are enumerated.
    pub number: u64,
    /// The power cut that leaves it.
    pub cut: C,
    /// What it holds.
    pub tree: Tree,
    /// By what it is told apart.
    pub key: Key,
}

/// How far an exploration is.
pub struct Way {
    begin: Instant,
    asked: u64,
}

impl Way {
    /// It begins.
    pub fn begin() -> Self {
        Self {
            begin: Instant::now(),
            asked: 0,
        }
    }
}

impl Court<'_> {
    /// Judges states, by as many judges as there are; gives those that fail.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn failing<'s, C>(
        &self,
        states: &'s [State<C>],
        marks: &[&str],
        counts: &mut Counts,
        way: &mut Way,
    ) -> Result<Vec<&'s State<C>>, Error> {
        let ours = states.iter();
        let ours: Vec<&State<C>> = ours.filter(|s| self.shard.has(s.key.number())).collect();
        let mut to_judge = BTreeMap::new();
        for state in &ours {
            counts.states += 1;
            counts.folded += u64::from(!self.looked.lock().insert(state.key));
            if self.verdicts.get(&state.key).is_none() {
                to_judge.insert(state.key, &state.tree);
            }
        }
        let to_judge: Vec<&Tree> = to_judge.into_values().collect();
        let next = AtomicUsize::new(0);
        let work = |judge: &Judge| -> Result<(), Error> {
            while let Some(tree) = to_judge.get(next.fetch_add(1, Ordering::Relaxed)) {
                judge.judge(tree, marks)?;
                (self.said)();
            }
            Ok(())
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
        let fails = |state: &&State<C>| {
            let verdict = self.verdicts.get(&state.key);
            verdict.is_some_and(|verdict| !verdict.holds())
        };
        let failing: Vec<_> = ours.into_iter().filter(fails).collect();
        counts.failing += failing.len() as u64;
        Ok(failing)
    }

    /// Tells how far it is; whether that is far enough.
    pub fn is_over(&self, counts: &Counts, findings: usize, way: &Way) -> bool {
        (self.listener)(Progress { counts, findings });
        let limits = &self.limits;
        limits.time.is_some_and(|time| way.begin.elapsed() >= time)
            || limits.states.is_some_and(|most| way.asked >= most)
            || findings >= limits.findings
    }

    /// What the check says of one tree.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn verdict(&self, tree: &Tree, marks: &[&str]) -> Result<Arc<Verdict>, Error> {
        let verdict = self.judges[0].judge(tree, marks)?;
        (self.said)();
        Ok(verdict)
    }
}

/// For each sync of a recording: whether the check would notice, if the program left it out.
/// `fails`: whether it fails in some state of a recording.
///
/// # Errors
/// Of `fails`.
pub fn mutate<E>(
    recording: &Recording,
    fails: &dyn Fn(&Recording) -> Result<bool, E>,
) -> Result<Vec<(usize, bool)>, E> {
    let syncs = recording.calls.iter().enumerate();
    let syncs = syncs.filter(|(_, call)| call.is_sync());
    syncs
        .map(|(number, _)| {
            let mut without = recording.clone();
            // A mark has no effects, and this one is none either.
            without.calls[number].what = What::Close {
                file: crate::tree::Object(u32::MAX),
            };
            Ok((number, fails(&without)?))
        })
        .collect()
}

/// An exploration under the rules of a model.
pub struct Explorer<'a> {
    /// What the program did.
    pub recording: &'a Recording,
    /// Under which rules.
    pub model: Model,
    /// Who judges.
    pub court: &'a Court<'a>,
    /// How many states of a moment.
    pub effort: Effort,
}

/// States that are judged at once, at most.
const BATCH: usize = 64;

/// Failing states that are kept of a cause, to try a remedy on.
const KEPT: usize = 256;

impl Explorer<'_> {
    /// Explores.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn run(&self) -> Result<Explored, Error> {
        let arrangement = self.model.arrange(self.recording);
        let moments = moments(self.recording, &arrangement);
        let mut counts = Counts {
            moments_all: moments.len(),
            ..Counts::default()
        };
        let (mut findings, mut finished) = (Vec::new(), true);
        let mut seen = HashSet::new();
        let (mut number, mut way) = (0, Way::begin());
        'moments: for calls in moments {
            let marks: Vec<&str> = self.recording.marks(calls).collect();
            let of_moment = states(&arrangement, calls, &self.effort);
            counts.moments += 1;
            counts.moments_sampled += usize::from(!of_moment.complete);
            let fresh = |cut: &Cut| seen.insert((marks.len(), cut.there.clone()));
            let mut cuts = of_moment.cuts;
            cuts.retain(fresh);
            for batch in cuts.chunks(BATCH) {
                let states = self.of(&arrangement, batch, &marks, number);
                number += batch.len() as u64;
                for state in self.court.failing(&states, &marks, &mut counts, &mut way)? {
                    self.failed(&arrangement, state, &mut findings)?;
                }
                if self.court.is_over(&counts, findings.len(), &way) {
                    finished = false;
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
            finished,
        })
    }

    /// What the power cuts leave; the first has this number.
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

    /// A state has failed. It is made small whatever was found before, so that its cause does not
    /// depend on which other states are of the shard.
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

    /// The same failure with as little lost as it takes: what is lost is given back, as long as the
    /// check still fails; all of it, then halves of it, down to single effects. What is lost of one
    /// object stands together.
    fn minimize(&self, arrangement: &Arrangement, cut: &Cut) -> Result<Cut, Error> {
        let mut lost = cut.lost(arrangement);
        lost.sort_by_cached_key(|n| {
            let change = &arrangement.effects[*n].change;
            (change.objects(), change.kind())
        });
        let mut small = cut.clone();
        self.give_back(arrangement, &lost, &mut small)?;
        Ok(small)
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

    /// The state of the same moment that passes and has lost least less.
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
