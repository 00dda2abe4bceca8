//! The machine that a system runs on, as settings: a device and the memory beside it, a volume, and
//! mount options.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs_media::sim::{PmemTiming, Timing};
use stetfs_testkit::image::Variety;

use crate::system::{Conditions, Flash, JFTL_NAND, MODERN_NAND, Medium, Nvram, Processor, Volume};
use crate::text::{Bytes, Nanos};
use crate::workload::{Background, Durable};

/// Where the volume lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// Phase change memory.
    Pcm,
    /// Persistent memory as fast as DRAM.
    Dram,
    /// A memory card of class 10.
    Card,
    /// A hard disk of 7,200 turns a minute.
    Disk,
    /// A flash drive on SATA.
    Ssd,
    /// A flash drive on PCI Express.
    Nvme,
    /// The JFTL paper's NAND part of 128 MB, with our translation layer.
    Nand,
    /// A sixteenth of a modern part with pages of 16 KiB, with our translation layer.
    #[serde(rename = "nand16k")]
    Nand16K,
}

impl Device {
    /// Every device.
    pub const ALL: [Self; 8] = [
        Self::Pcm,
        Self::Dram,
        Self::Card,
        Self::Disk,
        Self::Ssd,
        Self::Nvme,
        Self::Nand,
        Self::Nand16K,
    ];

    /// Timing of a drive; `None` for memory and bare flash.
    const fn drive(self) -> Option<Timing> {
        match self {
            Self::Card => Some(Timing::MicroSd),
            Self::Disk => Some(Timing::Hdd),
            Self::Ssd => Some(Timing::SataSsd),
            Self::Nvme => Some(Timing::NvmeSsd),
            Self::Pcm | Self::Dram | Self::Nand | Self::Nand16K => None,
        }
    }

    const fn flash(self) -> Option<Flash> {
        match self {
            Self::Nand => Some(JFTL_NAND),
            Self::Nand16K => Some(MODERN_NAND),
            _ => None,
        }
    }
}

/// How fast the memory beside the device is: `crates/media/src/sim/pmem.rs` has the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speed {
    /// As fast as DRAM.
    Dram,
    /// As fast as the Spindle paper's.
    Nvm,
    /// As fast as phase change memory.
    Pcm,
}

impl Speed {
    const fn timing(self) -> PmemTiming {
        match self {
            Self::Dram => PmemTiming::Dram,
            Self::Nvm => PmemTiming::Nvm,
            Self::Pcm => PmemTiming::Pcm,
        }
    }
}

/// How the volume is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// mke2fs's defaults today.
    Ext4,
    /// Block pointers, no checksums.
    Ext3,
}

/// When reading changes a file's time of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Atime {
    /// Never.
    No,
    /// Where the old one is older than the last change, or than a day: the kernel's since 2.6.30.
    Rel,
    /// Each time.
    Strict,
}

impl Atime {
    const fn option(self) -> &'static str {
        match self {
            Self::No => "noatime",
            Self::Rel => "relatime",
            Self::Strict => "strictatime",
        }
    }
}

/// The settings of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Where the volume lies.
    pub medium: Device,
    /// Memory beside it, for the systems that use some.
    pub nvm: Bytes,
    /// How fast that is.
    pub nvm_speed: Speed,
    /// How long a fence in memory takes, beside the lines that it waits for.
    pub fence: Nanos,
    /// How much longer a write takes that does not continue the last one, beyond what such a drive
    /// takes. A card takes 3.5 ms.
    pub jump: Nanos,
    /// The volume's size; of NAND, what the part exports.
    pub volume: Bytes,
    /// Its journal.
    pub journal: Bytes,
    /// Its features.
    pub format: Format,
    /// Bytes in a block.
    pub block: Bytes,
    /// Bytes in an inode; with 128, times are whole seconds.
    pub inode: Bytes,
    /// Size of the file system's caches; at most half of it is dirty.
    pub memory: Bytes,
    /// Percent of the volume in use when the workload begins. A file that nobody touches fills it
    /// up to that, unless the workload's own files are more.
    pub fill: u8,
    /// How old the running transaction gets, or `each` for a commit with each write.
    pub commit: Commit,
    /// Whether commits by age and checkpoints run on another processor while callers compute;
    /// otherwise callers wait for them.
    pub background: bool,
    /// How long new data stays delayed (`dirty_expire=`); 0: not at all. A mount's default is 30 s.
    pub dirty_expire: Nanos,
    /// The longest time without a checkpoint.
    pub checkpoint: Nanos,
    /// Access times.
    pub atime: Atime,
    /// Whose processor is charged: `stetfs lab run --list` has the profiles.
    pub processor: Processor,
    /// Factor on the profile's costs.
    pub cpu: f64,
}

