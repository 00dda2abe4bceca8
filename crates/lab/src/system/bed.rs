//! A mounted volume of a system on a medium.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use stetfs::{Fs, Media, MountOptions, clock};
use stetfs_ftl::Ftl;
use stetfs_media::sim::{PmemTiming, Rig, SimPmemOptions};
use stetfs_media::{BlockDev, Cause, Clock, Image, MeterSnapshot, Pmem, PmemDev};

use super::account::{Account, MountCost, Reading};
use super::block_layer::BlockLayer;
use super::card::Card;
use super::deltas::{CountedPmem, DeltaCount};
use super::flash::Chip;
use super::outcome::Outcome;
use super::processor::{Processor, Work};
use super::systems::{Access, CauseBytes, Medium, System};
use super::volume::{START, Volume};
use crate::workload::{Background, Content, Counts, Durable, Session, Tell, Time, Workload};

/// The medium of the volume, mounted or not.
enum Ground {
    Sim(Arc<CountedPmem>),
    Nand(Chip),
    Card(Card),
}

/// The conditions of a run: mount options, fill, processor.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Size of the file system's caches in MiB; at most half of it is dirty data.
    pub memory_mib: u64,
    /// `noatime`, `relatime` or `strictatime`.
    pub atime: &'static str,
    /// Percent of the volume in use when a workload begins, unless its own files are more.
    pub fill_percent: u8,
    /// Whose processor is charged.
    pub processor: Processor,
    /// Factor on the processor's costs.
    pub processor_factor: f64,
    /// The background work.
    pub background: Background,
    /// How much longer a write to a drive takes that does not continue the last one, in
    /// nanoseconds.
    pub jump_ns: u64,
    /// How long a fence takes, in a volume in memory, in nanoseconds.
    pub fence_ns: u64,
}

impl Conditions {
    /// Conditions with this much memory, and no processor.
    pub const fn of(memory_mib: u64) -> Self {
        Self {
            memory_mib,
            atime: "noatime",
            fill_percent: 0,
            processor: Processor::None,
            processor_factor: 1.0,
            background: Background::NONE,
            jump_ns: 0,
            fence_ns: 0,
        }
    }
}

/// A volume of a system on a medium.
pub struct Bed {
    system: System,
    medium: Medium,
    ground: Ground,
    conditions: Conditions,
    /// `None` only while it is being mounted again.
    mounted: Option<Mounted>,
}

struct Mounted {
    fs: Fs,
    dev: Arc<dyn BlockDev>,
    nvm: Option<Arc<dyn Pmem>>,
    cost: MountCost,
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
    /// Transactions that were committed.
    pub commits: u64,
    /// Checkpoints until everything was durable.
    pub checkpoints: u64,
    /// Virtual time until everything was home.
    pub virtual_ns: u64,
    /// What the medium did until everything was home.
    pub device: MeterSnapshot,
}

impl Measured {
    /// Bytes written to the medium, without those that only mounting and unmounting write.
    pub fn written(&self) -> u64 {
        self.by_cause().iter().map(|c| c.bytes).sum()
    }

    /// The same bytes, by cause.
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

    /// MiB per second that callers wrote.
    pub(crate) fn write_mib_s(&self) -> f64 {
        let seconds = self.virtual_ns as f64 / 1e9;
        self.counts.written_bytes as f64 / f64::from(1 << 20) / seconds
    }
}

impl Bed {
    /// Mounts a fresh copy of `volume`, with this much memory and otherwise as [`Conditions::of`].
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn new(system: System, medium: Medium, volume: &Volume, memory_mib: u64) -> Result<Self> {
        Self::on(system, medium, volume, Conditions::of(memory_mib))
    }

