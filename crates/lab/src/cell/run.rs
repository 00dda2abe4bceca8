//! A run, and how its system is read from text.

use anyhow::{Context, Result, ensure};
use stetfs::MountOptions;
use stetfs_scheme::{Beside, InMemory};

use super::load::Load;
use super::machine::{Device, Machine};
use crate::system::{Access, Bed, Outcome, System};
use crate::workload::Tell;

/// A run that a question asks for.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The system.
    pub system: System,
    /// The machine.
    pub machine: Machine,
    /// The workload with its settings.
    pub workload: String,
    /// Seed of everything random.
    pub seed: u64,
}

impl Cell {
    /// Runs it.
    ///
    /// # Errors
    /// There is no such volume; errors of the run.
    pub fn run(&self, tell: Tell<'_>) -> Result<Outcome> {
        let (load, words) = Load::find(&self.workload)?;
        let workload = load.make(words, self.seed)?;
        let volume = self.machine.volume()?;
        let (medium, conditions) = self.machine.conditions();
        let bed = Bed::on(self.system, medium, &volume, conditions)?;
        bed.run(&*workload, self.machine.commit.0, tell)
            .with_context(|| {
                format!(
                    "{} on {}: {}",
                    self.system.name,
                    medium.name(),
                    self.workload
                )
            })
    }
}

/// Reads a system: a scheme with its options (`dj`, `jbd2:data=ordered`, `stet:nvm=beside`), and
/// how it sees the medium of a machine. Its texts are kept as long as the program runs.
///
/// # Errors
/// There is no such scheme or option; it does not work on such a medium.
pub fn system(text: &str, machine: &Machine) -> Result<System> {
    let (scheme, options) = text.split_once(':').unwrap_or((text, ""));
    let about = stetfs_schemes::find(scheme)?.about;
    let is_memory = matches!(machine.medium, Device::Pcm | Device::Dram);
    let access = match about.in_memory {
        InMemory::Only | InMemory::Too if is_memory => Access::Bytes,
        InMemory::Only => {
            anyhow::bail!("scheme {scheme} is for volumes in memory: medium=pcm or medium=dram")
        }
        _ => Access::Blocks,
    };
    if let Beside::Only(_) = about.nvm {
        ensure!(
            !is_memory,
            "scheme {scheme} has memory beside a device: medium=card, disk, ssd, nvme or nand"
        );
        ensure!(
            machine.nvm.0 > 0,
            "scheme {scheme} needs memory beside the device: nvm=16M"
        );
    }
    if about.needs_remap {
        let flash = matches!(machine.medium, Device::Nand | Device::Nand16K);
        ensure!(
            flash,
            "scheme {scheme} needs a device that remaps: medium=nand or medium=nand16k"
        );
    }
    let mut all = format!("scheme={scheme}");
    if access == Access::Bytes && about.in_memory == InMemory::Too {
        all.push_str(",dax");
    }
    for option in options.split(':').filter(|option| !option.is_empty()) {
        all.push(',');
        all.push_str(option);
    }
    MountOptions::parse(&all)?;
    Ok(System {
        name: text.to_owned().leak(),
        options: all.leak(),
        access,
    })
}
