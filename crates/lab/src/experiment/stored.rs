//! Stored reports, and the tables of a document that are made from them.
//!
//! A document has a marker where a table of a report begins, and one where it ends; the text
//! between is replaced:
//!
//! ```text
//! <!-- report dj-fig12: table "A transaction" rows="DELETE|WAL" columns=1,4,6 -->
//! <!-- report dj-fig12: checks "mean" -->
//! <!-- end -->
//! ```
//!
//! `table` shows the table whose title begins with the given text: the rows whose name contains one
//! of the words of `rows`, and the columns with the numbers in `columns` (column 0 is the name of a
//! row, and always there). `checks` shows the claims that contain the given words, with their
//! verdicts and reasons; without words, all claims. `swept` shows at which points sweeps reach
//! claims, for claims whose names have the given words.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use stetfs_format::checksum::crc32c;

use super::kind::Experiment;
use super::report::{Chart, Check, Report, Swept, Table, VERSION};
use super::setting::Setting;
use super::{EXPERIMENTS, find};
use crate::cell;
use stetfs_testkit::document;

/// A stored report: all but the runs.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// [`VERSION`].
    pub version: u32,
    /// The experiment's name.
    pub experiment: String,
    /// Where it comes from.
    pub paper: String,
    /// The factor on the paper's data sets.
    pub scale: f64,
    /// Seed of everything random; the first one, where there are several.
    pub seed: u64,
    /// How many seeds, from that one.
    #[serde(default = "one")]
    pub seeds: u64,
    /// What was compared, and on what.
    pub setup: Vec<(String, String)>,
    /// The paper's claims, and whether they hold here.
    pub checks: Vec<Check>,
    /// At which points sweeps reach claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub swept: Vec<Swept>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// The results as tables.
    pub tables: Vec<Table>,
}

impl Stored {
    /// Returns its plots, made from its tables.
    ///
    /// # Errors
    /// Its experiment does not exist, or has changed since.
    pub fn charts(&self) -> Result<Vec<Chart>> {
        let experiment = find(&self.experiment);
        let experiment = experiment.with_context(|| self.experiment.clone())?;
        experiment.charts(&self.tables)
    }
}

const fn one() -> u64 {
    1
}

impl From<Report> for Stored {
    fn from(report: Report) -> Self {
        let setup = report.setup.into_iter();
        Self {
            version: VERSION,
            experiment: report.experiment.to_owned(),
            paper: report.paper.to_owned(),
            scale: report.scale,
            seed: report.seed,
            seeds: report.seeds,
            setup: setup.map(|(name, what)| (name.to_owned(), what)).collect(),
            checks: report.checks,
            swept: report.swept,
            notes: report.notes,
            tables: report.tables,
        }
    }
}

/// The directory of the stored reports.
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Uses this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Returns the experiments that have reports.
    pub fn experiments() -> impl Iterator<Item = &'static Experiment> {
        EXPERIMENTS.iter()
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Runs the experiment, with all of its seeds or the first one alone.
    ///
    /// # Errors
    /// Those of the experiment.
    pub fn run(
        experiment: &Experiment,
        scale: f64,
        is_alone: bool,
        store: Option<&cell::Store>,
    ) -> Result<Stored> {
        let report = experiment.run(&Setting {
            scale,
            is_alone,
            store,
            real_time: experiment.has_real_time,
            ..Setting::default()
        });
        Ok(report.with_context(|| experiment.id)?.into())
    }

    /// Reads the stored report of an experiment.
    ///
    /// # Errors
    /// There is none; it is of another version.
    pub fn read(&self, id: &str) -> Result<Stored> {
        let path = self.path(id);
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        let stored: Stored =
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        ensure!(
            stored.version == VERSION && stored.experiment == id,
            "{}: a report of {}, version {}",
            path.display(),
            stored.experiment,
            stored.version
        );
        Ok(stored)
    }

    /// Stores a report.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, stored: &Stored) -> Result<()> {
        let path = self.path(&stored.experiment);
        let text = serde_json::to_string_pretty(stored)? + "\n";
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Returns the document with its tables made anew.
    ///
    /// # Errors
    /// A marker that is not understood or not ended; a report, a table, a row or a claim that is
    /// not there.
    pub fn render(&self, document: &str) -> Result<String> {
        document::render(document, "<!-- report ", |marker| self.show(marker))
    }

    fn show(&self, marker: &str) -> Result<String> {
        let (id, what) = marker.split_once(": ").context("no experiment")?;
        let stored = self.read(id)?;
        let (verb, rest) = what.split_once(' ').unwrap_or((what, ""));
        match verb {
            "table" => table(&stored, rest),
            "swept" => swept(&stored, quoted(rest)?.map_or("", |(words, _)| words)),
            "checks" => checks(&stored, quoted(rest)?.map_or("", |(words, _)| words)),
            other => bail!("unknown word {other}"),
        }
    }
}

/// Returns the first quoted text, and what follows it.
fn quoted(text: &str) -> Result<Option<(&str, &str)>> {
    let Some(rest) = text.trim_start().strip_prefix('"') else {
        return Ok(None);
    };
    rest.split_once('"')
        .context("a quotation mark is missing")
        .map(Some)
}

