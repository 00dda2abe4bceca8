//! Explorations of power cuts that are kept in `results/explored`, and the tables of
//! `results/explored.md` that `make explored` makes from them.
//!
//! A row names the commit at which it was made. If the judged code or the judge has changed since,
//! the row is marked: the build of its report ([`BUILD`]) then differs from this program's.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use hashbrown::HashSet;
use serde::{Deserialize, Serialize};
use stetfs_scheme::{Registration, Trial};
use stetfs_schemes::for_use;

use crate::report::{Counts, Violation};
use crate::states::Effort;
use crate::target::Target;
use crate::turns::Order;
use crate::workloads::Choice;
use crate::workloads::sequences::Sample;
use stetfs_testkit::document;

use crate::exploration::{BUILD, Exploration, Plan, grouped};
use crate::sharing::Shard;
use stetfs_testkit::ground;
use stetfs_testkit::image::EXT4_1K;

/// A kind of exploration.
struct Kind {
    name: &'static str,
    /// The options of the command.
    options: &'static str,
    /// Lengths of its sequences.
    lengths: &'static [usize],
    groups: bool,
    scripts: bool,
}

impl Kind {
    fn choice(&self) -> Choice {
        Choice {
            lengths: self.lengths.to_vec(),
            groups: self.groups,
            ace: Vec::new(),
            sample: Sample {
                pairs: 100,
                triples: 1000,
                seed: 1,
            },
            random: 0,
            scripts: self.scripts,
            orders: vec![Order::InOrder, Order::EachHandle, Order::Overlap(1)],
        }
    }
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "short",
        options: "--ops 1 --scripts",
        lengths: &[1],
        groups: false,
        scripts: true,
    },
    Kind {
        name: "pairs",
        options: "--ops 2",
        lengths: &[2],
        groups: false,
        scripts: false,
    },
    Kind {
        name: "groups",
        options: "--ops groups",
        lengths: &[],
        groups: true,
        scripts: false,
    },
];

/// An exploration whose report is kept.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the row, and of its file.
    pub id: String,
    /// The target.
    pub target: String,
    /// The options of `stetfs crash`.
    pub options: &'static str,
    /// Which workloads are chosen.
    pub choice: Choice,
}

/// Returns the targets by name: for each scheme that promises something, each trial with its own
/// order of writes.
fn targets() -> impl Iterator<Item = (&'static str, Target)> {
    let atomic = for_use().iter().filter(|scheme| scheme.about.atomic);
    atomic.flat_map(|scheme| {
        let target = |trial: &_| Target::of(scheme, trial, EXT4_1K);
        ground::orders(scheme).map(move |trial| (trial.name, target(trial)))
    })
}

/// What is explored below the journal of another file system, with its name: each scheme and
/// variant once with `data=journal`, `stet` in the other modes too.
fn below() -> impl Iterator<Item = (String, Target)> {
    const MODES: [(&str, &str); 3] = [
        ("ordered", "ordered"),
        ("writeback", "writeback"),
        ("async", "journal,journal_async_commit"),
    ];
    let journaled = |scheme: &'static Registration| {
        let target = |trial: &'static Trial| {
            let target = Target::below(scheme, trial, "journal", EXT4_1K);
            (format!("below-{}", trial.name), target)
        };
        let trials = ground::orders(scheme).filter(|trial| !trial.keeps_cache());
        trials.map(target)
    };
    let in_mode = |(name, mode): (&str, &str)| {
        let target = Target::new("jbd2/stet", Some(mode), EXT4_1K);
        (format!("below-stet-{name}"), target.expect("a target"))
    };
    let mut seen = HashSet::new();
    // What `jbd2` would be below is passed on as it is.
    let all = for_use()
        .iter()
        .filter(|scheme| scheme.about.name != "jbd2");
    let all = all.filter(|scheme| scheme.about.atomic);
    let all = all.flat_map(journaled).chain(MODES.map(in_mode));
    all.filter(move |(_, target)| seen.insert(target.to_string()))
}

impl Row {
    /// Returns all rows, in their order.
    pub fn all() -> impl Iterator<Item = Self> {
        let direct = KINDS.iter().flat_map(|kind| {
            let targets = targets().filter(|(_, target)| !kind.groups || target.can_group());
            targets.map(|(name, target)| Self::new(name, &target, kind))
        });
        direct.chain(below().map(|(name, target)| Self::new(&name, &target, &KINDS[0])))
    }

