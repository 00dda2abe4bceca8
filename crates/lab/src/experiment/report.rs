//! The result of an experiment: tables for people, JSON for programs, and plots.

use serde::{Deserialize, Serialize};
pub use stetfs_chart::{Band, Chart, Series};

use crate::system::{Measured, Medium, Outcome};

/// The version of the JSON. Fields may be added to a version; none is removed or changes its
/// meaning.
pub const VERSION: u32 = 3;

/// The default tolerance: how far a figure may be from the paper's and still count as reached, as a
/// share of the paper's.
pub(crate) const TOLERANCE: f64 = 0.1;

/// An experiment's result.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The experiment's name.
    pub experiment: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// The factor on the paper's data sets.
    pub scale: f64,
    /// Seed of everything random; the first one, where there are several.
    pub seed: u64,
    /// How many seeds, from that one.
    pub seeds: u64,
    /// What was compared, and on what: names and values.
    pub setup: Vec<(&'static str, String)>,
    /// The paper's claims, and whether they hold here.
    pub checks: Vec<Check>,
    /// Plots.
    pub charts: Vec<Chart>,
    /// Every run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Measured>,
    /// Every run, of figures that are made of cells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Answered>,
    /// At which points sweeps reach claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub swept: Vec<Swept>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// The results as tables for people.
    pub tables: Vec<Table>,
}

impl Report {
    /// Adds a medium that was measured on to the setup.
    pub(crate) fn measured_on(&mut self, medium: Medium) {
        self.setup.push((medium.name(), medium.about()));
    }

    /// Adds a figure of the paper's, and our figure.
    pub fn compare(
        &mut self,
        claim: impl Into<String>,
        said: Said,
        ours: f64,
        shown: String,
    ) -> &mut Check {
        let verdict = said.verdict(ours);
        self.checks.push(Check {
            claim: claim.into(),
            of: None,
            paper: said.text,
            tolerance: Some(said.tolerance),
            ours: shown,
            verdict,
            fitted: None,
            why: None,
        });
        self.checks.last_mut().expect("it was just added")
    }
}

/// A system at a point of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Answered {
    /// Its name in the figure.
    pub system: String,
    /// The settings that tell the point from others.
    pub point: String,
    /// The result of each seed.
    pub outcomes: Vec<Outcome>,
}

/// Where along a sweep a claim would be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    /// The claim.
    pub claim: String,
    /// Index of the value in the claim.
    pub value: usize,
    /// Points at which it is reached.
    pub reached: Vec<String>,
    /// Points at which it is not.
    pub missed: Vec<String>,
}

/// Whether a claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds, within the tolerance.
    Reached,
    /// It does not hold.
    Missed,
}

impl Verdict {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
        }
    }
}

/// What a paper says of a measured figure, or what this project aims at.
#[derive(Clone, Debug)]
pub struct Said {
    text: String,
    least: f64,
    most: f64,
    tolerance: f64,
}

impl Said {
    fn new(text: impl Into<String>, (least, most): (f64, f64), tolerance: f64) -> Self {
        Self {
            text: text.into(),
            least,
            most,
            tolerance,
        }
    }

    /// This figure, within [`TOLERANCE`].
    pub fn figure(text: impl Into<String>, figure: f64) -> Self {
        Self::new(text, (figure, figure), TOLERANCE)
    }

    /// This figure or more.
    pub(crate) fn at_least(text: impl Into<String>, least: f64) -> Self {
        Self::new(text, (least, f64::INFINITY), 0.0)
    }

    /// This figure or less.
    pub fn at_most(text: impl Into<String>, most: f64) -> Self {
        Self::new(text, (f64::NEG_INFINITY, most), 0.0)
    }

    /// Sets the tolerance, as a share of the figure.
    pub fn within(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }

    fn verdict(&self, ours: f64) -> Verdict {
        let room = |bound: f64| {
            if bound.is_finite() {
                bound.abs() * self.tolerance
            } else {
                0.0
            }
        };
        let is_less = ours < self.least - room(self.least);
        let is_more = ours > self.most + room(self.most);
        if is_less || is_more || ours.is_nan() {
            Verdict::Missed
        } else {
            Verdict::Reached
        }
    }
}

