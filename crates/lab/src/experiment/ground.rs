//! A device with memory beside it, both scaled as the data is: what Delta Journaling and the caches
//! in NVM are measured on.

use anyhow::{Context, Result};
use stetfs_media::sim::PmemTiming;

use super::Setting;
use super::report::Report;
use crate::system::{Bed, Changes, DeltaKind, Measured, Medium, Nvram, System, Volume, changes_of};
use crate::workload::{Durable, Session, Workload};
use stetfs_testkit::image::EXT4_4K;

/// What a paper's machine had, before it is scaled.
pub(super) struct Machine {
    /// The simulated device, with such memory beside it.
    pub(super) device: fn(Nvram) -> Medium,
    /// Bytes of the volume.
    pub(super) volume: u64,
    /// Bytes of its journal.
    pub(super) journal: u64,
    /// Bytes of memory for caches, a half for clean contents.
    pub(super) memory: u64,
    /// As small as scaling makes that.
    pub(super) least_memory: u64,
    /// Bytes of NVM.
    pub(super) nvm: u64,
    /// As small as scaling makes that: schemes must have room for transactions.
    pub(super) least_nvm: u64,
    /// How fast it is.
    pub(super) timing: PmemTiming,
    /// What else is to be known of the volume.
    pub(super) note: &'static str,
}

/// The machine, scaled.
pub(super) struct Ground {
    volume: Volume,
    memory_mib: u64,
    nvram: Nvram,
    device: fn(Nvram) -> Medium,
    note: &'static str,
}

impl Ground {
    /// The machine with an empty volume.
    ///
    /// # Errors
    /// Of the scale; of mke2fs.
    pub(super) fn new(setting: &Setting<'_>, machine: &Machine) -> Result<Self> {
        let memory = setting.scaled(machine.memory, 1 << 20)?;
        let nvm = setting.scaled(machine.nvm, 4096)?;
        Ok(Self {
            volume: setting.volume(EXT4_4K, machine.volume, machine.journal)?,
            memory_mib: memory.max(machine.least_memory) >> 20,
            nvram: Nvram {
                bytes: nvm.max(machine.least_nvm),
                timing: machine.timing,
            },
            device: machine.device,
            note: machine.note,
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
        let device = (self.device)(self.nvram);
        let bed = Bed::new(system, device, &self.volume, self.memory_mib)?;
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

    /// Bytes of the NVM.
    pub(super) fn nvm_bytes(&self) -> u64 {
        self.nvram.bytes
    }

    /// The simulated device, and this machine's disk if real time was asked for.
    pub(super) fn media(&self, setting: &Setting<'_>) -> Vec<Medium> {
        let disk = setting.real_time.then_some(Medium::Disk(self.nvram));
        std::iter::once((self.device)(self.nvram))
            .chain(disk)
            .collect()
    }

    /// Says in a report what is compared on what.
    pub(super) fn describe(&self, setting: &Setting<'_>, report: &mut Report) {
        report.setup.push((
            "volume",
            format!(
                "ext4, {} MiB, blocks of 4 KiB; journal of {} MiB; {} MiB of memory for caches, \
                    half of it for contents; {}",
                self.volume.mib, self.volume.journal_mib, self.memory_mib, self.note
            ),
        ));
        for medium in self.media(setting) {
            report.measured_on(medium);
        }
    }

    /// What a workload changes in the blocks that it overwrites, and what deltas of some kinds
    /// would log of that.
    ///
    /// # Errors
    /// Of the volume; a delta that does not give back what it was made of.
    pub(super) fn changes(
        &self,
        setting: &Setting<'_>,
        workload: &dyn Workload,
        kinds: &'static [DeltaKind],
    ) -> Result<Changes> {
        let tell = |done, of| (setting.progress)(&workload.name(), done, of);
        changes_of(&self.volume, self.memory_mib, workload, kinds, &tell)
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