    /// Mounts a fresh copy of `volume`.
    ///
    /// # Errors
    /// Something is missing on this machine; errors of the mount.
    pub fn on(
        system: System,
        medium: Medium,
        volume: &Volume,
        conditions: Conditions,
    ) -> Result<Self> {
        let ground = match medium {
            Medium::Sim(timing) => {
                Ground::Sim(sim(timing, volume.image().clone(), conditions.fence_ns))
            }
            Medium::Nand(flash, nvram) => {
                Ground::Nand(flash.holding(volume.on_flash(flash)?, nvram)?)
            }
            Medium::Drive(timing, nvram) => {
                let image = volume.image().clone();
                Ground::Card(Card::holding(timing, image, nvram, conditions.jump_ns))
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

    /// Returns the content of the simulated memory or card; `None` for NAND.
    pub fn image(&self) -> Option<Image> {
        match &self.ground {
            Ground::Sim(pmem) => Some(pmem.memory().newest()),
            Ground::Card(card) => Some(card.image()),
            Ground::Nand(_) => None,
        }
    }

    /// The clock of this medium.
    pub fn time(&self) -> Time {
        Time::Virtual(clock_of(&self.ground))
    }

    /// Unmounts and mounts again, so that everything is home, and the log and the caches are empty.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn remount(&mut self) -> Result<()> {
        self.fs().unmount()?;
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

    /// Prepares a workload, measures it and judges what it left, then unmounts the volume.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn measure(
        mut self,
        workload: &dyn Workload,
        durable: Durable,
        tell: Tell<'_>,
    ) -> Result<Measured> {
        let mut preparing = Session::new(self.fs(), self.time(), Durable::EXT3, tell);
        workload.prepare(&mut preparing)?;
        self.remount().context("after preparing")?;
        workload.warm(&mut Session::new(self.fs(), self.time(), durable, tell))?;
        let before = self.dev().meter().snapshot();
        let journal_before = self.fs().stats().journal;
        let clock = clock_of(&self.ground);
        let start_ns = clock.now_ns();
        let mut session = Session::new(self.fs(), self.time(), durable, tell);
        workload
            .run(&mut session)
            .with_context(|| workload.name())?;
        session.sync()?;
        let counts = session.counts();
        let synced = self.dev().meter().snapshot();
        let checkpoints = self.fs().stats().journal.checkpoints - journal_before.checkpoints;
        self.fs().unmount()?;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        let end = self.dev().meter().snapshot();
        let passed_ns = clock.now_ns() - start_ns;
        let (device, left_out_ns) = match &self.ground {
            Ground::Nand(_) => {
                // What a commit writes to the log's superblock counts here.
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
        let measured = Measured {
            system: self.system.name,
            medium: self.medium.name(),
            workload: workload.name(),
            counts,
            commits: self.fs().stats().journal.commits,
            checkpoints,
            virtual_ns: passed_ns - left_out_ns,
            device,
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

    /// Prepares a workload and runs it on simulated media, then unmounts the volume.
    ///
    /// # Errors
    /// Those of the volume; the medium is real.
    pub fn run(
        mut self,
        workload: &dyn Workload,
        durable: Durable,
        tell: Tell<'_>,
    ) -> Result<Outcome> {
        let mut preparing = Session::new(self.fs(), self.time(), Durable::EXT3, tell);
        workload.prepare(&mut preparing)?;
        fill(&mut preparing, self.conditions.fill_percent).context("filling the volume")?;
        self.remount().context("after preparing")?;
        workload.warm(&mut Session::new(self.fs(), self.time(), durable, tell))?;
        let (begin, work_before) = (self.reading(), self.work());
        let work = || self.work();
        let costs = self
            .conditions
            .processor
            .costs(self.conditions.processor_factor);
        let late_ns = || match &self.ground {
            Ground::Card(card) => card.late_ns(),
            _ => 0,
        };
        let session = Session::new(self.fs(), self.time(), durable, tell).timed();
        let mut session = session.beside(self.conditions.background, &late_ns);
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
        clock_of(&self.ground).advance(spent.owed_ns);
        let done = self.work().since(work_before);
        let recovery = self.recovery_after_cut()?;
        self.fs().unmount()?;
        if let Ground::Nand(chip) = &self.ground {
            chip.settle()?;
        }
        let home_at = self.reading();
        let mut outcome = Outcome::default();
        outcome.note_calls(counts, spent, returned_ns - begin.now_ns);
        outcome.note_media(&begin, &durable_at, &home_at);
        outcome.note_capture(costs.of(Work {
            compared: done.compared,
            compressed: done.compressed,
            ..Work::default()
        }));
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

    /// Reads all counters.
    fn reading(&self) -> Reading {
        Reading {
            now_ns: clock_of(&self.ground).now_ns(),
            account: self.account(),
            stats: self.fs().stats(),
            deltas: self.deltas(),
        }
    }

    /// Returns the work of the file system and its media that takes a processor's time.
    fn work(&self) -> Work {
        let stats = self.fs().stats();
        // A store to memory is no request to a block layer.
        let mut device = match self.system.access {
            Access::Blocks => stats.device.total(),
            Access::Bytes => Default::default(),
        };
        if self.conditions.background.overlaps && self.system.access == Access::Blocks {
            // Checkpoints run on another processor.
            let behind = stats.device.by_cause(Cause::Checkpoint);
            device.writes -= behind.writes;
            device.write_bytes -= behind.write_bytes;
        }
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

    /// Mounts what a power cut would leave now, and returns the cost; `None` where it cannot be
    /// tried beside the running mount.
    fn recovery_after_cut(&self) -> Result<Option<MountCost>> {
        let ground = match &self.ground {
            Ground::Sim(pmem) => {
                let (memory, fence_ns) = (pmem.memory(), pmem.fence_ns());
                Ground::Sim(sim(memory.options().timing, memory.stable(), fence_ns))
            }
            Ground::Card(card) => Ground::Card(card.after_cut()),
            Ground::Nand(chip) => match chip.after_cut()? {
                Some(chip) => Ground::Nand(chip),
                None => return Ok(None),
            },
        };
        let mounted = mount(&ground, self.system, self.conditions);
        let mounted = mounted.context("the mount after a power cut")?;
        mounted.fs.unmount()?;
        Ok(Some(mounted.cost))
    }

    fn account(&self) -> Account {
        Account {
            device: self.dev().meter().snapshot(),
            nvm: self.nvm_traffic().unwrap_or_default(),
        }
    }

    /// The deltas of scheme dj; `None` for other schemes.
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
}

/// Writes a file that nobody touches, so that this much of the volume is in use.
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

/// Simulated memory on a machine of its own.
fn sim(timing: PmemTiming, image: Image, fence_ns: u64) -> Arc<CountedPmem> {
    let options = SimPmemOptions {
        record: false,
        timing,
    };
    let memory = options.build_on(&Rig::default(), image);
    Arc::new(CountedPmem::new(memory, fence_ns))
}

fn mount(ground: &Ground, system: System, conditions: Conditions) -> Result<Mounted> {
    let options = options(system, conditions)?;
    let media = open(ground, system, &options)?;
    let (dev, nvm) = (media.home.clone(), media.nvm.clone());
    let clock = clock_of(ground);
    let (start_ns, before) = (clock.now_ns(), dev.meter().snapshot());
    let (fs, report) = Fs::mount(media, options)
        .with_context(|| format!("mounting {} on {}", system.name, dev.describe()))?;
    let virtual_ns = clock.now_ns() - start_ns;
    let cost = MountCost {
        report,
        virtual_ns,
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
        (Ground::Card(card), _) => return Ok(card.media(has_nvm)),
    };
    Ok(home.into())
}

/// Returns the machine's clock.
fn clock_of(ground: &Ground) -> Clock {
    match ground {
        Ground::Sim(pmem) => pmem.memory().rig().clock.clone(),
        Ground::Nand(chip) => chip.clock().clone(),
        Ground::Card(card) => card.clock().clone(),
    }
}

/// On simulated media nothing happens by this machine's clock, and no thread works in the
/// background: the session commits, and checkpoints come by the space in the log.
fn options(system: System, conditions: Conditions) -> Result<MountOptions> {
    let Conditions {
        atime, memory_mib, ..
    } = conditions;
    let common = format!("{},{atime},memory={memory_mib}M", system.options);
    let mut options = MountOptions::parse(&common)?;
    options.commit = Duration::MAX;
    // ext3 delays no data. For the others, the session decides how long.
    options.dirty_expire = conditions.background.expire;
    options.clock = clock::Clock::manual(START);
    let about = stetfs_schemes::find(&options.scheme)?.about;
    if about
        .options
        .iter()
        .any(|option| option.name == "checkpoint")
    {
        options.apply(&format!("checkpoint={}", u32::MAX))?;
    }
    Ok(options)
}
