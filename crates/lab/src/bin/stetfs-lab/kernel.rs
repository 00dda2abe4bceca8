//! `stetfs lab kernel`: the kernel as control.

use anyhow::Result;
use clap::Args;
use comfy_table::{Table, presets};
use stetfs_lab::kernel::sheet::{Reasons, Sheet};
use stetfs_lab::kernel::{Pair, Plan};

use super::output::{Measured, line};

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
    #[command(flatten)]
    how: Measured,
    /// Show each kind of bytes, not only sums
    #[arg(long)]
    kinds: bool,
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
        if let Some(load) = &self.how.workload {
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
        let sheet = self
            .how
            .sheet(|tell| Sheet::measure(&plan, self.how.seed, tell))?;
        if self.how.write(|| sheet.json(), || sheet.csv())? {
            self.show(&sheet)?;
        }
        self.how
            .write_document(|| sheet.document(&Reasons::known()?))
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
