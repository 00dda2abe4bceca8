//! The papers' figures, as data: `*.json` beside this file has one list a paper.
//!
//! A figure is one or more selections of cells, what is shown of them, and what is compared with
//! the paper's claims (`docs/claims.json` has these with their bounds). Everything is run and
//! judged here, the same way for all:
//!
//! 1. A [`Selection`] is systems on a machine with a workload; settings with several values make
//!    its *points*. A value that begins with `~` is the paper's, and is multiplied by the scale;
//!    the number behind `>` is the least that it may become: `nvm=~16M>2M`.
//! 2. Each point runs once for each seed.
//! 3. A table's columns, a measure and a sweep are expressions ([`expr`]), evaluated for each seed;
//!    tables show the mean and half of its 95 % interval.
//! 4. A measure is *reached* when its interval meets the claim's bound with the tolerance. A sweep
//!    says at which points it is reached.

pub mod expr;

use std::fmt::Write as _;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use self::expr::Expr;
use crate::cell::{Axis, Cell, Machine, Mean, number, run_each, spread, system};
use crate::claims::{Claim, Claims, Value};
use crate::experiment::report::{Answered, Chart, Check, Report, Swept, Table, Verdict};
use crate::experiment::setting::Setting;
use crate::system::{Columns, Outcome};
use crate::text::{Bytes, set};

/// A figure or a table of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its name on the command line.
    pub id: String,
    /// What it shows, in a line.
    pub title: String,
    /// The paper and the place in it.
    pub place: String,
    /// The factor on the paper's data sets when none is given.
    pub scale: f64,
    /// How many seeds, from 1.
    #[serde(default = "five")]
    pub seeds: u64,
    /// Whether it is run in tests, at a small scale.
    #[serde(default = "yes")]
    pub is_small: bool,
    /// What is run.
    pub cells: Vec<Selection>,
    /// What is shown.
    #[serde(default)]
    tables: Vec<Shown>,
    /// What is compared with claims.
    #[serde(default)]
    pub measures: Vec<Measure>,
    /// At which of its points claims would be reached.
    #[serde(default)]
    pub sweeps: Vec<Measure>,
    /// What a reader must know.
    #[serde(default)]
    notes: Vec<String>,
}

const fn five() -> u64 {
    5
}

const fn yes() -> bool {
    true
}

/// Systems on a machine with a workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// `NAME = SYSTEM`, as [`system`] takes it.
    systems: Vec<String>,
    /// The word that tells its points from those of other selections.
    #[serde(default)]
    name: String,
    /// Settings of the machine.
    machine: String,
    /// The workload, or several; then each is a point.
    workload: String,
    /// Its settings, where they differ from the workload's defaults.
    #[serde(default)]
    with: String,
}

/// A table of points, and a chart of the same.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shown {
    title: String,
    /// Settings of the points that are shown.
    #[serde(default)]
    only: String,
    /// `HEAD = EXPRESSION`.
    columns: Vec<String>,
    /// The unit of the columns in the chart; `None` where there is no chart.
    #[serde(default)]
    chart: Option<String>,
    /// The columns in the chart; all where none are named.
    #[serde(default)]
    charted: Vec<String>,
    /// Other figures of the paper for the chart, which are no claims: `NAME = NUMBER`.
    #[serde(default)]
    lines: Vec<String>,
    /// Claims whose bounds are bands in the chart: `CLAIM`, or `CLAIM/1` for the second value.
    #[serde(default)]
    bands: Vec<String>,
    /// The paper's figure for each bar: `HEAD = NUMBER, ...`, in the order of the points; `-` where
    /// it has none.
    #[serde(default)]
    marks: Vec<String>,
}

/// A measured figure that is compared with a figure of a claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// The claim.
    pub claim: String,
    /// Index of the value in the claim.
    #[serde(default)]
    pub value: usize,
    /// What is measured, where the claim does not say it.
    #[serde(default)]
    what: String,
    /// Settings that select the points.
    #[serde(default)]
    only: String,
    /// The expression.
    of: String,
    /// What was chosen to fit the claim's figure.
    #[serde(default)]
    fitted: Option<String>,
}

static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| {
    let papers = [
        include_str!("shortcut.json"),
        include_str!("jftl.json"),
        include_str!("dj.json"),
        include_str!("spindle.json"),
        include_str!("ubj.json"),
    ];
    let figures = papers.map(|text| -> Vec<Figure> {
        serde_json::from_str(text).expect("the file is part of the program")
    });
    figures.into_iter().flatten().collect()
});

/// Every figure.
pub fn all() -> &'static [Figure] {
    &FIGURES
}

