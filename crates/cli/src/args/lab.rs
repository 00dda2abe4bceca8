//! The arguments of `stetfs lab`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Run the papers' experiments: systems side by side, with the paper's figures beside ours
///
/// Without an experiment it lists them. Each experiment compares journaling schemes on the same
/// media with the same workload: in virtual time on simulated media, where equal seeds give equal
/// results on every machine, and in real time in the memory of this machine. It says which of the
/// paper's claims are reached here, which are not and which are overshot, and why.
#[derive(Debug, Args)]
#[command(after_long_help = crate::lab::help())]
pub(crate) struct Lab {
    /// Experiments, or `all`
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Factor on the paper's data sets (default: the experiment's own, see the list)
    #[arg(long, value_name = "FACTOR")]
    pub(crate) scale: Option<f64>,
    /// Seed of contents, orders and choices
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Virtual time only, so that the result is the same on every machine
    #[arg(long)]
    pub(crate) no_real_time: bool,
    /// Write each report (ID.json) and its plots (SVG and PNG) into this directory, made if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Write the reports as JSON, to a file or to - (standard output, in place of the tables)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}
