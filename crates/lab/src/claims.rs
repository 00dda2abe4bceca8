//! What the papers claim in figures: `docs/claims.json`, the one list, and the document that is
//! made of it.
//!
//! A claim is of a paper; our own aims are none. It says where it stands, what is compared, the
//! bound, and until when time counts. [Checks](crate::experiment::report::Check) judge it: those of
//! figures name their claim, and a claim names those of other experiments. Of one that is not
//! reached a sweep says why: it is *settled*, *not determined* or *contradicted*, and the sweep
//! must bear that out. A sweep is a plot too, which is kept beside the documents.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use stetfs_testkit::document;

use crate::cell::Mean;
use crate::experiment::report::{Band, Chart, Verdict};
use crate::experiment::stored::{Store, Stored};
use crate::experiment::{Experiment, find};

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
    /// So much or less.
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
    /// What it is where its checks do not reach it, and where they do but a sweep shows that it is
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
    /// The figure whose sweep shows it; none where the paper has no figure that can be compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What the sweep shows.
    pub why: String,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// All of its checks are as the paper has it.
    Reached,
    /// A sweep shows which parameter the paper must have had: with it the figure comes out.
    Settled,
    /// Within what is plausible for a parameter that the paper leaves out it is so, and not so.
    NotDetermined,
    /// It is so nowhere within what is plausible.
    Contradicted,
    /// Some of its checks are not as the paper has it, and nothing says why.
    Missed,
    /// Nothing here measures what the paper measured.
    Open,
}

impl Standing {
    /// Every one.
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

/// A claim with what became of it, in words.
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// What became of it.
    pub standing: Standing,
    /// What was found.
    pub ours: String,
    /// Why it is so, where it is not reached.
    pub why: Option<&'a Otherwise>,
    /// The plots of the sweep that shows it.
    pub plots: Vec<Chart>,
}

/// What the reports say.
type Reports = BTreeMap<String, Stored>;

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

static KNOWN: LazyLock<Claims> = LazyLock::new(|| {
    let claims = include_str!("../../../docs/claims.json");
    let assumptions = include_str!("../../../docs/assumptions.json");
    let known = Claims::parse(claims, assumptions);
    known.expect("the files are part of the program")
});

impl Claims {
    /// Those that the program was built with.
    pub fn known() -> &'static Self {
        &KNOWN
    }

    /// Those of a directory of documents.
    ///
    /// # Errors
    /// Of the files; two of one name, a paper that is none.
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

    /// What the reports that are kept say of each claim.
    ///
    /// # Errors
    /// Of a report; a check that a claim names is not there.
    pub fn judge(&self, store: &Store) -> Result<Vec<Judged<'_>>> {
        let reports = Store::experiments().map(|experiment| {
            let stored = store.read(experiment.id)?;
            Ok((stored.experiment.clone(), stored))
        });
        let reports: Reports = reports.collect::<Result<_>>()?;
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
    // Those that nothing has.
    let of = |paper: &str, standing: Standing| {
        let judged = all
            .iter()
            .filter(|j| paper.is_empty() || j.claim.paper == paper);
        judged.filter(|j| j.standing == standing).count()
    };
    let heads: Vec<_> = Standing::ALL
        .into_iter()
        .filter(|s| of("", *s) > 0)
        .collect();
    let names: Vec<_> = heads.iter().map(|standing| standing.name()).collect();
    let mut text = format!("| paper | claims | {} |\n", names.join(" | "));
    writeln!(text, "|---|---|{}", "---|".repeat(heads.len()))?;
    for (paper, title) in PAPERS.into_iter().chain([("", "all")]) {
        let counts: Vec<usize> = heads.iter().map(|standing| of(paper, *standing)).collect();
        let cells: Vec<_> = counts.iter().map(usize::to_string).collect();
        let sum: usize = counts.iter().sum();
        writeln!(text, "| {title} | {sum} | {} |", cells.join(" | "))?;
    }
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
        let why = judged.why.map(|otherwise| match &otherwise.by {
            Some(by) => format!("{} (`{by}`)", otherwise.why),
            None => otherwise.why.clone(),
        });
        if let Some(why) = why {
            let known = reasons.iter().position(|known: &String| *known == why);
            let at = known.unwrap_or(reasons.len());
            if known.is_none() {
                reasons.push(why);
            }
            write!(verdict, " [{}]", at + 1)?;
        }
        for plot in &judged.plots {
            write!(verdict, " [plot](lab/plots/{}.svg)", plot.name)?;
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
        writeln!(text, "{gap}{}. {why}.", n + 1)?;
    }
    Ok(text)
}

