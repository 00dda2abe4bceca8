//! `stetfs lab ground`: all systems on one ground.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueHint};
use stetfs_crash::sharing::Shard;
use stetfs_lab::cell::{Store, number};
use stetfs_lab::ground::Ground;
use stetfs_lab::ground::sheet::Sheet;
use stetfs_lab::page::{page, picture};

use super::output::{bar, is_stdout, json_to, line, numbers, write};

/// Run all systems on the same media with the same workloads
///
/// Every scheme runs in each of its atomic modes on every medium that it works on: some 40 pairs,
/// ten workloads each. The table shows a number as a multiple of jbd2's with data=ordered, with
/// half of its 95 % interval. Time is virtual, so a run gives the same on every machine.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct AllOnOne {
    /// Number of seeds
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
    /// Run only these: names of media, workloads, systems (--list)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Settings of all machines: NAME=VALUE,... (stetfs lab run --list)
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    set: String,
    /// The number to show, one of which less is better (stetfs lab run --list)
    #[arg(long, value_name = "NUMBER", default_value = "durable")]
    show: String,
    /// Keep each run in this directory, and take earlier runs of the same code from there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    resume: Option<PathBuf>,
    /// Run only part I of N of the runs; the table takes the others from the directory
    #[arg(long, value_name = "I/N", requires = "resume")]
    shard: Option<Shard>,
    /// Runs at a time (default: one for each processor)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Write every number of every run as CSV, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    csv: Option<PathBuf>,
    /// Write everything as JSON, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Write the page, one HTML file with tables that sort and filter, and plots
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Show the papers' claims, figures and assumptions on the page, from the documents of a source
    /// tree
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "html")]
    docs: Option<PathBuf>,
    /// Write the summary as a picture (SVG)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    /// Write the summary as JSON: ratios with their intervals
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    summary: Option<PathBuf>,
    /// List media, workloads and systems, and run nothing
    #[arg(long)]
    list: bool,
}

/// Time between lines that tell the progress, where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Exit codes: 0 it ran; 1 it could not, or a run failed that was expected to work.

Examples:
  stetfs lab ground --only card+16M,varmail,postmark --seeds 2
  stetfs lab ground --resume target/lab --csv ground.csv
  stetfs lab ground --resume target/lab --shard 1/4       a fourth of the runs; then 2/4, ...
  stetfs lab ground --resume target/lab --show device.home
  stetfs lab ground --resume target/lab --html ground.html";

impl AllOnOne {
    pub(super) fn run(&self) -> Result<()> {
        let ground = Ground::whole(&self.set.replace(',', " "), self.seeds)?.only(&self.only)?;
        if self.list {
            return list(&ground);
        }
        number(&self.show)?;
        let store = self.resume.as_deref().map(Store::open).transpose()?;
        let sheet = self.measure(ground, store.as_ref())?;
        if let Some(path) = &self.csv {
            write(path, &sheet.csv()?)?;
        }
        if let Some(path) = &self.json {
            json_to(path, &sheet)?;
        }
        if let Some(path) = &self.html {
            let page = page(&sheet, &self.show, self.docs.as_deref())?;
            write(path, &page)?;
        }
        if let Some(path) = &self.svg {
            write(path, &picture(&sheet, &self.show)?)?;
        }
        if let Some(path) = &self.summary {
            json_to(path, &sheet.summary(&self.show)?)?;
        }
        if !is_stdout(self.csv.as_ref()) && !is_stdout(self.json.as_ref()) {
            line(numbers(&sheet.table(&self.show)?).trim_fmt())?;
            line(format_args!("\n{}", sheet.words(&self.show)?.trim_end()))?;
        }
        let failed = sheet.squares.iter().filter(|square| square.failed).count();
        ensure!(failed == 0, "{failed} cells failed");
        Ok(())
    }

    fn measure(&self, ground: Ground, store: Option<&Store>) -> Result<Sheet> {
        let bar = bar();
        let jobs = self
            .jobs
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let start = Instant::now();
        // Where there is no terminal, the bar shows nothing: print a line now and then.
        let is_silent = bar.is_hidden();
        let told = Mutex::new(start);
        let sheet = ground.run(
            jobs,
            store,
            self.shard.unwrap_or(Shard::WHOLE),
            &|done, of| {
                bar.set_length(of);
                bar.set_position(done);
                let left = start
                    .elapsed()
                    .mul_f64((of - done) as f64 / done.max(1) as f64);
                let left = Duration::from_secs(left.as_secs());
                let message = format!("{done} of {of} runs, {left:?} left");
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                if is_silent && (told.elapsed() >= BETWEEN_LINES || done == of) {
                    eprintln!("{message}");
                    *told = Instant::now();
                }
                bar.set_message(message);
            },
        );
        bar.finish_and_clear();
        sheet
    }
}

fn list(ground: &Ground) -> Result<()> {
    line("media:")?;
    for place in &ground.media {
        line(format_args!(
            "  {:14} {}\n                 {}",
            place.name, place.what, place.machine
        ))?;
    }
    line("\nworkloads:")?;
    for job in &ground.workloads {
        line(format_args!(
            "  {:14} {}\n                 {}",
            job.name, job.what, job.load
        ))?;
    }
    line("\nsystems:")?;
    for system in &ground.systems {
        line(format_args!("  {:18} {}", system.name, system.source))?;
    }
    Ok(())
}
