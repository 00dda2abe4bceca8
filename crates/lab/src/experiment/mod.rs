//! The papers' experiments, and one of this project: systems, media and workloads side by side,
//! with the paper's figures, or what is aimed at, beside ours.
//!
//! An experiment is a file here: what it compares, what the paper says of it
//! ([`Check`](report::Check)), and how its [`Report`] shows it. [`EXPERIMENTS`] is the one list of
//! them.

mod dj;
mod dj_deltas;
mod dj_fig1;
mod dj_fig10;
mod dj_fig9;
mod dj_sqlite;
mod dj_thresholds;
mod dj_tpcc;
mod ftl_wear;
mod ground;
mod jftl;
mod jftl_fig7;
mod jftl_fig8;
pub mod log_contents;
mod never_worse;
mod nvm_cache;
mod operations;
pub mod report;
mod shortcut_example;
mod shortcut_fig4;
mod shortcut_fig5;
mod shortcut_recovery;
mod spindle_fig5;
mod spindle_fig6;
mod stet_deltas;
pub mod stored;
mod ubj;

pub use shortcut_recovery::RecoveryRun;

use anyhow::{Result, ensure};

use crate::system::{Bed, Measured, Medium, System, Volume};
use crate::workload::{Durable, Workload};
use report::Report;
use stetfs_testkit::image::Variety;

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
    /// Runs it.
    pub run: fn(&Setting<'_>) -> Result<Report>,
}

/// Every experiment.
pub const EXPERIMENTS: &[Experiment] = &[
    shortcut_example::EXPERIMENT,
    shortcut_fig4::EXPERIMENT,
    shortcut_fig5::EXPERIMENT,
    shortcut_recovery::EXPERIMENT,
    jftl_fig7::EXPERIMENT,
    jftl_fig8::EXPERIMENT,
    ftl_wear::EXPERIMENT,
    dj_deltas::SIZES,
    dj_deltas::TIMES,
    dj_thresholds::TIMES,
    dj_thresholds::CHECKPOINTS,
    dj_thresholds::JOURNAL_WRITES,
    dj_fig9::EXPERIMENT,
    dj_fig10::EXPERIMENT,
    dj_sqlite::EXPERIMENT,
    dj_fig1::EXPERIMENT,
    dj_tpcc::THROUGHPUT,
    dj_tpcc::JOURNAL_WRITES,
    spindle_fig5::EXPERIMENT,
    spindle_fig6::EXPERIMENT,
    ubj::IOZONE,
    ubj::FILEBENCH,
    ubj::POSTMARK,
    ubj::PERIOD,
    ubj::HITS,
    ubj::COW,
    operations::EXPERIMENT,
    stet_deltas::EXPERIMENT,
];

/// The experiment of that name.
pub fn find(id: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.id == id)
}

/// Hears what is being run, and how much of it is done: done, of how many.
pub type Progress<'a> = &'a dyn Fn(&str, u64, u64);

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

    /// A volume of the paper's size and with its journal, scaled: at least as large as schemes and
    /// mke2fs need.
    ///
    /// # Errors
    /// As [`scaled`](Self::scaled); of mke2fs.
    pub fn volume(&self, variety: Variety, bytes: u64, journal_bytes: u64) -> Result<Volume> {
        let mib = |bytes| self.scaled(bytes, 1 << 20).map(|bytes| bytes >> 20);
        Volume::make(variety, mib(bytes)?.max(64), mib(journal_bytes)?.max(4))
    }

    /// The media to measure on: this one, and this machine's memory if that was asked for.
    pub fn media(&self, simulated: Medium) -> Vec<Medium> {
        let memory = self.real_time.then_some(Medium::Memory);
        std::iter::once(simulated).chain(memory).collect()
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

    /// The median by time of three measurements; virtual time needs one.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn median(
        &self,
        on: (System, Medium),
        volume: &Volume,
        memory_mib: u64,
        workload: &dyn Workload,
        durable: Durable,
    ) -> Result<Measured> {
        let times = if on.1.is_real() { 3 } else { 1 };
        let runs = (0..times).map(|_| self.measure(on, volume, memory_mib, workload, durable));
        let mut runs = runs.collect::<Result<Vec<_>>>()?;
        runs.sort_by_key(Measured::elapsed_ns);
        Ok(runs.swap_remove(times / 2))
    }
}
