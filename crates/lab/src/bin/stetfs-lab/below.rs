//! `stetfs lab below`: a scheme below the kernel's own ext4.

use anyhow::Result;
use clap::Args;
use comfy_table::{Table, presets};
use stetfs_lab::kernel::below::Sheet;

use super::output::{Measured, line};

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
    #[command(flatten)]
    how: Measured,
}

const EXAMPLES: &str = "\
Exit codes: 0 it ran; 1 it could not.

Examples:
  stetfs lab below --only journal,journal/stet,overwrite-4K
  stetfs lab below --workload \"calls file=LIST\"
  stetfs lab below --json below.json --document below.md";

impl Beneath {
    pub(super) fn run(&self) -> Result<()> {
        let how = &self.how;
        let load = how.workload.as_deref();
        let sheet = how.sheet(|tell| Sheet::measure(&self.only, load, how.seed, tell))?;
        if how.write(|| sheet.json(), || sheet.csv())? {
            show(&sheet)?;
        }
        how.write_document(|| Ok(sheet.document()))
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
