//! What an exploration found, as numbers and as cases: for people and for JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use stetfs_scheme::RecoveryCase;

/// A kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// What a power cut left cannot be mounted, read or unmounted.
    Recovery,
    /// The recovered volume is damaged.
    Structure,
    /// Our checker and e2fsck do not agree about the recovered volume.
    Disagreement,
    /// e2fsck replays the journal to something else than we do.
    Replay,
    /// The volume holds what it may not hold, or lacks what it must hold.
    Contents,
    /// The recovered volume does not take writes, or is damaged by them.
    Use,
    /// The code under test panicked.
    Panic,
    /// A state that reads the same as another one had another outcome: the code under test is not
    /// deterministic.
    Nondeterminism,
    /// An operation of the workload answered wrongly, before any power cut.
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
        /// Numbers of an exploration. They saturate.
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
            /// What came since `earlier`.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counts! {
    /// Workloads explored.
    workloads,
    /// Workloads that the budget cut short or left out; some of them have had turns.
    workloads_unfinished,
    /// Orders of workloads that were looked at besides, only where a sync had returned.
    orders,
    /// Moments looked at.
    moments,
    /// Moments of the workloads that were passed over.
    moments_left_out,
    /// States judged: every choice of what is left at a moment of a workload.
    states,
    /// Among them, those whose media hold something that no earlier state of the workload held.
    states_distinct,
    /// States that there would have been at the moments looked at beyond those that were judged.
    states_left_out,
    /// Moments of recoveries looked at.
    nested_moments,
    /// Moments of recoveries that were cut again that were passed over.
    nested_moments_left_out,
    /// States after a second cut, during recovery.
    nested,
    /// Among them, the distinct ones.
    nested_distinct,
    /// States that there would have been at those moments beyond those that were judged.
    nested_left_out,
    /// States that were sampled for the run to go on from.
    #[serde(rename = "chains_drawn")]
    chains_sampled,
    /// Runs that went on from one. From the others they could not: the volume holds what is
    /// allowed, and not just a state of the model, or nothing was left to do.
    chains,
    /// Moments looked at in what was done then.
    chained_moments,
    /// Moments of that which were passed over.
    chained_moments_left_out,
    /// States after a cut there.
    chained,
    /// States that there would have been at those moments beyond those that were judged.
    chained_left_out,
    /// Recoveries that were carried out. All other states hold the same bytes wherever one of these
    /// was read, so have its outcome.
    recoveries,
    /// Recoveries that were cut again.
    recoveries_cut,
    /// Folded states that were recovered all the same, to see that they have the predicted outcome.
    audits,
    /// Recovered volumes that were shown to e2fsck.
    e2fsck,
    /// Among them, those about which our checker and e2fsck agreed.
    e2fsck_agreed,
    /// States whose journal was replayed by e2fsck too.
    replayed,
    /// Among them, those that held the same then.
    replayed_alike,
    /// States whose outcome is not allowed, and workloads that answered wrongly.
    violations,
}

impl Counts {
    /// What a run that went on after a power cut adds to the numbers of its workload, where these
    /// are its own.
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

/// How many recoveries reached each case of the scheme's recovery table. The key is the case's
/// [`found`](RecoveryCase::found).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached(BTreeMap<String, u64>);

impl Reached {
    /// Adds the cases that one recovery reached.
    pub(super) fn add(&mut self, rows: &[&'static RecoveryCase]) {
        for row in rows {
            match self.0.get_mut(row.found) {
                Some(times) => *times += 1,
                None => _ = self.0.insert(row.found.to_owned(), 1),
            }
        }
    }

    /// Returns how many recoveries reached that case.
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
    /// What kind.
    pub fault: Fault,
    /// What is wrong, in words.
    pub why: String,
    /// What replays it.
    pub case: String,
    /// Which changes were there at the cut.
    pub left: String,
    /// The workload it was found in, by name.
    pub workload: String,
    /// The smallest workload that was found to fail in the same way, one operation a line, when it
    /// was looked for.
    pub minimized: Option<String>,
}

/// What an exploration gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The numbers.
    pub counts: Counts,
    /// How often recoveries reached each case.
    #[serde(default, rename = "met")]
    pub reached: Reached,
    /// Workloads that never ran, not even to be looked at where syncs have returned, by their
    /// titles. None: it is of a time when nobody took note.
    #[serde(default)]
    pub never_ran: Option<Vec<String>>,
    /// Seconds that it took; of several one after the other.
    pub seconds: f64,
    /// Threads that worked.
    pub jobs: usize,
    /// The first violations.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether each workload has run at least once. Without that an exploration says nothing of
    /// what it is named after.
    pub fn has_run_all(&self) -> bool {
        match &self.never_ran {
            Some(never_ran) => never_ran.is_empty(),
            None => self.counts.workloads_unfinished == 0,
        }
    }

    /// States judged in a second, those after a second cut included.
    pub fn states_a_second(&self) -> f64 {
        (self.counts.states + self.counts.nested) as f64 / self.seconds.max(1e-9)
    }
}
