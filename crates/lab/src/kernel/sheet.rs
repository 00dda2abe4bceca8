//! The numbers of a comparison, those that deviate, and the reasons for it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::device::{Account, Written};
use super::{Compared, Job, Pair, Plan};

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sheet {
    /// The kernel's version.
    pub kernel: String,
    /// Seed of everything random.
    pub seed: u64,
    /// What was compared.
    pub pairs: Vec<Pair>,
    /// The workloads.
    pub jobs: Vec<Job>,
    /// Each pair with each workload.
    pub runs: Vec<Compared>,
}

/// A number that deviates.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation<'s> {
    /// The run.
    pub run: &'s Compared,
    /// `bytes`, `requests`, `flushes` or a kind of bytes.
    pub number: String,
    /// The kernel's.
    pub kernel: u64,
    /// Ours.
    pub ours: u64,
}

/// The reasons why numbers deviate.
#[derive(Clone, Debug, Deserialize)]
pub struct Reasons(Vec<Reason>);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    /// For these pairs; empty: for all.
    #[serde(default)]
    pairs: Vec<String>,
    /// In these workloads; empty: in all.
    #[serde(default)]
    jobs: Vec<String>,
    /// For these numbers.
    numbers: Vec<String>,
    /// Whether ours is more or less; `None`: either.
    ours: Option<Side>,
    why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Side {
    More,
    Less,
}

/// A number that differs by at most one part in this many does not deviate.
const TENTH: u64 = 10;
/// Bytes that differ by at most one part in this many of all that the kernel writes do not deviate.
const SHARE: u64 = 100;
/// Bytes, and requests or flushes, that differ by no more than a mount does once do not deviate.
const ONCE: (u64, u64) = (32 << 10, 4);

/// The reasons that a document names, numbered from 1.
struct Numbered<'r> {
    reasons: &'r Reasons,
    /// Their places in `reasons`, in order.
    used: Vec<usize>,
}

impl Numbered<'_> {
    /// The numbers of the reasons for a run's deviations in these numbers, in brackets.
    fn of(&self, run: &Compared, is_shown: fn(&str) -> bool) -> String {
        let found = deviations(run).filter(|deviation| is_shown(&deviation.number));
        let found = found.filter_map(|deviation| Some(self.reasons.why(&deviation)?.0));
        let found = found.filter_map(|reason| self.used.iter().position(|n| *n == reason));
        let found: BTreeSet<usize> = found.collect();
        let found: Vec<_> = found.into_iter().map(|n| (n + 1).to_string()).collect();
        if found.is_empty() {
            String::new()
        } else {
            format!(" [{}]", found.join(", "))
        }
    }

    fn whys(&self) -> impl Iterator<Item = &str> {
        self.used.iter().map(|n| &*self.reasons.0[*n].why)
    }
}

impl Sheet {
    /// Compares all of a plan.
    ///
    /// # Errors
    /// Those of [`Plan::run`].
    pub fn measure(plan: &Plan, seed: u64, tell: &dyn Fn(&str)) -> Result<Self> {
        Ok(Self {
            kernel: release(),
            seed,
            runs: plan.run(seed, tell)?,
            pairs: plan.pairs.clone(),
            jobs: plan.jobs.clone(),
        })
    }

