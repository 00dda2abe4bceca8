//! All systems on one ground: every scheme of the registry on every medium that it works on, with
//! the same workloads and seeds.
//!
//! `ground.json` has the media and the workloads. The schemes themselves say which of them run on
//! which medium: each in all of its atomic modes, with memory beside the device where it uses some.
//! Where a system does not run, the reason stands in its place.

mod run;
pub mod sheet;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use stetfs_scheme::{About, Beside, DataMode};
use stetfs_schemes::for_use;

use crate::cell::{Cell, Load, Machine, system};
use crate::system::{Outcome, System};
use crate::text::{Bytes, all, narrow, set};

const GROUND: &str = include_str!("ground.json");

/// The system that the others are compared with.
pub const BASELINE: &str = "jbd2:data=ordered";

/// Less NVM than this is not offered: caches need some room for themselves.
const LEAST_NVM: Bytes = Bytes::mib(4);

/// A medium that volumes lie on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Settings of the machine.
    pub machine: String,
    /// The memory beside the device, as a multiple of a workload's set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvm_of_set: Option<f64>,
}

/// A workload that runs there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// The workload with its settings.
    pub load: String,
    /// Settings of the machine that belong to it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Roughly how much of its own data is on the volume.
    pub set: Bytes,
}

/// Whose system it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The kernel's, which the others are compared with.
    Control,
    /// A paper's.
    Paper,
    /// Our own.
    Own,
}

/// A scheme in one of its modes.
#[derive(Clone, Debug, Serialize)]
pub struct Contestant {
    /// The scheme, and its mode where it has several.
    pub name: String,
    /// Whose it is.
    pub whose: Whose,
    /// The paper or system that it follows.
    pub source: &'static str,
    #[serde(skip)]
    nvm: Beside,
}

impl Contestant {
    /// Returns every contestant, from the registry.
    pub fn every() -> Vec<Self> {
        let atomic = for_use().iter().filter(|scheme| scheme.about.atomic);
        atomic.flat_map(|scheme| Self::of(scheme.about)).collect()
    }

    fn of(about: &About) -> Vec<Self> {
        // Writeback promises less than the others do.
        let modes = about
            .modes
            .iter()
            .filter(|mode| **mode != DataMode::Writeback);
        let names: Vec<_> = if about.modes.is_empty() {
            vec![about.name.to_owned()]
        } else {
            modes
                .map(|mode| format!("{}:data={}", about.name, mode.name()))
                .collect()
        };
        let whose = match about.source {
            source if source.starts_with("docs/") => Whose::Own,
            source if source.starts_with("kernel ") => Whose::Control,
            _ => Whose::Paper,
        };
        let one = |name| Self {
            name,
            whose,
            source: about.source,
            nvm: about.nvm,
        };
        names.into_iter().map(one).collect()
    }

    /// Returns it as a system on a machine. Without a use for memory beside the device it gets
    /// none, so that it is the same run as on a machine that has none.
    fn on(&self, mut machine: Machine) -> Result<(System, Machine)> {
        let mut text = self.name.clone();
        match self.nvm {
            Beside::Never => machine.nvm = Bytes(0),
            Beside::Too(_) if machine.nvm.0 > 0 => text.push_str(":nvm=beside"),
            Beside::Too(_) | Beside::Only(_) => {}
        }
        if machine.nvm.0 == 0 {
            machine.nvm_speed = Machine::default().nvm_speed;
        }
        Ok((system(&text, &machine)?, machine))
    }
}

/// The whole ground, or a chosen part of it.
#[derive(Clone, Debug)]
pub struct Ground {
    /// Settings of all machines. Settings of places and jobs come behind them.
    pub machine: String,
    /// More settings, behind all of those.
    pub more: String,
    /// The media.
    pub media: Vec<Place>,
    /// The workloads.
    pub workloads: Vec<Job>,
    /// The systems.
    pub systems: Vec<Contestant>,
    /// How many seeds, from 1.
    pub seeds: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    machine: String,
    media: Vec<Place>,
    workloads: Vec<Job>,
}

/// A system on a medium with a workload.
#[derive(Clone, Debug)]
pub struct Pairing {
    /// Index of the medium.
    pub medium: usize,
    /// Index of the workload.
    pub workload: usize,
    /// Index of the system.
    pub system: usize,
    /// A run for each seed, or why there is none.
    pub runs: Result<Vec<Cell>, String>,
}

