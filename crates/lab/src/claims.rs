//! What the papers claim in figures: `docs/claims.json`, the one list, and the document that is
//! made of it.
//!
//! A claim is of a paper; our own aims are none. It says where it stands, what is compared, the
//! bound, and until when time counts. The experiments' [checks](crate::experiment::report::Check)
//! judge it: a claim names those that do. One whose checks do not measure what the paper measured
//! is *withdrawn*, with the reason, and counts as open like one that has no check.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use stetfs_testkit::document;

use crate::experiment::report::{Check, Verdict};
use crate::experiment::stored::Store;

/// The papers: as a claim names them, and as a title.
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
    /// It is so.
    About,
    /// So much or more.
    AtLeast,
    /// So much or less, and the most of what is compared comes near it.
    AtMost,
    /// One is more than the other.
    Ordering,
    /// It grows, falls or stays.
    Trend,
}

/// A figure of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// None where the claim has words only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    /// Of the number: `x` is a ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// How it is meant.
    pub kind: Bound,
    /// Of what, where that is not plain.
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
    /// Until when time counts; none where it is no matter of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Whether the paper says so; otherwise it is what is likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_is_said: Option<bool>,
    /// More about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_note: Option<String>,
    /// How far from the figure is still the same, as a share of it; none where no figure is
    /// legible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// Why so much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance_note: Option<String>,
    /// Who judges it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Judge>,
    /// Why its checks do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All of its checks are as the paper has it.
    Reached,
    /// Some are not.
    Missed,
    /// Nothing here measures what the paper measured.
    Open,
}

impl Standing {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Reached, Self::Missed, Self::Open];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::Open => "open",
        }
    }
}

/// A claim with what became of it, in words.
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// What became of it.
    pub standing: Standing,
    /// What was found.
    pub ours: String,
}

/// The checks of the reports that claims name.
type Reports<'a> = BTreeMap<&'a String, Vec<Check>>;

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
    /// What the lab takes.
    pub ours: String,
    /// What it may have been.
    #[serde(default)]
    pub range: String,
    /// Why that may be so.
    #[serde(default)]
    pub source: String,
    /// The claims that it moves.
    pub moves: Vec<String>,
}

/// Claims and assumptions of a tree.
pub struct Claims {
    /// In the order of the papers.
    pub claims: Vec<Claim>,
    /// The same.
    pub assumptions: Vec<Assumption>,
}

impl Claims {
    /// Those of a directory of documents.
    ///
    /// # Errors
    /// Of the files; two of one name, a paper that is none.
    pub fn read(docs: &Path) -> Result<Self> {
        let claims: Vec<Claim> = from_json(&docs.join("claims.json"))?;
        let assumptions: Vec<Assumption> = from_json(&docs.join("assumptions.json"))?;
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

    /// What the reports that are kept say of each claim.
    ///
    /// # Errors
    /// Of a report; a check that a claim names is not there.
    pub fn judge(&self, store: &Store) -> Result<Vec<Judged<'_>>> {
        let named = self.claims.iter().flat_map(|claim| &claim.checks);
        let reports: BTreeSet<&String> = named.map(|judge| &judge.report).collect();
        let reports = reports
            .into_iter()
            .map(|id| Ok((id, store.read(id)?.checks)));
        let reports: Reports<'_> = reports.collect::<Result<_>>()?;
        self.claims
            .iter()
            .map(|claim| claim.judge(&reports))
            .collect()
    }

    /// The document with its tables made anew.
    ///
    /// # Errors
    /// Of the markers and the reports.
    pub fn render(&self, text: &str, store: &Store) -> Result<String> {
        let judged = self.judge(store)?;
        document::render(text, "<!-- claims: ", |marker| match marker {
            "count" => count(&judged),
            "assumptions" => Ok(self.ledger()),
            paper if PAPERS.iter().any(|(known, _)| *known == paper) => table(paper, &judged),
            other => bail!("what is {other}?"),
        })
    }

    fn ledger(&self) -> String {
        let mut text =
            "| paper | parameter | the paper | here | may be | why | moves |\n".to_owned();
        text.push_str("|---|---|---|---|---|---|---|\n");
        for assumption in &self.assumptions {
            let Assumption {
                paper,
                parameter,
                paper_says,
                ours,
                range,
                source,
                moves,
                ..
            } = assumption;
            let moves = moves.len().to_string();
            let cells = [paper, parameter, paper_says, ours, range, source, &moves];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            text += &format!("| {} |\n", cells.join(" | "));
        }
        text
    }
}

/// Those of a paper.
fn of<'j>(paper: &'j str, all: &'j [Judged<'j>]) -> impl Iterator<Item = &'j Judged<'j>> {
    all.iter().filter(move |judged| judged.claim.paper == paper)
}

