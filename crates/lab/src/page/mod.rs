//! The page: one HTML file that has everything of a ground in it, and needs nothing else.
//!
//! `page.js` makes its tables and plots from a block of JSON; only the summary's picture and the
//! plots of figures are images already. With the source tree's documents, the page also has the
//! papers' claims, their figures as they come out here, and what the papers leave out.

mod escape;
mod picture;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;

pub use picture::picture;

use escape::text;

use crate::cell::number;
use crate::claims::ledger::Judged;
use crate::claims::{Assumption, Bound, Claims};
use crate::experiment::stored::Store;
use crate::ground::sheet::{Sheet, Square};
use crate::ground::{Contestant, Job, Place};
use crate::system::{NUMBERS, Number};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

#[derive(Serialize)]
struct Data<'a> {
    numbers: &'a [Number],
    media: &'a [Place],
    workloads: &'a [Job],
    systems: &'a [Contestant],
    cells: Vec<CellData<'a>>,
    claims: Vec<ClaimData<'a>>,
    assumptions: Vec<AssumptionData<'a>>,
}

#[derive(Serialize)]
struct CellData<'a> {
    medium: usize,
    workload: usize,
    system: usize,
    seeds: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    /// Mean and half of its interval; then both of the multiple of the baseline's, where there is
    /// one.
    values: BTreeMap<&'static str, Vec<Option<f64>>>,
}

#[derive(Serialize)]
struct ClaimData<'a> {
    id: &'a str,
    paper: &'a str,
    place: &'a str,
    says: &'a str,
    bound: String,
    until: String,
    ours: &'a str,
    standing: &'static str,
    why: String,
    /// Our figure as a multiple of the paper's, where both are numbers.
    ratio: Option<f64>,
    /// The range of that multiple that counts as reached.
    band: [f64; 2],
}

#[derive(Serialize)]
struct AssumptionData<'a> {
    #[serde(flatten)]
    assumption: &'a Assumption,
    /// The claims that it moves, as text.
    #[serde(rename = "moves")]
    moved: String,
}

/// Makes the page of a ground. `show` is the number that the words below the table are about.
/// `docs` is the directory of documents with the papers' claims and assumptions; beside it,
/// `results/reports` has the figures.
///
/// # Errors
/// There is no such number; errors of the documents and plots.
pub fn page(sheet: &Sheet, show: &str, docs: Option<&Path>) -> Result<String> {
    number(show)?;
    let claims = docs.map(Claims::read).transpose()?;
    let store = docs.map(|docs| Store::new(docs.join("../results/reports")));
    let judged = match (&claims, &store) {
        (Some(claims), Some(store)) => claims.judge(store)?,
        _ => Vec::new(),
    };
    let assumptions = claims.iter().flat_map(|claims| &claims.assumptions);
    let data = Data {
        numbers: NUMBERS,
        media: &sheet.media,
        workloads: &sheet.workloads,
        systems: &sheet.systems,
        cells: sheet
            .squares
            .iter()
            .map(|square| cell(sheet, square))
            .collect(),
        claims: judged.iter().map(claim).collect(),
        assumptions: assumptions.map(assumed).collect(),
    };
    let about = format!(
        "{} media, {} workloads, {} systems, {} seeds; time is virtual, the media's and a \
         processor's. Sources {}.",
        sheet.media.len(),
        sheet.workloads.len(),
        sheet.systems.len(),
        sheet.seeds,
        sheet.sources
    );
    fill(TEMPLATE, &|hole| {
        Ok(match hole {
            "style" => STYLE.to_owned(),
            "script" => SCRIPT.to_owned(),
            "about" => text(&about),
            "words" => text(&sheet.words(show)?),
            "picture" => picture(sheet, show)?,
            // No `<` in the data may end the script element, or begin a comment in it.
            "data" => serde_json::to_string(&data)?.replace('<', "\\u003c"),
            "figures" => figures(store.as_ref())?,
            other => bail!("the page has no {other}"),
        })
    })
}

/// Fills the holes of the template, `{{name}}`. The fillings are not searched for holes.
fn fill(template: &str, with: &dyn Fn(&str) -> Result<String>) -> Result<String> {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, hole)) = rest.split_once("{{") {
        let (name, after) = hole.split_once("}}").context("a hole without an end")?;
        page.push_str(before);
        page.push_str(&with(name)?);
        rest = after;
    }
    Ok(page + rest)
}

/// Rounds to six digits: more are noise, and half of the page.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn cell<'s>(sheet: &Sheet, square: &'s Square) -> CellData<'s> {
    let value = |number: &'static Number| {
        let mean = square.mean(number.name)?;
        let mut value = vec![Some(rounded(mean.mean)), mean.half.map(rounded)];
        if let Some(ratio) = sheet.ratio(square, number.name) {
            value.extend([Some(rounded(ratio.mean)), ratio.half.map(rounded)]);
        }
        Some((number.name, value))
    };
    CellData {
        medium: square.medium,
        workload: square.workload,
        system: square.system,
        seeds: square.runs.len(),
        why: square.why.as_deref(),
        failed: square.failed,
        command: square.command.as_deref(),
        values: NUMBERS.iter().filter_map(value).collect(),
    }
}