impl Default for Machine {
    /// As a mount has it, but so small that a run takes seconds.
    fn default() -> Self {
        Self {
            medium: Device::Ssd,
            nvm: Bytes(0),
            nvm_speed: Speed::Dram,
            fence: Nanos(0),
            jump: Nanos(0),
            volume: Bytes::mib(256),
            journal: Bytes::mib(16),
            format: Format::Ext4,
            block: Bytes::kib(4),
            inode: Bytes(256),
            memory: Bytes::mib(128),
            fill: 0,
            commit: Commit(Durable::EXT3),
            background: false,
            dirty_expire: Nanos(0),
            checkpoint: Nanos::NEVER,
            atime: Atime::No,
            processor: Processor::None,
            cpu: 1.0,
        }
    }
}

impl Machine {
    /// The medium with what is beside it.
    fn medium(&self) -> Medium {
        let nvram = Nvram {
            bytes: self.nvm.0,
            timing: self.nvm_speed.timing(),
            fence_ns: self.fence.0,
        };
        match (self.medium, self.medium.drive(), self.medium.flash()) {
            (_, Some(drive), _) => Medium::Drive(drive, nvram),
            (_, _, Some(flash)) => Medium::Nand(flash, nvram),
            (Device::Dram, ..) => Medium::Sim(PmemTiming::Dram),
            _ => Medium::Sim(PmemTiming::Pcm),
        }
    }

    /// Returns an empty volume of it, made once for all machines with the same.
    ///
    /// # Errors
    /// mke2fs makes no such volume.
    pub fn volume(&self) -> Result<Arc<Volume>> {
        static MADE: Mutex<BTreeMap<String, Arc<Volume>>> = Mutex::new(BTreeMap::new());
        let Self {
            medium,
            volume,
            journal,
            format,
            block,
            inode,
            ..
        } = self;
        // Only the size of a drive matters.
        let part = medium.flash().map(|flash| flash.name);
        let key = format!("{part:?} {volume} {journal} {format:?} {block} {inode}");
        let mut made = MADE.lock();
        if let Some(volume) = made.get(&key) {
            return Ok(volume.clone());
        }
        let volume = Arc::new(self.make_volume()?);
        made.insert(key, volume.clone());
        Ok(volume)
    }

    fn make_volume(&self) -> Result<Volume> {
        let (block, inode) = (u32::try_from(self.block.0)?, u32::try_from(self.inode.0)?);
        let variety = Variety {
            name: "lab",
            block,
            inode,
            features: match self.format {
                Format::Ext4 => "",
                Format::Ext3 => stetfs_testkit::image::EXT3_1K.features,
            },
            extents: self.format == Format::Ext4,
        };
        let bytes = match self.medium.flash() {
            Some(flash) => flash.capacity()?,
            None => self.volume.0,
        };
        ensure!(
            bytes >= 8 << 20 && self.journal.0 >= 1 << 20 && self.journal.0 <= bytes / 2,
            "a volume of {} with a journal of {}: 8M at least, and a journal from 1M to half of it",
            Bytes(bytes),
            self.journal
        );
        Volume::make(variety, bytes >> 20, self.journal.0 >> 20)
    }

    /// Returns the other settings, for a bed.
    pub(crate) fn conditions(&self) -> (Medium, Conditions) {
        let conditions = Conditions {
            memory_mib: (self.memory.0 >> 20).max(1),
            atime: self.atime.option(),
            fill_percent: self.fill,
            processor: self.processor,
            processor_factor: self.cpu,
            background: Background {
                overlaps: self.background,
                expire: Duration::from_nanos(self.dirty_expire.0),
                checkpoint: match self.checkpoint {
                    Nanos::NEVER => Duration::MAX,
                    Nanos(ns) => Duration::from_nanos(ns),
                },
            },
            jump_ns: self.jump.0,
            fence_ns: self.fence.0,
        };
        (self.medium(), conditions)
    }
}

/// When what was written becomes durable, as text: `each`, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit(pub Durable);

impl Serialize for Commit {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Durable::EachWrite => to.serialize_str("each"),
            Durable::Every(Duration::MAX) => Nanos::NEVER.serialize(to),
            Durable::Every(period) => {
                Nanos(u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)).serialize(to)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Commit {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let value = serde_json::Value::deserialize(from)?;
        if value == "each" {
            return Ok(Self(Durable::EachWrite));
        }
        Ok(Self(
            match Nanos::deserialize(value).map_err(D::Error::custom)? {
                Nanos::NEVER => Durable::Every(Duration::MAX),
                Nanos(ns) => Durable::Every(Duration::from_nanos(ns)),
            },
        ))
    }
}
