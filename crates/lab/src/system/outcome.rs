//! The result of a run, as named numbers for tables, plots, claims and CSV.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stetfs_ftl::Wear;
use stetfs_media::{Cause, MeterSnapshot};

use super::account::{MountCost, Reading};
use crate::workload::{Counts, Spent};

/// A number of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Number {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it is.
    pub what: &'static str,
}

const fn number(name: &'static str, unit: &'static str, what: &'static str) -> Number {
    Number { name, unit, what }
}

/// Every number. Time is virtual. Bytes, requests and lines count until everything is durable,
/// unless `home` says otherwise. What only an unmount writes for itself (superblock, the end of the
/// log) never counts.
pub const NUMBERS: &[Number] = &[
    number("returned", "s", "until the last call returns (U1)"),
    number("durable", "s", "until everything is durable (U2)"),
    number("home", "s", "until everything is home (U3)"),
    number(
        "media",
        "s",
        "of the time until durable, the media's; the rest is the processor's",
    ),
    number(
        "capture",
        "s",
        "of the processor's time, what scheme dj looks for differences in",
    ),
    number("rate", "calls/s", "calls by the time until durable"),
    number("calls", "", "calls"),
    number("written", "B", "handed to writes"),
    number("read", "B", "got from reads"),
    number("writes", "", "calls that write"),
    number("reads", "", "calls that read something"),
    number("p50", "s", "half of the calls take no longer"),
    number("p99", "s", "99 % of the calls take no longer"),
    number("p99.9", "s", "99.9 % of the calls take no longer"),
    number(
        "commit.p50",
        "s",
        "half of the calls that commit take no longer, where there is a background",
    ),
    number("commit.p99", "s", "99 % of them take no longer"),
    number("commits", "", "transactions"),
    number("checkpoints", "", "checkpoints until durable"),
    number(
        "logged",
        "B",
        "written to the log on the device, records included",
    ),
    number("placed", "B", "written home by commits"),
    number(
        "checkpointed",
        "B",
        "written home by checkpoints, until home",
    ),
    number("device", "B", "written to the device"),
    number("device.home", "B", "the same until home"),
    number("requests", "", "writes to the device"),
    number(
        "flushes",
        "",
        "flushes of the device, and writes past its cache",
    ),
    number("device.read", "B", "read from the device"),
    number("erases", "", "blocks of flash erased, until home"),
    number("map", "B", "of device.home, the flash layer's map"),
    number("gc", "B", "of device.home, moved by garbage collection"),
    number("wear.most", "erases", "of the block that was erased most"),
    number("wear.mean", "erases", "of a block"),
    number("nvm", "B", "stored in the memory beside the device"),
    number(
        "lines",
        "",
        "cache lines that commits write back or store past the cache",
    ),
    number("fences", "", "store fences of commits"),
    number(
        "memory",
        "B",
        "of cached blocks in the file system's memory when everything is durable",
    ),
    number("cache.hits", "", "reads that a cache in NVM served"),
    number("cache.misses", "", "reads that it did not"),
    number("cache.home", "", "blocks that it wrote home"),
    number("deltas", "", "blocks that scheme dj logged as deltas"),
    number("delta", "B", "of a delta, on average"),
    number("wholes", "", "blocks that it logged whole"),
    number(
        "recovery",
        "s",
        "the mount after a power cut when everything was durable",
    ),
    number("recovery.read", "B", "read from the device by it"),
    number(
        "recovery.written",
        "B",
        "written by it: what it copies home, and the log's superblock",
    ),
];

/// Columns of CSV: the numbers that any of the runs has.
pub struct Columns(Vec<&'static Number>);

impl Columns {
    /// The columns for these runs.
    pub fn of<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> Self {
        let names = outcomes.flat_map(|outcome| outcome.iter().map(|(name, _)| name));
        let known: BTreeSet<&str> = names.collect();
        let numbers = NUMBERS.iter().filter(|n| known.contains(n.name));
        Self(numbers.collect())
    }

    /// Their heads.
    pub fn heads(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|number| match number.unit {
            "" => number.name.to_owned(),
            unit => format!("{} [{unit}]", number.name),
        })
    }

    /// Returns a run's values for the columns.
    pub fn values(&self, outcome: &Outcome) -> impl Iterator<Item = String> {
        let values = self.0.iter().map(|number| outcome.get(number.name));
        values.map(|value| value.map_or_else(String::new, |value| value.to_string()))
    }
}

/// The numbers that a run has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Outcome(BTreeMap<String, f64>);

