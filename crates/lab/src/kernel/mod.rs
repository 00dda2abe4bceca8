//! The kernel as control: the same calls on a file system of the kernel's and on our `jbd2`, each
//! on a device that notes every request, by what it is ([`device`]).
//!
//! Differences by construction are kept out. Nothing happens by the clock: a run is shorter than 30
//! s, the kernel's commits by time are off (`commit=300`), and ours too. Each call that is made
//! durable gives files a new time. Neither side initialises inode tables in the background. At the
//! end both sync and unmount, and everything until then counts, because the kernel's `sync` writes
//! metadata home that ours leaves to the unmount.
//!
//! [`below`] makes the same calls on the kernel alone and on the kernel with a scheme below it.

pub mod below;
pub mod device;
pub mod host;
pub mod sheet;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use stetfs::{Fs, MountOptions, clock};
use stetfs_media::{BlockDev, Clock, MeterSnapshot, RamDev};
use stetfs_powercut::kernel::served::Served;
use stetfs_testkit::host::{KernelMount, run, scratch};
use stetfs_testkit::image::Variety;

use crate::cell::Load;
use crate::system::Volume;
use crate::text::narrow;
use crate::workload::calls::{Call, What, text};
use crate::workload::sqlite::{JournalMode, Updates};
use crate::workload::updates::NAME;
use crate::workload::{Durable, Session, Tell, Time, Workload};
use device::{Account, Recorder};
use host::{Player, next_tick};

/// Size of volumes: room for each workload; XFS takes no less than 300 MiB.
const VOLUME_MIB: u64 = 512;
/// Journals hold a whole run, so that checkpoints come at its end alone.
const JOURNAL_MIB: u64 = 64;
const START: u64 = 1_700_000_000;
/// A tick of a kernel with 250 in a second.
const TICK_NS: u64 = 4_000_000;

/// The file systems and the calls to compare.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// File systems of the kernel's, each with ours to compare it with.
    pub pairs: Vec<Pair>,
    /// Workloads.
    pub jobs: Vec<Job>,
}

/// A file system of the kernel's, and ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Its name.
    pub name: String,
    /// `ext4` or `xfs`.
    pub kind: String,
    /// More features for mke2fs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub features: String,
    /// Mount options of the kernel's.
    pub options: String,
    /// Mount options of ours.
    pub ours: String,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// What it does, in words.
    pub what: String,
    /// A workload of `stetfs lab run --list`, with its settings; empty where there is a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub load: String,
    /// A list of calls; empty where there is a workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<String>,
    /// Operations; numbers are shown per operation.
    pub per: u64,
}

impl Job {
    /// A workload as [`Load::find`] takes it.
    fn yours(load: &str) -> Self {
        Self {
            name: "yours".to_owned(),
            what: load.to_owned(),
            load: load.to_owned(),
            list: Vec::new(),
            per: 1,
        }
    }

    fn workload(&self, seed: u64) -> Result<Box<dyn Workload>> {
        if !self.list.is_empty() {
            let list = text::parse(&self.list.join("\n"), &self.name, seed)?;
            return Ok(Box::new(list));
        }
        let (load, words) = Load::find(&self.load)?;
        load.make(words, seed)
    }
}

/// Keeps only the systems and workloads that have one of these names, in each list that has one.
///
/// # Errors
/// Nothing has the name.
fn only<T>(
    names: &[String],
    systems: &mut Vec<T>,
    name: impl Fn(&T) -> &str,
    jobs: &mut Vec<Job>,
) -> Result<()> {
    let jobs_names = jobs.iter().map(|job| &*job.name);
    let known: Vec<_> = systems.iter().map(&name).chain(jobs_names).collect();
    for name in names {
        ensure!(
            known.contains(&&**name),
            "unknown name {name}; known are {}",
            known.join(", ")
        );
    }
    let has = |name: &str| names.iter().any(|wanted| wanted == name);
    narrow(systems, |system| has(name(system)), |_| false);
    narrow(jobs, |job| has(&job.name), |_| false);
    Ok(())
}

/// The results of the same calls on both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// The pair's name.
    pub pair: String,
    /// The workload's name.
    pub job: String,
    /// The kernel's account.
    pub kernel: Account,
    /// Our account.
    pub ours: Account,
}

impl Plan {
    /// Returns the plan that is compared by default.
    ///
    /// # Errors
    /// Never, as long as tests pass.
    pub fn whole() -> Result<Self> {
        serde_json::from_str(include_str!("kernel.json")).context("kernel.json")
    }