    /// Returns all numbers that deviate.
    pub fn deviations(&self) -> Vec<Deviation<'_>> {
        self.runs.iter().flat_map(deviations).collect()
    }

    /// Each number of each run: the kernel's, and ours.
    pub fn numbers(&self) -> impl Iterator<Item = (&Compared, String, u64, u64)> {
        let of = |run| {
            numbers(run)
                .into_iter()
                .map(move |(name, k, o)| (run, name, k, o))
        };
        self.runs.iter().flat_map(of)
    }

    /// Returns the sheet as JSON, a run per line.
    ///
    /// # Errors
    /// None is known.
    pub fn json(&self) -> Result<String> {
        let text = serde_json::to_string(self)?;
        Ok(text.replace("{\"pair\":", "\n{\"pair\":") + "\n")
    }

    /// Returns each kind of bytes of each run, and requests and flushes, as CSV.
    pub fn csv(&self) -> String {
        let mut text = "pair,workload,number,kernel,ours\n".to_owned();
        for (run, number, kernel, ours) in self.numbers() {
            let _ = writeln!(text, "{},{},{number},{kernel},{ours}", run.pair, run.job);
        }
        text
    }

    /// Makes the document.
    ///
    /// # Errors
    /// A number deviates without a reason.
    pub fn document(&self, reasons: &Reasons) -> Result<String> {
        let numbered = self.numbered(reasons)?;
        let mut text = HEAD.replace("{kernel}", &self.kernel);
        self.list_pairs(&mut text);
        self.table(
            &mut text,
            "KB, kernel / ours (ours by the kernel's)",
            &|run: &Compared, per| {
                let (kernel, ours) = (run.kernel.total().bytes, run.ours.total().bytes);
                let (ratio, why) = (
                    ours as f64 / kernel as f64,
                    numbered.of(run, |name| !is_count(name)),
                );
                format!("{} / {} ({ratio:.2}){why}", kb(kernel, per), kb(ours, per))
            },
        );
        self.table(
            &mut text,
            "Requests, and flushes; kernel / ours",
            &|run: &Compared, per| {
                let (kernel, ours) = (&run.kernel, &run.ours);
                let both = |kernel, ours| format!("{} / {}", each(kernel, per), each(ours, per));
                format!(
                    "{}; {}{}",
                    both(kernel.total().requests, ours.total().requests),
                    both(kernel.flushes, ours.flushes),
                    numbered.of(run, is_count),
                )
            },
        );
        text.push_str(CLASSES);
        self.list_classes(&mut text);
        text.push_str(SQLITE);
        text.push_str("\n## Why\n\n");
        for (n, why) in numbered.whys().enumerate() {
            let _ = writeln!(text, "{}. {why}", n + 1);
        }
        text.push_str("\n<!-- end -->\n");
        Ok(text)
    }

    /// Numbers the reasons of all deviations.
    fn numbered<'r>(&self, reasons: &'r Reasons) -> Result<Numbered<'r>> {
        let mut used = BTreeSet::new();
        for deviation in self.deviations() {
            let why = reasons.why(&deviation);
            used.insert(why.with_context(|| deviation.text())?.0);
        }
        Ok(Numbered {
            reasons,
            used: used.into_iter().collect(),
        })
    }

    fn list_pairs(&self, text: &mut String) {
        for pair in &self.pairs {
            let kind = match &*pair.features {
                "" => pair.kind.clone(),
                features => format!("{} made with {features}", pair.kind),
            };
            let Pair {
                name,
                ours,
                options,
                ..
            } = pair;
            let _ = writeln!(
                text,
                "- *{name}*: {kind}, `-o {options}`; ours `-o {ours}`."
            );
        }
    }

    fn list_classes(&self, text: &mut String) {
        let is_shown = |run: &&Compared| {
            ["ordered", "journal"].contains(&&*run.pair) && SHOWN.contains(&&*run.job)
        };
        for run in self.runs.iter().filter(is_shown) {
            let per = self.per(run);
            let parts = PARTS.iter().map(|part| {
                let of = |account| kb(part_of(account, part), per);
                format!("{} / {}", of(&run.kernel), of(&run.ours))
            });
            let parts: Vec<_> = parts.collect();
            let _ = writeln!(
                text,
                "| {}, {} | {} |",
                run.pair,
                run.job,
                parts.join(" | ")
            );
        }
    }

    /// A row for each workload, a column for each pair.
    fn table(&self, text: &mut String, title: &str, cell: &dyn Fn(&Compared, u64) -> String) {
        let names: Vec<_> = self.pairs.iter().map(|pair| &*pair.name).collect();
        let _ = writeln!(text, "\n## {title}\n\n| | {} |", names.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(names.len() + 1));
        for job in &self.jobs {
            let runs = self.runs.iter().filter(|run| run.job == job.name);
            let cells: Vec<_> = runs.map(|run| cell(run, job.per)).collect();
            let _ = writeln!(text, "| {} | {} |", job.name, cells.join(" | "));
        }
    }

    fn per(&self, run: &Compared) -> u64 {
        let job = self.jobs.iter().find(|job| job.name == run.job);
        job.map_or(1, |job| job.per)
    }
}