fn count(all: &[Judged<'_>]) -> Result<String> {
    let mut text =
        "| paper | claims | reached | missed | open |\n|---|---|---|---|---|\n".to_owned();
    let mut sums = [0; 3];
    for (paper, title) in PAPERS {
        let judged: Vec<_> = of(paper, all).collect();
        let counts = Standing::ALL.map(|of| judged.iter().filter(|j| j.standing == of).count());
        sums = [0, 1, 2].map(|n| sums[n] + counts[n]);
        let [reached, missed, open] = counts;
        writeln!(
            text,
            "| {title} | {} | {reached} | {missed} | {open} |",
            judged.len()
        )?;
    }
    let [reached, missed, open] = sums;
    writeln!(
        text,
        "| all | {} | {reached} | {missed} | {open} |",
        all.len()
    )?;
    Ok(text)
}

fn table(paper: &str, all: &[Judged<'_>]) -> Result<String> {
    let mut text = "| claim | where | says | bound | until | here | |\n".to_owned();
    text.push_str("|---|---|---|---|---|---|---|\n");
    let mut reasons = Vec::new();
    for judged in of(paper, all) {
        let claim = judged.claim;
        let mut verdict = match judged.standing {
            Standing::Reached => judged.standing.name().to_owned(),
            standing => format!("**{}**", standing.name()),
        };
        if let Some(why) = &claim.withdrawn {
            let known = reasons.iter().position(|known| *known == why);
            let at = known.unwrap_or(reasons.len());
            if known.is_none() {
                reasons.push(why);
            }
            write!(verdict, " [{}]", at + 1)?;
        }
        let cells = [
            format!("`{}`", claim.id),
            claim.place.clone(),
            claim.says.clone(),
            claim.bound(),
            claim.until(),
            judged.ours.clone(),
            verdict,
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        writeln!(text, "| {} |", cells.join(" | "))?;
    }
    for (n, why) in reasons.iter().enumerate() {
        let gap = if n == 0 { "\n" } else { "" };
        writeln!(text, "{gap}{}. Withdrawn: {why}.", n + 1)?;
    }
    Ok(text)
}

impl Claim {
    /// What became of it.
    fn judge(&self, reports: &Reports<'_>) -> Result<Judged<'_>> {
        let mut found = Vec::new();
        for judge in &self.checks {
            let mut checks = reports.get(&judge.report).into_iter().flatten();
            let check = checks.find(|check| check.claim == judge.check);
            let no_check = || format!("{}: {} has no check {}", self.id, judge.report, judge.check);
            found.push(check.with_context(no_check)?);
        }
        let reached = found
            .iter()
            .filter(|check| check.verdict == Verdict::Reached);
        let reached = reached.count();
        let ours = match &found[..] {
            [] => String::new(),
            [check] => check.ours.clone(),
            several => format!("{reached} of {} checks", several.len()),
        };
        let standing = match (&self.withdrawn, found.len()) {
            (Some(_), _) | (_, 0) => Standing::Open,
            (None, all) if reached == all => Standing::Reached,
            _ => Standing::Missed,
        };
        Ok(Judged {
            claim: self,
            standing,
            ours,
        })
    }

    /// Its figures in words.
    pub(crate) fn bound(&self) -> String {
        let one = |value: &Value| {
            let number = value.number.map(|n| n.to_string());
            let unit = value.unit.as_deref().unwrap_or_default();
            let gap = if unit == "x" { "" } else { " " };
            let number = number.map(|number| format!("{number}{gap}{unit}"));
            let figure = match (value.kind, number) {
                (Bound::About, Some(number)) => number,
                (Bound::AtLeast, Some(number)) => format!("at least {number}"),
                (Bound::AtMost, Some(number)) => format!("at most {number}"),
                (Bound::Ordering, Some(number)) => format!("more than {number}"),
                (Bound::Trend, Some(number)) => format!("{number} throughout"),
                (_, None) => String::new(),
            };
            let parts = [figure, value.what.clone().unwrap_or_default()];
            let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            parts.join(": ")
        };
        let all: Vec<_> = self.values.iter().map(one).collect();
        let tolerance = self
            .tolerance
            .map(|share| format!(" (\u{b1} {} %)", 100.0 * share));
        all.join("; ") + &tolerance.unwrap_or_default()
    }

    /// Until when, in words.
    pub(crate) fn until(&self) -> String {
        match (self.until, self.until_is_said) {
            (None, _) => String::new(),
            (Some(until), Some(true)) => format!("{until:?}"),
            (Some(until), _) => format!("{until:?}, likely"),
        }
    }
}

fn from_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let at = || path.display().to_string();
    serde_json::from_slice(&fs::read(path).with_context(at)?).with_context(at)
}