    /// Keeps only what has one of these names, in each list that has one.
    ///
    /// # Errors
    /// Nothing has the name.
    pub fn only(mut self, names: &[String]) -> Result<Self> {
        only(names, &mut self.pairs, |pair| &pair.name, &mut self.jobs)?;
        Ok(self)
    }

    /// Keeps the pairs, with this workload alone, as [`Load::find`] takes it.
    #[must_use]
    pub fn with_load(mut self, load: &str) -> Self {
        self.jobs = vec![Job::yours(load)];
        self
    }

    /// Compares all of it. Calls `tell` with what is done next.
    ///
    /// # Errors
    /// Something is missing on this machine; errors of a run; a signal came.
    pub fn run(&self, seed: u64, tell: &dyn Fn(&str)) -> Result<Vec<Compared>> {
        let mut done = Vec::new();
        // Several pairs share our side.
        let mut known: HashMap<(&str, &str), (Ours, Option<Lists>)> = HashMap::new();
        for pair in &self.pairs {
            host::check(&pair.kind)?;
            for job in &self.jobs {
                let name = format!("{}, {}", pair.name, job.name);
                tell(&name);
                let mut compared = || -> Result<Compared> {
                    let workload = job.workload(seed)?;
                    let ours = match known.entry((&pair.ours, &job.name)) {
                        Entry::Occupied(found) => found.into_mut(),
                        Entry::Vacant(place) => place.insert(on_ours(&pair.ours, &*workload)?),
                    };
                    beside(pair, job, seed, &*workload, ours)
                };
                done.push(compared().with_context(|| name)?);
            }
        }
        Ok(done)
    }
}

/// Runs a workload on both.
///
/// # Errors
/// Something is missing on this machine; errors of a run.
pub fn compare(pair: &Pair, job: &Job, seed: u64) -> Result<Compared> {
    let workload = job.workload(seed)?;
    let ours = on_ours(&pair.ours, &*workload)?;
    beside(pair, job, seed, &*workload, &ours)
}

/// Runs a workload on the kernel's side, to compare with what ours did.
fn beside(
    pair: &Pair,
    job: &Job,
    seed: u64,
    workload: &dyn Workload,
    (ours, lists): &(Ours, Option<Lists>),
) -> Result<Compared> {
    let program = Program::of(workload, lists.as_ref())?;
    Ok(Compared {
        pair: pair.name.clone(),
        job: job.name.clone(),
        kernel: on_kernel(pair, &program, seed)?,
        ours: ours.account.clone(),
    })
}

/// What the kernel is made to do.
enum Program<'a> {
    /// These calls.
    Calls(&'a Lists),
    /// SQLite with its own VFS, where the lab's VFS makes the calls on our side.
    Sqlite(Updates),
}

fn variety(features: &'static str) -> Variety {
    Variety {
        name: "lab",
        block: 4096,
        inode: 256,
        features,
        extents: true,
    }
}

/// The calls that prepare a workload, and those that count.
type Lists = (Vec<Call>, Vec<Call>);

/// What our side did, by the device's account and by the file system's own meter.
#[derive(Debug)]
pub struct Ours {
    /// By the device, as for the kernel.
    pub account: Account,
    /// By the labels of our own writes.
    pub meter: MeterSnapshot,
}

/// Runs a workload on ours alone.
///
/// # Errors
/// Those of the run.
pub fn ours(pair: &Pair, job: &Job, seed: u64) -> Result<Ours> {
    Ok(on_ours(&pair.ours, &*job.workload(seed)?)?.0)
}

