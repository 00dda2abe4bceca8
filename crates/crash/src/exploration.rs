//! Explorations of power cuts with their request. Several machines can share one ([`Shard`]),
//! findings are added up ([`Exploration::add`]), an interrupted exploration goes on ([`Resumed`]),
//! and a report says what it is about. [`crate::sharing`] has the part that explorations of
//! programs share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs_scheme::{DataMode, RecoveryCase};
use stetfs_schemes::find;

use crate::campaign::Done;
use crate::oracle::NOT_COMPARED;
use crate::report::Report;
use crate::sharing::{Shard, Shards, check_same, write_durably};
use crate::states::Effort;
use crate::target::Target;
use crate::turns::Order;
use crate::workload::Workload;
use crate::workloads::Choice;

/// The version of reports, and of files to resume from.
pub const VERSION: u32 = 3;

/// The code that is judged and that judges: its version, and a checksum of its sources.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " ", env!("STETFS_SOURCES"));

/// The request of an exploration. The same request gives the same numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// [`VERSION`].
    pub version: u32,
    /// [`BUILD`].
    pub build: String,
    /// The target, as [`Target`] parses it.
    pub target: String,
    /// How much is looked at; less for longer workloads.
    pub effort: Effort,
    /// Which workloads are chosen.
    pub choice: Choice,
    /// The names of the user's own workloads.
    pub own: Vec<String>,
    /// The number of workloads of all shards.
    pub chosen: u64,
    /// A checksum of these workloads.
    pub checksum: String,
}

impl Asked {
    /// Checks that two requests are the same.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_same(&self, other: &Self) -> Result<()> {
        // The fields that say most come first.
        let names = ["version", "build", "target", "effort", "choice", "own"];
        check_same(&names, self, other)
    }
}

/// Writes a number with its thousands apart.
pub fn grouped(n: u64) -> String {
    if n == u64::MAX {
        return "more than 2^64".to_owned();
    }
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The orders of the workloads, of all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The number of workloads; those that differ only in their order count once.
    pub workloads: u64,
    /// Among them, those that do not run in all of in-order, each-handle and overlapping.
    pub in_some_only: u64,
    /// The number of different seeds of overlapping orders, out of 2^64.
    pub overlap_seeds: u64,
}

/// The kinds of orders in which each workload runs.
#[derive(Default)]
struct Kinds {
    /// Whether it runs in-order, each-handle and overlapping, by the workload's key in-order.
    of: BTreeMap<u64, [bool; 3]>,
    seeds: BTreeSet<u64>,
}

impl Kinds {
    fn note(&mut self, workload: &Workload) {
        let kind = match workload.order {
            Order::InOrder => 0,
            Order::EachHandle => 1,
            Order::Overlap(seed) => {
                self.seeds.insert(seed);
                2
            }
        };
        let key = workload.clone().in_order(Order::InOrder).key();
        self.of.entry(key).or_default()[kind] = true;
    }

    fn orders(&self) -> Orders {
        let some_only = self.of.values().filter(|kinds| kinds.contains(&false));
        Orders {
            workloads: self.of.len() as u64,
            in_some_only: some_only.count() as u64,
            overlap_seeds: self.seeds.len() as u64,
        }
    }
}

/// An exploration before it is run.
pub struct Plan {
    /// The target.
    pub target: Target,
    /// The workloads of the shard.
    pub workloads: Vec<Workload>,
    asked: Asked,
    shards: Shards,
    orders: Orders,
    impossible: u64,
    not_sampled: u64,
}

impl Plan {
    /// Chooses the workloads, including the user's `own`.
    pub fn new(
        target: Target,
        effort: Effort,
        choice: Choice,
        own: Vec<Workload>,
        shard: Shard,
    ) -> Self {
        let names = own.iter().map(Workload::title).collect();
        // Of other shards' workloads only keys and kinds are kept.
        let (mut keys, mut kinds) = (BTreeSet::new(), Kinds::default());
        let mut workloads = Vec::new();
        let mut take = |workload: Workload| {
            // A workload that was chosen twice runs once.
            let key = workload.key();
            if keys.insert(key) {
                kinds.note(&workload);
                workloads.extend(shard.has(key).then_some(workload));
            }
        };
        // The user's own workloads come first.
        let own = own.into_iter().flat_map(|w| w.in_each(&choice.orders));
        own.for_each(&mut take);
        let left_out = choice.each(&target, &mut take);
        let of_all = keys.iter().flat_map(|key| key.to_le_bytes());
        let asked = Asked {
            version: VERSION,
            build: BUILD.to_owned(),
            target: target.to_string(),
            effort,
            choice,
            own: names,
            chosen: keys.len() as u64,
            checksum: format!(
                "{:016x}",
                stetfs_testkit::world::tree::hash(&of_all.collect::<Vec<_>>())
            ),
        };
        Self {
            target,
            workloads,
            asked,
            shards: shard.into(),
            orders: kinds.orders(),
            impossible: left_out.impossible,
            not_sampled: left_out.not_sampled,
        }
    }

