//! What the figures of the papers on caches in NVM have in common: a hard disk and a cache before it, both scaled as the data is.

use anyhow::Result;
use stetfs_media::sim::PmemTiming;
use stetfs_media::{Cause, MeterSnapshot};

use super::Setting;
use super::report::Report;
use crate::image::EXT4_4K;
use crate::system::{Measured, Medium, Nvram, System, Volume};
use crate::workload::{Durable, Workload};

/// mke2fs's for the disks of the papers.
const JOURNAL: u64 = 1 << 30;
/// As small as scaling makes a cache: a transaction must have room in a quarter of it.
const LEAST_CACHE: u64 = 8 << 20;
/// As small as scaling makes ext4's.
const LEAST_MEMORY: u64 = 16 << 20;

/// A server.
pub(super) struct Ground {
    volume: Volume,
    memory_mib: u64,
    nvram: Nvram,
}

/// What the papers' machines had, before it is scaled.
pub(super) struct Machine {
    /// Bytes of the volume.
    pub(super) volume: u64,
    /// Bytes of NVM.
    pub(super) nvm: u64,
    /// How fast it is.
    pub(super) timing: PmemTiming,
    /// Bytes of memory for caches, a half for clean contents; UBJ has its data in NVM alone.
    pub(super) memory: u64,
}

impl Ground {
    /// The machine, scaled.
    ///
    /// # Errors
    /// Of the scale; of mke2fs.
    pub(super) fn new(setting: &Setting<'_>, machine: &Machine) -> Result<Self> {
        let memory = setting.scaled(machine.memory, 1 << 20)?.max(LEAST_MEMORY);
        Ok(Self {
            volume: setting.volume(EXT4_4K, machine.volume, JOURNAL)?,
            memory_mib: memory >> 20,
            nvram: Nvram {
                bytes: setting.scaled(machine.nvm, 1 << 20)?.max(LEAST_CACHE),
                timing: machine.timing,
            },
        })
    }

    /// Bytes of the cache.
    pub(super) fn nvm_bytes(&self) -> u64 {
        self.nvram.bytes
    }

    /// The simulated disk, and this machine's if real time was asked for.
    pub(super) fn media(&self, setting: &Setting<'_>) -> Vec<Medium> {
        let disk = setting.real_time.then_some(Medium::Disk(self.nvram));
        std::iter::once(Medium::HardDisk(self.nvram))
            .chain(disk)
            .collect()
    }

    /// Says in a report what is compared on what.
    pub(super) fn describe(&self, setting: &Setting<'_>, report: &mut Report) {
        report.setup.push((
            "volume",
            format!(
                "ext4, {} MiB, blocks of 4 KiB; journal of {} MiB and {} MiB of memory for caches, which UBJ does not use for data; commit \
                 every 5 s unless said otherwise",
                self.volume.mib, self.volume.journal_mib, self.memory_mib
            ),
        ));
        for medium in self.media(setting) {
            report.measured_on(medium);
        }
    }

    /// Measures a workload.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn measure(
        &self,
        setting: &Setting<'_>,
        on: (System, Medium),
        workload: &dyn Workload,
        durable: Durable,
    ) -> Result<Measured> {
        setting.median(on, &self.volume, self.memory_mib, workload, durable)
    }
}

/// Which time passes there.
pub(super) fn time(medium: Medium) -> &'static str {
    if medium.is_real() { "real" } else { "virtual" }
}

/// A second, until everything was durable: a cache in NVM is there so that what is durable need not go home.
pub(super) fn a_second(count: u64, run: &Measured) -> f64 {
    count as f64 * 1e9 / run.durable_ns() as f64
}

/// Cache lines that commits write back or store past the cache, for each of `count`.
pub(super) fn lines_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    let lines = |nvm: &MeterSnapshot| {
        nvm.by_cause(Cause::Log).lines + nvm.by_cause(Cause::CommitRecord).lines
    };
    nvm.map_or(0.0, |nvm| lines(nvm) as f64 / count as f64)
}

/// Microseconds of the NVM's time until everything was durable, for each of `count`.
pub(super) fn nvm_us_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    nvm.map_or(0.0, |nvm| nvm.total_busy_ns() as f64 / 1e3 / count as f64)
}

/// Blocks that the cache has written home.
pub(super) fn written_home(run: &Measured) -> String {
    let home = run.cache.map(|cache| cache.written_home.to_string());
    home.unwrap_or("-".to_owned())
}

/// Why gains over Tinca are not the paper's.
pub(super) fn note_nvm(report: &mut Report) {
    report.notes.push(
        "virtual time is that of disk and NVM alone, and the disk takes nearly all of it: who has more blocks for data goes home less often, and Spindle, of \
         whose cache metadata has an eighth whether it needs that or not, has fewer than Tinca. What the schemes differ in is the NVM's time. In the paper the \
         processor's time counts too"
            .to_owned(),
    );
}

/// Fences of commits, for each of `count`.
pub(super) fn fences_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    let fences = |nvm: &MeterSnapshot| nvm.fences(Cause::Log) + nvm.fences(Cause::CommitRecord);
    nvm.map_or(0.0, |nvm| fences(nvm) as f64 / count as f64)
}
