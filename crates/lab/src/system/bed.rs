//! A volume of a system on a medium, mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use stetfs::{Fs, Media, MountOptions, MountReport, Stats, clock};
use stetfs_ftl::Ftl;
use stetfs_media::sim::{Rig, SimOptions, SimPmemOptions};
use stetfs_media::{
    BlockDev, Cause, Clock, FileOptions, Image, MeterSnapshot, Pmem, PmemDev, SimDev, SimPmem,
    Survives, Tag, Uncached,
};
use stetfs_scheme::CacheStats;

use super::card::{Card, Disk};
use super::processor::{Processor, Work};
use super::volume::START;
use super::{Access, BlockLayer, CauseBytes, Chip, DeltaCount, Medium, Outcome, System, Volume};
use crate::workload::{Content, Counts, Durable, Session, Tell, Time, Workload};
use stetfs_testkit::host::{Loop, needs, scratch};

/// What holds the volume, mounted or not.
enum Ground {
    Sim(Arc<SimPmem>),
    Nand(Chip),
    Plain(Arc<SimDev>),
    Card(Card),
    Disk(Disk),
    Memory {
        path: PathBuf,
        /// Detached before the directory goes.
        device: Option<Loop>,
        _dir: tempfile::TempDir,
    },
}

/// What a file system is told, and whose processor it has.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Bounds the caches, of which half is dirty data at most.
    pub memory_mib: u64,
    /// `noatime`, `relatime` or `strictatime`.
    pub atime: &'static str,
    /// How much of the volume is in use when a workload begins, in percent, if its own files are
    /// not more.
    pub fill_percent: u8,
    /// Whose processor is charged,
    pub processor: Processor,
    /// and how many times.
    pub processor_factor: f64,
}

impl Conditions {
    /// So much memory, and no processor.
    pub const fn of(memory_mib: u64) -> Self {
        Self {
            memory_mib,
            atime: "noatime",
            fill_percent: 0,
            processor: Processor::None,
            processor_factor: 1.0,
        }
    }
}

/// A volume of a system on a medium.
pub struct Bed {
    system: System,
    medium: Medium,
    ground: Ground,
    conditions: Conditions,
    /// None only while it is being mounted again.
    mounted: Option<Mounted>,
}

struct Mounted {
    fs: Fs,
    dev: Arc<dyn BlockDev>,
    nvm: Option<Arc<dyn Pmem>>,
    cost: MountCost,
}

/// What a mount did, and what that cost. The device was open already.
#[derive(Clone, Debug, Serialize)]
pub struct MountCost {
    /// What was found.
    pub report: MountReport,
    /// Virtual time, of simulated media.
    pub virtual_ns: Option<u64>,
    /// Real time. Of simulated media, it says how fast they are simulated.
    pub real_ns: u64,
    /// What the medium did.
    pub device: MeterSnapshot,
}

/// What a run cost.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The system's name.
    pub system: &'static str,
    /// The medium's name.
    pub medium: &'static str,
    /// The workload's name.
    pub workload: String,
    /// Calls, and the bytes in them.
    #[serde(flatten)]
    pub counts: Counts,
    /// Transactions.
    pub commits: u64,
    /// Checkpoints until everything was durable.
    pub checkpoints: u64,
    /// Virtual time until everything was home, of simulated media.
    pub virtual_ns: Option<u64>,
    /// The same until everything was durable.
    pub virtual_durable_ns: Option<u64>,
    /// Real time until everything was durable. Of simulated media, it says how fast they are
    /// simulated.
    pub real_ns: u64,
    /// What the medium did until everything was home.
    pub device: MeterSnapshot,
    /// What the memory beside it did, where the scheme has such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvm: Option<MeterSnapshot>,
    /// The same until everything was durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_nvm: Option<MeterSnapshot>,
    /// What the cache in it did until everything was durable, and what was in it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStats>,
    /// What scheme dj logged there, where it is simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deltas: Option<DeltaCount>,
}

/// What a medium, and the memory beside it where there is such, did.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The medium.
    pub device: MeterSnapshot,
    /// The memory beside it.
    pub nvm: MeterSnapshot,
}

impl Account {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            device: self.device.clone() - &before.device,
            nvm: self.nvm.clone() - &before.nvm,
        }
    }
}

