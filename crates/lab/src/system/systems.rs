//! Schemes with their options, and the media that they are put on.

use serde::Serialize;
use stetfs_media::Cause;
use stetfs_media::sim::{PmemTiming, Timing};

use super::card::Nvram;
use super::flash::Flash;

/// How a system accesses its medium.
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
    /// How it accesses its medium.
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

const fn beside_nvram(name: &'static str, options: &'static str) -> System {
    System {
        name,
        options,
        access: Access::Blocks,
    }
}

/// The Delta Journaling paper's ext4 in ordered mode.
pub const EXT4_ORDERED: System = beside_nvram("ext4 ordered", "scheme=jbd2,data=ordered");
/// Delta Journaling in ordered mode.
pub const DJ_ORDERED: System = beside_nvram("DJ ordered", "scheme=dj,data=ordered");
/// Delta Journaling in journal mode.
pub const DJ_JOURNAL: System = beside_nvram("DJ journal", "scheme=dj,data=journal");

/// Where a volume lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Simulated memory; time is virtual.
    Sim(PmemTiming),
    /// A simulated NAND part behind our flash translation layer; time is virtual. Schemes that use
    /// memory beside the volume get this much.
    Nand(Flash, Nvram),
    /// A simulated drive of some kind; time is virtual. Schemes that use memory beside the volume
    /// get this much.
    Drive(Timing, Nvram),
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

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim(timing) => timing.name(),
            Self::Nand(flash, _) => flash.name,
            Self::Drive(Timing::MicroSd, _) => "microSD",
            Self::Drive(Timing::Hdd, _) => "hard disk",
            Self::Drive(timing, _) => timing.name(),
        }
    }

    /// Describes it, and whose time passes on it, for reports.
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
            Self::Drive(Timing::MicroSd, nvram) => nvram.about_card(),
            Self::Drive(Timing::Hdd, nvram) => nvram.about_hard_disk(),
            Self::Drive(timing, nvram) => nvram.about_drive(timing),
        }
    }
}

/// Bytes written of one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CauseBytes {
    /// The cause.
    pub cause: Cause,
    /// The bytes.
    pub bytes: u64,
}
