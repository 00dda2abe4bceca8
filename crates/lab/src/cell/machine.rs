//! What a system runs on, as settings: a device with what is beside it, a volume, and what the file
//! system is told.

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
    /// Memory as fast as DRAM that keeps what it holds.
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
    /// A sixteenth of a modern part with pages of 16 KiB, with the same.
    #[serde(rename = "nand16k")]
    Nand16K,
}

impl Device {
    /// Every one.
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

    /// Of what is neither memory nor bare flash.
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
    /// As DRAM.
    Dram,
    /// As the Spindle paper's.
    Nvm,
    /// As phase change memory.
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
    /// How long a fence takes in memory, beside the lines that it waits for.
    pub fence: Nanos,
    /// How much longer than on such a drive a write takes that does not continue the last one. A
    /// card's takes 3.5 ms.
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
    /// Caches of the file system, of which half is dirty at most.
    pub memory: Bytes,
    /// How much of the volume is in use when the workload begins, in percent, if its own files are
    /// not more: a file that nobody touches makes up for the rest.
    pub fill: u8,
    /// How old the running transaction gets, or `each` for a commit with each write.
    pub commit: Commit,
    /// Commits by age and checkpoints go on while the processor works for calls, on another one;
    /// otherwise callers wait for them.
    pub background: bool,
    /// How long new data stays delayed (`dirty_expire=`). Mounts: 30 s. 0: not at all.
    pub dirty_expire: Nanos,
    /// The longest time without a checkpoint.
    pub checkpoint: Nanos,
    /// Access times.
    pub atime: Atime,
    /// Whose processor is charged: `stetfs lab run --list` has the profiles.
    pub processor: Processor,
    /// How many times what the profile says.
    pub cpu: f64,
}

impl Default for Machine {
    /// Small enough for seconds, and as a mount has it.
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

    /// An empty volume of it, which is made once for all machines with the same.
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
        // Of drives, only the size matters.
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

    /// The rest of it, for a bed.
    pub fn conditions(&self) -> (Medium, Conditions) {
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