impl Claim {
    /// What became of it.
    fn judge(&self, reports: &Reports) -> Result<Judged<'_>> {
        let mut found = Vec::new();
        for judge in &self.checks {
            let mut checks = reports
                .get(&judge.report)
                .into_iter()
                .flat_map(|report| &report.checks);
            let check = checks.find(|check| check.claim == judge.check);
            let no_check = || format!("{}: {} has no check {}", self.id, judge.report, judge.check);
            found.push(check.with_context(no_check)?);
        }
        let checks = reports.values().flat_map(|report| &report.checks);
        found.extend(checks.filter(|check| check.of.as_ref() == Some(&self.id)));
        let reached = found
            .iter()
            .filter(|check| check.verdict == Verdict::Reached);
        let reached = reached.count();
        let ours = match &found[..] {
            [] => String::new(),
            [check] => check.ours.clone(),
            several => format!("{reached} of {} checks", several.len()),
        };
        let is_reached = !found.is_empty() && reached == found.len() && !self.is_moved();
        let why = self.otherwise.as_ref().filter(|_| !is_reached);
        let (mut standing, mut plots) = (Standing::Reached, Vec::new());
        if let Some(otherwise) = why {
            plots = otherwise.plots(self, reports)?;
            standing = otherwise.verdict;
        } else if found.is_empty() {
            standing = Standing::Open;
        } else if !is_reached {
            standing = Standing::Missed;
        }
        Ok(Judged {
            claim: self,
            standing,
            ours,
            why,
            plots,
        })
    }

    /// Within what is plausible it is so and not so: that our setting reaches it says little.
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

    /// Until when, in words.
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

    /// What counts as the same, for a plot.
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

    /// The same with the tolerance.
    pub(crate) fn said(&self, tolerance: f64) -> String {
        format!("{} (\u{b1} {} %)", self.in_words(), 100.0 * tolerance)
    }

    /// Whether what was found is as it says: the interval of the mean meets the bound with its
    /// tolerance, which is a share of the figure, or the figure itself where that is 0. What is to
    /// be more than something must be so by more than the tolerance. Nothing reaches what is not
    /// legible.
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

impl Otherwise {
    /// The plots of the sweep that it names, which must say so too.
    fn plots(&self, claim: &Claim, reports: &Reports) -> Result<Vec<Chart>> {
        let Some(by) = &self.by else {
            let is_legible = claim.values.iter().any(|value| value.number.is_some());
            ensure!(!is_legible, "{}: no sweep is named", claim.id);
            return Ok(Vec::new());
        };
        let report = reports
            .get(by)
            .with_context(|| format!("there is no report {by}"))?;
        let swept: Vec<_> = report
            .swept
            .iter()
            .filter(|swept| swept.claim == claim.id)
            .collect();
        ensure!(!swept.is_empty(), "{}: {by} has no sweep of it", claim.id);
        let is_somewhere = swept.iter().all(|swept| !swept.reached.is_empty());
        let is_missed = swept.iter().any(|swept| !swept.missed.is_empty());
        let is_so = match self.verdict {
            Standing::Settled => is_somewhere,
            Standing::NotDetermined => is_somewhere && is_missed,
            Standing::Contradicted => !is_somewhere,
            Standing::Reached | Standing::Missed | Standing::Open => false,
        };
        ensure!(
            is_so,
            "{}: {by} does not show that it is {}: {swept:?}",
            claim.id,
            self.verdict.name()
        );
        let name = format!("{by}-{}", claim.id);
        let is_its = |chart: &&Chart| {
            let rest = chart.name.strip_prefix(&name);
            // The second sweep of a claim has `-2` behind its name.
            rest.is_some_and(|rest| {
                rest.trim_start_matches('-').parse::<u8>().is_ok() || rest.is_empty()
            })
        };
        let mut plots = report.charts()?;
        match find(by).is_some_and(Experiment::is_figure) {
            true => plots.retain(|chart| is_its(&chart)),
            // Those with the paper's figures in them.
            false => plots.retain(|chart| !chart.lines.is_empty()),
        }
        ensure!(!plots.is_empty(), "{}: {by} has no plot of it", claim.id);
        Ok(plots)
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