/// What everything shows at a moment of a run.
pub(super) struct Reading {
    pub(super) now_ns: u64,
    pub(super) account: Account,
    pub(super) stats: Stats,
    pub(super) deltas: Option<DeltaCount>,
}

/// What a workload asked of its media, by phases.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Warming up.
    pub warm: Account,
    /// The workload.
    pub run: Account,
    /// After it, until everything was home.
    pub close: Account,
    /// What was on the medium when the run was durable, where that can be seen.
    pub left: Option<Image>,
}

impl Measured {
    /// Bytes written to the medium, without what only mounting and unmounting writes.
    pub fn written(&self) -> u64 {
        self.by_cause().iter().map(|c| c.bytes).sum()
    }

    /// The same by cause.
    pub fn by_cause(&self) -> Vec<CauseBytes> {
        let causes = Cause::ALL
            .into_iter()
            .filter(|cause| *cause != Cause::Control);
        let bytes = |cause| CauseBytes {
            cause,
            bytes: self.device.by_cause(cause).write_bytes,
        };
        causes.map(bytes).filter(|c| c.bytes > 0).collect()
    }

    /// Nanoseconds: virtual where there are such, else real.
    pub fn elapsed_ns(&self) -> u64 {
        self.virtual_ns.unwrap_or(self.real_ns)
    }

    /// Nanoseconds until everything was durable: virtual where there are such, else real.
    pub fn durable_ns(&self) -> u64 {
        self.virtual_durable_ns.unwrap_or(self.real_ns)
    }

    /// MiB that callers wrote, a second.
    pub fn write_mib_s(&self) -> f64 {
        let seconds = self.elapsed_ns() as f64 / 1e9;
        self.counts.written_bytes as f64 / f64::from(1 << 20) / seconds
    }
}

impl Bed {
    /// A fresh copy of `volume`, mounted, with so much memory and otherwise as [`Conditions::of`].
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn new(system: System, medium: Medium, volume: &Volume, memory_mib: u64) -> Result<Self> {
        Self::on(system, medium, volume, Conditions::of(memory_mib))
    }

    /// A fresh copy of `volume`, mounted.
    ///
    /// # Errors
    /// What is missing on this machine; of the mount.
    pub fn on(
        system: System,
        medium: Medium,
        volume: &Volume,
        conditions: Conditions,
    ) -> Result<Self> {
        let ground = match medium {
            Medium::Sim(_) => Ground::Sim(sim(medium, volume.image().clone())),
            Medium::Nand(flash, nvram) => {
                Ground::Nand(flash.holding(volume.on_flash(flash)?, nvram)?)
            }
            Medium::Plain(sector) => Ground::Plain(plain(sector, volume.image().clone())),
            Medium::Drive(timing, nvram) => {
                Ground::Card(Card::holding(timing, volume.image().clone(), nvram))
            }
            Medium::Disk(nvram) => Ground::Disk(Disk::holding(volume.image(), nvram)?),
            Medium::Memory => {
                let dir = scratch()?;
                check_room(dir.path(), volume.mib << 20)?;
                let path = dir.path().join("volume");
                volume.to_file(&path)?;
                let loops =
                    system.access == Access::Blocks && needs(true, false, &["losetup"]).is_ok();
                Ground::Memory {
                    device: loops.then(|| Loop::attach(&path)).transpose()?,
                    path,
                    _dir: dir,
                }
            }
        };
        let mounted = mount(&ground, system, conditions)?;
        Ok(Self {
            system,
            medium,
            ground,
            conditions,
            mounted: Some(mounted),
        })
    }

    fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is mounted")
    }

    /// The volume.
    pub fn fs(&self) -> &Fs {
        &self.mounted().fs
    }

    /// The device that the volume is on.
    pub fn dev(&self) -> &Arc<dyn BlockDev> {
        &self.mounted().dev
    }

    /// What is in the simulated memory, or on the simulated card.
    pub fn image(&self) -> Option<Image> {
        match &self.ground {
            Ground::Sim(pmem) => Some(pmem.newest()),
            Ground::Plain(dev) => Some(dev.newest()),
            Ground::Card(card) => Some(card.image()),
            Ground::Nand(_) | Ground::Disk(_) | Ground::Memory { .. } => None,
        }
    }

    /// The time that passes on this medium.
    pub fn time(&self) -> Time {
        match &self.ground {
            Ground::Sim(pmem) => Time::Virtual(pmem.rig().clock.clone()),
            Ground::Nand(chip) => Time::Virtual(chip.clock().clone()),
            Ground::Plain(dev) => Time::Virtual(dev.rig().clock.clone()),
            Ground::Card(card) => Time::Virtual(card.clock().clone()),
            Ground::Disk(_) | Ground::Memory { .. } => Time::Real(Instant::now()),
        }
    }

    /// Unmounts and mounts again: everything is home, the log and the caches are empty.
    ///
    /// # Errors
    /// Of the volume.
    pub fn remount(&mut self) -> Result<()> {
        self.fs().unmount()?;
        self.mount_again()
    }

    /// Crashes and mounts again: in simulated memory and on a simulated card what was not yet
    /// durable is lost; elsewhere the process forgets the volume.
    ///
    /// # Errors
    /// Of the mount.
    pub fn crash(&mut self) -> Result<()> {
        match &self.ground {
            Ground::Sim(pmem) => self.ground = Ground::Sim(sim(self.medium, pmem.stable())),
            Ground::Plain(dev) => {
                let sector = dev.options().sector;
                self.ground = Ground::Plain(plain(sector, dev.stable()));
            }
            Ground::Card(card) => self.ground = Ground::Card(card.after_cut()),
            Ground::Nand(_) | Ground::Disk(_) | Ground::Memory { .. } => {}
        }
        self.mount_again()
    }

    fn mount_again(&mut self) -> Result<()> {
        // The old one holds the device's lock until it is gone.
        self.mounted = None;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        self.mounted = Some(mount(&self.ground, self.system, self.conditions)?);
        Ok(())
    }

    /// What the last mount cost.
    pub fn mount_cost(&self) -> &MountCost {
        &self.mounted().cost
    }

    /// Prepares a workload, measures it and has it judged; the volume is unmounted then.
    ///
    /// # Errors
    /// Of the volume.
    pub fn measure(
        mut self,
        workload: &dyn Workload,
        durable: Durable,
        tell: Tell<'_>,
    ) -> Result<Measured> {
        ensure!(
            !self.medium.is_real() || matches!(durable, Durable::EachWrite | Durable::EXT3),
            "in real time the volume commits, every 5 s"
        );
        let mut preparing = Session::new(self.fs(), self.time(), Durable::EXT3, tell);
        workload.prepare(&mut preparing)?;
        self.remount().context("after preparing")?;
        if let Medium::Memory = self.medium {
            self.touch()?;
        }
        workload.warm(&mut Session::new(self.fs(), self.time(), durable, tell))?;
        let before = self.dev().meter().snapshot();
        let nvm_before = self.nvm_traffic();
        let (journal_before, cache_before) = (self.fs().stats().journal, self.fs().stats().cache);
        let deltas_before = self.deltas().unwrap_or_default();
        let clock = clock_of(&self.ground);
        let start_ns = clock.now_ns();
        let start = Instant::now();
        let mut session = Session::new(self.fs(), self.time(), durable, tell);
        workload
            .run(&mut session)
            .with_context(|| workload.name())?;
        session.sync()?;
        let counts = session.counts();
        let real_ns = real_ns(start);
        let cache = self.fs().stats().cache;
        let synced_nvm = self.nvm_traffic();
        let synced = self.dev().meter().snapshot();
        let synced_ns = clock.now_ns() - start_ns;
        let running_control_ns = synced.busy_ns(Cause::Control) - before.busy_ns(Cause::Control);
        let checkpoints = self.fs().stats().journal.checkpoints - journal_before.checkpoints;
        self.fs().unmount()?;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        let end = self.dev().meter().snapshot();
        let passed_ns = clock.now_ns() - start_ns;
        let mut durable_ns = synced_ns - running_control_ns;
        let (device, left_out_ns) = match &self.ground {
            Ground::Nand(_) => {
                // What a commit writes to the log's superblock counts here.
                durable_ns = synced_ns;
                let left_out_ns = end.busy_ns(Cause::Control) - synced.busy_ns(Cause::Control);
                let running = synced - &before;
                let control = running.clone() - &running.without(Cause::Control);
                let device = (end - &before).without(Cause::Control) + &control;
                (device, left_out_ns)
            }
            _ => {
                let device = end - &before;
                let left_out_ns = device.busy_ns(Cause::Control);
                (device, left_out_ns)
            }
        };
        let is_virtual = !self.medium.is_real();
        let measured = Measured {
            system: self.system.name,
            medium: self.medium.name(),
            workload: workload.name(),
            counts,
            commits: self.fs().stats().journal.commits,
            checkpoints,
            virtual_ns: is_virtual.then_some(passed_ns - left_out_ns),
            virtual_durable_ns: is_virtual.then_some(durable_ns),
            real_ns,
            device,
            cache: match (cache, cache_before) {
                (Some(end), Some(before)) => Some(end.since(&before)),
                _ => None,
            },
            durable_nvm: match (synced_nvm, &nvm_before) {
                (Some(end), Some(before)) => Some(end - before),
                _ => None,
            },
            nvm: match (self.nvm_traffic(), nvm_before) {
                (Some(end), Some(before)) => Some(end - &before),
                _ => None,
            },
            deltas: self.deltas().map(|end| end - deltas_before),
        };
        if workload.is_judged() {
            self.mount_again()?;
            let mut judging = Session::new(self.fs(), self.time(), durable, tell);
            let judged = workload.judge(&mut judging);
            judged.with_context(|| format!("{}, after {}", self.system.name, workload.name()))?;
            self.fs().unmount()?;
        }
        Ok(measured)
    }

    /// Prepares a workload and runs it, on simulated media; the volume is unmounted then.
    ///
    /// # Errors
    /// Of the volume; the medium is real.
    pub fn run(
        mut self,
        workload: &dyn Workload,
        durable: Durable,
        tell: Tell<'_>,
    ) -> Result<Outcome> {
        ensure!(!self.medium.is_real(), "time is virtual here");
        let mut preparing = Session::new(self.fs(), self.time(), Durable::EXT3, tell);
        workload.prepare(&mut preparing)?;
        fill(&mut preparing, self.conditions.fill_percent).context("filling the volume")?;
        self.remount().context("after preparing")?;
        workload.warm(&mut Session::new(self.fs(), self.time(), durable, tell))?;
        let begin = self.reading();
        let work = || self.work();
        let costs = self
            .conditions
            .processor
            .costs(self.conditions.processor_factor);
        let mut session = Session::new(self.fs(), self.time(), durable, tell).timed();
        if self.conditions.processor != Processor::None {
            session = session.charged(costs, &work);
        }
        workload
            .run(&mut session)
            .with_context(|| workload.name())?;
        let returned_ns = clock_of(&self.ground).now_ns();
        session.sync()?;
        let counts = session.counts();
        let spent = session.spent();
        let durable_at = self.reading();
        let recovery = self.recovery_after_cut()?;
        self.fs().unmount()?;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        let home_at = self.reading();
        let mut outcome = Outcome::default();
        outcome.note_calls(counts, spent, returned_ns - begin.now_ns);
        outcome.note_media(&begin, &durable_at, &home_at);
        if let Some(recovery) = recovery {
            outcome.note_recovery(&recovery);
        }
        if let Ground::Nand(chip) = &self.ground {
            self.mounted = None;
            outcome.note_wear(&Ftl::mount(chip.nand(), Default::default())?.wear());
        }
        if workload.is_judged() {
            self.mount_again()?;
            let mut judging = Session::new(self.fs(), self.time(), durable, tell);
            let judged = workload.judge(&mut judging);
            judged.with_context(|| format!("{}, after {}", self.system.name, workload.name()))?;
            self.fs().unmount()?;
        }
        Ok(outcome)
    }

    /// What everything shows now.
    fn reading(&self) -> Reading {
        Reading {
            now_ns: clock_of(&self.ground).now_ns(),
            account: self.account(),
            stats: self.fs().stats(),
            deltas: self.deltas(),
        }
    }

    /// What the file system and its media have done, as far as a processor needs time for it.
    fn work(&self) -> Work {
        let stats = self.fs().stats();
        let device = stats.device.total();
        let deltas = self.deltas().unwrap_or_default();
        Work {
            handles: stats.journal.handles,
            commits: stats.journal.commits,
            requests: device.reads + device.writes,
            transferred: device.read_bytes + device.write_bytes,
            compared: deltas.deltas + deltas.wholes,
            compressed: deltas.deltas,
            ..Work::default()
        }
    }

    /// What a mount costs if the power goes now, where that can be tried beside the running one.
    fn recovery_after_cut(&self) -> Result<Option<MountCost>> {
        let ground = match &self.ground {
            Ground::Sim(pmem) => Ground::Sim(sim(self.medium, pmem.stable())),
            Ground::Card(card) => Ground::Card(card.after_cut()),
            Ground::Nand(chip) => match chip.after_cut()? {
                Some(chip) => Ground::Nand(chip),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let mounted = mount(&ground, self.system, self.conditions);
        let mounted = mounted.context("the mount after a power cut")?;
        mounted.fs.unmount()?;
        Ok(Some(mounted.cost))
    }

    /// Warms up and runs a workload that the volume is prepared for; the volume is unmounted then.
    /// No commit comes but those that it asks for.
    ///
    /// # Errors
    /// Of the volume.
    pub fn cost(self, workload: &dyn Workload, tell: Tell<'_>) -> Result<Cost> {
        let durable = Durable::Every(Duration::MAX);
        let mounted = self.account();
        workload.warm(&mut Session::new(self.fs(), self.time(), durable, tell))?;
        let warm = self.account();
        let mut session = Session::new(self.fs(), self.time(), durable, tell);
        workload
            .run(&mut session)
            .with_context(|| workload.name())?;
        let (run, left) = (self.account(), self.image());
        self.fs().unmount()?;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        Ok(Cost {
            close: self.account().since(&run),
            run: run.since(&warm),
            warm: warm.since(&mounted),
            left,
        })
    }

    fn account(&self) -> Account {
        Account {
            device: self.dev().meter().snapshot(),
            nvm: self.nvm_traffic().unwrap_or_default(),
        }
    }

    /// Of scheme dj, and no other.
    fn deltas(&self) -> Option<DeltaCount> {
        match &self.ground {
            Ground::Card(card) => Some(card.deltas()),
            Ground::Nand(chip) => chip.deltas(),
            _ => None,
        }
        .filter(|count| count.transactions > 0)
    }

    fn nvm_traffic(&self) -> Option<MeterSnapshot> {
        let nvm = self.mounted().nvm.as_ref();
        nvm.map(|nvm| nvm.meter().snapshot())
    }

    /// Reads everything once, so that no page of a mapping is touched for the first time while the
    /// time is taken.
    fn touch(&self) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        let tag = Tag::new(stetfs_media::Class::Data, Cause::Read);
        for at in (0..self.dev().size()).step_by(buffer.len()) {
            let len = buffer.len().min((self.dev().size() - at) as usize);
            self.dev().read_at(at, &mut buffer[..len], tag)?;
        }
        Ok(())
    }
}

