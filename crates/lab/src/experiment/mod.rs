//! The papers' experiments, and one of this project: systems, media and workloads side by side,
//! with the paper's figures, or what is aimed at, beside ours.
//!
//! An experiment is a file here: what it compares, what the paper says of it
//! ([`Check`](report::Check)), and how its [`Report`] shows it. [`EXPERIMENTS`] is the one list of
//! them.

mod dj_deltas;
mod dj_fig1;
mod ftl_wear;
mod log_contents;
pub mod report;
mod shortcut_example;
pub mod stored;

use std::sync::LazyLock;

use anyhow::{Result, ensure};

use crate::cell;
use crate::figure::{self, Figure};
use crate::system::{Bed, Measured, Medium, System, Volume};
use crate::workload::{Durable, Workload};
use report::{Chart, Report, Table};

/// An experiment.
pub struct Experiment {
    /// Its name on the command line.
    pub id: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    /// Where it comes from.
    pub paper: &'static str,
    /// The factor on the paper's data sets when none is given.
    pub scale: f64,
    /// Whether it measures on this machine's memory too.
    pub has_real_time: bool,
    /// Whether it is run in tests, at a small scale.
    pub is_small: bool,
    /// What is run.
    run: Run,
}

/// What an experiment runs.
#[derive(Clone, Copy)]
enum Run {
    /// What is no selection of cells.
    Own(fn(&Setting<'_>) -> Result<Report>),
    /// Cells.
    Figure(&'static Figure),
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// Of the setting and the runs.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Report> {
        match self.run {
            Run::Own(run) => {
                let mut report = run(setting)?;
                report.charts = self.charts(&report.tables)?;
                Ok(report)
            }
            Run::Figure(figure) => {
                let mut report = Report::new(self, setting);
                figure.run(setting, &mut report)?;
                Ok(report)
            }
        }
    }

    /// The plots of a report's tables.
    ///
    /// # Errors
    /// The tables are not this experiment's.
    pub fn charts(&self, tables: &[Table]) -> Result<Vec<Chart>> {
        let Run::Figure(figure) = self.run else {
            let all = tables.iter().enumerate();
            let charts = all.map(|(n, table)| table.chart(&format!("{}-{}", self.id, n + 1), ""));
            return Ok(charts.flatten().collect());
        };
        figure.charts(tables)
    }

    /// Whether it is made of cells.
    pub const fn is_figure(&self) -> bool {
        matches!(self.run, Run::Figure(_))
    }

    fn of(figure: &'static Figure) -> Self {
        Self {
            id: &figure.id,
            title: &figure.title,
            paper: &figure.place,
            scale: figure.scale,
            has_real_time: false,
            is_small: figure.is_small,
            run: Run::Figure(figure),
        }
    }
}

/// Every experiment.
pub static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let figures = figure::all().iter().map(Experiment::of);
    OWN.into_iter().chain(figures).collect()
});

/// Those that are not made of cells.
const OWN: [Experiment; 5] = [
    shortcut_example::EXPERIMENT,
    ftl_wear::EXPERIMENT,
    dj_deltas::SIZES,
    dj_deltas::TIMES,
    dj_fig1::EXPERIMENT,
];

/// The experiment of that name.
pub fn find(id: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.id == id)
}

/// Hears what is being run, and how much of it is done: done, of how many.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// How an experiment is to be run.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// What chance is drawn from.
    pub seed: u64,
    /// The factor on the paper's data sets.
    pub scale: f64,
    /// Whether to measure on this machine's memory too.
    pub real_time: bool,
    /// Hears how far it is.
    pub progress: Progress<'a>,
    /// Whether that seed is the only one, where a figure has several.
    pub is_alone: bool,
    /// Runs at a time, where they may be done so.
    pub jobs: usize,
    /// Where runs are kept.
    pub store: Option<&'a cell::Store>,
}

/// Seed 1 first, in virtual time, on all processors.
impl Default for Setting<'_> {
    fn default() -> Self {
        Self {
            seed: 1,
            scale: 1.0,
            real_time: false,
            progress: &|_, _, _| {},
            is_alone: false,
            store: None,
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Setting<'_> {
    /// So many bytes of the paper's, scaled, in whole units of `unit`, one at least.
    ///
    /// # Errors
    /// The factor is none.
    pub fn scaled(&self, bytes: u64, unit: u64) -> Result<u64> {
        ensure!(
            self.scale.is_finite() && self.scale > 0.0 && self.scale <= 16.0,
            "a scale of {}: it must be more than 0 and at most 16",
            self.scale
        );
        let scaled = (bytes as f64 * self.scale) as u64;
        Ok((scaled / unit).max(1) * unit)
    }

    /// Measures a workload on a fresh copy of the volume.
    ///
    /// # Errors
    /// Of the volume and the machine.
    pub fn measure(
        &self,
        (system, medium): (System, Medium),
        volume: &Volume,
        memory_mib: u64,
        workload: &dyn Workload,
        durable: Durable,
    ) -> Result<Measured> {
        let what = format!("{} on {}: {}", system.name, medium.name(), workload.name());
        let tell = |done, of| (self.progress)(&what, done, of);
        tell(0, 1);
        Bed::new(system, medium, volume, memory_mib)?.measure(workload, durable, &tell)
    }
}
