//! What can be wrong with the arguments or the device: one variant for each check.

use stetfs_format::Corrupt;
use stetfs_media::MediaError;

/// Why a volume was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MkfsError {
    /// The block size is not 1, 2 or 4 KiB.
    #[error("a block size of {0} bytes is not supported: it is 1024, 2048 or 4096")]
    BlockSize(u32),
    /// The inode size is below 128, above the block size, or no power of two.
    #[error(
        "an inode size of {0} bytes is not supported: it is a power of two from 128 to a block"
    )]
    InodeSize(u16),
    /// The blocks of a group are not a multiple of 8 from 256 to what a bitmap holds.
    #[error(
        "{0} blocks cannot be a group: it is a multiple of 8 from 256 to 8 times the block size"
    )]
    BlocksPerGroup(u32),
    /// The groups of a flexible group are no power of two.
    #[error("{0} groups cannot be a flexible group: it is a power of two")]
    FlexGroups(u32),
    /// A feature that this crate cannot make.
    #[error("the features {0} cannot be made here")]
    Features(String),
    /// Features that exclude or need each other.
    #[error("{0}")]
    FeaturePair(&'static str),
    /// More blocks than the volume's block numbers can name.
    #[error("{0} blocks are too many: without 64bit they are at most 4294967295")]
    TooManyBlocks(u64),
    /// The volume has no room for its own metadata.
    #[error("{0} blocks are too few for a volume")]
    TooFewBlocks(u64),
    /// The reserved inodes and `lost+found` would not fit.
    #[error("{0} inodes are too few for a volume: it needs 12")]
    TooFewInodes(u32),
    /// The inodes would not fit.
    #[error("too many inodes for {0} blocks")]
    TooManyInodes(u64),
    /// Bytes for each inode must not be zero.
    #[error("an inode for every 0 bytes is impossible")]
    InodeRatio,
    /// Reserved blocks are a percentage from 0 to 50.
    #[error("{0} % of the blocks cannot be reserved: it is from 0 to 50")]
    Reserved(f64),
    /// The journal is not within its bounds.
    #[error("a journal of {0} blocks is impossible: it has from 1024 to 10240000")]
    JournalBlocks(u64),
    /// The journal takes more than half of the free blocks.
    #[error("a journal of {journal} blocks is too large: {free} blocks would be free")]
    JournalTooLarge {
        /// Blocks that were asked for.
        journal: u32,
        /// Free blocks before there is a journal.
        free: u64,
    },
    /// The blocks for a file cannot be found.
    #[error("no blocks are left for the {0}")]
    NoSpace(&'static str),
    /// A file would lie in more pieces than are handled here.
    #[error("the {0} would lie in too many pieces")]
    TooManyPieces(&'static str),
    /// A time that no superblock can hold.
    #[error("{0} s since 1970 is a time that a volume cannot hold")]
    Time(u64),
    /// The device is smaller than the volume.
    #[error("the volume needs {needed} bytes, the device has {device}")]
    DeviceTooSmall {
        /// Bytes of the volume.
        needed: u64,
        /// Bytes of the device.
        device: u64,
    },
    /// The device cannot write a single block.
    #[error("blocks of {block} bytes cannot be written on a device with sectors of {sector}")]
    SectorSize {
        /// Bytes of a block.
        block: usize,
        /// Bytes of a sector.
        sector: u32,
    },
    /// The numbers do not agree with each other: a mistake of this crate.
    #[error("the planned superblock is not valid: {0}")]
    Planned(#[from] Corrupt),
    /// The device failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}
