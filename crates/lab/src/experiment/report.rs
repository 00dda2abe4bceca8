//! What an experiment found: for people as tables, for programs as JSON, and for plots.

use serde::Serialize;

use super::{Experiment, RecoveryRun, Setting};
use crate::system::{Measured, Medium};

/// The version of the JSON. Fields may be added to a version; none goes or changes its meaning.
pub const VERSION: u32 = 1;

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
    /// What chance was drawn from.
    pub seed: u64,
    /// What was compared on what: a name and a value each.
    pub setup: Vec<(&'static str, String)>,
    /// What the paper says, and whether it is so here.
    pub checks: Vec<Check>,
    /// What plots show.
    pub charts: Vec<Chart>,
    /// Every run.
    pub runs: Vec<Measured>,
    /// Every recovery.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recoveries: Vec<RecoveryRun>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// The same for people.
    #[serde(skip)]
    pub tables: Vec<Table>,
}

impl Report {
    /// An empty one.
    pub fn new(experiment: &Experiment, setting: &Setting<'_>) -> Self {
        Self {
            version: VERSION,
            experiment: experiment.id,
            title: experiment.title,
            paper: experiment.paper,
            scale: setting.scale,
            seed: setting.seed,
            setup: Vec::new(),
            checks: Vec::new(),
            charts: Vec::new(),
            runs: Vec::new(),
            recoveries: Vec::new(),
            notes: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Says what a medium is that was measured on.
    pub fn measured_on(&mut self, medium: Medium) {
        self.setup.push((medium.name(), medium.about()));
    }

    /// Adds what the paper says, what was found, and whether that is as it says.
    pub fn check(&mut self, claim: impl Into<String>, paper: &str, ours: String, holds: bool) {
        self.checks.push(Check {
            claim: claim.into(),
            paper: paper.to_owned(),
            ours,
            holds,
        });
    }
}

/// A claim of the paper.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What is claimed.
    pub claim: String,
    /// The paper's figure.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Whether it holds here.
    pub holds: bool,
}

/// A table for people.
#[derive(Clone, Debug)]
pub struct Table {
    /// What it shows, with the unit.
    pub title: String,
    /// Heads of columns; the first is that of the rows.
    pub head: Vec<String>,
    /// Rows: the name first.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty one.
    pub fn new<S: Into<String>>(
        title: impl Into<String>,
        head: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            title: title.into(),
            head: head.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let name = std::iter::once(name.into());
        self.rows.push(name.chain(cells).collect());
    }
}

/// Bars in groups.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// The name of its file, without what comes behind the dot.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The unit of its values.
    pub unit: String,
    /// Names of groups.
    pub groups: Vec<String>,
    /// A bar in each group.
    pub series: Vec<Series>,
    /// Lines across all groups.
    pub lines: Vec<(String, f64)>,
}

/// The bars of one colour.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What they are.
    pub name: String,
    /// A value a group; none where there is no bar.
    pub values: Vec<Option<f64>>,
}

/// The geometric mean; 1 of nothing.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (sum / values.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mean_of_factors() {
        assert!((super::geometric_mean(&[1.0, 4.0, 2.0]) - 2.0).abs() < 1e-12);
    }
}
