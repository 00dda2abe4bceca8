//! The results of a ground: every cell with its seeds, ratios to the baseline, and who is best.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{BASELINE, Contestant, Found, Ground, Job, Pairing, Place, Whose};
use crate::cell::{Mean, SOURCES, number};
use crate::experiment::report::Table;
use crate::system::{Columns, Outcome};

/// A cell: a system on a medium with a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Square {
    /// Index of the medium in the sheet's list.
    pub medium: usize,
    /// Index of the workload.
    pub workload: usize,
    /// Index of the system.
    pub system: usize,
    /// Why the cell has no runs; `None` when it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it failed though it should have run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// The command that repeats it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The seeds that ran, with their results.
    pub runs: Vec<(u64, Outcome)>,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Sheet {
    /// Fields may be added to a version; none is removed or changes its meaning.
    pub version: u32,
    /// A checksum of the code's sources.
    pub sources: &'static str,
    /// How many seeds, from 1.
    pub seeds: u64,
    /// The media.
    pub media: Vec<Place>,
    /// The workloads.
    pub workloads: Vec<Job>,
    /// The systems.
    pub systems: Vec<Contestant>,
    /// The cells, by medium, workload and system.
    pub squares: Vec<Square>,
}

/// A number of all cells, as multiples of the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number.
    pub number: String,
    /// How many seeds, from 1.
    pub seeds: u64,
    /// The rows, by medium and workload.
    pub rows: Vec<Row>,
}

/// A medium with a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The medium.
    pub medium: String,
    /// The workload.
    pub workload: String,
    /// By name of the system, if it runs there: the ratio, and half of its interval.
    pub ratios: BTreeMap<String, (f64, Option<f64>)>,
}

/// A number of a cell as a multiple of the baseline's, seed by seed.
pub type Ratio = Mean;

/// How our own scheme stands in a medium and workload against the best of the papers' schemes, or
/// against the kernel's where none of these runs.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Index of the medium.
    pub medium: usize,
    /// Index of the workload.
    pub workload: usize,
    /// Index of the best other system.
    pub rival: usize,
    /// Whether that system is a paper's.
    pub is_paper: bool,
    /// Our number as a multiple of that system's.
    pub ratio: Ratio,
}

impl Verdict {
    /// Whether the ratio is at most 1.00, rounded to two decimals.
    pub fn holds(&self) -> bool {
        self.ratio.mean < 1.005
    }
}

impl Square {
    /// Returns the mean of a number over the seeds.
    pub fn mean(&self, name: &str) -> Option<Mean> {
        let values: Vec<f64> = self.runs.iter().filter_map(|(_, o)| o.get(name)).collect();
        Mean::of(&values)
    }

    /// Returns a number as a multiple of another cell's, seed by seed; `None` where the other has
    /// none, or 0.
    pub fn ratio(&self, other: &Self, name: &str) -> Option<Ratio> {
        let pairs = self.runs.iter().filter_map(|(seed, outcome)| {
            let (_, theirs) = other.runs.iter().find(|(other, _)| other == seed)?;
            let (ours, theirs) = (outcome.get(name)?, theirs.get(name)?);
            (theirs != 0.0).then(|| ours / theirs)
        });
        Mean::of(&pairs.collect::<Vec<_>>())
    }
}

impl Sheet {
    pub(super) fn of(
        ground: Ground,
        pairings: Vec<Pairing>,
        find: &dyn Fn(&crate::cell::Cell) -> Result<Found>,
    ) -> Result<Self> {
        let mut squares = Vec::new();
        for pairing in pairings {
            let mut square = Square {
                medium: pairing.medium,
                workload: pairing.workload,
                system: pairing.system,
                why: None,
                failed: false,
                command: None,
                runs: Vec::new(),
            };
            match &pairing.runs {
                Err(why) => square.why = Some(why.clone()),
                Ok(cells) => {
                    square.command = cells.first().map(|cell| ground.command(cell)).transpose()?;
                    for cell in cells {
                        match find(cell)? {
                            Found::Run(outcome) => square.runs.push((cell.seed, outcome)),
                            Found::Failed(why) => {
                                square.failed = true;
                                square.why = Some(why);
                            }
                            Found::Missing => {}
                        }
                    }
                    if square.runs.is_empty() && square.why.is_none() {
                        square.why = Some("it is another shard's, and not in the store".to_owned());
                    }
                }
            }
            squares.push(square);
        }
        Ok(Self {
            version: 1,
            sources: SOURCES,
            seeds: ground.seeds,
            media: ground.media,
            workloads: ground.workloads,
            systems: ground.systems,
            squares,
        })
    }