/// A value of a setting at a scale, as text.
fn scaled(value: &str, scale: f64) -> Result<String> {
    let Some(value) = value.strip_prefix('~') else {
        return Ok(value.to_owned());
    };
    let (value, least) = value.split_once('>').unwrap_or((value, "1"));
    let bytes = |text: &str| -> Result<u64> {
        let bytes = Bytes::parse(text).with_context(|| format!("{text} is not a number"))?;
        Ok(bytes.0)
    };
    let has_unit = value.ends_with(|c: char| c.is_ascii_alphabetic());
    let unit = if has_unit { 4096 } else { 1 };
    let exact = bytes(value)? as f64 * scale;
    let whole = (exact / unit as f64).round().max(1.0) as u64 * unit;
    Ok(whole.max(bytes(least)?).to_string())
}

/// A combination of settings: the words that tell it from others, and the machine and workload.
#[derive(Clone)]
struct Point {
    words: Vec<String>,
    machine: Machine,
    workload: String,
}

impl Point {
    /// Whether it has all of these settings.
    fn has(&self, settings: &[String]) -> bool {
        settings.iter().all(|word| self.words.contains(word))
    }

    /// Its name without these settings.
    fn name(&self, without: &[String]) -> String {
        let words = self.words.iter().filter(|word| !without.contains(word));
        words.cloned().collect::<Vec<_>>().join(" ")
    }
}

impl Selection {
    fn points(&self, scale: f64) -> Result<Vec<Point>> {
        let own = Some(self.name.clone()).filter(|name| !name.is_empty());
        let loads: Vec<_> = self.workload.split(',').collect();
        let loads_tell = loads.len() > 1;
        let begin = loads.into_iter().map(|load| Point {
            words: own
                .iter()
                .cloned()
                .chain(loads_tell.then(|| load.to_owned()))
                .collect(),
            machine: Machine::default(),
            workload: load.to_owned(),
        });
        let mut points: Vec<_> = begin.collect();
        let told = |point: &mut Point, axis: &Axis, value: &str| {
            if axis.values.len() > 1 {
                let said = value.trim_start_matches('~');
                let said = said.split('>').next().unwrap_or_default();
                point.words.push(format!("{}={said}", axis.name));
            }
        };
        for axis in Axis::parse(&self.machine)? {
            points = spread(points, &axis, |point, value| {
                let word = format!("{}={}", axis.name, scaled(value, scale)?);
                point.machine = set(&point.machine, &word)?;
                told(point, &axis, value);
                Ok(())
            })?;
        }
        for axis in Axis::parse(&self.with)? {
            points = spread(points, &axis, |point, value| {
                write!(point.workload, " {}={}", axis.name, scaled(value, scale)?)?;
                told(point, &axis, value);
                Ok(())
            })?;
        }
        Ok(points)
    }

    /// Names and texts of its systems.
    fn systems(&self) -> impl Iterator<Item = (&str, &str)> {
        self.systems.iter().map(|text| named(text))
    }

    /// Returns the command lines that ask the same question.
    fn commands(&self, scale: f64) -> Result<Vec<String>> {
        let words = |text: &str| -> Result<String> {
            let mut all = Vec::new();
            for axis in Axis::parse(text)? {
                let values = axis.values.iter().map(|value| scaled(value, scale));
                let values = values.collect::<Result<Vec<_>>>()?.join(",");
                all.push(format!("{}={values}", axis.name));
            }
            Ok(all.join(" "))
        };
        let systems: Vec<_> = self.systems().map(|(_, text)| text).collect();
        let (systems, set, with) = (systems.join(","), words(&self.machine)?, words(&self.with)?);
        let one = |load: &str| {
            format!(
                "stetfs lab run --system {systems} --set \"{set}\" --workload \"{load} {with}\""
            )
        };
        Ok(self.workload.split(',').map(one).collect())
    }
}

/// `NAME = TEXT`, or the text alone as its own name.
fn named(text: &str) -> (&str, &str) {
    let (name, text) = text.split_once(" = ").unwrap_or((text, text));
    (name.trim(), text.trim())
}

/// Returns the name of a setting; empty for the word of a selection.
fn key(word: &str) -> &str {
    word.split_once('=').map_or("", |(key, _)| key)
}

/// Adds settings to others, in place of those of the same name.
fn with(settings: &[String], more: &[String]) -> Vec<String> {
    let is_new = |word: &&String| more.iter().all(|other| key(word) != key(other));
    settings
        .iter()
        .filter(is_new)
        .chain(more)
        .cloned()
        .collect()
}