impl Ground {
    /// Makes the whole ground, with more settings for each machine.
    ///
    /// # Errors
    /// A setting that does not exist.
    pub fn whole(more: &str, seeds: u64) -> Result<Self> {
        let kept: Kept = serde_json::from_str(GROUND)?;
        set(&Machine::default(), more)?;
        Ok(Self {
            machine: kept.machine,
            more: more.to_owned(),
            media: kept.media,
            workloads: kept.workloads,
            systems: Contestant::every(),
            seeds,
        })
    }

    /// Keeps only what has these names: of media, of workloads, of systems (the name of a scheme
    /// stands for all of its modes). The baseline stays, since the others are compared with it.
    ///
    /// # Errors
    /// Nothing has such a name.
    pub fn only(mut self, names: &[String]) -> Result<Self> {
        let is_of =
            |system: &str, name: &str| system == name || system.split(':').next() == Some(name);
        for name in names {
            let known = self.media.iter().any(|place| place.name == *name)
                || self.workloads.iter().any(|job| job.name == *name)
                || self.systems.iter().any(|system| is_of(&system.name, name));
            if !known {
                let media = self.media.iter().map(|place| place.name.as_str());
                let workloads = self.workloads.iter().map(|job| job.name.as_str());
                let systems = self.systems.iter().map(|system| system.name.as_str());
                let all: Vec<_> = media.chain(workloads).chain(systems).collect();
                bail!("unknown name {name}; known are {}", all.join(", "));
            }
        }
        let is_named = |one: &str| names.iter().any(|name| name == one);
        let is_ours = |system: &str| names.iter().any(|name| is_of(system, name));
        narrow(&mut self.media, |place| is_named(&place.name), |_| false);
        narrow(&mut self.workloads, |job| is_named(&job.name), |_| false);
        let is_baseline = |system: &Contestant| system.name == BASELINE;
        narrow(&mut self.systems, |s| is_ours(&s.name), is_baseline);
        Ok(self)
    }

    /// Returns what is run, in the order of media, workloads and systems.
    ///
    /// # Errors
    /// A setting that does not exist.
    pub fn pairings(&self) -> Result<Vec<Pairing>> {
        ensure!(self.seeds > 0, "no seed");
        let mut pairings = Vec::new();
        for (medium, place) in self.media.iter().enumerate() {
            for (workload, job) in self.workloads.iter().enumerate() {
                let machine = self.machine_for(place, job)?;
                let (load, words) = Load::find(&job.load)?;
                load.all(words)?;
                for (n, contestant) in self.systems.iter().enumerate() {
                    let runs = match contestant.on(machine.clone()) {
                        Ok((system, machine)) => Ok((1..=self.seeds)
                            .map(|seed| Cell {
                                system,
                                machine: machine.clone(),
                                workload: job.load.clone(),
                                seed,
                            })
                            .collect()),
                        Err(error) => Err(format!("{error:#}")),
                    };
                    pairings.push(Pairing {
                        medium,
                        workload,
                        system: n,
                        runs,
                    });
                }
            }
        }
        Ok(pairings)
    }

    fn machine_for(&self, place: &Place, job: &Job) -> Result<Machine> {
        let mut machine = Machine::default();
        for words in [&self.machine, &place.machine, &job.machine, &self.more] {
            machine = set(&machine, words)?;
        }
        if let Some(times) = place.nvm_of_set {
            machine.nvm = Bytes((job.set.0 as f64 * times) as u64).max(LEAST_NVM);
        }
        Ok(machine)
    }

    /// Returns the command that repeats a cell, with all of its seeds.
    ///
    /// # Errors
    /// None, since every setting of a machine can be text.
    fn command(&self, cell: &Cell) -> Result<String> {
        let machine = all(&cell.machine)?;
        let default = all(&Machine::default())?;
        let default: Vec<_> = default.split(' ').collect();
        let set = machine.split(' ').filter(|word| !default.contains(word));
        let set: Vec<_> = set.filter(|word| !word.starts_with("medium=")).collect();
        let medium = machine
            .split(' ')
            .find_map(|word| word.strip_prefix("medium="));
        Ok(format!(
            "stetfs lab run --system {} --medium {} --set {} --workload \"{}\" --seeds {}",
            cell.system.name,
            medium.unwrap_or_default(),
            set.join(","),
            cell.workload,
            self.seeds
        ))
    }
}

/// The result of a run.
pub(crate) enum Found {
    Run(Outcome),
    Failed(String),
    /// The run belongs to another shard.
    Missing,
}