    /// Returns the cells of a medium and workload, one for each system.
    pub fn row(&self, medium: usize, workload: usize) -> &[Square] {
        let at = (medium * self.workloads.len() + workload) * self.systems.len();
        &self.squares[at..at + self.systems.len()]
    }

    /// Returns every medium with every workload.
    pub fn rows(&self) -> impl Iterator<Item = (usize, usize, &[Square])> {
        let all = self.media.len() * self.workloads.len();
        (0..all).map(|n| {
            let (medium, workload) = (n / self.workloads.len(), n % self.workloads.len());
            (medium, workload, self.row(medium, workload))
        })
    }

    /// Returns the cell of a row that the others are compared with.
    fn baseline<'s>(&self, row: &'s [Square]) -> Option<&'s Square> {
        row.iter()
            .find(|square| self.systems[square.system].name == BASELINE)
    }

    /// Returns a number of a cell as a multiple of the baseline's.
    pub fn ratio(&self, square: &Square, name: &str) -> Option<Ratio> {
        let row = self.row(square.medium, square.workload);
        square.ratio(self.baseline(row)?, name)
    }

    /// Compares our own scheme with its rivals by a number of which less is better.
    ///
    /// # Errors
    /// There is no such number.
    pub fn verdicts(&self, name: &str) -> Result<Vec<Verdict>> {
        number(name)?;
        let mut verdicts = Vec::new();
        for (medium, workload, row) in self.rows() {
            let whose = |square: &&Square| self.systems[square.system].whose;
            let has = |square: &&Square| square.mean(name).is_some();
            let best = |of: Whose| {
                let those = row.iter().filter(|s| whose(s) == of && has(s));
                let mean = |square: &Square| square.mean(name).map_or(f64::MAX, |m| m.mean);
                those.min_by(|a, b| mean(a).total_cmp(&mean(b)))
            };
            let rival = best(Whose::Paper).or_else(|| best(Whose::Control));
            let (Some(own), Some(rival)) = (best(Whose::Own), rival) else {
                continue;
            };
            let Some(ratio) = own.ratio(rival, name) else {
                continue;
            };
            verdicts.push(Verdict {
                medium,
                workload,
                rival: rival.system,
                is_paper: self.systems[rival.system].whose == Whose::Paper,
                ratio,
            });
        }
        Ok(verdicts)
    }

    /// Makes a table of a number: a row for each medium and workload, a column for each system. It
    /// shows multiples of the baseline's number with their intervals, and the baseline's number
    /// itself.
    ///
    /// # Errors
    /// There is no such number.
    pub fn table(&self, name: &str) -> Result<Table> {
        let number = number(name)?;
        let unit = match number.unit {
            "" => String::new(),
            unit => format!(", {unit}"),
        };
        let head = self
            .systems
            .iter()
            .map(|system| match system.name.as_str() {
                BASELINE => format!("{BASELINE}{unit}"),
                other => other.to_owned(),
            });
        let head = ["medium".to_owned(), "workload".to_owned()]
            .into_iter()
            .chain(head);
        let mut table = Table::new("", head);
        for (medium, workload, row) in self.rows() {
            let figures = row.iter().map(|square| {
                let is_baseline = self.systems[square.system].name == BASELINE;
                let mean = if is_baseline {
                    square.mean(name)
                } else {
                    self.ratio(square, name)
                };
                match (mean, square.failed, is_baseline) {
                    (None, true, _) => "FAILED".to_owned(),
                    (None, false, _) => "-".to_owned(),
                    (Some(mean), _, true) => mean.to_string(),
                    (Some(mean), ..) => short(mean),
                }
            });
            let job = std::iter::once(self.workloads[workload].name.clone());
            table.row(self.media[medium].name.clone(), job.chain(figures));
        }
        Ok(table)
    }

    /// Returns the text below a table: why something did not run, and how our own scheme stands.
    ///
    /// # Errors
    /// There is no such number.
    pub fn words(&self, name: &str) -> Result<String> {
        let mut text = String::new();
        let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
        for square in &self.squares {
            let Some(why) = &square.why else { continue };
            let system = &self.systems[square.system].name;
            let place = if square.failed {
                format!(
                    "{system} on {}, {}",
                    self.media[square.medium].name, self.workloads[square.workload].name
                )
            } else {
                format!("{system} on {}", self.media[square.medium].name)
            };
            let known = reasons.iter().position(|(known, _)| known == why);
            let at = known.unwrap_or_else(|| {
                reasons.push((why.clone(), Vec::new()));
                reasons.len() - 1
            });
            if !reasons[at].1.contains(&place) {
                reasons[at].1.push(place);
            }
        }
        for (why, places) in reasons {
            writeln!(text, "{why}: {}", places.join(", "))?;
        }
        let verdicts = self.verdicts(name)?;
        for (is_paper, of) in [
            (true, "the best paper's scheme"),
            (false, "jbd2, where no paper's runs"),
        ] {
            let those: Vec<_> = verdicts.iter().filter(|v| v.is_paper == is_paper).collect();
            if those.is_empty() {
                continue;
            }
            let holds = those.iter().filter(|verdict| verdict.holds()).count();
            writeln!(
                text,
                "stet is at most 1.00 of {of} in {holds} of {} cells{}",
                those.len(),
                if holds < those.len() { "; not in:" } else { "" }
            )?;
            for verdict in those.iter().filter(|verdict| !verdict.holds()) {
                writeln!(
                    text,
                    "  {}, {}: {} of {}",
                    self.media[verdict.medium].name,
                    self.workloads[verdict.workload].name,
                    short(verdict.ratio),
                    self.systems[verdict.rival].name
                )?;
            }
        }
        Ok(text)
    }

    /// Returns what is kept in the tree: a number of each cell that ran, as a multiple of the
    /// baseline's.
    ///
    /// # Errors
    /// There is no such number.
    pub fn summary(&self, name: &str) -> Result<Summary> {
        number(name)?;
        let rows = self.rows().map(|(medium, workload, row)| {
            let ratios = row.iter().filter_map(|square| {
                let ratio = self.ratio(square, name)?;
                let rounded = |value: f64| (value * 1e4).round() / 1e4;
                let half = ratio.half.map(rounded);
                let system = self.systems[square.system].name.clone();
                Some((system, (rounded(ratio.mean), half)))
            });
            Row {
                medium: self.media[medium].name.clone(),
                workload: self.workloads[workload].name.clone(),
                ratios: ratios.collect(),
            }
        });
        Ok(Summary {
            number: name.to_owned(),
            seeds: self.seeds,
            rows: rows.collect(),
        })
    }

    /// Whether every cell that can run has all of its seeds.
    pub fn is_whole(&self) -> bool {
        let mut can = self
            .squares
            .iter()
            .filter(|square| square.command.is_some());
        can.all(|square| square.runs.len() as u64 == self.seeds)
    }

    /// Makes CSV with a line for each run, with every number.
    ///
    /// # Errors
    /// None, unless memory runs out.
    pub fn csv(&self) -> Result<String> {
        let runs = self.squares.iter().flat_map(|square| &square.runs);
        let columns = Columns::of(runs.map(|(_, outcome)| outcome));
        let mut head = ["medium", "workload", "system", "seed"]
            .map(str::to_owned)
            .to_vec();
        head.extend(columns.heads());
        let mut text = head.join(",") + "\n";
        for square in &self.squares {
            for (seed, outcome) in &square.runs {
                write!(
                    text,
                    "{},{},{},{seed}",
                    self.media[square.medium].name,
                    self.workloads[square.workload].name,
                    self.systems[square.system].name
                )?;
                for value in columns.values(outcome) {
                    write!(text, ",{value}")?;
                }
                text.push('\n');
            }
        }
        Ok(text)
    }
}

/// A ratio with two decimals; a small one with two significant digits.
pub fn short(ratio: Ratio) -> String {
    let places = match ratio.mean {
        mean if mean > 0.0 && mean < 0.1 => (1 - mean.log10().floor() as i32).min(6) as usize,
        _ => 2,
    };
    match ratio.half {
        Some(half) => format!("{:.places$} \u{b1} {half:.places$}", ratio.mean),
        None => format!("{:.places$}", ratio.mean),
    }
}
