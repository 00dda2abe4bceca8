//! What a volume is to be like, and the defaults of `mke2fs.conf`.

use stetfs_format::width::must_fit;
use stetfs_format::{Feature, FeatureCompat, FeatureIncompat, FeatureRoCompat};

use crate::error::MkfsError;

/// Blocks of the smallest volume that gets a journal.
const JOURNALED_BLOCKS_MIN: u64 = 2048;

/// How many inodes a volume gets; the last block of each inode table is then filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inodes {
    /// One for every so many bytes of the volume (`mke2fs -i`).
    Ratio(u32),
    /// At least so many (`mke2fs -N`).
    Count(u32),
}

impl Inodes {
    /// How many a volume of so many blocks gets from mke2fs.
    pub fn usual(block_size: u32, blocks: u64) -> Self {
        Self::Ratio(default_inode_ratio(block_size, blocks))
    }
}

/// Blocks of the journal, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalSize {
    /// What mke2fs takes for a volume of this size.
    Default,
    /// So many.
    Blocks(u32),
}

/// What is known of the device's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It reads as zeros: nothing is cleared, and the inode tables count as cleared.
    Zero,
    /// It may be anything, and the kernel clears the inode tables after the first mount
    /// (`mke2fs -E lazy_itable_init=1`). Without checksums of groups nothing can say so, and they
    /// are cleared here.
    Lazy,
    /// It may be anything, and the inode tables are cleared here (`lazy_itable_init=0`).
    Unknown,
}

/// What a volume is to be like. [`Params::ext4`] and [`Params::ext3`] have the defaults of mke2fs.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Bytes of a block: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Blocks that the volume may have. A last group that is too small for its own metadata is
    /// left out.
    pub blocks: u64,
    /// Blocks of a group; `None`: as many as a bitmap holds.
    pub blocks_per_group: Option<u32>,
    /// Bytes of an inode: a power of two from 128 to the block size.
    pub inode_size: u16,
    /// Inodes.
    pub inodes: Inodes,
    /// Percentage of the blocks that only root may use, from 0 to 50.
    pub reserved_percent: f64,
    /// Compatible features.
    pub compat: FeatureCompat,
    /// Incompatible features.
    pub incompat: FeatureIncompat,
    /// Read-only-compatible features.
    pub ro_compat: FeatureRoCompat,
    /// Groups whose bitmaps and inode tables lie together, with `flex_bg`; a power of two.
    pub flex_groups: u32,
    /// Journal, with `has_journal`. A volume of fewer than 2048 blocks gets none.
    pub journal: JournalSize,
    /// Label; zeros behind it.
    pub label: [u8; 16],
    /// UUID.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// When it is made, in seconds since 1970.
    pub time: u64,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Default mount options as text; zeros behind it (`tune2fs -E mount_opts`).
    pub mount_opts: [u8; 64],
    /// RAID stride and stripe width in blocks; 0 for none.
    pub raid: (u16, u32),
    /// What is known of the device's content.
    pub content: Content,
}

impl Params {
    /// The ext4 volume that `mke2fs -t ext4 -b BLOCK_SIZE` makes of so many blocks.
    pub fn ext4(block_size: u32, blocks: u64) -> Self {
        let mut params = Self::ext3(block_size, blocks);
        params.incompat |=
            FeatureIncompat::EXTENTS | FeatureIncompat::FLEX_BG | FeatureIncompat::IS_64BIT;
        params.ro_compat |= FeatureRoCompat::HUGE_FILE
            | FeatureRoCompat::METADATA_CSUM
            | FeatureRoCompat::DIR_NLINK
            | FeatureRoCompat::EXTRA_ISIZE;
        params
    }

    /// The ext3 volume that `mke2fs -t ext3 -b BLOCK_SIZE` makes of so many blocks.
    pub fn ext3(block_size: u32, blocks: u64) -> Self {
        Self {
            block_size,
            blocks,
            blocks_per_group: None,
            inode_size: 256,
            inodes: Inodes::usual(block_size, blocks),
            reserved_percent: 5.0,
            compat: FeatureCompat::HAS_JOURNAL
                | FeatureCompat::EXT_ATTR
                | FeatureCompat::RESIZE_INODE
                | FeatureCompat::DIR_INDEX,
            incompat: FeatureIncompat::FILETYPE,
            ro_compat: FeatureRoCompat::SPARSE_SUPER | FeatureRoCompat::LARGE_FILE,
            flex_groups: 16,
            journal: JournalSize::Default,
            label: [0; 16],
            uuid: [0; 16],
            hash_seed: [0; 16],
            time: 0,
            root_owner: (0, 0),
            mount_opts: [0; 64],
            raid: (0, 0),
            content: Content::Zero,
        }
    }