/// Writes a file that nobody touches, so that so much of the volume is in use.
fn fill(session: &mut Session<'_>, percent: u8) -> Result<()> {
    ensure!(percent <= 95, "fill={percent}: 95 % at most");
    let fs = session.fs().statfs()?;
    let used = fs.blocks - fs.blocks_free;
    let missing = (fs.blocks * u64::from(percent) / 100).saturating_sub(used);
    if missing == 0 {
        return Ok(());
    }
    let (mut content, piece) = (Content::new(percent.into(), 64 << 10), 64 << 10);
    let bytes = missing * u64::from(fs.block_size);
    let file = session.create(session.root(), "fill")?;
    for at in (0..bytes).step_by(piece) {
        let len = piece.min((bytes - at) as usize);
        session.write(file, at, content.piece(0, len))?;
    }
    session.close(file)
}

/// Whether there is room for a file of so many bytes, all of which a mapping takes at once.
fn check_room(dir: &Path, bytes: u64) -> Result<()> {
    let fs = rustix::fs::statvfs(dir)?;
    let free = fs.f_bavail * fs.f_frsize;
    ensure!(
        free > bytes + bytes / 8,
        "a volume of {} MiB does not fit into {}, where {} MiB are free; take a smaller scale, or \
            virtual time only",
        bytes >> 20,
        dir.display(),
        free >> 20
    );
    Ok(())
}

