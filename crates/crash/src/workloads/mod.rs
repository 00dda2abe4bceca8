//! Workloads: short sequences that are enumerated, and long ones that are written down or random.
//!
//! - [`vocabulary`]: the operations of the sequences and what may follow each, after CrashMonkey's
//!   ACE (Mohan, Martinez, Ponnapalli, Raju, Chidambaram, OSDI 2018).
//! - [`mod@sequences`]: all sequences of one operation, of two, samples of three; those with a
//!   group, and with two.
//! - [`ace`]: the sequences within ACE's own bounds, up to 1.5 million in a list.
//! - [`script`]: long workloads by their names.
//! - `corners`, `homes`, `kinds`: those among them that have a mistake in mind.
//! - [`patterns`]: how postmark and SQLite write.
//! - `mixture`: in which order they are run.

pub mod ace;
mod corners;
mod homes;
mod kinds;
mod mixture;
pub mod patterns;
pub mod script;
pub mod sequences;
mod steps;
pub mod vocabulary;

use serde::{Deserialize, Serialize};

use ace::Bounds;
use script::Script;
use sequences::{Sample, sequences, with_groups};

use super::target::Target;
use super::turns::Order;
use super::workload::Workload;

/// The choice of workloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Sequences of these numbers of actions (1, 2, 3).
    pub lengths: Vec<usize>,
    /// True for sequences of two actions with one or both in a group, and those with two groups.
    #[serde(default)]
    pub groups: bool,
    /// The lists within these bounds of ACE.
    #[serde(default)]
    pub ace: Vec<Bounds>,
    /// Which sequences of two and three are sampled.
    pub sample: Sample,
    /// The number of random streams; their seeds count up from the sample's.
    pub random: u64,
    /// True for every script.
    pub scripts: bool,
    /// Each workload runs in each of these orders.
    pub orders: Vec<Order>,
}

/// The chosen workloads, and how many were left out.
#[derive(Debug, Default)]
pub struct Chosen {
    /// The workloads to be run.
    pub workloads: Vec<Workload>,
    /// Sequences that are impossible: an operation fails in the model.
    pub impossible: u64,
    /// Sequences that were not sampled.
    pub not_sampled: u64,
}

impl Choice {
    /// True if it has workloads that are left out where a group cannot write to files.
    pub fn wants_groups(&self) -> bool {
        self.groups || self.scripts
    }

    /// Returns the workloads for this target, mixed so that a budget that ends early has seen each
    /// kind. Those of [`ace`](Self::ace) may be too many for memory: [`Self::each`] gives them one
    /// by one.
    pub fn workloads(&self, target: &Target) -> Chosen {
        let mut chosen = Chosen::default();
        let (rules, profile) = (target.rules(), target.volume.profile());
        let lengths = self.lengths.iter();
        let short = lengths
            .clone()
            .map(|length| sequences(*length, rules, self.sample));
        let mut kinds = Vec::new();
        let groups = self.groups.then(|| with_groups(rules));
        // Longer sequences are sampled.
        let lengths = lengths.filter(|length| **length < 3);
        let cold = lengths.map(|length| sequences(*length, rules, self.sample).cold());
        for made in short.chain(cold).chain(groups.into_iter().flatten()) {
            kinds.push(made.workloads);
            chosen.impossible += made.impossible;
            chosen.not_sampled += made.left_out;
        }
        let long = |scripts: Vec<Script>| -> Vec<Workload> {
            let scripts = scripts.into_iter();
            scripts.map(|s| s.workload(profile)).collect()
        };
        let random = (0..self.random).map(|n| Script::Random(self.sample.seed.wrapping_add(n)));
        let written = Script::written(target).filter(|_| self.scripts);
        kinds.extend([long(written.collect()), long(random.collect())]);
        chosen.workloads = mixture::mixed(kinds, &self.orders, self.sample.seed);
        chosen
    }

    /// Calls `take` with each workload in turn. Only the counts of the returned value mean
    /// anything.
    pub fn each(&self, target: &Target, mut take: impl FnMut(Workload)) -> Chosen {
        let mut chosen = self.workloads(target);
        chosen.workloads.drain(..).for_each(&mut take);
        for bounds in &self.ace {
            let left_out = bounds.each(target.volume.rules(), |workload| {
                workload
                    .in_each(&self.orders)
                    .into_iter()
                    .for_each(&mut take);
            });
            chosen.impossible += left_out.impossible;
        }
        chosen
    }
}