/// Settings as words.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// What was run: each system at each of its points, with an outcome for each seed.
struct Ran<'f> {
    points: Vec<(Point, &'f Selection)>,
    answers: Vec<(usize, &'f str, Vec<Outcome>)>,
    seeds: usize,
}

impl Ran<'_> {
    /// A number of a system with a seed at the points that have these settings.
    fn cells(&self, seed: usize, name: &str, system: &str, only: &[String]) -> Result<Vec<f64>> {
        number(name)?;
        let mut values = Vec::new();
        for (at, its, outcomes) in &self.answers {
            let (point, _) = &self.points[*at];
            if *its == system && point.has(only) {
                let value = outcomes[seed].get(name);
                // A system without such memory stores nothing there.
                values.push(value.unwrap_or(0.0));
            }
        }
        ensure!(
            !values.is_empty(),
            "no cell {name}[{system}; {}]",
            only.join(" ")
        );
        Ok(values)
    }

    /// Evaluates an expression at these points: a mean for each.
    fn means(&self, text: &str, only: &[String]) -> Result<Vec<Mean>> {
        let expr = Expr::parse(text)?;
        let of_seed = |seed: usize| {
            let cells = |name: &str, system: &str, more: &[String]| {
                self.cells(seed, name, system, &with(only, more))
            };
            expr.value(&cells).with_context(|| text.to_owned())
        };
        let all = (0..self.seeds).map(of_seed).collect::<Result<Vec<_>>>()?;
        let at = |n: usize| all.iter().map(|values| values[n]).collect::<Vec<_>>();
        let means = (0..all[0].len()).filter_map(|n| Mean::of(&at(n)));
        Ok(means.collect())
    }

    /// Names of the points that have these settings and any system.
    fn names(&self, only: &[String]) -> Vec<String> {
        let points = self.points.iter().filter(|(point, _)| point.has(only));
        let mut names = Vec::new();
        for (point, _) in points {
            let name = point.name(only);
            // A system whose settings differ has a selection of its own.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Figure {
    /// Runs the figure and judges the results.
    ///
    /// # Errors
    /// Those of the scale, a setting, a run; an expression that does not fit the cells.
    pub fn run(&self, setting: &Setting<'_>, report: &mut Report) -> Result<()> {
        setting.scaled(1, 1)?;
        let ran = self.cells(setting)?;
        for selection in &self.cells {
            let commands = selection.commands(setting.scale)?.into_iter();
            report
                .setup
                .extend(commands.map(|command| ("cells", command)));
        }
        report.seeds = ran.seeds as u64;
        for shown in &self.tables {
            self.show(&ran, shown, report)?;
        }
        for measure in &self.measures {
            report.checks.push(self.check(&ran, measure)?);
        }
        for sweep in &self.sweeps {
            self.sweep(&ran, sweep, report)?;
        }
        report.charts = self.charts(&report.tables)?;
        report.notes.extend(self.notes.iter().cloned());
        let answers = ran.answers.into_iter();
        report
            .cells
            .extend(answers.map(|(at, system, outcomes)| Answered {
                system: system.to_owned(),
                point: ran.points[at].0.name(&[]),
                outcomes,
            }));
        Ok(())
    }

    fn cells(&self, setting: &Setting<'_>) -> Result<Ran<'_>> {
        let seeds = if setting.is_alone {
            setting.seed..=setting.seed
        } else {
            setting.seed..=setting.seed + self.seeds - 1
        };
        let count = seeds.clone().count();
        let (mut points, mut asked, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        for selection in &self.cells {
            for point in selection.points(setting.scale)? {
                for (name, text) in selection.systems() {
                    let system = system(text, &point.machine)?;
                    asked.push((points.len(), name));
                    cells.extend(seeds.clone().map(|seed| Cell {
                        system,
                        machine: point.machine.clone(),
                        workload: point.workload.clone(),
                        seed,
                    }));
                }
                points.push((point, selection));
            }
        }
        let tell = |done, of| (setting.progress)(&self.id, done, of);
        let outcomes = run_each(&cells, setting.jobs, setting.store, &tell)?;
        let answers = asked.into_iter().zip(outcomes.chunks(count));
        Ok(Ran {
            points,
            answers: answers
                .map(|((at, name), o)| (at, name, o.to_vec()))
                .collect(),
            seeds: count,
        })
    }

    fn show(&self, ran: &Ran<'_>, shown: &Shown, report: &mut Report) -> Result<()> {
        let only = words(&shown.only);
        let names = ran.names(&only);
        let mut columns = Vec::new();
        for text in &shown.columns {
            let (head, of) = named(text);
            let means = ran.means(of, &only)?;
            let fits = means.len() == names.len() || means.len() == 1;
            ensure!(fits, "{}: {text}: {} values", self.id, means.len());
            columns.push((head, means));
        }
        let rows = columns
            .iter()
            .map(|(_, means)| means.len())
            .max()
            .unwrap_or(0);
        let heads = columns.iter().map(|(head, _)| *head);
        let mut table = Table::new(&shown.title, std::iter::once("").chain(heads));
        for (row, name) in names.iter().enumerate().take(rows) {
            let cell = |(_, means): &(&str, Vec<Mean>)| means.get(row).map(|m| m.to_string());
            let name = if rows > 1 { name.as_str() } else { "" };
            table.row(name, columns.iter().map(|c| cell(c).unwrap_or_default()));
        }
        report.tables.push(table);
        Ok(())
    }

    /// Returns the plots of a report's tables, with the paper's figures in them: those of the
    /// figure itself, and one for each sweep.
    ///
    /// # Errors
    /// The tables are not this figure's.
    pub fn charts(&self, tables: &[Table]) -> Result<Vec<Chart>> {
        let mut tables = tables.iter();
        let mut next = |title: &str| {
            let table = tables.next().filter(|table| table.title == title);
            table.with_context(|| format!("{}: there is no table {title}", self.id))
        };
        let mut charts = Vec::new();
        for (n, shown) in self.tables.iter().enumerate() {
            let table = next(&shown.title)?;
            if let Some(unit) = &shown.chart {
                let name = format!("{}-{}", self.id, n + 1);
                let mut chart = table.chart(&name, unit).with_context(|| name)?;
                let is_in =
                    |head: &String| shown.charted.is_empty() || shown.charted.contains(head);
                chart.series.retain(|series| is_in(&series.name));
                shown.compare(&mut chart).with_context(|| self.id.clone())?;
                charts.push(chart);
            }
        }
        for (n, sweep) in self.sweeps.iter().enumerate() {
            let (claim, value) = sweep.of_claim()?;
            let table = next(&sweep.title(claim))?;
            let before = self.sweeps[..n].iter();
            let nth = match before.filter(|other| other.claim == claim.id).count() {
                0 => String::new(),
                n => format!("-{}", n + 1),
            };
            let name = format!("{}-{}{nth}", self.id, claim.id);
            let unit = value.unit.as_deref().unwrap_or_default();
            let chart = table.chart(&name, unit);
            let mut chart = chart.with_context(|| name)?;
            chart.series.truncate(1);
            let tolerance = claim.tolerance.unwrap_or_default();
            let said = format!("the paper: {}", value.said(tolerance));
            chart.bands.push(value.band(&said, tolerance));
            charts.push(chart);
        }
        Ok(charts)
    }

    fn check(&self, ran: &Ran<'_>, measure: &Measure) -> Result<Check> {
        let (claim, value) = measure.of_claim()?;
        let found = ran.means(&measure.of, &words(&measure.only))?;
        let [mean] = found[..] else {
            anyhow::bail!("{}: {}: {} values", self.id, measure.of, found.len());
        };
        let unit = value.unit.as_deref().unwrap_or_default();
        let what = match measure.what.as_str() {
            "" => value.what.clone().unwrap_or_default(),
            what => what.to_owned(),
        };
        Ok(Check {
            claim: format!("{}: {what}", claim.id)
                .trim_end_matches(": ")
                .to_owned(),
            of: Some(claim.id.clone()),
            paper: value.in_words(),
            tolerance: claim.tolerance,
            ours: format!("{mean} {unit}")
                .replace(" x", "x")
                .trim()
                .to_owned(),
            verdict: if value.is_reached(mean, claim.tolerance.unwrap_or_default()) {
                Verdict::Reached
            } else {
                Verdict::Missed
            },
            fitted: measure.fitted.clone(),
            why: None,
        })
    }

    fn sweep(&self, ran: &Ran<'_>, sweep: &Measure, report: &mut Report) -> Result<()> {
        let (claim, value) = sweep.of_claim()?;
        let only = words(&sweep.only);
        let (names, means) = (ran.names(&only), ran.means(&sweep.of, &only)?);
        ensure!(
            names.len() == means.len(),
            "{}: {}: no sweep",
            self.id,
            sweep.of
        );
        let tolerance = claim.tolerance.unwrap_or_default();
        let (title, said) = (sweep.title(claim), value.said(tolerance));
        let mut table = Table::new(&title, ["", "here", &said]);
        let mut swept = Swept {
            claim: claim.id.clone(),
            value: sweep.value,
            reached: Vec::new(),
            missed: Vec::new(),
        };
        for (name, mean) in names.iter().zip(&means) {
            let is_reached = value.is_reached(*mean, tolerance);
            let verdict = if is_reached { "reached" } else { "" };
            table.row(name, [mean.to_string(), verdict.to_owned()]);
            let list = if is_reached {
                &mut swept.reached
            } else {
                &mut swept.missed
            };
            list.push(name.clone());
        }
        report.tables.push(table);
        report.swept.push(swept);
        Ok(())
    }
}

impl Measure {
    /// The claim and its value.
    ///
    /// # Errors
    /// There is none.
    fn of_claim(&self) -> Result<(&'static Claim, &'static Value)> {
        claimed(&self.claim, self.value)
    }

    /// Returns the title of its table, as a sweep.
    fn title(&self, claim: &Claim) -> String {
        let what = match self.what.as_str() {
            "" => &claim.says,
            what => what,
        };
        format!("{}: {what}", claim.id)
    }
}

/// Finds a claim, and its value number `n`.
fn claimed(id: &str, n: usize) -> Result<(&'static Claim, &'static Value)> {
    let claim = Claims::known().claims.iter().find(|claim| claim.id == id);
    let claim = claim.with_context(|| format!("there is no claim {id}"))?;
    let value = claim.values.get(n);
    Ok((claim, value.with_context(|| format!("{id}: no value {n}"))?))
}

impl Shown {
    /// Adds the paper's figures to the plot of the table.
    fn compare(&self, chart: &mut Chart) -> Result<()> {
        for text in &self.lines {
            let (name, number) = named(text);
            chart.lines.push((name.to_owned(), number.parse()?));
        }
        for text in &self.bands {
            let (id, n) = text.split_once('/').unwrap_or((text, "0"));
            let (claim, value) = claimed(id, n.parse()?)?;
            let tolerance = claim.tolerance.unwrap_or_default();
            let name = format!("{}: {}", claim.id, value.said(tolerance));
            chart.bands.push(value.band(&name, tolerance));
        }
        for text in &self.marks {
            let (head, numbers) = named(text);
            let mut series = chart.series.iter_mut();
            let series = series.find(|series| series.name == head);
            let series = series.with_context(|| format!("{text}: no such column"))?;
            let number = |text: &str| match text.trim() {
                "-" => Ok(None),
                text => text.parse().map(Some),
            };
            series.marks = numbers
                .split(',')
                .map(number)
                .collect::<Result<_, _>>()
                .with_context(|| text.clone())?;
            ensure!(
                series.marks.len() == chart.groups.len(),
                "{text}: {} points",
                chart.groups.len()
            );
        }
        Ok(())
    }
}

/// Makes CSV with every number of every run, a line per run.
///
/// # Errors
/// None, unless memory runs out.
pub fn csv(cells: &[Answered], seed: u64) -> Result<String> {
    let columns = Columns::of(cells.iter().flat_map(|cell| &cell.outcomes));
    let heads: Vec<_> = columns.heads().collect();
    let mut text = format!("system,point,seed,{}\n", heads.join(","));
    for Answered {
        system,
        point,
        outcomes,
    } in cells
    {
        for (n, outcome) in outcomes.iter().enumerate() {
            let values: Vec<_> = columns.values(outcome).collect();
            writeln!(
                text,
                "{system},{point},{},{}",
                seed + n as u64,
                values.join(",")
            )?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{all, scaled};
    use crate::figure::expr::Expr;

    #[test]
    fn papers_values_are_scaled_and_others_are_not() {
        for (value, scale, is) in [
            ("5", 0.5, "5"),
            ("~16M", 0.5, "8388608"),
            ("~16M>12M", 0.5, "12582912"),
            ("~1000", 0.25, "250"),
            ("~1000>600", 0.25, "600"),
            ("~3", 0.001, "1"),
        ] {
            assert_eq!(scaled(value, scale).expect(value), is);
        }
        assert!(scaled("~each", 1.0).is_err());
    }

    /// Figures name claims, systems and settings that exist, and all of it can be read.
    #[test]
    fn figures_can_be_read() {
        for figure in all() {
            for selection in &figure.cells {
                for point in selection.points(figure.scale).expect(&figure.id) {
                    for (_, text) in selection.systems() {
                        super::system(text, &point.machine).expect(&figure.id);
                    }
                }
            }
            for measure in figure.measures.iter().chain(&figure.sweeps) {
                measure.of_claim().expect(&figure.id);
                Expr::parse(&measure.of).expect(&figure.id);
            }
        }
    }
}