impl Deviation<'_> {
    /// The deviation as a line.
    pub fn text(&self) -> String {
        format!(
            "{}, {}: {}: {} by the kernel, {} by ours",
            self.run.pair, self.run.job, self.number, self.kernel, self.ours
        )
    }
}

impl Reasons {
    /// Returns the known reasons.
    ///
    /// # Errors
    /// Never, as long as tests pass.
    pub fn known() -> Result<Self> {
        serde_json::from_str(include_str!("reasons.json")).context("reasons.json")
    }

    /// Returns the first reason for a deviation, and its number.
    pub fn why(&self, deviation: &Deviation<'_>) -> Option<(usize, &str)> {
        let is_in = |names: &[String], name: &str| names.iter().any(|one| one == name);
        let of = |deviation: &Deviation<'_>| {
            if deviation.ours > deviation.kernel {
                Side::More
            } else {
                Side::Less
            }
        };
        let fits = |reason: &&Reason| {
            (reason.pairs.is_empty() || is_in(&reason.pairs, &deviation.run.pair))
                && (reason.jobs.is_empty() || is_in(&reason.jobs, &deviation.run.job))
                && is_in(&reason.numbers, &deviation.number)
                && reason.ours.is_none_or(|side| side == of(deviation))
        };
        let at = self.0.iter().position(|reason| fits(&reason))?;
        Some((at, &self.0[at].why))
    }

    /// Returns the reasons that explain nothing in a comparison.
    pub fn unused(&self, sheet: &Sheet) -> Vec<&str> {
        let deviations = sheet.deviations();
        let used: BTreeSet<_> = deviations
            .iter()
            .filter_map(|d| Some(self.why(d)?.0))
            .collect();
        let left = (0..self.0.len()).filter(|n| !used.contains(n));
        left.map(|n| &*self.0[n].why).collect()
    }
}

/// The version of this machine's kernel.
pub(super) fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let end = release.find(|c| !digits(c)).unwrap_or(release.len());
    release[..end].to_owned()
}

fn numbers(run: &Compared) -> Vec<(String, u64, u64)> {
    let (kernel, ours) = (run.kernel.total(), run.ours.total());
    let kinds: BTreeSet<_> = run
        .kernel
        .kinds
        .keys()
        .chain(run.ours.kinds.keys())
        .collect();
    let of = |account: &Account, kind| account.kinds.get(kind).map_or(0, |w: &Written| w.bytes);
    let totals = [
        ("bytes".to_owned(), kernel.bytes, ours.bytes),
        ("requests".to_owned(), kernel.requests, ours.requests),
        ("flushes".to_owned(), run.kernel.flushes, run.ours.flushes),
    ];
    let kinds = kinds
        .into_iter()
        .map(|kind| (kind.clone(), of(&run.kernel, kind), of(&run.ours, kind)));
    totals.into_iter().chain(kinds).collect()
}

fn deviations(run: &Compared) -> impl Iterator<Item = Deviation<'_>> {
    let share = run.kernel.total().bytes / SHARE;
    let apart = move |(number, kernel, ours): &(String, u64, u64)| {
        let least = match &**number {
            name if is_count(name) => ONCE.1,
            _ => ONCE.0.max(share),
        };
        let difference = kernel.abs_diff(*ours);
        difference * TENTH > *kernel && difference > least
    };
    numbers(run)
        .into_iter()
        .filter(apart)
        .map(move |(number, kernel, ours)| Deviation {
            run,
            number,
            kernel,
            ours,
        })
}

fn is_count(number: &str) -> bool {
    ["requests", "flushes"].contains(&number)
}

/// Workloads of the last table.
const SHOWN: [&str; 6] = [
    "overwrite-4K",
    "create",
    "unlink",
    "sqlite-delete",
    "sqlite-fdatasync",
    "varmail",
];

