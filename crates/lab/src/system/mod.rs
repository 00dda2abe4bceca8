//! The systems that are compared, on the media that they are compared on.
//!
//! A [`System`] is a scheme with its options on a kind of volume; a [`Medium`] is simulated, and
//! then time is virtual and the same on every machine, or the memory of this one. A [`Bed`] is a
//! volume of the system, mounted; [`Bed::measure`] runs a workload on it.
//!
//! What is measured: from the first call until everything is durable, and then, by unmounting,
//! until everything is home. In virtual time both count, so that no scheme leaves work behind; what
//! only an unmount does (superblock, log header, wiping the log: [`Cause::Control`]) is left out.
//! On flash what a commit or a checkpoint writes to the log's superblock is counted all the same,
//! because a scheme that remaps writes it with every commit. Real time ends when everything is
//! durable, since an unmount's work cannot be told apart in it.

mod bed;
mod block_layer;
mod card;
mod changes;
mod deltas;
mod flash;
mod outcome;
mod processor;
mod volume;

pub use bed::{Account, Bed, Conditions, Cost, Measured, MountCost};
pub use block_layer::BlockLayer;
pub use card::Nvram;
pub use changes::{Changes, DeltaKind, Deltas, SECTORS, changes_of};
pub use deltas::DeltaCount;
pub use flash::{Chip, Flash, JFTL_NAND, MODERN_NAND};
pub use outcome::{NUMBERS, Number, Outcome};
pub use processor::{Costs, Figure, Processor, Profile, Work};
pub use volume::{EXT3_1K, EXT3_4K, Volume};

use serde::Serialize;
use stetfs_media::Cause;
use stetfs_media::sim::{PmemTiming, Timing};

/// How a system sees its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As memory, by the byte.
    Bytes,
    /// As a block device, through a block layer.
    Blocks,
}

/// A scheme with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Its name in reports.
    pub name: &'static str,
    /// Mount options.
    pub options: &'static str,
    /// How it sees its medium.
    pub access: Access,
}

/// The paper's ext3: everything journaled, data too, through the block layer.
pub const EXT3: System = System {
    name: "ext3",
    options: "scheme=jbd2,data=journal",
    access: Access::Blocks,
};

const fn shortcut(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Bytes,
    }
}

/// Shortcut-JFS with block logging.
pub const BLK: System = shortcut("blk", "scheme=shortcut,variant=blk");
/// Shortcut-JFS with differential logging.
pub const DIFF: System = shortcut("diff", "scheme=shortcut,variant=diff");
/// Shortcut-JFS with block logging and in-place checkpoints.
pub const BLK_S: System = shortcut("blk-s", "scheme=shortcut,variant=blk-s");
/// Shortcut-JFS as it is meant: adaptive logging with in-place checkpoints.
pub const ADP_S: System = shortcut("adp-s", "scheme=shortcut,variant=adp-s");

/// stet on a volume in memory.
pub const STET_IN_MEMORY: System = System {
    name: "stet",
    options: "scheme=stet,dax",
    access: Access::Bytes,
};

const fn flash(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Blocks,
    }
}

/// The JFTL paper's four configurations of ext3: ordered mode,
pub const ORDERED: System = flash("ordered", "scheme=jftl,data=ordered,remap=off");
/// the same with remapped metadata,
pub const ORDERED_REMAP: System = flash("ordered+remap", "scheme=jftl,data=ordered,remap=batch");
/// everything journaled,
pub const JOURNAL: System = flash("journal", "scheme=jftl,data=journal,remap=off");
/// and everything remapped.
pub const JOURNAL_REMAP: System = flash("journal+remap", "scheme=jftl,data=journal,remap=batch");
/// Remapped after each commit, as the paper does it.
pub const ORDERED_EACH: System = flash("ordered+each", "scheme=jftl,data=ordered,remap=on");
/// The same with everything journaled.
pub const JOURNAL_EACH: System = flash("journal+each", "scheme=jftl,data=journal,remap=on");

const fn beside_nvram(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Blocks,
    }
}

/// The Delta Journaling paper's ext4 in ordered mode,
pub const EXT4_ORDERED: System = beside_nvram("ext4 ordered", "scheme=jbd2,data=ordered");
/// and in journal mode.
pub const EXT4_JOURNAL: System = beside_nvram("ext4 journal", "scheme=jbd2,data=journal");
/// Delta Journaling in ordered mode,
pub const DJ_ORDERED: System = beside_nvram("DJ ordered", "scheme=dj,data=ordered");
/// and in journal mode.
pub const DJ_JOURNAL: System = beside_nvram("DJ journal", "scheme=dj,data=journal");