impl Outcome {
    /// Returns a number; `None` where the run does not have it.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Iterates over all numbers that the run has.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    fn note(&mut self, name: &'static str, value: f64) {
        debug_assert!(NUMBERS.iter().any(|known| known.name == name), "{name}");
        self.0.insert(name.to_owned(), value);
    }

    fn count(&mut self, name: &'static str, value: u64) {
        self.note(name, value as f64);
    }

    pub(super) fn note_calls(&mut self, counts: Counts, spent: Spent, returned_ns: u64) {
        self.count("calls", counts.operations);
        self.count("written", counts.written_bytes);
        self.count("read", counts.read_bytes);
        self.count("writes", counts.writes);
        self.count("reads", counts.reads);
        self.note("returned", seconds(returned_ns));
        self.note("media", -seconds(spent.processor_ns));
        let calls = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
        let commits = [("commit.p50", 0.5), ("commit.p99", 0.99)];
        self.note_shares(spent.calls_ns, &calls);
        self.note_shares(spent.commits_ns, &commits);
    }

    fn note_shares(&mut self, mut all_ns: Vec<u64>, shares: &[(&'static str, f64)]) {
        all_ns.sort_unstable();
        for (name, share) in shares {
            let at = (all_ns.len() as f64 * share) as usize;
            if let Some(ns) = all_ns.get(at) {
                self.note(name, seconds(*ns));
            }
        }
    }

    pub(super) fn note_media(&mut self, begin: &Reading, durable: &Reading, home: &Reading) {
        let until_durable = durable.account.since(&begin.account);
        let until_home = home.account.since(&begin.account);
        let unmounting = home.account.since(&durable.account);
        let own_ns = unmounting.device.busy_ns(Cause::Control);
        let durable_ns = durable.now_ns - begin.now_ns;
        self.note_times(durable_ns, home.now_ns - begin.now_ns - own_ns);
        let journal = |reading: &Reading| reading.stats.journal;
        self.count("commits", journal(durable).commits - journal(begin).commits);
        let checkpoints = journal(durable).checkpoints - journal(begin).checkpoints;
        self.count("checkpoints", checkpoints);
        let control = written(&unmounting.device, Cause::Control);
        self.note_device(&until_durable.device, &until_home.device, control);
        self.count("memory", journal(durable).cached_bytes);
        if durable.stats.nvm.is_some() {
            self.note_memory_beside(&until_durable.nvm);
        }
        if let (Some(now), Some(before)) = (durable.stats.cache, begin.stats.cache) {
            let cache = now.since(&before);
            self.count("cache.hits", cache.hits);
            self.count("cache.misses", cache.misses);
            self.count("cache.home", cache.written_home);
        }
        if let Some(now) = durable.deltas {
            let deltas = now - begin.deltas.unwrap_or_default();
            self.count("deltas", deltas.deltas);
            self.count("wholes", deltas.wholes);
            if let Some(mean) = deltas.mean() {
                self.note("delta", mean);
            }
        }
    }

    fn note_times(&mut self, durable_ns: u64, home_ns: u64) {
        self.note("durable", seconds(durable_ns));
        self.note("home", seconds(home_ns));
        let processor = self.get("media").unwrap_or_default();
        self.note("media", seconds(durable_ns) + processor);
        if let Some(calls) = self.get("calls") {
            self.note("rate", calls / seconds(durable_ns.max(1)));
        }
    }

    /// Notes the device's bytes and requests. `control`: bytes that the unmount writes for itself.
    fn note_device(&mut self, durable: &MeterSnapshot, home: &MeterSnapshot, control: u64) {
        let logged = written(durable, Cause::Log) + written(durable, Cause::CommitRecord);
        self.count("logged", logged);
        self.count("placed", written(durable, Cause::Home));
        self.count("checkpointed", written(home, Cause::Checkpoint));
        self.count("device", durable.total().write_bytes);
        self.count("device.home", home.total().write_bytes - control);
        self.count("requests", durable.total().writes);
        self.count(
            "flushes",
            durable.total_flushes() + durable.total_durable_writes(),
        );
        self.count("device.read", durable.total().read_bytes);
        if home.total_erases() > 0 || written(home, Cause::Map) > 0 {
            self.count("erases", home.total_erases());
            self.count("map", written(home, Cause::Map));
            self.count("gc", written(home, Cause::Gc));
        }
    }

    fn note_memory_beside(&mut self, nvm: &MeterSnapshot) {
        let of_commits = [Cause::Log, Cause::CommitRecord];
        self.count("nvm", nvm.total().write_bytes);
        let lines = of_commits.map(|cause| nvm.by_cause(cause).lines);
        self.count("lines", lines.iter().sum());
        let fences = of_commits.map(|cause| nvm.fences(cause));
        self.count("fences", fences.iter().sum());
    }

    pub(super) fn note_capture(&mut self, ns: u64) {
        self.note("capture", seconds(ns));
    }

    pub(super) fn note_recovery(&mut self, mount: &MountCost) {
        self.note("recovery", seconds(mount.virtual_ns));
        self.count("recovery.read", mount.device.total().read_bytes);
        let of_home = [Cause::Recovery, Cause::Checkpoint, Cause::Home];
        let home = of_home.map(|cause| mount.device.by_cause(cause).write_bytes);
        self.count("recovery.written", home.iter().sum());
    }

    pub(super) fn note_wear(&mut self, wear: &Wear) {
        self.note("wear.mean", wear.mean());
        self.count("wear.most", wear.range().1.into());
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn written(of: &MeterSnapshot, cause: Cause) -> u64 {
    of.by_cause(cause).write_bytes
}