    fn new(name: &str, target: &Target, kind: &Kind) -> Self {
        Self {
            id: format!("{name}-{}", kind.name),
            target: target.to_string(),
            options: kind.options,
            choice: kind.choice(),
        }
    }

    /// Returns how much is looked at.
    pub fn effort(&self) -> Effort {
        Effort::default()
    }

    /// Returns the plan of the row.
    ///
    /// # Errors
    /// The target cannot be parsed.
    pub fn plan(&self) -> Result<Plan> {
        let target = self.target.parse()?;
        let choice = self.choice.clone();
        Ok(Plan::new(
            target,
            self.effort(),
            choice,
            Vec::new(),
            Shard::WHOLE,
        ))
    }
}

/// A row's report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// The commit at which it was made.
    pub commit: String,
    /// The budget.
    pub budget: Option<String>,
    /// The exploration.
    #[serde(flatten)]
    pub exploration: Exploration,
}

impl Kept {
    /// A report that keeps of violations only the cases that replay them.
    pub fn new(commit: String, budget: Option<String>, mut exploration: Exploration) -> Self {
        for violation in &mut exploration.report.violations {
            *violation = Violation {
                why: violation.why.lines().next().unwrap_or_default().to_owned(),
                left: String::new(),
                minimized: None,
                ..violation.clone()
            };
        }
        Self {
            commit,
            budget,
            exploration,
        }
    }

    /// Returns how many workloads never ran, not even in their first turn. `None` for reports from
    /// before this was noted, if some workloads were unfinished.
    pub fn never_ran(&self) -> Option<u64> {
        let report = &self.exploration.report;
        match (&report.never_ran, report.counts.workloads_unfinished) {
            (Some(never_ran), _) => Some(never_ran.len() as u64),
            (None, 0) => Some(0),
            (None, _) => None,
        }
    }

    /// True if the judged code or the judge has changed since.
    pub fn is_old(&self) -> bool {
        self.exploration.asked.build != BUILD
    }
}

/// The reports that the source tree keeps.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// The reports in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns the names of the kept reports.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let files = match fs::read_dir(&self.dir) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context(self.dir.display().to_string()),
        };
        let names = files.map(|file| {
            let path = file?.path();
            let stem = path.file_stem().unwrap_or_default();
            Ok(stem.to_string_lossy().into_owned())
        });
        names.collect()
    }

    /// Reads the report with this name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, name: &str) -> Result<Kept> {
        let path = self.path(name);
        let at = || path.display().to_string();
        serde_json::from_slice(&fs::read(&path).with_context(at)?).with_context(at)
    }

    /// Keeps a report.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, kept: &Kept) -> Result<()> {
        let path = self.path(name);
        let at = || path.display().to_string();
        fs::create_dir_all(&self.dir).with_context(at)?;
        let text = serde_json::to_string_pretty(kept)? + "\n";
        fs::write(&path, text).with_context(at)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name).with_extension("json")
    }

    /// Returns the document with its tables made anew.
    ///
    /// # Errors
    /// A report cannot be read, or a marker is not ended.
    pub fn render(&self, document: &str) -> Result<String> {
        document::render(document, "<!-- explored: ", |_| {
            let names = self.names()?;
            let (kept, missing): (Vec<_>, Vec<_>) =
                Row::all().partition(|row| names.contains(&row.id));
            let kept = kept
                .into_iter()
                .map(|row| Ok((self.read(&row.id)?, row)))
                .collect::<Result<Vec<_>>>()?;
            let missing: Vec<_> = missing.into_iter().map(|row| row.id).collect();
            Ok(tables(&kept, &missing))
        })
    }
}

/// Returns the document with the tables, and the directory of the reports, in a source tree.
pub fn places(root: &Path) -> (PathBuf, Store) {
    (
        root.join("results/explored.md"),
        Store::new(root.join("results/explored")),
    )
}

