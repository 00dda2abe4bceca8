//! What the figures of the Delta Journaling paper have in common: the device that it was measured on, scaled as the data is.

use anyhow::{Context, Result};
use stetfs_media::sim::PmemTiming;
use stetfs_media::{Cause, MeterSnapshot};

use super::Setting;
use super::report::Report;
use crate::image::EXT4_4K;
use crate::system::{Bed, Changes, Measured, Medium, Nvram, System, Volume, changes_of};
use crate::workload::{Durable, Session, Workload};

pub(super) const PAPER: &str = "Kim, Min, Eom, Reducing Excessive Journaling Overhead with Small-Sized NVRAM for Mobile Devices, 2014";

/// The paper's.
const NVRAM: u64 = 16 << 20;
/// The paper names none. This is mke2fs's for a card of 16 GB at that time, and it fits Table I: with a threshold of 100 % about three times a quarter of it
/// was written to it more than with less.
const JOURNAL: u64 = 128 << 20;
/// Half of it is for contents: the 2 GB that the paper's device had.
const MEMORY: u64 = 4 << 30;
/// As small as scaling makes it: there must be room for several transactions.
const LEAST_NVRAM: u64 = 256 << 10;

/// A telephone.
pub(super) struct Ground {
    volume: Volume,
    memory_mib: u64,
    nvram: Nvram,
}

impl Ground {
    /// With a volume of so many bytes, which are scaled.
    ///
    /// # Errors
    /// Of the scale; of mke2fs.
    pub(super) fn new(setting: &Setting<'_>, volume_bytes: u64) -> Result<Self> {
        Ok(Self {
            volume: setting.volume(EXT4_4K, volume_bytes, JOURNAL)?,
            memory_mib: (setting.scaled(MEMORY, 1 << 20)? >> 20).max(64),
            nvram: Nvram {
                bytes: setting.scaled(NVRAM, 4096)?.max(LEAST_NVRAM),
                timing: PmemTiming::Dram,
            },
        })
    }

    /// The same with the volume on which a workload was prepared by a system.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn prepared(
        &self,
        setting: &Setting<'_>,
        system: System,
        workload: &dyn Workload,
    ) -> Result<Self> {
        let card = Medium::Card(self.nvram);
        let bed = Bed::new(system, card, &self.volume, self.memory_mib)?;
        let tell = |done, of| (setting.progress)("preparing", done, of);
        workload.prepare(&mut Session::new(
            bed.fs(),
            bed.time(),
            Durable::EXT3,
            &tell,
        ))?;
        bed.fs().unmount()?;
        let image = bed.image().context("it is simulated")?;
        Ok(Self {
            volume: self.volume.holding(image),
            ..*self
        })
    }

    /// The card, and this machine's disk if real time was asked for.
    pub(super) fn media(&self, setting: &Setting<'_>) -> Vec<Medium> {
        let disk = setting.real_time.then_some(Medium::Disk(self.nvram));
        std::iter::once(Medium::Card(self.nvram))
            .chain(disk)
            .collect()
    }

    /// What a workload changes in the blocks that it overwrites.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn changes(
        &self,
        setting: &Setting<'_>,
        workload: &dyn Workload,
    ) -> Result<Changes> {
        let tell = |done, of| (setting.progress)(&workload.name(), done, of);
        changes_of(&self.volume, self.memory_mib, workload, &tell)
    }

    /// Says in a report what is compared on what.
    pub(super) fn describe(&self, setting: &Setting<'_>, report: &mut Report) {
        report.setup.push((
            "volume",
            format!(
                "ext4, {} MiB, blocks of 4 KiB, journal of {} MiB (the paper names no size); {} MiB of memory, half of it for contents; commit \
                 every 5 s or when a transaction takes a quarter of the journal",
                self.volume.mib, self.volume.journal_mib, self.memory_mib
            ),
        ));
        for medium in self.media(setting) {
            report.measured_on(medium);
        }
    }

    /// Measures a workload with a commit every 5 s.
    ///
    /// # Errors
    /// Of the volume.
    pub(super) fn measure(
        &self,
        setting: &Setting<'_>,
        on: (System, Medium),
        workload: &dyn Workload,
    ) -> Result<Measured> {
        setting.median(on, &self.volume, self.memory_mib, workload, Durable::EXT3)
    }
}

/// Which time passes there.
pub(super) fn time(medium: Medium) -> &'static str {
    if medium.is_real() { "real" } else { "virtual" }
}

/// Blocks written to the journal on the device, records included.
pub(super) fn journal_blocks(run: &Measured) -> u64 {
    let bytes = |cause| run.device.by_cause(cause).write_bytes;
    (bytes(Cause::Log) + bytes(Cause::CommitRecord)) / 4096
}

/// Bytes that commits stored in the NVRAM.
pub(super) fn nvram_log_bytes(run: &Measured) -> u64 {
    let of = |nvm: &MeterSnapshot| nvm.by_cause(Cause::Log).write_bytes;
    run.nvm.as_ref().map_or(0, of)
}
