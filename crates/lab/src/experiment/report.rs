//! What an experiment found: for people as tables, for programs as JSON, and for plots.

use serde::{Deserialize, Serialize};
pub use stetfs_chart::{Chart, Series};

use super::{Experiment, RecoveryRun, Setting};
use crate::system::{Measured, Medium};

/// The version of the JSON. Fields may be added to a version; none goes or changes its meaning.
pub const VERSION: u32 = 2;

/// How far a figure may be from the paper's and still be the same, as a share of it, where nothing
/// else is said.
pub const TOLERANCE: f64 = 0.1;

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

    /// Adds a figure of the paper's, and what was found.
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
            paper: said.text,
            tolerance: Some(said.tolerance),
            ours: shown,
            verdict,
            fitted: None,
            why: None,
        });
        self.checks.last_mut().expect("it was just added")
    }

    /// Adds what the paper says without a figure, what was found, and whether that is as it says.
    pub fn claim(
        &mut self,
        claim: impl Into<String>,
        paper: &str,
        ours: String,
        is_so: bool,
    ) -> &mut Check {
        self.checks.push(Check {
            claim: claim.into(),
            paper: paper.to_owned(),
            tolerance: None,
            ours,
            verdict: if is_so {
                Verdict::Reached
            } else {
                Verdict::Short
            },
            fitted: None,
            why: None,
        });
        self.checks.last_mut().expect("it was just added")
    }
}

/// What became of a claim here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as the paper has it, within the tolerance.
    Reached,
    /// It is worse, or not so.
    Short,
    /// It is better by more than the tolerance: something else was measured than the paper did.
    Overshot,
}

impl Verdict {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Short => "short",
            Self::Overshot => "overshot",
        }
    }
}

/// What a paper says of something that is measured, or what this project aims at.
#[derive(Clone, Debug)]
pub struct Said {
    text: String,
    least: f64,
    most: f64,
    tolerance: f64,
    less_is_better: bool,
}

impl Said {
    fn new(text: impl Into<String>, (least, most): (f64, f64), tolerance: f64) -> Self {
        Self {
            text: text.into(),
            least,
            most,
            tolerance,
            less_is_better: false,
        }
    }

    /// One figure: reached within [`TOLERANCE`].
    pub fn figure(text: impl Into<String>, figure: f64) -> Self {
        Self::new(text, (figure, figure), TOLERANCE)
    }

    /// From this to that, which leaves no tolerance beyond.
    pub fn range(text: impl Into<String>, least: f64, most: f64) -> Self {
        Self::new(text, (least, most), 0.0)
    }

    /// So much or more; there is no too much.
    pub fn at_least(text: impl Into<String>, least: f64) -> Self {
        Self::new(text, (least, f64::INFINITY), 0.0)
    }

    /// So much or less; there is no too little.
    pub fn at_most(text: impl Into<String>, most: f64) -> Self {
        Self::new(text, (f64::NEG_INFINITY, most), 0.0).less_is_better()
    }

    /// With this tolerance, a share.
    pub fn within(self, tolerance: f64) -> Self {
        Self { tolerance, ..self }
    }

    /// More than was said is short of it, and less overshoots.
    pub fn less_is_better(self) -> Self {
        Self {
            less_is_better: true,
            ..self
        }
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
        match (is_less, is_more) {
            (false, false) if !ours.is_nan() => Verdict::Reached,
            (less, _) if less == self.less_is_better && !ours.is_nan() => Verdict::Overshot,
            _ => Verdict::Short,
        }
    }
}

/// A claim of the paper.
#[derive(Clone, Debug, Serialize, PartialEq, Deserialize)]
pub struct Check {
    /// What is claimed.
    pub claim: String,
    /// The paper's figure, or its words.
    pub paper: String,
    /// How far ours may be from the figure, as a share of it; none where there are words.
    pub tolerance: Option<f64>,
    /// Ours.
    pub ours: String,
    /// Whether it is so here.
    pub verdict: Verdict,
    /// What of the experiment was chosen so that it fits what it is compared with.
    pub fitted: Option<String>,
    /// Why it is not reached, as far as that is known.
    pub why: Option<String>,
}

impl Check {
    /// Whether it is as the paper has it.
    pub fn is_reached(&self) -> bool {
        self.verdict == Verdict::Reached
    }

    /// Says why it is not reached, if it is not.
    pub fn because(&mut self, why: impl Into<String>) -> &mut Self {
        if !self.is_reached() {
            self.why = Some(why.into());
        }
        self
    }

    /// The same where one reason makes it short and another one overshoots.
    pub fn because_of(&mut self, why: impl FnOnce(Verdict) -> String) -> &mut Self {
        if !self.is_reached() {
            self.why = Some(why(self.verdict));
        }
        self
    }

    /// Says what was fitted.
    pub fn fitted(&mut self, what: impl Into<String>) -> &mut Self {
        self.fitted = Some(what.into());
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

/// The geometric mean; 1 of nothing.
pub fn geometric_mean(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (sum / values.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::{Said, Verdict};

    #[test]
    fn too_much_is_not_reached() {
        let of = |said: Said, ours: [f64; 4]| ours.map(|n| said.verdict(n));
        use Verdict::{Overshot, Reached, Short};
        let twice = of(Said::figure("2.1x", 2.1), [1.85, 1.9, 2.3, 11.4]);
        assert_eq!(twice, [Short, Reached, Reached, Overshot]);
        let range = of(Said::range("", 1.13, 1.3), [1.12, 1.13, 1.3, 1.31]);
        assert_eq!(range, [Short, Reached, Reached, Overshot]);
        let size = of(
            Said::figure("3.7 %", 3.7).less_is_better(),
            [1.1, 3.4, 4.0, 6.9],
        );
        assert_eq!(size, [Overshot, Reached, Reached, Short]);
        let least = of(Said::at_least("", 2.0), [f64::NAN, 1.99, 2.0, 1e9]);
        assert_eq!(least, [Short, Short, Reached, Reached]);
        let most = of(Said::at_most("", 1.0), [f64::NAN, 1.01, 1.0, -1e9]);
        assert_eq!(most, [Short, Short, Reached, Reached]);
        let none = of(Said::at_most("0", 0.0), [1.0, 0.5, 0.0, 0.0]);
        assert_eq!(none, [Short, Short, Reached, Reached]);
    }

    #[test]
    fn a_mean_of_factors() {
        assert!((super::geometric_mean(&[1.0, 4.0, 2.0]) - 2.0).abs() < 1e-12);
    }
}
