//! `stetfs lab run`: a question of the user's own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueHint};
use serde::Serialize;
use stetfs_lab::cell::{
    Answer, Axis, Device, Grid, LOADS, Load, Machine, Store, chart, csv, number,
};
use stetfs_lab::experiment::report::Table;
use stetfs_lab::system::{NUMBERS, Number, Outcome, Processor};
use stetfs_lab::text::{Bytes, all, set};
use stetfs_lab::workload::calls::text::SYNTAX;

use super::output::{bar, is_stdout, json_to, line, numbers};

/// Run systems of your choice on a machine of your choice
///
/// Every combination is run: of the systems, of settings with several values, and of the seeds.
/// Time is virtual, so a run gives the same on every machine.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Ask {
    /// Schemes with their options: SCHEME[:OPTION...],...
    #[arg(
        long,
        value_name = "SYSTEMS",
        default_value = "jbd2,stet",
        value_delimiter = ','
    )]
    system: Vec<String>,
    /// Medium of the volume (--list); +nvram adds 16 MiB of NVRAM beside it
    #[arg(long, value_name = "MEDIUM", default_value = "ssd")]
    medium: String,
    /// Settings of the machine: NAME=VALUE[,VALUE...],... (--list)
    #[arg(long, value_name = "SETTINGS")]
    set: Vec<String>,
    /// The workload and its settings: "NAME SETTING=VALUE[,VALUE...] ..." (--list)
    #[arg(long, value_name = "WORKLOAD", default_value = "fio")]
    workload: String,
    /// Number of seeds; several give means with half of their 95 % interval
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// Numbers to show (--list)
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "rate,durable,home,device.home,flushes"
    )]
    show: Vec<String>,
    /// Print every number of every run as CSV, in place of the table
    #[arg(long)]
    csv: bool,
    /// Write every number of every run as JSON, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Write a plot of each shown number (SVG and PNG) into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
    /// Keep each run in this directory, and take earlier runs of the same code from there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    resume: Option<PathBuf>,
    /// Runs at a time (default: one for each processor)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// List media, settings, workloads and numbers, and run nothing
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "\
A system is a scheme of `stetfs schemes`, with mount options behind colons: jbd2:data=ordered, \
dj:threshold=50, stet:nvm=beside. The media pcm and dram are written by the byte, the others by \
the block.

Exit codes: 0 it ran; 1 it could not.

Examples:
  stetfs lab run                                        jbd2 and stet, fio, on a flash drive
  stetfs lab run --system stet:nvm=beside,dj --medium card+nvram --set nvm=16M,commit=1 \\
    --workload \"sqlite updates=200\" --seeds 5
  stetfs lab run --system jbd2,stet --workload \"overwrite differ=1,5,25,100\" --out plots
  stetfs lab run --system ubj,tinca,spindle --medium disk+nvram --set nvm=8M,16M,64M \\
    --workload \"fio file=32M reads=50\" --csv
  stetfs lab run --system jbd2,shortcut --medium pcm --set commit=each --workload postmark";

/// A run, for JSON.
#[derive(Serialize)]
struct Run<'a> {
    system: &'a str,
    point: &'a str,
    outcomes: &'a [Outcome],
}

#[derive(Serialize)]
struct Runs<'a> {
    /// Fields may be added to a version; none is removed or changes its meaning.
    version: u32,
    machine: &'a Machine,
    workload: &'a str,
    runs: Vec<Run<'a>>,
}

