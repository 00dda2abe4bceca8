//! The papers' claims in figures: `docs/claims.json`, the one list, and the document that is made
//! of it.
//!
//! A claim is a paper's; our own aims are no claims. It says where it stands in the paper, what is
//! compared, the bound, and until when time counts. [Checks](crate::experiment::report::Check)
//! judge it: the checks of figures name their claim, and a claim names the checks of other
//! experiments. When a claim is not reached, a sweep says why: it is *settled*, *not determined* or
//! *contradicted*, and the sweep must confirm that. A sweep is also a plot, which is kept beside
//! the documents.

pub mod ledger;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cell::Mean;
use crate::experiment::report::Band;

/// The papers: the word by which a claim names them, and the title.
pub const PAPERS: [(&str, &str); 5] = [
    ("shortcut", "Shortcut-JFS (Lee, Yoo, Jang, Bahn, MSST 2012)"),
    ("jftl", "JFTL (Lim, Choi, Park, HPCC 2007)"),
    (
        "dj",
        "Delta Journaling (Kim, Min, Eom, IEEE TCE 60(2), 2014)",
    ),
    (
        "spindle",
        "Spindle, with Tinca (Yan, Huang, Huang, NPC 2019)",
    ),
    ("ubj", "UBJ (Lee, Bahn, Noh, FAST 2013, its slides)"),
];

/// Until when time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// The last call returns.
    U1,
    /// Everything is durable.
    U2,
    /// Everything is home.
    U3,
}

/// How a figure is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// About this figure.
    About,
    /// This figure or more.
    AtLeast,
    /// This figure or less.
    AtMost,
    /// One figure is more than another.
    Ordering,
    /// It grows, falls or stays.
    Trend,
}

/// A figure of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// `None` where the claim has words only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    /// Unit of the number; `x` for a ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// How it is meant.
    pub kind: Bound,
    /// What the figure is of, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

/// A check that judges a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judge {
    /// The report's experiment.
    pub report: String,
    /// The check's own words.
    pub check: String,
}

/// A claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name.
    pub id: String,
    /// One of [`PAPERS`].
    pub paper: String,
    /// Section, figure, table.
    pub place: String,
    /// What is claimed.
    pub says: String,
    /// The figures.
    pub values: Vec<Value>,
    /// Until when time counts; `None` where the claim is not about time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Whether the paper says until when; otherwise we take what is likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_is_said: Option<bool>,
    /// More about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_note: Option<String>,
    /// How far from the figure still counts as reached, as a share of the figure; `None` where no
    /// figure is legible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// Why the tolerance is this large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance_note: Option<String>,
    /// The checks that judge it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Judge>,
    /// The verdict when its checks do not reach it, or when they do but a sweep shows that it is
    /// not determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Otherwise>,
}

/// What became of a claim that is not reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Otherwise {
    /// Settled, not determined or contradicted.
    pub verdict: Standing,
    /// The figure whose sweep shows it; `None` where the paper has no figure that can be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What the sweep shows.
    pub why: String,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// All of its checks agree with the paper.
    Reached,
    /// A sweep shows which value the paper's parameter must have had: with it, the figure comes
    /// out.
    Settled,
    /// A parameter that the paper leaves out decides: some plausible values reach the claim, some
    /// do not.
    NotDetermined,
    /// No plausible value reaches it.
    Contradicted,
    /// Some of its checks disagree with the paper, and nothing says why.
    Missed,
    /// Nothing here measures what the paper measured.
    Open,
}

impl Standing {
    /// Every verdict.
    pub const ALL: [Self; 6] = [
        Self::Reached,
        Self::Settled,
        Self::NotDetermined,
        Self::Contradicted,
        Self::Missed,
        Self::Open,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Settled => "settled",
            Self::NotDetermined => "not determined",
            Self::Contradicted => "contradicted",
            Self::Missed => "missed",
            Self::Open => "open",
        }
    }
}

/// A parameter that a paper leaves out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assumption {
    /// Its name.
    pub id: String,
    /// One of [`PAPERS`], or `all`.
    pub paper: String,
    /// What it is.
    pub parameter: String,
    /// What the paper says of it.
    #[serde(default)]
    pub paper_says: String,
    /// The value that the lab takes.
    pub ours: String,
    /// The values that are plausible.
    #[serde(default)]
    pub range: String,
    /// Why these are plausible.
    #[serde(default)]
    pub source: String,
    /// The claims that depend on it.
    pub moves: Vec<String>,
}

/// Claims and assumptions of a source tree.
pub struct Claims {
    /// In the order of the papers.
    pub claims: Vec<Claim>,
    /// In the order of the papers.
    pub assumptions: Vec<Assumption>,
}

static KNOWN: LazyLock<Claims> = LazyLock::new(|| {
    let claims = include_str!("claims.json");
    let assumptions = include_str!("assumptions.json");
    let known = Claims::parse(claims, assumptions);
    known.expect("the files are part of the program")
});