/// Columns of the last table: kinds, by how they begin; the last takes what is left.
const PARTS: [&[&str]; 6] = [
    &["log/data"],
    &["log/descriptor", "log/commit", "log/revoke"],
    &["log/journal superblock", "log/fast commit"],
    &["log/"],
    &["home/data"],
    &["home/"],
];

fn part_of(account: &Account, part: &[&str]) -> u64 {
    let bytes = |prefix: &&str| account.of(prefix).bytes;
    let all: u64 = part.iter().map(&bytes).sum();
    let others: u64 = match part {
        ["log/"] => PARTS[..3]
            .iter()
            .flat_map(|part| part.iter())
            .map(bytes)
            .sum(),
        ["home/"] => account.of("home/data").bytes,
        _ => 0,
    };
    all - others
}

fn kb(bytes: u64, per: u64) -> String {
    let kb = bytes as f64 / 1000.0 / per as f64;
    format!("{kb:.1}")
}

fn each(count: u64, per: u64) -> String {
    match per {
        1 => count.to_string(),
        _ => format!("{:.2}", count as f64 / per as f64),
    }
}

const HEAD: &str = "\
# The kernel as control

<!-- made by stetfs lab kernel -->

`stetfs lab kernel --json docs/kernel.json --document docs/lab/kernel.md` measures this; it needs
root, `/dev/fuse` and loop devices. The same calls go to a file system of Linux {kernel} and to our
`jbd2`, each on a device of ours that notes every request: a loop device on a file that we serve,
and the library on the same device. A run is from a mount with an empty log to the unmount, and
numbers are for an operation (of varmail and fileserver for all of it). What is written is told
apart by the volume's layout and the log's descriptors, on both sides alike; a request is a range
in one piece, however it was cut; a write with forced access is a write and a flush.

Numbers, those of each class among them, are alike within 10 %, or 1 % of all bytes, or what a
mount does once (32 KiB, 4 requests or flushes). Everything else has a reason, by its number in
brackets; a test fails where there is none.

";

const SQLITE: &str = "
## SQLite's update: 57 and 106 KB, or 78.0 and 78.5

A row of 100 bytes by a rollback journal changes six blocks of files (four of the journal, two of
the database); making and removing the journal changes four blocks of metadata and, in the kernel,
the superblock for its list of orphans; each commit takes three (descriptor, commit block, inodes).

| blocks of 4,096 bytes | data, log | home | metadata | orphans | commits | revokes | KB |
|---|---|---|---|---|---|---|---|
| kernel, ordered, `fdatasync` | | 6 | 4 | 1 | 1 of 3 | | 57.3 |
| kernel, ordered, `fsync`, the journal's two in one tick | | 6 | 4 | 1 | 2 of 3 | | 69.6 |
| ours, ordered, `fsync`, no two in one tick | | 6 | 4 | | 3 of 3 | | 77.8 |
| kernel, journal | 6 | 6 | 4 | 1 | 3 of 2, 2 inodes, 1 empty | | 106.5 |
| ours, journal, `fsync` | 6 | 1 | 4 | | 3 of 3 | | 77.8 |

Three things make the difference, and the journal's format is none of them:

- A distribution's SQLite is built to call `fdatasync`, for which a change of times alone needs no
  commit; SQLite's source as it comes, and our VFS, call `fsync`. With `fdatasync` ours takes one
  commit too (`sqlite-fdatasync` above).
- The kernel takes times from its tick (250 a second here): a second write within one changes no
  inode, and its `fsync` commits nothing. The lab's other numbers have a time that always moves.
- In `data=journal` the kernel's `fsync` also writes the pages home.
";

const CLASSES: &str = "
## By class

KB of an operation, the kernel's / ours. *Records* are descriptors, commit blocks and revokes;
*head* is the journal's superblock. Metadata are inode tables, bitmaps, descriptors of groups,
directories, extent trees and the superblock: `docs/kernel.json` has each by itself.

| | log: data | records | head | metadata | home: data | metadata |
|---|---|---|---|---|---|---|
";