/// stet on a block device with nothing beside it.
pub const STET: System = beside_nvram("stet", "scheme=stet");

/// The same with its log in memory beside the device.
pub const STET_BESIDE: System = beside_nvram("stet, NVRAM", "scheme=stet,nvm=beside");

/// UBJ, a buffer cache in NVM that is the journal.
pub const UBJ: System = beside_nvram("UBJ", "scheme=ubj");
/// The same that logs the changed bytes of frozen blocks.
pub const UBJ_RANGE: System = beside_nvram("UBJ, range", "scheme=ubj,cow=range");
/// Tinca, a transactional cache in NVM,
pub const TINCA: System = beside_nvram("Tinca", "scheme=tinca");
/// and Spindle, with an eighth of the NVM for metadata as in its paper,
pub const SPINDLE: System = beside_nvram("Spindle", "scheme=spindle");
/// and with as much as metadata needs where files are large.
pub const SPINDLE_2: System = beside_nvram("Spindle, 2 %", "scheme=spindle,meta=2");

/// Where a volume lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Simulated memory; time is virtual.
    Sim(PmemTiming),
    /// A simulated NAND part behind our flash translation layer; time is virtual. Schemes that have
    /// memory beside the volume have this much.
    Nand(Flash, Nvram),
    /// A simulated disk with a write cache, with sectors of so many bytes and nothing beside it. No
    /// time passes on it.
    Plain(u32),
    /// A simulated drive of some kind; time is virtual. Schemes that have memory beside the volume
    /// have this much.
    Drive(Timing, Nvram),
    /// A file on this machine's disk, past the page cache where that can be, and a mapped file in
    /// its memory beside it.
    Disk(Nvram),
    /// A file in this machine's memory, mapped by systems that see bytes; behind a loop device,
    /// which is a block layer, for those that see blocks. Without the privilege for that the file
    /// itself, whose block layer is the kernel's page cache.
    Memory,
}

/// Phase change memory.
pub const PCM: Medium = Medium::Sim(PmemTiming::Pcm);

impl Medium {
    /// A NAND part with nothing beside it.
    pub const fn nand(flash: Flash) -> Self {
        Self::Nand(flash, Nvram::NONE)
    }

    /// A memory card.
    pub const fn card(nvram: Nvram) -> Self {
        Self::Drive(Timing::MicroSd, nvram)
    }

    /// A hard disk.
    pub const fn hard_disk(nvram: Nvram) -> Self {
        Self::Drive(Timing::Hdd, nvram)
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim(timing) => timing.name(),
            Self::Nand(flash, _) => flash.name,
            Self::Plain(512) => "disk, sectors of 512 B",
            Self::Plain(_) => "disk, sectors of 4 KiB",
            Self::Drive(Timing::MicroSd, _) => "microSD",
            Self::Drive(Timing::Hdd, _) => "hard disk",
            Self::Drive(timing, _) => timing.name(),
            Self::Disk(_) => "disk",
            Self::Memory => "memory",
        }
    }

    /// Whether the time is that of this machine.
    pub fn is_real(self) -> bool {
        matches!(self, Self::Disk(_) | Self::Memory)
    }

    /// What it is and whose time passes on it, for reports.
    pub fn about(self) -> String {
        match self {
            Self::Sim(timing) => format!(
                "virtual time; {} ns a line of 64 bytes loaded, {} ns a line written; a block \
                    layer before it costs nothing itself",
                timing.load_ns(),
                timing.flush_ns()
            ),
            Self::Nand(flash, Nvram { bytes: 0, .. }) => flash.about(),
            Self::Nand(flash, nvram) => format!(
                "{}; {} KiB of NVRAM beside it with {} ns a line of 64 bytes written",
                flash.about(),
                nvram.bytes >> 10,
                nvram.timing.flush_ns()
            ),
            Self::Plain(sector) => format!(
                "a simulated disk with a write cache and forced unit access, sectors of {sector} \
                    bytes; no time passes"
            ),
            Self::Drive(Timing::MicroSd, nvram) => nvram.about_card(),
            Self::Drive(Timing::Hdd, nvram) => nvram.about_hard_disk(),
            Self::Drive(timing, nvram) => nvram.about_drive(timing),
            Self::Disk(nvram) => nvram.about_disk(),
            Self::Memory => {
                "real time, median of three; systems that see bytes map a file in this \
                machine's memory, the others have a \
                             loop device on one, or without privilege the file"
                    .to_owned()
            }
        }
    }
}

/// Bytes written of one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CauseBytes {
    /// Why.
    pub cause: Cause,
    /// How many.
    pub bytes: u64,
}