type Column = (&'static str, fn(&Kept) -> String);

/// A column with a number of the report.
macro_rules! number {
    ($name:literal, $number:expr) => {
        ($name, |kept| {
            let number: fn(&Counts) -> u64 = $number;
            grouped(number(&kept.exploration.report.counts))
        })
    };
}

const GAVE: [Column; 15] = [
    ("commit", |kept| {
        if kept.is_old() {
            format!("{}, {OLD}", kept.commit)
        } else {
            kept.commit.clone()
        }
    }),
    ("explored", |kept| match kept.never_ran() {
        None => NOT_EXPLORED.to_owned(),
        Some(0) => "yes".to_owned(),
        Some(n) => format!("{NOT_EXPLORED}, {} never ran", grouped(n)),
    }),
    number!("workloads", |c| c.workloads),
    number!("further orders", |c| c.orders),
    number!("moments", |c| c.moments),
    number!("states", |c| c.states),
    number!("after a second cut", |c| c.nested),
    number!("in chains", |c| c.chained),
    number!("recoveries", |c| c.recoveries),
    number!("checked by e2fsck", |c| c.e2fsck),
    number!("agreeing with ours", |c| c.e2fsck_agreed),
    number!("replayed by e2fsck too", |c| c.replayed),
    number!("with the same tree", |c| c.replayed_alike),
    ("seconds", |kept| {
        format!("{:.0}", kept.exploration.report.seconds)
    }),
    number!("violations", |c| c.violations),
];

const LEFT_OUT: [Column; 11] = [
    ("workloads cut off by the budget", |kept| {
        let unfinished = kept.exploration.report.counts.workloads_unfinished;
        match &kept.budget {
            Some(budget) if unfinished > 0 => format!("{} ({budget})", grouped(unfinished)),
            _ => grouped(unfinished),
        }
    }),
    ("sequences not sampled", |kept| {
        grouped(kept.exploration.sequences_not_sampled)
    }),
    ("seeds of overlapping orders", |kept| {
        grouped(kept.exploration.orders.overlap_seeds)
    }),
    number!("moments", |c| c.moments_left_out),
    number!("states", |c| c.states_left_out),
    number!("recoveries not cut again", |c| c
        .recoveries
        .saturating_sub(c.recoveries_cut)),
    number!("moments of recoveries", |c| c.nested_moments_left_out),
    number!("states after a second cut", |c| c.nested_left_out),
    number!("moments in chains", |c| c.chained_moments_left_out),
    number!("states in chains", |c| c.chained_left_out),
    ("recovery cases not met", |kept| {
        grouped(kept.exploration.unreached().len() as u64)
    }),
];

/// Marks a row whose code has changed since.
pub const OLD: &str = "**older than the code**";

/// Marks a row with a workload that never ran.
pub const NOT_EXPLORED: &str = "**no**";

/// Writes the tables of these rows; `missing` are the rows without a report.
pub fn tables(kept: &[(Kept, Row)], missing: &[String]) -> String {
    let mut text = String::new();
    if !kept.is_empty() {
        text += "What was looked at:\n\n";
        text += &table(kept, &GAVE);
        text += "\nWhat was left out:\n\n";
        text += &table(kept, &LEFT_OUT);
    }
    for (kept, row) in kept {
        let never_ran = kept.exploration.report.never_ran.iter().flatten();
        let never_ran: Vec<_> = never_ran.map(String::as_str).collect();
        if !never_ran.is_empty() {
            let _ = writeln!(text, "\n{}: never ran: {}", row.id, some_of(&never_ran));
        }
    }
    for (kept, row) in kept {
        for violation in &kept.exploration.report.violations {
            let Violation { fault, case, .. } = violation;
            let _ = writeln!(text, "\n{}: {fault}: `{case}`", row.id);
        }
    }
    if !missing.is_empty() {
        let _ = writeln!(text, "\nNot made yet: {}.", missing.join(", "));
    }
    text.trim_start().to_owned()
}

/// Returns the first of many names, and the number of the others.
pub fn some_of(names: &[&str]) -> String {
    const MOST: usize = 30;
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {} more", grouped(more as u64)),
    }
}

fn table(kept: &[(Kept, Row)], columns: &[Column]) -> String {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let mut text = format!("| row | {} |\n", names.join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(columns.len()));
    for (kept, row) in kept {
        let cells: Vec<_> = columns.iter().map(|(_, cell)| cell(kept)).collect();
        let _ = writeln!(
            text,
            "| {}: {}, {} | {} |",
            row.id,
            row.target,
            row.options,
            cells.join(" | ")
        );
    }
    text
}

/// Returns the rows whose names contain one of these words, or all for `all`.
///
/// # Errors
/// A word that is in no row's name.
pub fn find(words: &[String]) -> Result<Vec<Row>> {
    let has = |row: &Row, word: &String| word == "all" || row.id.contains(word.as_str());
    for word in words {
        let ids = || Row::all().map(|row| row.id).collect::<Vec<_>>().join(", ");
        ensure!(
            Row::all().any(|row| has(&row, word)),
            "there is no row {word}; there are {}",
            ids()
        );
    }
    let is_chosen = |row: &Row| words.iter().any(|word| has(row, word));
    Ok(Row::all().filter(is_chosen).collect())
}
