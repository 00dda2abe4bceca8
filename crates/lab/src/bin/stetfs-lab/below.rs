//! `stetfs lab below`: a scheme below the kernel's own ext4.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use comfy_table::{Table, presets};
use stetfs_lab::kernel::below::Sheet;

use super::output::{bar, is_stdout, line, write};

/// Count what the kernel's own ext4 writes, alone and with a scheme below it
///
/// The same calls are made on ext4 of this kernel in its modes, alone and with stet below, each on
/// a device that notes every request. This needs root, /dev/fuse and loop devices, and touches only
/// scratch files. Ctrl-C removes its mounts and devices.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Beneath {
    /// Run only these: names of systems (journal, journal/stet, ordered, ordered/stet) and of
    /// workloads (stetfs lab kernel --list)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// A workload of your own instead (stetfs lab run --list): calls, files, servers, sqlite
    #[arg(long, value_name = "WORKLOAD")]
    workload: Option<String>,
    /// Seed of contents, orders and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
}

const EXAMPLES: &str = "\
Exit codes: 0 it ran; 1 it could not.

Examples:
  stetfs lab below --only journal,journal/stet,overwrite-4K
  stetfs lab below --workload \"calls file=LIST\"
  stetfs lab below --json below.json --document below.md";

impl Beneath {
    pub(super) fn run(&self) -> Result<()> {
        let sheet = self.sheet()?;
        if let Some(path) = &self.json {
            write(path, &sheet.json()?)?;
        }
        if let Some(path) = &self.csv {
            write(path, &sheet.csv())?;
        }
        if !is_stdout(self.csv.as_ref()) && !is_stdout(self.json.as_ref()) {
            show(&sheet)?;
        }
        match &self.document {
            Some(path) => write(path, &sheet.document()),
            None => Ok(()),
        }
    }

    fn sheet(&self) -> Result<Sheet> {
        if let Some(path) = &self.from {
            let text = fs::read(path).with_context(|| path.display().to_string())?;
            return serde_json::from_slice(&text).with_context(|| path.display().to_string());
        }
        let bar = bar();
        let tell = |what: &str| bar.set_message(what.to_owned());
        let sheet = Sheet::measure(&self.only, self.workload.as_deref(), self.seed, &tell);
        bar.finish_and_clear();
        sheet
    }
}

fn show(sheet: &Sheet) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["workload", "system", "", "until durable", "after it"]);
    for (run, number, durable, home) in sheet.numbers() {
        let (durable, home) = (durable.to_string(), home.to_string());
        table.add_row([&run.job, &run.column, number, &durable, &home]);
    }
    line(table.trim_fmt())
}
