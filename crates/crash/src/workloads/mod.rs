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

/// Which workloads are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Sequences of so many actions (1, 2, 3).
    pub lengths: Vec<usize>,
    /// Sequences of two actions of which one is in a group, or both; and those with two groups.
    #[serde(default)]
    pub groups: bool,
    /// The lists within these bounds.
    #[serde(default)]
    pub ace: Vec<Bounds>,
    /// Which of those of two and three.
    pub sample: Sample,
    /// So many random streams; their seeds count up from the sample's.
    pub random: u64,
    /// Every script that is written down.
    pub scripts: bool,
    /// Each of them is carried out in each of these orders.
    pub orders: Vec<Order>,
}

/// Workloads, and what was not taken.
#[derive(Debug, Default)]
pub struct Chosen {
    /// Those to be run.
    pub workloads: Vec<Workload>,
    /// Sequences that cannot be done: an operation fails.
    pub impossible: u64,
    /// Sequences that were not sampled.
    pub not_sampled: u64,
}

impl Choice {
    /// Whether it has workloads that are left out where a group cannot write to files.
    pub fn wants_groups(&self) -> bool {
        self.groups || self.scripts
    }

    /// The workloads for this target: of each kind some, wherever a budget ends them.
    /// Those of [`ace`](Self::ace), which may be too many to be held, come one by one by
    /// [`Self::each`].
    pub fn workloads(&self, target: &Target) -> Chosen {
        let mut chosen = Chosen::default();
        let (rules, profile) = (target.rules(), target.volume.profile());
        let lengths = self.lengths.iter();
        let short = lengths
            .clone()
            .map(|length| sequences(*length, rules, self.sample));
        let mut kinds = Vec::new();
        let groups = self.groups.then(|| with_groups(rules));
        // Longer ones are a sample.
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

    /// Hands out all workloads, one after the other; the rest of what it gives are counts.
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
