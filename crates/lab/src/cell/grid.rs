//! Every combination of systems, settings with several values, and seeds; and the results.

use std::fmt::{self, Write as _};
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use serde::Serialize;
use stetfs_chart::{Chart, Series};

use super::load::Load;
use super::machine::Machine;
use super::run::{Cell, system};
use super::store::Store;
use crate::system::{Columns, NUMBERS, Number, Outcome};
use crate::text::set;

/// A setting with its values: of the machine, or of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting.
    pub name: String,
    /// Its values as text.
    pub values: Vec<String>,
}

impl Axis {
    /// Reads settings as a command line has them: `nvm=16M,64M commit=1s`, or with commas only,
    /// `nvm=16M,64M,commit=1s`.
    ///
    /// # Errors
    /// A value without a name.
    pub fn parse(text: &str) -> Result<Vec<Self>> {
        let mut axes: Vec<Self> = Vec::new();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some((name, value)) => axes.push(Self {
                    name: name.to_owned(),
                    values: vec![value.to_owned()],
                }),
                None => {
                    let axis = axes.last_mut();
                    let axis = axis
                        .with_context(|| format!("{word}: settings are NAME=VALUE[,VALUE...]"))?;
                    axis.values.push(word.to_owned());
                }
            }
        }
        Ok(axes)
    }
}

/// A question: systems on a machine with a workload.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Systems, as [`system`] takes them.
    pub systems: Vec<String>,
    /// The machine of all of them, before the settings.
    pub machine: Machine,
    /// Settings of the machine.
    pub set: Vec<Axis>,
    /// The workload's name.
    pub workload: String,
    /// Its settings.
    pub with: Vec<Axis>,
    /// How many seeds, from 1.
    pub seeds: u64,
}

/// A combination of settings, the same for all systems and seeds.
#[derive(Clone, Debug)]
pub struct Point {
    /// The settings that have several values, as words: they tell the point from the others.
    pub name: String,
    machine: Machine,
    workload: String,
}

/// A system at a point.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The system.
    pub system: &'static str,
    /// The point's name.
    pub point: String,
    /// The result of each seed.
    pub outcomes: Vec<Outcome>,
}

/// A mean, and half of its 95 % interval: how far the mean of many more seeds may be from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean over the seeds.
    pub mean: f64,
    /// Half of the interval; `None` with one seed.
    pub half: Option<f64>,
}

impl Grid {
    /// Returns the points, in the order of the settings: the last setting changes fastest.
    ///
    /// # Errors
    /// A setting that does not exist.
    pub fn points(&self) -> Result<Vec<Point>> {
        let begin = Point {
            name: String::new(),
            machine: self.machine.clone(),
            workload: self.workload.clone(),
        };
        let mut points = vec![begin];
        for axis in &self.set {
            points = spread(points, axis, |point, value| {
                let word = format!("{}={value}", axis.name);
                point.machine = set(&point.machine, &word)?;
                point.told(axis, value);
                Ok(())
            })?;
        }
        for axis in &self.with {
            points = spread(points, axis, |point, value| {
                write!(point.workload, " {}={value}", axis.name)?;
                point.told(axis, value);
                Ok(())
            })?;
        }
        for point in &points {
            let (load, words) = Load::find(&point.workload)?;
            load.make(words, 1)?;
        }
        Ok(points)
    }