/// Simulated memory on a machine of its own.
fn sim(medium: Medium, image: Image) -> Arc<SimPmem> {
    let Medium::Sim(timing) = medium else {
        unreachable!("only simulated media come here");
    };
    let options = SimPmemOptions {
        record: false,
        timing,
    };
    Arc::new(options.build_on(&Rig::default(), image))
}

/// A simulated disk on a machine of its own.
fn plain(sector: u32, image: Image) -> Arc<SimDev> {
    let options = SimOptions {
        sector,
        atomic_unit: sector,
        record: false,
        ..SimOptions::default()
    };
    Arc::new(options.build_on(&Rig::default(), image))
}

fn mount(ground: &Ground, system: System, conditions: Conditions) -> Result<Mounted> {
    let options = options(ground, system, conditions)?;
    let media = open(ground, system, &options)?;
    let (dev, nvm) = (media.home.clone(), media.nvm.clone());
    let clock = clock_of(ground);
    let (start_ns, start, before) = (clock.now_ns(), Instant::now(), dev.meter().snapshot());
    let (fs, report) = Fs::mount(media, options)
        .with_context(|| format!("mounting {} on {}", system.name, dev.describe()))?;
    let virtual_ns = clock.now_ns() - start_ns;
    let cost = MountCost {
        report,
        virtual_ns: is_simulated(ground).then_some(virtual_ns),
        real_ns: real_ns(start),
        device: dev.meter().snapshot() - &before,
    };
    Ok(Mounted { fs, dev, nvm, cost })
}

