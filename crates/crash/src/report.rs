//! The findings of an exploration, as numbers and as cases: for people and for JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use stetfs_scheme::RecoveryCase;

/// A kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// A state cannot be mounted, read or unmounted.
    Recovery,
    /// The recovered volume is damaged.
    Structure,
    /// Our checker and e2fsck do not agree about the recovered volume.
    Disagreement,
    /// The volume whose journal e2fsck replayed differs from ours.
    Replay,
    /// The volume holds something that is not allowed, or lacks something that it must hold.
    Contents,
    /// The recovered volume refuses writes, or is damaged by them.
    Use,
    /// The code under test panicked.
    Panic,
    /// A folded state, which reads the same as another, had another outcome: the code under test is
    /// not deterministic.
    Nondeterminism,
    /// An operation of the workload gave a wrong answer, before any power cut.
    Answer,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recovery => "recovery",
            Self::Structure => "structure",
            Self::Disagreement => "disagreement of the checkers",
            Self::Replay => "replay by e2fsck",
            Self::Contents => "contents",
            Self::Use => "use after recovery",
            Self::Panic => "panic",
            Self::Nondeterminism => "nondeterminism",
            Self::Answer => "wrong answer",
        })
    }
}

macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// The numbers of an exploration. They saturate.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, more: Self) {
                $(self.$name = self.$name.saturating_add(more.$name);)*
            }
        }

        impl Counts {
            /// Returns the difference from `earlier` to now.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counts! {
    /// Workloads explored.
    workloads,
    /// Workloads that the budget cut short or left out. Some of them have had turns.
    workloads_unfinished,
    /// Further orders of workloads, looked at only where a sync had returned.
    orders,
    /// Moments looked at.
    moments,
    /// Moments of the workloads that were not looked at.
    moments_left_out,
    /// States judged: one for each choice of pieces at a moment of a workload.
    states,
    /// Among them, states that no earlier state of the workload equalled.
    states_distinct,
    /// Possible states of those moments that were not judged.
    states_left_out,
    /// Moments of recoveries looked at.
    nested_moments,
    /// Moments of the recoveries that were cut again that were not looked at.
    nested_moments_left_out,
    /// States after a second cut, in a recovery.
    nested,
    /// Among them, the distinct ones.
    nested_distinct,
    /// Possible states of those moments that were not judged.
    nested_left_out,
    /// States that were sampled for the run to go on from.
    #[serde(rename = "chains_drawn")]
    chains_sampled,
    /// Runs that went on from such a state. The others could not: the volume holds something
    /// allowed that is not exactly a state of the model, or no operation was left.
    chains,
    /// Moments of these runs that were looked at.
    chained_moments,
    /// Moments of these runs that were not looked at.
    chained_moments_left_out,
    /// States after a cut in these runs.
    chained,
    /// Possible states of those moments that were not judged.
    chained_left_out,
    /// Recoveries that were carried out. Every other state agrees with one of these wherever that
    /// one was read, and so has its outcome.
    recoveries,
    /// Recoveries that were cut again.
    recoveries_cut,
    /// Folded states that were recovered all the same, to compare the outcome with the predicted
    /// one.
    audits,
    /// Recovered volumes that e2fsck checked.
    e2fsck,
    /// Among them, those on which our checker and e2fsck agreed.
    e2fsck_agreed,
    /// States whose journal e2fsck replayed too.
    replayed,
    /// Among them, those that then held the same.
    replayed_alike,
    /// States whose outcome is not allowed, and workloads that gave a wrong answer.
    violations,
}

impl Counts {
    /// Takes the numbers of a run that went on after a power cut as numbers of chains, for adding
    /// them to those of its workload.
    pub(super) fn of_chain(&self) -> Self {
        Self {
            chained_moments: self.moments,
            chained_moments_left_out: self.moments_left_out,
            chained: self.states,
            chained_left_out: self.states_left_out,
            recoveries: self.recoveries,
            audits: self.audits,
            e2fsck: self.e2fsck,
            e2fsck_agreed: self.e2fsck_agreed,
            replayed: self.replayed,
            replayed_alike: self.replayed_alike,
            violations: self.violations,
            ..Self::default()
        }
    }
}

/// How many recoveries reached each case of the scheme's recovery table, by the text of the case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached(BTreeMap<String, u64>);

impl Reached {
    /// Counts another recovery, which reached these cases.
    pub(super) fn add(&mut self, rows: &[&'static RecoveryCase]) {
        for row in rows {
            match self.0.get_mut(row.found) {
                Some(times) => *times += 1,
                None => _ = self.0.insert(row.found.to_owned(), 1),
            }
        }
    }

    /// Returns the number of recoveries that reached this case.
    pub fn times(&self, row: &RecoveryCase) -> u64 {
        self.0.get(row.found).copied().unwrap_or(0)
    }
}

impl AddAssign<&Self> for Reached {
    fn add_assign(&mut self, more: &Self) {
        for (found, times) in &more.0 {
            *self.0.entry(found.clone()).or_default() += times;
        }
    }
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The kind of fault.
    pub fault: Fault,
    /// The reason, in words.
    pub why: String,
    /// The case that replays it.
    pub case: String,
    /// The changes that were there after the cut.
    pub left: String,
    /// The name of its workload.
    pub workload: String,
    /// The smallest workload that was found to fail in the same way, one operation a line. `None`
    /// if none was looked for.
    pub minimized: Option<String>,
}

/// What an exploration gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The numbers.
    pub counts: Counts,
    /// How often recoveries reached each case of the recovery table.
    #[serde(default, rename = "met")]
    pub reached: Reached,
    /// The titles of workloads that never ran, not even in their first turn. `None` in reports from
    /// before this was noted.
    #[serde(default)]
    pub never_ran: Option<Vec<String>>,
    /// Seconds of run time; for several explorations, the sum.
    pub seconds: f64,
    /// Threads that worked.
    pub jobs: usize,
    /// The first violations.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Returns the states judged per second, including those after a second cut.
    pub fn states_a_second(&self) -> f64 {
        (self.counts.states + self.counts.nested) as f64 / self.seconds.max(1e-9)
    }
}
