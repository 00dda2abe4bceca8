//! `stetfs lab kernel`: the kernel as control.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use comfy_table::{Table, presets};
use stetfs_lab::kernel::sheet::{Reasons, Sheet};
use stetfs_lab::kernel::{Pair, Plan};

use super::output::{bar, is_stdout, line, write};

/// Compare our jbd2 with the kernel's own file systems, call for call
///
/// The same calls are made on ext4 or XFS of this kernel and on our jbd2, each on a device that
/// notes every request. Bytes, requests and flushes stand side by side, by their kind. A difference
/// above 10 % has its reason below the table. This needs root, /dev/fuse and loop devices, and
/// touches only scratch files. Ctrl-C removes its mounts and devices.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Control {
    /// Run only these: names of pairs and workloads (--list)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// A workload of your own instead (stetfs lab run --list): calls, files, servers, sqlite
    #[arg(long, value_name = "WORKLOAD")]
    workload: Option<String>,
    /// Seed of contents, orders and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Show each kind of bytes, not only sums
    #[arg(long)]
    kinds: bool,
    /// Write every number as CSV, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    csv: Option<PathBuf>,
    /// Write everything as JSON, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Take the numbers from a file that --json wrote, and run nothing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    from: Option<PathBuf>,
    /// Write the document
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    document: Option<PathBuf>,
    /// List pairs and workloads, and run nothing
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 it ran; 1 it could not.

Examples:
  stetfs lab kernel --only ordered,create --kinds
  stetfs lab kernel --only journal --workload \"calls file=LIST\"
  stetfs lab kernel --json kernel.json
  stetfs lab kernel --from docs/kernel.json --csv -";

impl Control {
    pub(super) fn run(&self) -> Result<()> {
        let mut plan = Plan::whole()?.only(&self.only)?;
        if let Some(load) = &self.workload {
            plan = plan.with_load(load);
        }
        if self.list {
            for pair in &plan.pairs {
                let Pair {
                    name,
                    kind,
                    options,
                    ours,
                    ..
                } = pair;
                line(format_args!(
                    "  {name:14} {kind} -o {options}; ours: -o {ours}"
                ))?;
            }
            for job in &plan.jobs {
                line(format_args!("  {:14} {}", job.name, job.what))?;
            }
            return Ok(());
        }
        let sheet = self.sheet(&plan)?;
        if let Some(path) = &self.json {
            write(path, &sheet.json()?)?;
        }
        if let Some(path) = &self.csv {
            write(path, &sheet.csv())?;
        }
        if !is_stdout(self.csv.as_ref()) && !is_stdout(self.json.as_ref()) {
            self.show(&sheet)?;
        }
        match &self.document {
            Some(path) => write(path, &sheet.document(&Reasons::known()?)?),
            None => Ok(()),
        }
    }

    fn sheet(&self, plan: &Plan) -> Result<Sheet> {
        if let Some(path) = &self.from {
            let text = fs::read(path).with_context(|| path.display().to_string())?;
            return serde_json::from_slice(&text).with_context(|| path.display().to_string());
        }
        let bar = bar();
        let sheet = Sheet::measure(plan, self.seed, &|what| bar.set_message(what.to_owned()));
        bar.finish_and_clear();
        sheet
    }

    fn show(&self, sheet: &Sheet) -> Result<()> {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["pair", "workload", "", "kernel", "ours", "ours / kernel"]);
        for (run, number, kernel, ours) in sheet.numbers() {
            if !self.kinds && number.contains('/') {
                continue;
            }
            let ratio = match kernel {
                0 => "-".to_owned(),
                _ => format!("{:.3}", ours as f64 / kernel as f64),
            };
            let (kernel, ours) = (kernel.to_string(), ours.to_string());
            table.add_row([&run.pair, &run.job, &number, &kernel, &ours, &ratio]);
        }
        line(table.trim_fmt())?;
        let reasons = Reasons::known()?;
        for deviation in sheet.deviations() {
            let why = reasons
                .why(&deviation)
                .map_or("no reason is known", |(_, why)| why);
            line(format_args!("\n{}: {why}", deviation.text()))?;
        }
        Ok(())
    }
}