fn open(ground: &Ground, system: System, options: &MountOptions) -> Result<Media> {
    let has_nvm =
        stetfs_schemes::find(&options.scheme)?.about.nvm.is_needed() || options.nvm.is_some();
    let home: Arc<dyn BlockDev> = match (ground, system.access) {
        (Ground::Sim(pmem), Access::Bytes) => Arc::new(PmemDev::new(pmem.clone())),
        (Ground::Sim(pmem), Access::Blocks) => Arc::new(BlockLayer::new(pmem.clone())),
        (Ground::Nand(chip), _) => return chip.media(has_nvm),
        // The file system keeps what was read, as a kernel does in its page cache.
        (Ground::Plain(dev), _) => Arc::new(Uncached(dev.clone())),
        (Ground::Card(card), _) => return Ok(card.media(has_nvm)),
        (Ground::Disk(disk), _) => return disk.media(has_nvm),
        (Ground::Memory { path, .. }, Access::Bytes) => stetfs::open_device(path, options, false)?,
        (Ground::Memory { path, device, .. }, Access::Blocks) => {
            let path = device.as_ref().map_or(path.as_path(), Loop::device);
            Arc::new(FileOptions::default().open(path)?)
        }
    };
    Ok(home.into())
}

fn is_simulated(ground: &Ground) -> bool {
    !matches!(ground, Ground::Disk(_) | Ground::Memory { .. })
}

/// The machine's, or one that stands still.
fn clock_of(ground: &Ground) -> Clock {
    match ground {
        Ground::Sim(pmem) => pmem.rig().clock.clone(),
        Ground::Nand(chip) => chip.clock().clone(),
        Ground::Plain(dev) => dev.rig().clock.clone(),
        Ground::Card(card) => card.clock().clone(),
        Ground::Disk(_) | Ground::Memory { .. } => Clock::default(),
    }
}

fn real_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// On simulated media nothing happens by the machine's clock and no thread works in the background:
/// the session commits, and checkpoints come by the space in the log.
fn options(ground: &Ground, system: System, conditions: Conditions) -> Result<MountOptions> {
    let Conditions {
        atime, memory_mib, ..
    } = conditions;
    let common = format!("{},{atime},memory={memory_mib}M", system.options);
    let mut options = MountOptions::parse(&common)?;
    if is_simulated(ground) {
        options.commit = Duration::MAX;
        // ext3 knows no waiting past commits, and the session's commits stand for all that the
        // clock does.
        options.dirty_expire = Duration::ZERO;
        options.clock = clock::Clock::manual(START);
        let about = stetfs_schemes::find(&options.scheme)?.about;
        if about
            .options
            .iter()
            .any(|option| option.name == "checkpoint")
        {
            options.apply(&format!("checkpoint={}", u32::MAX))?;
        }
    } else {
        options.durability = Survives::ProcessCrash;
    }
    Ok(options)
}