/// A claim of the paper.
#[derive(Clone, Debug, Serialize, PartialEq, Deserialize)]
pub struct Check {
    /// What is claimed.
    pub claim: String,
    /// The claim of `docs/claims.json` that it judges; `None` when it names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// The paper's figure, or its words.
    pub paper: String,
    /// How far ours may be from the figure, as a share of it; `None` where the paper has words
    /// only.
    pub tolerance: Option<f64>,
    /// Our figure.
    pub ours: String,
    /// Whether the claim holds here.
    pub verdict: Verdict,
    /// What was chosen in the experiment to fit the paper's figure.
    pub fitted: Option<String>,
    /// Why it is not reached, as far as that is known.
    pub why: Option<String>,
}

impl Check {
    /// Whether the claim holds.
    pub fn is_reached(&self) -> bool {
        self.verdict == Verdict::Reached
    }

    /// Notes why the claim is not reached, if it is not.
    pub fn because(&mut self, why: impl Into<String>) -> &mut Self {
        if !self.is_reached() {
            self.why = Some(why.into());
        }
        self
    }

    /// The paper's figure with the tolerance.
    pub fn said(&self) -> String {
        match self.tolerance {
            Some(tolerance) if tolerance > 0.0 => {
                format!("{} (\u{b1} {} %)", self.paper, 100.0 * tolerance)
            }
            _ => self.paper.clone(),
        }
    }

    /// The verdict in words.
    pub fn judged(&self) -> String {
        let fitted = if self.fitted.is_some() {
            " (fitted)"
        } else {
            ""
        };
        format!("{}{fitted}", self.verdict.name())
    }
}

/// A table for people.
#[derive(Clone, Debug, Serialize, PartialEq, Deserialize)]
pub struct Table {
    /// What it shows, with the unit.
    pub title: String,
    /// Heads of columns; the first is that of the rows.
    pub head: Vec<String>,
    /// Rows: the name first.
    pub rows: Vec<Vec<String>>,
    /// The paper's figures, for its plot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<(String, f64)>,
}

impl Table {
    /// Makes an empty table.
    pub fn new<S: Into<String>>(
        title: impl Into<String>,
        head: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            title: title.into(),
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Plots the table: a group per row, a bar per column. `None` when a cell is no number.
    pub fn chart(&self, name: &str, unit: &str) -> Option<Chart> {
        let number = |text: &str| -> Option<f64> { text.trim_end_matches('%').trim().parse().ok() };
        let mut series = Vec::new();
        for (column, head) in self.head.iter().enumerate().skip(1) {
            let mut bars = Series {
                name: head.clone(),
                ..Series::default()
            };
            for row in &self.rows {
                let cell = row.get(column).map_or("", String::as_str);
                let (value, half) = cell.split_once(" \u{b1} ").unwrap_or((cell, ""));
                let is_text = !cell.is_empty() && number(value).is_none();
                if is_text && column == 1 {
                    return None;
                }
                bars.values.push(number(value));
                bars.halves.push(number(half));
            }
            series.push(bars);
        }
        Some(Chart {
            name: name.to_owned(),
            title: self.title.clone(),
            unit: unit.to_owned(),
            groups: self.rows.iter().map(|row| row[0].clone()).collect(),
            series,
            lines: self.lines.clone(),
            bands: Vec::new(),
        })
    }

    /// Adds a row.
    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let name = std::iter::once(name.into());
        self.rows.push(name.chain(cells).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, Verdict};

    #[test]
    fn too_much_is_not_reached() {
        let of = |said: Said, ours: [f64; 4]| ours.map(|n| said.verdict(n));
        use Verdict::{Missed, Reached};
        let twice = of(Said::figure("2.1x", 2.1), [1.85, 1.9, 2.3, 11.4]);
        assert_eq!(twice, [Missed, Reached, Reached, Missed]);
        let most = of(Said::at_most("", 4.0), [0.0, 4.0, 4.1, f64::NAN]);
        assert_eq!(most, [Reached, Reached, Missed, Missed]);
        let least = of(Said::at_least("", 4.0), [3.9, 4.0, 1e9, f64::NAN]);
        assert_eq!(least, [Missed, Reached, Reached, Missed]);
    }
}