/// Runs a workload on ours, mounted with these options.
fn on_ours(options: &str, workload: &dyn Workload) -> Result<(Ours, Option<Lists>)> {
    let volume = Volume::make(variety(""), VOLUME_MIB, JOURNAL_MIB)?;
    let dev = Recorder::new(RamDev::from_image(&volume.image().to_bytes()))?;
    // With SQLite, each update waits for the kernel's next tick; calls in between do not.
    let clock = match workload.sqlite() {
        Some(_) => clock::Clock::still(START),
        None => clock::Clock::manual(START),
    };
    let tick = |n: u64, _| clock.set((START + 1) * 1_000_000_000 + n * TICK_NS);
    let mount = || -> Result<Fs> {
        let mut options = MountOptions::parse(&format!("noatime,memory=256M,{options}"))?;
        options.commit = Duration::MAX;
        options.clock = clock.clone();
        let dev: Arc<Recorder> = dev.clone();
        Ok(Fs::mount(dev, options)?.0)
    };
    fn session<'a>(fs: &'a Fs, tell: Tell<'a>) -> Session<'a> {
        let time = Time::Virtual(Clock::default());
        Session::new(fs, time, Durable::Every(Duration::MAX), tell)
    }
    let fs = mount()?;
    let mut preparing = session(&fs, &tick).noting();
    workload.prepare(&mut preparing)?;
    let prepare = preparing.noted();
    fs.unmount()?;
    drop(fs);
    let fs = mount()?;
    dev.take();
    let before = dev.meter().snapshot();
    let mut running = session(&fs, &tick).noting();
    workload.run(&mut running)?;
    running.sync()?;
    let run = running.noted();
    fs.unmount()?;
    let ours = Ours {
        account: dev.take(),
        meter: dev.meter().snapshot() - &before,
    };
    Ok((ours, prepare.zip(run)))
}

fn on_kernel(pair: &Pair, program: &Program<'_>, seed: u64) -> Result<Account> {
    let dev = match &*pair.kind {
        "ext4" => {
            let features = pair.features.clone().leak();
            let volume = Volume::make(variety(features), VOLUME_MIB, JOURNAL_MIB)?;
            RamDev::from_image(&volume.image().to_bytes())
        }
        _ => {
            let place = scratch()?;
            let path = place.path().join("image");
            std::fs::File::create(&path)?.set_len(VOLUME_MIB << 20)?;
            run("mkfs.xfs", &["-q", &path.to_string_lossy()])?;
            RamDev::from_file(&path)?
        }
    };
    let dev = Recorder::new(dev)?;
    let served = Served::new(dev.clone(), "stetfs-lab")?;
    let mount = || served.mount(&pair.kind, &pair.options);
    on_served(&served, &mount, program, seed, || drop(dev.take()), || ())?;
    Ok(dev.take())
}

/// Runs a program on the kernel's file system, which `mount` mounts on the served device. Calls
/// `begins` between what prepares the program and what counts. Returns what `ended` returns right
/// after the last call; then the file system is unmounted.
fn on_served<T>(
    served: &Served,
    mount: &dyn Fn() -> Result<KernelMount>,
    program: &Program<'_>,
    seed: u64,
    begins: impl FnOnce(),
    ended: impl FnOnce() -> T,
) -> Result<T> {
    let mounted = mount()?;
    program.prepare(&mut Player::new(served, mounted.dir(), seed))?;
    mounted.unmount()?;
    let mounted = mount()?;
    begins();
    let mut player = Player::new(served, mounted.dir(), seed);
    program.run(&mut player)?;
    let ended = ended();
    // The player has files open.
    drop(player);
    mounted.unmount()?;
    Ok(ended)
}

impl<'a> Program<'a> {
    fn of(workload: &dyn Workload, lists: Option<&'a Lists>) -> Result<Self> {
        match (workload.sqlite(), lists) {
            (Some(updates), _) => Ok(Self::Sqlite(updates)),
            (None, Some(lists)) => Ok(Self::Calls(lists)),
            (None, None) => anyhow::bail!(
                "{}: the lab has no list of its calls; workloads of `calls`, files, servers and \
                    `sqlite` can be compared",
                workload.name()
            ),
        }
    }

    fn prepare(&self, player: &mut Player) -> Result<()> {
        match self {
            Self::Calls((prepare, _)) => player.play(prepare),
            Self::Sqlite(updates) => {
                let db = Connection::open(player.path(NAME))?;
                db.execute_batch(&JournalMode::Off.settings())?;
                db.execute_batch(&format!("{}; BEGIN", Updates::SCHEMA))?;
                updates.fill(&db)?;
                Ok(db.execute_batch("COMMIT")?)
            }
        }
    }

    fn run(&self, player: &mut Player) -> Result<()> {
        match self {
            Self::Calls((_, run)) => player.play(run),
            Self::Sqlite(updates) => {
                let db = Connection::open(player.path(NAME))?;
                db.execute_batch(&updates.mode.settings())?;
                updates.update(&db, &mut |_| {
                    next_tick();
                    player.goes_on()
                })?;
                db.close().map_err(|(_, error)| error)?;
                player.call(&What::Sync)
            }
        }
    }
}