fn claim<'c>(judged: &'c Judged<'_>) -> ClaimData<'c> {
    let claim = judged.claim;
    let tolerance = claim.tolerance.unwrap_or_default();
    let (ratio, band) = match &claim.values[..] {
        [value] => {
            let theirs = value.number.filter(|number| *number != 0.0);
            let ours = leading(&judged.ours).filter(|_| claim.checks.len() == 1);
            let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
            let (low, high) = (1.0 - tolerance, 1.0 + tolerance);
            let band = match value.kind {
                Bound::AtLeast | Bound::Ordering => [low, 4.0],
                Bound::AtMost => [0.25, high],
                Bound::About | Bound::Trend => [low, high],
            };
            (ratio.filter(|ratio| *ratio > 0.0), band)
        }
        _ => (None, [1.0, 1.0]),
    };
    ClaimData {
        id: &claim.id,
        paper: &claim.paper,
        place: &claim.place,
        says: &claim.says,
        bound: claim.bound(),
        until: claim.until(),
        ours: &judged.ours,
        standing: judged.standing.name(),
        why: judged
            .why
            .map(|why| match &why.by {
                Some(by) => format!("{} ({by})", why.why),
                None => why.why.clone(),
            })
            .unwrap_or_default(),
        ratio,
        band,
    }
}

/// Returns the number that a text begins with.
fn leading(text: &str) -> Option<f64> {
    let is_of = |letter: char| letter.is_ascii_digit() || letter == '.';
    let end = text.find(|letter| !is_of(letter)).unwrap_or(text.len());
    text[..end].parse().ok()
}

fn assumed(assumption: &Assumption) -> AssumptionData<'_> {
    AssumptionData {
        moved: assumption.moves.join(" "),
        assumption,
    }
}

/// Makes the section of the papers' figures: what was run with which seeds, the plots with the
/// paper's points and bands in them, and the comparison with claims.
fn figures(store: Option<&Store>) -> Result<String> {
    let Some(store) = store else {
        return Ok("<p>With <code>--docs DIR</code> they are here.</p>".to_owned());
    };
    let mut html = String::new();
    for experiment in Store::experiments() {
        let stored = store.read(experiment.id)?;
        let (id, scale) = (text(experiment.id), stored.scale);
        let seeds = match stored.seeds {
            1 => format!("seed {}", stored.seed),
            n => format!(
                "seeds {} to {}; behind the bars half of the 95 % interval",
                stored.seed,
                stored.seed + n - 1
            ),
        };
        writeln!(
            html,
            "<h3 id=\"figure-{id}\">{id}: {}</h3>\n<p>{}. Scale {scale}, {seeds}: \
             <code>stetfs lab {id}</code></p>",
            text(experiment.title),
            text(&stored.paper)
        )?;
        let commands = stored.setup.iter().filter(|(name, _)| name == "cells");
        let commands: Vec<_> = commands.map(|(_, command)| text(command)).collect();
        if !commands.is_empty() {
            let all = commands.join("\n");
            writeln!(
                html,
                "<details><summary>Its cells</summary><pre>{all}</pre></details>"
            )?;
        }
        for chart in &stored.charts()? {
            writeln!(html, "{}", image(&chart.title, &chart.svg()?)?)?;
        }
        if !stored.checks.is_empty() {
            html += "<table class=\"checks\"><thead><tr><th>claim</th><th>paper</th><th>here</th>\
                     <th></th></tr></thead>\n<tbody>\n";
            for check in &stored.checks {
                let cells = [&check.claim, &check.said(), &check.ours, &check.judged()];
                let cells = cells.map(|cell| format!("<td>{}</td>", text(cell)));
                writeln!(html, "<tr>{}</tr>", cells.concat())?;
            }
            html += "</tbody></table>\n";
        }
    }
    Ok(html)
}

/// Embeds a picture as an image of its own, so that it shares nothing with the page.
fn image(title: &str, svg: &str) -> Result<String> {
    let mut address = String::from("data:image/svg+xml,");
    for byte in svg.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b' ' | b'=' | b'/' => {
                address.push(char::from(byte));
            }
            other => write!(address, "%{other:02X}")?,
        }
    }
    let title = text(title);
    Ok(format!(
        "<img class=\"figure\" alt=\"{title}\" src=\"{address}\">"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_a_hole_is_left_alone() {
        let with = |name: &str| Ok(format!("<{name} {{{{b}}}}>"));
        assert_eq!(
            fill("a {{x}} b {{y}}.", &with).expect("filled"),
            "a <x {{b}}> b <y {{b}}>."
        );
        assert!(fill("{{x", &with).is_err());
        assert_eq!(text("a<b & \"c'"), "a&lt;b &amp; &quot;c&#39;");
    }

    #[test]
    fn figures_begin_with_a_number() {
        assert_eq!(leading("1.87x"), Some(1.87));
        assert_eq!(leading("6832 bytes"), Some(6832.0));
        assert_eq!(leading("short"), None);
    }
}