    /// Returns how much is looked at.
    pub fn effort(&self) -> Effort {
        self.asked.effort
    }

    /// Returns the exploration with its result.
    pub fn found(&self, report: Report) -> Exploration {
        Exploration {
            asked: self.asked.clone(),
            scheme: self.target.ground().name.to_owned(),
            data: self
                .target
                .data
                .map(|mode: DataMode| mode.name().to_owned()),
            volume: self.target.volume.name.to_owned(),
            shards: self.shards.clone(),
            orders: self.orders,
            sequences_impossible: self.impossible,
            sequences_not_sampled: self.not_sampled,
            states_a_second: report.states_a_second(),
            report,
        }
    }
}

/// An exploration: its request and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exploration {
    /// The request.
    #[serde(flatten)]
    pub asked: Asked,
    /// The scheme.
    pub scheme: String,
    /// The scheme's mode.
    pub data: Option<String>,
    /// The volume.
    pub volume: String,
    /// The shards that it covers.
    pub shards: Shards,
    /// The orders of the workloads.
    pub orders: Orders,
    /// Sequences that are impossible: an operation fails in the model.
    pub sequences_impossible: u64,
    /// Sequences that were not sampled.
    #[serde(rename = "sequences_not_drawn")]
    pub sequences_not_sampled: u64,
    /// States judged per second.
    pub states_a_second: f64,
    /// The result.
    #[serde(flatten)]
    pub report: Report,
}

impl Exploration {
    /// Returns the number of workloads in shards that it does not cover.
    pub fn elsewhere(&self) -> u64 {
        let counts = &self.report.counts;
        let here = counts.workloads + counts.workloads_unfinished;
        self.asked.chosen.saturating_sub(here)
    }

    /// True if workloads with groups that write to files were left out, since the target cannot
    /// have any.
    pub fn lacks_groups(&self) -> bool {
        let target = self.asked.target.parse::<Target>();
        self.asked.choice.wants_groups() && target.is_ok_and(|target| !target.can_group())
    }

    /// Returns the cases of the scheme's recovery table that no recovery reached.
    pub fn unreached(&self) -> Vec<&'static RecoveryCase> {
        let Ok(scheme) = find(&self.scheme) else {
            return Vec::new();
        };
        let rows = scheme.about.recovery.iter().copied().flatten();
        rows.copied()
            .filter(|row| self.report.reached.times(row) == 0)
            .collect()
    }

    /// Adds the results of other shards.
    ///
    /// # Errors
    /// The requests differ, or a shard is in both.
    pub fn add(&mut self, other: Self) -> Result<()> {
        self.asked.check_same(&other.asked)?;
        self.shards.add(other.shards)?;
        let (report, more) = (&mut self.report, other.report);
        report.counts += more.counts;
        report.reached += &more.reached;
        report.seconds += more.seconds;
        report.jobs = report.jobs.max(more.jobs);
        report.violations.extend(more.violations);
        if let (Some(all), Some(more)) = (&mut report.never_ran, more.never_ran) {
            all.extend(more);
        }
        self.states_a_second = report.states_a_second();
        Ok(())
    }
}

/// A report file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explorations {
    /// One exploration for each target.
    pub explorations: Vec<Exploration>,
    /// [`NOT_COMPARED`].
    #[serde(default)]
    pub not_compared: Vec<String>,
}

impl Explorations {
    /// A report of these explorations.
    pub fn new(explorations: Vec<Exploration>) -> Self {
        Self {
            explorations,
            not_compared: NOT_COMPARED.map(str::to_owned).into(),
        }
    }

    /// Reads a report file.
    ///
    /// # Errors
    /// The file cannot be read, is no report, or has another version.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path)?;
        check_version(&text)?;
        let all: Self = serde_json::from_slice(&text).context("it is no report of stetfs crash")?;
        for exploration in &all.explorations {
            exploration.shards.check()?;
        }
        Ok(all)
    }

    /// Reads report files and adds them up.
    ///
    /// # Errors
    /// The file that does not belong to the others, and why.
    pub fn merge(files: &[PathBuf]) -> Result<Self> {
        let mut merged: Option<Vec<Exploration>> = None;
        for file in files {
            let at = || file.display().to_string();
            let more = Self::read(file).with_context(at)?.explorations;
            match &mut merged {
                None => merged = Some(more),
                Some(merged) => add_all(merged, more).with_context(at)?,
            }
        }
        let merged = merged.filter(|merged| !merged.is_empty());
        Ok(Self::new(merged.context("there is nothing to merge")?))
    }
}

