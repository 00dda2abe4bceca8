//! The verdict on each claim, by the stored reports: as tables of a document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use stetfs_testkit::document;

use super::{Assumption, Claim, Claims, Otherwise, PAPERS, Standing};
use crate::experiment::find;
use crate::experiment::kind::Experiment;
use crate::experiment::report::{Chart, Verdict};
use crate::experiment::stored::{Store, Stored};

/// A claim with its verdict, in words.
pub struct Judged<'a> {
    /// The claim.
    pub claim: &'a Claim,
    /// Its verdict.
    pub standing: Standing,
    /// What was found.
    pub ours: String,
    /// Why it is not reached; `None` when it is.
    pub why: Option<&'a Otherwise>,
    /// The plots of the sweep that shows it.
    pub plots: Vec<Chart>,
}

/// The reports, by experiment.
type Reports = BTreeMap<String, Stored>;

impl Claims {
    /// Judges each claim by the stored reports.
    ///
    /// # Errors
    /// Those of a report; a check that a claim names is not there.
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

    /// Returns the document with its tables made anew.
    ///
    /// # Errors
    /// Those of the markers and the reports.
    pub fn render(&self, text: &str, store: &Store) -> Result<String> {
        let judged = self.judge(store)?;
        document::render(text, "<!-- claims: ", |marker| match marker {
            "count" => count(&judged),
            "assumptions" => Ok(self.ledger()),
            paper if PAPERS.iter().any(|(known, _)| *known == paper) => table(paper, &judged),
            other => bail!("unknown word {other}"),
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

/// The claims of a paper.
fn of<'j>(paper: &'j str, all: &'j [Judged<'j>]) -> impl Iterator<Item = &'j Judged<'j>> {
    all.iter().filter(move |judged| judged.claim.paper == paper)
}

fn count(all: &[Judged<'_>]) -> Result<String> {
    // Verdicts that no claim has are left out.
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
    /// Judges the claim by these reports.
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
}

impl Otherwise {
    /// Returns the plots of the sweep that it names, which must confirm the verdict.
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
        if find(by).is_some_and(Experiment::is_figure) {
            plots.retain(|chart| is_its(&chart));
        } else {
            // Only plots with the paper's figures stay.
            plots.retain(|chart| !chart.lines.is_empty());
        }
        ensure!(!plots.is_empty(), "{}: {by} has no plot of it", claim.id);
        Ok(plots)
    }
}
