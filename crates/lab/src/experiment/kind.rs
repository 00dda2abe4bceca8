//! The kinds of experiment: cells that a figure selects, or a program of its own.

use anyhow::Result;

use super::report::{Chart, Report, Table, VERSION};
use super::setting::Setting;
use crate::figure::Figure;

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
    pub(super) run: Run,
}

/// What an experiment runs.
#[derive(Clone, Copy)]
pub(super) enum Run {
    /// A program of its own.
    Own(fn(&Setting<'_>) -> Result<Report>),
    /// Cells that a figure selects.
    Figure(&'static Figure),
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// Those of the setting and the runs.
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
    pub(crate) const fn is_figure(&self) -> bool {
        matches!(self.run, Run::Figure(_))
    }

    pub(super) fn of(figure: &'static Figure) -> Self {
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

impl Report {
    /// Makes an empty report.
    pub fn new(experiment: &Experiment, setting: &Setting<'_>) -> Self {
        Self {
            version: VERSION,
            experiment: experiment.id,
            title: experiment.title,
            paper: experiment.paper,
            scale: setting.scale,
            seed: setting.seed,
            seeds: 1,
            setup: Vec::new(),
            checks: Vec::new(),
            charts: Vec::new(),
            runs: Vec::new(),
            cells: Vec::new(),
            swept: Vec::new(),
            notes: Vec::new(),
            tables: Vec::new(),
        }
    }
}