/// Adds the explorations of one report to those of the same target in another.
fn add_all(merged: &mut [Exploration], more: Vec<Exploration>) -> Result<()> {
    let targets = |all: &[Exploration]| {
        let names = all.iter().map(|e| e.asked.target.clone());
        names.collect::<Vec<_>>().join(", ")
    };
    let (ours, theirs) = (targets(merged), targets(&more));
    ensure!(ours == theirs, "it is of {theirs}, and not of {ours}");
    for (ours, theirs) in merged.iter_mut().zip(more) {
        ours.add(theirs)?;
    }
    Ok(())
}

/// Checks the version alone, since nothing else can be relied upon in another version's file.
fn check_version(text: &[u8]) -> Result<()> {
    #[derive(Deserialize)]
    struct Versions {
        explorations: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        #[serde(default)]
        version: u32,
    }
    let all: Versions = serde_json::from_slice(text).context("it is no report of stetfs crash")?;
    for Version { version } in all.explorations {
        ensure!(
            version == VERSION,
            "it is of version {version}; this one reads {VERSION}"
        );
    }
    Ok(())
}

/// A file with the finished parts of some explorations, so that the same command goes on with the
/// rest.
pub struct Resumed {
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    explorations: Vec<Begun>,
}

/// An exploration with its finished part.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    #[serde(flatten)]
    asked: Asked,
    shards: Shards,
    done: Done,
}

impl Begun {
    fn check(&self, plan: &Plan) -> Result<()> {
        plan.asked.check_same(&self.asked)?;
        ensure!(
            self.shards == plan.shards,
            "it is of shard {}, and not of {}",
            self.shards,
            plan.shards
        );
        let keys: BTreeSet<u64> = plan.workloads.iter().map(Workload::key).collect();
        ensure!(
            self.done.turns.iter().all(|(key, _)| keys.contains(key)),
            "it is damaged: it names workloads that do not belong to it"
        );
        Ok(())
    }
}

impl Resumed {
    /// Reads the finished parts of the planned explorations. If there is no such file, makes one
    /// without any.
    ///
    /// # Errors
    /// The file is of another exploration, or is no such file; it then stays as it is. Or it cannot
    /// be read or written.
    pub fn open(path: &Path, plans: &[Plan]) -> Result<Self> {
        let kept = Self::read(path, plans).with_context(|| path.display().to_string())?;
        let resumed = Self {
            path: path.to_owned(),
            kept: Mutex::new(kept),
        };
        write_durably(path, &*resumed.kept.lock())?;
        Ok(resumed)
    }

    fn read(path: &Path, plans: &[Plan]) -> Result<Kept> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kept::default()),
            Err(error) => return Err(error.into()),
        };
        check_version(&text)?;
        let kept: Kept = serde_json::from_slice(&text).context("it does not say what is done")?;
        for begun in &kept.explorations {
            let target = &begun.asked.target;
            let plan = plans.iter().find(|plan| plan.asked.target == *target);
            let plan = plan.with_context(|| format!("it is of {target}"));
            let checked = plan.and_then(|plan| begun.check(plan));
            checked.context("it is not of this exploration")?;
        }
        Ok(kept)
    }

    /// Returns the finished part of an exploration.
    pub fn done(&self, plan: &Plan) -> Done {
        let kept = self.kept.lock();
        let begun = kept
            .explorations
            .iter()
            .find(|begun| begun.asked == plan.asked);
        begun.map_or_else(Done::default, |begun| begun.done.clone())
    }

    /// Keeps the finished part of an exploration.
    ///
    /// # Errors
    /// The file cannot be written; it still has its old content.
    pub fn keep(&self, plan: &Plan, done: &Done) -> Result<()> {
        let mut kept = self.kept.lock();
        kept.explorations.retain(|begun| begun.asked != plan.asked);
        kept.explorations.push(Begun {
            asked: plan.asked.clone(),
            shards: plan.shards.clone(),
            done: done.clone(),
        });
        write_durably(&self.path, &*kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_counted() {
        let workload = |name: &str, order| {
            let workload = Workload::parse(name, "create f; sync").expect("a workload");
            workload.in_order(order)
        };
        let (overlap, some) = (Order::Overlap, [Order::InOrder, Order::EachHandle]);
        let all = [some[0], some[1], overlap(1), overlap(9)].map(|order| workload("all", order));
        let some = some.map(|order| workload("some", order));
        let mut kinds = Kinds::default();
        all.iter().chain(&some).for_each(|w| kinds.note(w));
        let orders = kinds.orders();
        assert_eq!(
            (orders.workloads, orders.in_some_only, orders.overlap_seeds),
            (2, 1, 2)
        );
    }

    #[test]
    fn thousands_are_apart() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), text);
        }
    }
}
