//! How an experiment is to be run.

use anyhow::{Result, ensure};

use crate::cell;
use crate::system::{Bed, Measured, Medium, System, Volume};
use crate::workload::{Durable, Workload};

/// Called with what is being run, the number of runs done and their total.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// How an experiment is to be run.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Seed of everything random; the first one, where there are several.
    pub seed: u64,
    /// The factor on the paper's data sets.
    pub scale: f64,
    /// Whether to measure on this machine's memory too.
    pub real_time: bool,
    /// Called with the progress.
    pub progress: Progress<'a>,
    /// Whether that seed is the only one, where a figure has several.
    pub is_alone: bool,
    /// Runs at a time, where several may run at once.
    pub jobs: usize,
    /// Where runs are stored.
    pub store: Option<&'a cell::Store>,
}

/// Seed 1, in virtual time, on all processors.
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
    /// Scales `bytes` of the paper's, to whole units of `unit`, at least one.
    ///
    /// # Errors
    /// The factor is not valid.
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
    /// Those of the volume and the machine.
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