impl Claims {
    /// Returns the list that the program was built with.
    pub fn known() -> &'static Self {
        &KNOWN
    }

    /// Reads the list in a directory of documents.
    ///
    /// # Errors
    /// Those of the files; two entries of one name; a paper that does not exist.
    pub fn read(docs: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = docs.join(name);
            fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        Self::parse(&text("claims.json")?, &text("assumptions.json")?)
    }

    fn parse(claims: &str, assumptions: &str) -> Result<Self> {
        let claims: Vec<Claim> = serde_json::from_str(claims).context("claims.json")?;
        let assumptions: Vec<Assumption> =
            serde_json::from_str(assumptions).context("assumptions.json")?;
        for (n, claim) in claims.iter().enumerate() {
            let known = PAPERS.iter().any(|(paper, _)| *paper == claim.paper);
            ensure!(known, "{}: there is no paper {}", claim.id, claim.paper);
            let twice = claims[..n].iter().any(|other| other.id == claim.id);
            ensure!(!twice, "{}: there are two", claim.id);
        }
        for assumption in &assumptions {
            for id in &assumption.moves {
                let known = claims.iter().any(|claim| claim.id == *id);
                ensure!(known, "{}: there is no claim {id}", assumption.id);
            }
        }
        Ok(Self {
            claims,
            assumptions,
        })
    }
}

impl Claim {
    /// Whether some plausible values reach it and some do not: that ours does says little.
    fn is_moved(&self) -> bool {
        let otherwise = self.otherwise.as_ref();
        otherwise.is_some_and(|otherwise| otherwise.verdict == Standing::NotDetermined)
    }

    /// Its figures in words.
    pub(crate) fn bound(&self) -> String {
        let one = |value: &Value| {
            let parts = [value.in_words(), value.what.clone().unwrap_or_default()];
            let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            parts.join(": ")
        };
        let all: Vec<_> = self.values.iter().map(one).collect();
        let tolerance = self
            .tolerance
            .map(|share| format!(" (\u{b1} {} %)", 100.0 * share));
        all.join("; ") + &tolerance.unwrap_or_default()
    }

    /// Until when time counts, in words.
    pub(crate) fn until(&self) -> String {
        match (self.until, self.until_is_said) {
            (None, _) => String::new(),
            (Some(until), Some(true)) => format!("{until:?}"),
            (Some(until), _) => format!("{until:?}, likely"),
        }
    }
}

impl Value {
    /// The figure and how it is meant.
    pub fn in_words(&self) -> String {
        let unit = self.unit.as_deref().unwrap_or_default();
        let gap = if unit == "x" { "" } else { " " };
        let number = self.number.map(|number| format!("{number}{gap}{unit}"));
        match (self.kind, number) {
            (Bound::About, Some(number)) => number,
            (Bound::AtLeast, Some(number)) => format!("at least {number}"),
            (Bound::AtMost, Some(number)) => format!("at most {number}"),
            (Bound::Ordering, Some(number)) => format!("more than {number}"),
            (Bound::Trend, Some(number)) => format!("{number} throughout"),
            (_, None) => String::new(),
        }
    }

    /// The range that counts as reached, for a plot.
    pub(crate) fn band(&self, name: &str, tolerance: f64) -> Band {
        let number = self.number;
        let room = |number: f64| tolerance * if number == 0.0 { 1.0 } else { number.abs() };
        let (low, high) = (number.map(|n| n - room(n)), number.map(|n| n + room(n)));
        let (low, high) = match self.kind {
            Bound::About | Bound::Trend => (low, high),
            Bound::AtLeast => (low, None),
            Bound::AtMost => (None, high),
            Bound::Ordering => (high, None),
        };
        Band {
            name: name.to_owned(),
            low,
            high,
        }
    }

    /// The figure in words, with the tolerance.
    pub(crate) fn said(&self, tolerance: f64) -> String {
        format!("{} (\u{b1} {} %)", self.in_words(), 100.0 * tolerance)
    }

    /// Whether `found` reaches the figure: its interval meets the bound with the tolerance. The
    /// tolerance is a share of the figure; where the figure is 0, it is an absolute number. For an
    /// ordering, the upper end must exceed the figure by more than the tolerance. A figure that is
    /// not legible is never reached.
    pub fn is_reached(&self, found: Mean, tolerance: f64) -> bool {
        let Some(number) = self.number else {
            return false;
        };
        let room = tolerance * if number == 0.0 { 1.0 } else { number.abs() };
        let half = found.half.unwrap_or(0.0);
        let (least, most) = (found.mean - half, found.mean + half);
        match self.kind {
            Bound::About | Bound::Trend => least <= number + room && most >= number - room,
            Bound::AtLeast => most >= number - room,
            Bound::AtMost => least <= number + room,
            Bound::Ordering => most > number + room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, Value};
    use crate::cell::Mean;

    #[test]
    fn an_interval_meets_a_bound() {
        let is_reached = |kind, number, mean, half| {
            let value = Value {
                number: Some(number),
                unit: None,
                kind,
                what: None,
            };
            value.is_reached(Mean { mean, half }, 0.05)
        };
        use Bound::{About, AtLeast, AtMost, Ordering};
        for (kind, number, mean, half, is) in [
            (About, 2.0, 2.09, None, true),
            (About, 2.0, 2.2, None, false),
            (About, 2.0, 2.2, Some(0.11), true),
            (About, 0.0, 0.06, None, false),
            (AtLeast, 2.0, 1.91, None, true),
            (AtLeast, 2.0, 1.8, Some(0.05), false),
            (AtMost, 2.0, 1.0, None, true),
            (AtMost, 2.0, 2.2, None, false),
            (Ordering, 1.0, 1.04, None, false),
            (Ordering, 1.0, 1.06, None, true),
            (About, 1.0, f64::NAN, None, false),
        ] {
            let found = is_reached(kind, number, mean, half);
            assert_eq!(found, is, "{kind:?} {number}: {mean} {half:?}");
        }
    }
}