    /// Whether descriptors have checksums, so that they can say what is not initialised.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.ro_compat
            .intersects(FeatureRoCompat::METADATA_CSUM | FeatureRoCompat::GDT_CSUM)
    }

    /// Whether the volume can have a journal and is to have one.
    pub(crate) fn wants_journal(&self, blocks: u64) -> bool {
        self.compat.contains(FeatureCompat::HAS_JOURNAL) && blocks >= JOURNALED_BLOCKS_MIN
    }

    /// log2 of the groups of a flexible group; 0 without `flex_bg`.
    pub(crate) fn flex_bits(&self) -> u32 {
        if self.incompat.contains(FeatureIncompat::FLEX_BG) {
            self.flex_groups.trailing_zeros()
        } else {
            0
        }
    }

    /// Checks each argument, and the features against each other.
    pub(crate) fn check(&self) -> Result<(), MkfsError> {
        if ![1024, 2048, 4096].contains(&self.block_size) {
            return Err(MkfsError::BlockSize(self.block_size));
        }
        let inode = u32::from(self.inode_size);
        if !inode.is_power_of_two() || !(128..=self.block_size).contains(&inode) {
            return Err(MkfsError::InodeSize(self.inode_size));
        }
        if let Some(blocks) = self.blocks_per_group
            && (!(256..=8 * self.block_size).contains(&blocks) || !blocks.is_multiple_of(8))
        {
            return Err(MkfsError::BlocksPerGroup(blocks));
        }
        if !self.flex_groups.is_power_of_two() {
            return Err(MkfsError::FlexGroups(self.flex_groups));
        }
        if self.inodes == Inodes::Ratio(0) {
            return Err(MkfsError::InodeRatio);
        }
        if !(0.0..=50.0).contains(&self.reserved_percent) {
            return Err(MkfsError::Reserved(self.reserved_percent));
        }
        // The superblock has 40 bits for a time, and an inode reaches the year 2446.
        if self.time > must_fit(stetfs_format::Time::MAX_SEC) {
            return Err(MkfsError::Time(self.time));
        }
        if self.blocks <= 1 {
            return Err(MkfsError::TooFewBlocks(self.blocks));
        }
        if self.blocks > u64::from(u32::MAX) && !self.incompat.contains(FeatureIncompat::IS_64BIT) {
            return Err(MkfsError::TooManyBlocks(self.blocks));
        }
        self.check_features()
    }

    fn check_features(&self) -> Result<(), MkfsError> {
        let compat = FeatureCompat::HAS_JOURNAL
            | FeatureCompat::EXT_ATTR
            | FeatureCompat::RESIZE_INODE
            | FeatureCompat::DIR_INDEX;
        let incompat = FeatureIncompat::FILETYPE
            | FeatureIncompat::META_BG
            | FeatureIncompat::EXTENTS
            | FeatureIncompat::IS_64BIT
            | FeatureIncompat::FLEX_BG
            | FeatureIncompat::CSUM_SEED
            | FeatureIncompat::LARGEDIR;
        let ro_compat = FeatureRoCompat::SPARSE_SUPER
            | FeatureRoCompat::LARGE_FILE
            | FeatureRoCompat::HUGE_FILE
            | FeatureRoCompat::GDT_CSUM
            | FeatureRoCompat::DIR_NLINK
            | FeatureRoCompat::EXTRA_ISIZE
            | FeatureRoCompat::METADATA_CSUM;
        let others: Vec<Feature> = stetfs_format::features::all(
            self.compat - compat,
            self.incompat - incompat,
            self.ro_compat - ro_compat,
        )
        .collect();
        if !others.is_empty() {
            return Err(MkfsError::Features(stetfs_format::features::names(&others)));
        }
        let has_resize = self.compat.contains(FeatureCompat::RESIZE_INODE);
        let pairs = [
            (
                self.incompat.contains(FeatureIncompat::IS_64BIT)
                    && !self.incompat.contains(FeatureIncompat::EXTENTS),
                "64bit needs extent",
            ),
            (
                has_resize && self.incompat.contains(FeatureIncompat::META_BG),
                "resize_inode and meta_bg exclude each other",
            ),
            (
                has_resize && !self.ro_compat.contains(FeatureRoCompat::SPARSE_SUPER),
                "resize_inode needs sparse_super",
            ),
            (
                self.ro_compat
                    .contains(FeatureRoCompat::METADATA_CSUM | FeatureRoCompat::GDT_CSUM),
                "metadata_csum and uninit_bg exclude each other",
            ),
            (
                self.incompat.contains(FeatureIncompat::CSUM_SEED)
                    && !self.ro_compat.contains(FeatureRoCompat::METADATA_CSUM),
                "metadata_csum_seed needs metadata_csum",
            ),
        ];
        match pairs.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, what)) => Err(MkfsError::FeaturePair(what)),
            None => Ok(()),
        }
    }
}

/// Bytes of the volume for each inode, in `mke2fs.conf` by the volume's size: its types `floppy`
/// (below 3 MiB), `small` (512 MiB), default, `big` (from 4 TiB on) and `huge` (16 TiB).
fn default_inode_ratio(block_size: u32, blocks: u64) -> u32 {
    let bytes = blocks.saturating_mul(block_size.into());
    let ratio = if bytes < 3 << 20 {
        8192
    } else if bytes < 512 << 20 {
        4096
    } else if bytes < 4 << 40 {
        16384
    } else if bytes < 16 << 40 {
        32768
    } else {
        65536
    };
    ratio.max(block_size)
}

/// Blocks of the journal that mke2fs makes on a volume of so many blocks.
pub(crate) fn default_journal_blocks(blocks: u64) -> u32 {
    const STEPS: [(u64, u32); 7] = [
        (32 << 10, 1 << 10),
        (256 << 10, 4 << 10),
        (512 << 10, 8 << 10),
        (4 << 20, 16 << 10),
        (8 << 20, 32 << 10),
        (16 << 20, 64 << 10),
        (32 << 20, 128 << 10),
    ];
    STEPS
        .into_iter()
        .find(|(below, _)| blocks < *below)
        .map_or(256 << 10, |(_, journal)| journal)
}