fn table(stored: &Stored, args: &str) -> Result<String> {
    let (title, mut rest) = quoted(args)?.context("no title")?;
    let (mut wanted, mut columns) = (None, None);
    while !rest.trim().is_empty() {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("rows=") {
            let (names, after) = quoted(after)?.context("no rows")?;
            wanted = Some(names.split('|').collect::<Vec<_>>());
            rest = after;
        } else if let Some(after) = rest.strip_prefix("columns=") {
            let (numbers, after) = after.split_once(' ').unwrap_or((after, ""));
            columns = Some(
                numbers
                    .split(',')
                    .map(str::parse)
                    .collect::<Result<Vec<usize>, _>>()?,
            );
            rest = after;
        } else {
            bail!("unexpected {rest}");
        }
    }
    let table = stored
        .tables
        .iter()
        .find(|table| table.title.starts_with(title));
    let titles = || {
        stored
            .tables
            .iter()
            .map(|table| format!("\n  {}", table.title))
            .collect::<String>()
    };
    let table = table.with_context(|| format!("there is no such table, but{}", titles()))?;
    let is_wanted = |row: &&Vec<String>| {
        wanted
            .as_ref()
            .is_none_or(|names| names.iter().any(|name| row[0].contains(name)))
    };
    let rows: Vec<_> = table.rows.iter().filter(is_wanted).collect();
    ensure!(!rows.is_empty(), "none of its rows is called so");
    let columns = columns.unwrap_or_else(|| (1..table.head.len()).collect());
    let line = |row: &[String]| {
        let cells = std::iter::once(&0).chain(&columns);
        let cells = cells.map(|at| row.get(*at).map_or("", String::as_str).replace('|', "\\|"));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut text = format!(
        "*{}*\n\n{}|{}\n",
        table.title,
        line(&table.head),
        "---|".repeat(columns.len() + 1)
    );
    text.extend(rows.iter().map(|row| line(row)));
    Ok(text)
}

fn swept(stored: &Stored, words: &str) -> Result<String> {
    let all = stored
        .swept
        .iter()
        .filter(|swept| swept.claim.contains(words));
    let all: Vec<&Swept> = all.collect();
    ensure!(!all.is_empty(), "none of its sweeps has these words");
    let mut text = "| swept claim | within the tolerance | of points |\n|---|---|---|\n".to_owned();
    for Swept {
        claim,
        reached,
        missed,
        ..
    } in all
    {
        let points = reached.len() + missed.len();
        let reached = match (reached.len(), missed.len()) {
            (0, _) => "nowhere".to_owned(),
            (_, 0) => "everywhere".to_owned(),
            _ => reached.join("; "),
        };
        writeln!(text, "| `{claim}` | {reached} | {points} |")?;
    }
    Ok(text)
}

fn checks(stored: &Stored, words: &str) -> Result<String> {
    let checks = stored
        .checks
        .iter()
        .filter(|check| check.claim.contains(words));
    let checks: Vec<&Check> = checks.collect();
    ensure!(!checks.is_empty(), "none of its claims has these words");
    let mut text = "| claim | paper | here | |\n|---|---|---|---|\n".to_owned();
    // A reason that several claims share is given once.
    let mut reasons: Vec<&str> = Vec::new();
    for check in &checks {
        let mut verdict = if check.is_reached() {
            check.judged()
        } else {
            format!("**{}**", check.judged())
        };
        for reason in check.why.iter().chain(&check.fitted) {
            let known = reasons.iter().position(|known| known == reason);
            let at = known.unwrap_or(reasons.len());
            if known.is_none() {
                reasons.push(reason);
            }
            write!(verdict, " [{}]", at + 1)?;
        }
        let cells = [
            check.claim.clone(),
            check.said(),
            check.ours.clone(),
            verdict,
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        writeln!(text, "| {} |", cells.join(" | "))?;
    }
    for (n, reason) in reasons.iter().enumerate() {
        let gap = if n == 0 { "\n" } else { "" };
        writeln!(text, "{gap}{}. {reason}.", n + 1)?;
    }
    Ok(text)
}

/// Returns the documents whose tables are made, and the stored reports, of a source tree.
///
/// # Errors
/// Those of the directory.
pub fn places(root: &Path) -> Result<(Vec<PathBuf>, Store)> {
    let pages = root.join("docs/lab");
    let pages = fs::read_dir(&pages).with_context(|| pages.display().to_string())?;
    let mut documents = vec![root.join("docs/LAB.md")];
    for page in pages {
        documents.push(page?.path());
    }
    documents.retain(|path| path.extension().is_some_and(|end| end == "md"));
    documents.sort();
    Ok((documents, Store::new(root.join("results/reports"))))
}

/// A checksum of each experiment's checks and tables, at a scale small enough for tests. When it
/// changes, the stored report of the experiment is out of date.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Small(BTreeMap<String, String>);

impl Small {
    /// The scale.
    pub const SCALE: f64 = 1.0 / 512.0;

    /// Returns the checksum of a report at that scale.
    ///
    /// # Errors
    /// None, as long as a report can be written.
    pub fn checksum(small: &Stored) -> Result<String> {
        let text = serde_json::to_vec(&(&small.checks, &small.tables))?;
        Ok(format!("{:08x}", crc32c(!0, &text)))
    }

    /// Reads the stored checksums; there are none when there is no file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn read(store: &Store) -> Result<Self> {
        match fs::read(Self::path(store)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e.into()),
        }
    }

    fn path(store: &Store) -> PathBuf {
        store.dir.join("small").with_extension("json")
    }

    /// Returns the stored checksum of an experiment.
    pub fn of(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }

    /// Returns the experiments that have a checksum.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Runs an experiment and notes its checksum.
    ///
    /// # Errors
    /// Those of the experiment.
    pub fn note(&mut self, experiment: &Experiment) -> Result<()> {
        let checksum = Self::checksum(&Store::run(experiment, Self::SCALE, true, None)?)?;
        self.0.insert(experiment.id.to_owned(), checksum);
        Ok(())
    }

    /// Stores the checksums.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, store: &Store) -> Result<()> {
        Ok(fs::write(
            Self::path(store),
            serde_json::to_string_pretty(self)? + "\n",
        )?)
    }
}