    /// Runs everything on `jobs` threads. Takes runs from the store where it has them, and stores
    /// the others. Calls `tell` with the number of runs done and their total.
    ///
    /// # Errors
    /// Those of the first run that fails.
    pub fn run(
        &self,
        jobs: usize,
        store: Option<&Store>,
        tell: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Vec<Answer>> {
        ensure!(self.seeds > 0, "no seed");
        let (mut cells, mut asked) = (Vec::new(), Vec::new());
        for point in self.points()? {
            for text in &self.systems {
                let system = system(text, &point.machine)?;
                asked.push((system.name, point.name.clone()));
                let seeds = 1..=self.seeds;
                cells.extend(seeds.map(|seed| Cell {
                    system,
                    machine: point.machine.clone(),
                    workload: point.workload.clone(),
                    seed,
                }));
            }
        }
        let outcomes = run_each(&cells, jobs, store, tell)?;
        let each = outcomes.chunks(self.seeds as usize);
        let answers = asked.into_iter().zip(each);
        Ok(answers
            .map(|((system, point), outcomes)| Answer {
                system,
                point,
                outcomes: outcomes.to_vec(),
            })
            .collect())
    }
}

/// Runs cells as [`run_all`] does, until one fails. Calls `tell` with the number done and their
/// total.
///
/// # Errors
/// Those of the first one that fails.
pub(crate) fn run_each(
    cells: &[Cell],
    jobs: usize,
    store: Option<&Store>,
    tell: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Outcome>> {
    let (of, done) = (cells.len() as u64, Mutex::new(0));
    let failed = Mutex::new(None);
    let outcomes = run_all(cells, jobs, store, &|_, outcome| match outcome {
        Ok(_) => {
            let mut done = done.lock();
            *done += 1;
            tell(*done, of);
            ControlFlow::Continue(())
        }
        // Nothing more is begun when one has failed.
        Err(error) => {
            failed.lock().get_or_insert(error);
            ControlFlow::Break(())
        }
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(outcomes.into_iter().flatten().collect()),
    }
}

/// Called with the place and the result of each cell; returns `Break` to begin no more cells.
pub type Hear<'a> = &'a (dyn Fn(usize, Result<&Outcome>) -> ControlFlow<()> + Sync);

/// Runs cells on `jobs` threads, in their order. Takes outcomes from the store where it has them,
/// and stores the others. `None`: the cell failed, or was not begun; `hear` has the reason.
pub(crate) fn run_all(
    cells: &[Cell],
    jobs: usize,
    store: Option<&Store>,
    hear: Hear<'_>,
) -> Vec<Option<Outcome>> {
    let next = Mutex::new(0..cells.len());
    let done = Mutex::new(vec![None; cells.len()]);
    let work = || {
        loop {
            let Some(n) = next.lock().next() else {
                return;
            };
            let outcome = match store {
                Some(store) => store.run(&cells[n]),
                None => cells[n].run(&|_, _| {}),
            };
            let (outcome, heard) = match outcome {
                Ok(outcome) => {
                    let heard = hear(n, Ok(&outcome));
                    (Some(outcome), heard)
                }
                Err(error) => (None, hear(n, Err(error))),
            };
            done.lock()[n] = outcome;
            if heard.is_break() {
                *next.lock() = 0..0;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    done.into_inner()
}

impl Point {
    /// Adds the value to the point's name, if the axis has others.
    fn told(&mut self, axis: &Axis, value: &str) {
        if axis.values.len() > 1 {
            let name = format!("{} {}={value}", self.name, axis.name);
            name.trim().clone_into(&mut self.name);
        }
    }
}

/// Combines each point with each value of an axis.
///
/// # Errors
/// Those of the change that a value makes.
pub fn spread<P: Clone>(
    points: Vec<P>,
    axis: &Axis,
    change: impl Fn(&mut P, &str) -> Result<()>,
) -> Result<Vec<P>> {
    let mut all = Vec::new();
    for point in points {
        for value in &axis.values {
            let mut point = point.clone();
            change(&mut point, value)?;
            all.push(point);
        }
    }
    Ok(all)
}

/// 97.5 % quantiles of Student's distribution with 1 to 10 degrees of freedom, and of the normal
/// distribution (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
const STUDENT: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];
const NORMAL: f64 = 1.960;

/// Four digits are enough to compare by.
impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |value: f64| match value {
            0.0 => "0".to_owned(),
            _ => {
                let whole = value.abs().log10().floor() as i32;
                let places = usize::try_from(3 - whole).unwrap_or(0).min(9);
                format!("{value:.places$}")
            }
        };
        // Less than a millionth is rounding.
        match self.half.map(|half| {
            if half < 1e-6 * self.mean.abs() {
                0.0
            } else {
                half
            }
        }) {
            Some(half) => write!(f, "{} \u{b1} {}", digits(self.mean), digits(half)),
            None => f.write_str(&digits(self.mean)),
        }
    }
}

impl Mean {
    /// Returns the mean of these; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let quantile = values
            .len()
            .checked_sub(2)
            .map(|at| *STUDENT.get(at).unwrap_or(&NORMAL));
        (!values.is_empty()).then(|| Self {
            mean,
            half: quantile.map(|quantile| quantile * (squares / (n - 1.0) / n).sqrt()),
        })
    }
}

impl Answer {
    /// Returns the mean of a number over the seeds; `None` where the runs do not have it.
    pub fn mean(&self, name: &str) -> Option<Mean> {
        let values: Vec<f64> = self.outcomes.iter().filter_map(|o| o.get(name)).collect();
        Mean::of(&values)
    }
}

/// Finds the number of that name.
///
/// # Errors
/// There is none.
pub fn number(name: &str) -> Result<&'static Number> {
    match NUMBERS.iter().find(|number| number.name == name) {
        Some(number) => Ok(number),
        None => {
            let names: Vec<_> = NUMBERS.iter().map(|number| number.name).collect();
            bail!("there is no number {name}; there are {}", names.join(", "))
        }
    }
}

/// Makes CSV with a line for each run: what was run, and every number.
///
/// # Errors
/// None, unless memory runs out.
pub fn csv(grid: &Grid, answers: &[Answer]) -> Result<String> {
    let swept = |axes: &[Axis]| -> Vec<String> {
        let several = axes.iter().filter(|axis| axis.values.len() > 1);
        several.map(|axis| axis.name.clone()).collect()
    };
    let axes: Vec<String> = [swept(&grid.set), swept(&grid.with)].concat();
    let columns = Columns::of(answers.iter().flat_map(|answer| &answer.outcomes));
    let mut head = vec![
        "system".to_owned(),
        "workload".to_owned(),
        "seed".to_owned(),
    ];
    head.extend(axes.iter().cloned());
    head.extend(columns.heads());
    let mut text = head.join(",") + "\n";
    for answer in answers {
        for (n, outcome) in answer.outcomes.iter().enumerate() {
            let (system, seed) = (answer.system.to_owned(), (n + 1).to_string());
            let mut cells = vec![system, grid.workload.clone(), seed];
            let values = answer
                .point
                .split_whitespace()
                .filter_map(|word| word.split_once('='));
            cells.extend(values.map(|(_, value)| value.to_owned()));
            cells.extend(columns.values(outcome));
            writeln!(text, "{}", cells.join(","))?;
        }
    }
    Ok(text)
}

/// Plots a number of all answers: a group for each point, a bar for each system.
///
/// # Errors
/// There is no such number.
pub fn chart(grid: &Grid, answers: &[Answer], name: &str) -> Result<Chart> {
    let number = number(name)?;
    let points = grid.points()?;
    let values = |text: &String| {
        let its = answers.iter().filter(|answer| answer.system == text);
        its.map(|answer| answer.mean(name).map(|mean| mean.mean))
            .collect()
    };
    Ok(Chart {
        name: format!("run-{name}"),
        title: format!("{}: {} ({})", grid.workload, number.what, number.name),
        unit: number.unit.to_owned(),
        groups: points.iter().map(|point| point.name.clone()).collect(),
        series: grid
            .systems
            .iter()
            .map(|text| Series {
                name: text.clone(),
                values: values(text),
                ..Series::default()
            })
            .collect(),
        ..Chart::default()
    })
}

#[cfg(test)]
mod tests {
    use super::{Axis, Mean};

    #[test]
    fn settings_have_one_value_or_several() {
        let axis = |name: &str, values: &[&str]| Axis {
            name: name.to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let two = vec![axis("nvm", &["16M"]), axis("commit", &["1", "2"])];
        assert_eq!(Axis::parse("nvm=16M,commit=1,2").expect("settings"), two);
        assert_eq!(Axis::parse("nvm=16M commit=1,2").expect("settings"), two);
        assert!(Axis::parse("16M").is_err());
    }

    /// The interval of 1 to 5 has a mean of 3 and a deviation of the root of 2.5.
    #[test]
    fn an_interval_is_students() {
        let of = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("a mean");
        let half = 2.776 * (2.5f64 / 5.0).sqrt();
        assert!((of.mean - 3.0).abs() < 1e-12 && (of.half.expect("five") - half).abs() < 1e-9);
        assert_eq!(Mean::of(&[2.0]).and_then(|one| one.half), None);
        assert_eq!(Mean::of(&[]), None);
    }
}