impl Ask {
    pub(super) fn run(&self) -> Result<()> {
        if self.list {
            return list();
        }
        let shown = self.show.iter().map(|name| number(name));
        let shown: Vec<&Number> = shown.collect::<Result<_>>()?;
        let grid = self.grid()?;
        let store = self.resume.as_deref().map(Store::open).transpose()?;
        let bar = bar();
        bar.set_message("runs");
        let jobs = self
            .jobs
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let answers = grid.run(jobs, store.as_ref(), &|done, of| {
            bar.set_length(of);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let answers = answers?;
        if self.csv {
            line(csv(&grid, &answers)?.trim_end())?;
        } else if !is_stdout(self.json.as_ref()) {
            table(&grid, &answers, &shown)?;
        }
        if let Some(path) = &self.json {
            let runs = answers.iter().map(|answer| Run {
                system: answer.system,
                point: &answer.point,
                outcomes: &answer.outcomes,
            });
            let runs = runs.collect();
            json_to(
                path,
                &Runs {
                    version: 1,
                    machine: &grid.machine,
                    workload: &self.workload,
                    runs,
                },
            )?;
        }
        match &self.out {
            Some(dir) => plots(&grid, &answers, &shown, dir),
            None => Ok(()),
        }
    }

    fn grid(&self) -> Result<Grid> {
        let (medium, beside) = match self.medium.split_once('+') {
            Some((medium, "nvram" | "nvm")) => (medium, true),
            Some((_, other)) => anyhow::bail!("+{other}: +nvram is memory beside the device"),
            None => (self.medium.as_str(), false),
        };
        let mut machine = set(&Machine::default(), &format!("medium={medium}"))?;
        if beside {
            machine.nvm = Bytes::mib(16);
        }
        let mut axes = Vec::new();
        for text in &self.set {
            axes.extend(Axis::parse(text)?);
        }
        // A setting with one value goes into the machine, whatever else is set.
        for Axis { name, values } in axes.extract_if(.., |axis| axis.values.len() == 1) {
            machine = set(&machine, &format!("{name}={}", values[0]))?;
        }
        let (load, words) = Load::find(&self.workload)?;
        ensure!(!self.system.is_empty(), "no system");
        Ok(Grid {
            systems: self.system.clone(),
            machine,
            set: axes,
            workload: load.name.to_owned(),
            with: Axis::parse(words).with_context(|| self.workload.clone())?,
            seeds: self.seeds,
        })
    }
}

fn table(grid: &Grid, answers: &[Answer], shown: &[&Number]) -> Result<()> {
    let has_points = answers.iter().any(|answer| !answer.point.is_empty());
    let point = |name: &str| has_points.then(|| name.to_owned());
    let names = shown.iter().map(|number| match number.unit {
        "" => number.name.to_owned(),
        unit => format!("{}, {unit}", number.name),
    });
    let system = std::iter::once("system".to_owned());
    let mut table = Table::new("", point("").into_iter().chain(system).chain(names));
    for answer in answers {
        let figures = shown.iter().map(|number| {
            answer
                .mean(number.name)
                .map_or("-".to_owned(), |mean| mean.to_string())
        });
        let system = std::iter::once(answer.system.to_owned());
        let mut row = point(&answer.point)
            .into_iter()
            .chain(system)
            .chain(figures);
        table.row(row.next().unwrap_or_default(), row);
    }
    line(format_args!("{}; {}", grid.workload, all(&grid.machine)?))?;
    line(numbers(&table).trim_fmt())
}

fn plots(grid: &Grid, answers: &[Answer], shown: &[&Number], dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let charts = shown.iter().map(|number| chart(grid, answers, number.name));
    let charts = charts.collect::<Result<Vec<_>>>()?;
    let files = stetfs_chart::write_all(&charts, dir)?;
    let files: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    line(format_args!("written: {}", files.join(" ")))
}

fn list() -> Result<()> {
    let media = Device::ALL.map(|device| {
        serde_json::to_value(device).map(|name| name.as_str().unwrap_or_default().to_owned())
    });
    let media: Vec<String> = media.into_iter().collect::<Result<_, _>>()?;
    line(format_args!("media:\n  {}", media.join(" ")))?;
    line(format_args!(
        "\nsettings of the machine, with their defaults:\n  {}",
        all(&Machine::default())?
    ))?;
    let processors = Processor::ALL.map(Processor::name);
    line(format_args!("\nprocessors:\n  {}", processors.join(" ")))?;
    line("\nworkloads, with their defaults:")?;
    for load in LOADS {
        line(format_args!(
            "  {}: {}\n    {}",
            load.name,
            load.what,
            load.all("")?
        ))?;
    }
    line(format_args!(
        "\ncalls of a list, a line each (docs/LAB.md):\n  {}",
        SYNTAX.replace(" | ", "\n  ")
    ))?;
    line("\nnumbers:")?;
    for Number { name, unit, what } in NUMBERS {
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" ({unit})")
        };
        line(format_args!("  {name:13} {what}{unit}"))?;
    }
    Ok(())
}
