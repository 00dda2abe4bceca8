//! The numbers of a volume: how many blocks, groups and inodes, and what is reserved for growth.
//!
//! They depend on each other in a circle: a last group that is too small is left out, after which
//! there are fewer groups for the same inodes. So they are found in rounds, as mke2fs does.

use stetfs_format::width::{low32, nearest_f64};
use stetfs_format::{
    BlockSize, FeatureCompat, FeatureIncompat, FeatureRoCompat, Geometry, GroupNo,
};

use crate::error::MkfsError;
use crate::params::{Inodes, Params};

/// `s_first_ino`: the first inode that is not reserved.
pub(crate) const FIRST_INO: u32 = 11;
/// Inodes that a volume needs: the reserved ones, and `lost+found`.
const INODES_MIN: u32 = FIRST_INO + 1;
/// Blocks that a last group has for files; with fewer it is left out.
const LAST_GROUP_MIN: u64 = 50;
/// A volume can grow to so many times its size without moving anything.
const GROWTH: u64 = 1024;

/// The numbers of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The geometry that the superblock will have.
    pub geometry: Geometry,
    /// Features: a volume may have to do without some that were asked for.
    pub compat: FeatureCompat,
    /// Likewise.
    pub incompat: FeatureIncompat,
    /// Blocks that only root may use.
    pub reserved_blocks: u64,
}

impl Shape {
    pub(crate) fn new(params: &Params) -> Result<Self, MkfsError> {
        params.check()?;
        let mut round = Round::new(params)?;
        loop {
            let groups = round.groups()?;
            let Some(inodes_per_group) = round.inodes_per_group(groups)? else {
                // A bitmap cannot hold the inodes: smaller groups, so more of them. What was left
                // out may fit now.
                round.blocks_per_group -= 8;
                round.blocks = params.blocks;
                continue;
            };
            let shape = round.shape(params, groups, inodes_per_group);
            round.check_overhead(&shape.geometry)?;
            let dropped = round.last_group_to_drop(&shape.geometry)?;
            if dropped == 0 {
                shape.check_inodes()?;
                return Ok(shape);
            }
            round.drop_blocks(params, dropped);
        }
    }
}

impl Shape {
    /// Checks that there are the inodes that every volume has: filling up tables and bitmaps may
    /// have taken some.
    fn check_inodes(&self) -> Result<(), MkfsError> {
        let inodes = self.geometry.inodes_count;
        if inodes < INODES_MIN {
            return Err(MkfsError::TooFewInodes(inodes));
        }
        Ok(())
    }
}

/// What one round begins with.
struct Round {
    block_size: u32,
    inode_size: u32,
    first_data_block: u32,
    blocks: u64,
    blocks_per_group: u32,
    inodes: u32,
    reserved_blocks: u64,
    wants_resize: bool,
    wants_meta_bg: bool,
}

impl Round {
    fn new(params: &Params) -> Result<Self, MkfsError> {
        let most = (1 << 16) - 8;
        let blocks_per_group = params.blocks_per_group.unwrap_or(8 * params.block_size);
        let too_large = params.blocks > u64::from(u32::MAX);
        let reserved = params.reserved_percent * nearest_f64(params.blocks) / 100.0;
        Ok(Self {
            block_size: params.block_size,
            inode_size: params.inode_size.into(),
            // Blocks of 1 KiB: the boot block is block 0 and in no group.
            first_data_block: u32::from(params.block_size == 1024),
            blocks: params.blocks,
            blocks_per_group: blocks_per_group.min(most),
            inodes: wanted_inodes(params)?,
            reserved_blocks: whole(reserved),
            // The resize inode maps blocks by numbers of 32 bits.
            wants_resize: params.compat.contains(FeatureCompat::RESIZE_INODE) && !too_large,
            wants_meta_bg: params.incompat.contains(FeatureIncompat::META_BG),
        })
    }

    fn groups(&self) -> Result<u32, MkfsError> {
        let too_few = || MkfsError::TooFewBlocks(self.blocks);
        let blocks = self.blocks.checked_sub(self.first_data_block.into());
        let blocks = blocks.filter(|blocks| *blocks > 0).ok_or_else(too_few)?;
        if self.reserved_blocks >= self.blocks {
            return Err(too_few());
        }
        let groups = blocks.div_ceil(self.blocks_per_group.into());
        u32::try_from(groups).map_err(|_| MkfsError::TooManyBlocks(self.blocks))
    }

    /// Inodes of a group: enough, and as many as fill the last block of its table and the last byte
    /// of its bitmap. `None` if a bitmap cannot hold them.
    fn inodes_per_group(&self, groups: u32) -> Result<Option<u32>, MkfsError> {
        let per_block = self.block_size / self.inode_size;
        let mut wanted = self.inodes().div_ceil(groups);
        if wanted > 8 * self.block_size {
            return if self.blocks_per_group >= 256 {
                Ok(None)
            } else {
                Err(MkfsError::TooManyInodes(self.blocks))
            };
        }
        wanted = wanted.min((1 << 16) - per_block);
        loop {
            let inodes = (wanted.div_ceil(per_block) * per_block).max(8) & !7;
            if inodes.checked_mul(groups).is_some() {
                return Ok(Some(inodes));
            }
            wanted -= 1;
        }
    }

    /// Inodes that are wanted: if the ratio gives none, one for every 4 KiB.
    fn inodes(&self) -> u32 {
        let inodes = match self.inodes {
            0 => self.blocks / u64::from(4096 / self.block_size),
            inodes => inodes.into(),
        };
        low32(inodes.min(u32::MAX.into())).max(INODES_MIN)
    }

    fn shape(&self, params: &Params, groups: u32, inodes_per_group: u32) -> Shape {
        let (mut compat, mut incompat) = (params.compat, params.incompat);
        compat.set(FeatureCompat::RESIZE_INODE, self.wants_resize);
        incompat.set(FeatureIncompat::META_BG, self.wants_meta_bg);
        let mut shape = Shape {
            geometry: self.geometry(params, groups, inodes_per_group),
            compat,
            incompat,
            reserved_blocks: self.reserved_blocks,
        };
        let geometry = &mut shape.geometry;
        if self.wants_resize {
            geometry.reserved_gdt_blocks = self.reserved_gdt_blocks(geometry);
        }
        let table = u32::from(geometry.reserved_gdt_blocks) + geometry.desc_blocks();
        if table > self.blocks_per_group * 3 / 4 {
            // The descriptors leave no room for anything else: they go to the groups they describe.
            shape.incompat |= FeatureIncompat::META_BG;
            shape.compat -= FeatureCompat::RESIZE_INODE;
            geometry.meta_bg = true;
            geometry.reserved_gdt_blocks = 0;
        }
        shape
    }

    fn geometry(&self, params: &Params, groups: u32, inodes_per_group: u32) -> Geometry {
        let (incompat, ro_compat) = (params.incompat, params.ro_compat);
        let is_64bit = incompat.contains(FeatureIncompat::IS_64BIT);
        let metadata_csum = ro_compat.contains(FeatureRoCompat::METADATA_CSUM);
        Geometry {
            block: BlockSize::of_bits(self.block_size.trailing_zeros()),
            cluster_bits: 0,
            blocks_count: self.blocks,
            inodes_count: groups * inodes_per_group,
            first_data_block: self.first_data_block,
            blocks_per_group: self.blocks_per_group,
            inodes_per_group,
            inode_size: params.inode_size,
            first_ino: FIRST_INO,
            desc_size: if is_64bit { 64 } else { 32 },
            groups_count: groups,
            groups_per_flex: 1 << params.flex_bits(),
            first_meta_bg: 0,
            reserved_gdt_blocks: 0,
            backup_bgs: [0; 2],
            csum_seed: stetfs_format::checksum::crc32c(!0, &params.uuid),
            uuid: params.uuid,
            want_extra_isize: if params.inode_size > 128 { 32 } else { 0 },
            metadata_csum,
            gdt_csum: ro_compat.contains(FeatureRoCompat::GDT_CSUM),
            is_64bit,
            meta_bg: self.wants_meta_bg,
            flex_bg: incompat.contains(FeatureIncompat::FLEX_BG),
            sparse_super: ro_compat.contains(FeatureRoCompat::SPARSE_SUPER),
            sparse_super2: false,
            extents: incompat.contains(FeatureIncompat::EXTENTS),
            huge_file: ro_compat.contains(FeatureRoCompat::HUGE_FILE),
            filetype: incompat.contains(FeatureIncompat::FILETYPE),
            dir_index: params.compat.contains(FeatureCompat::DIR_INDEX),
            dir_nlink: ro_compat.contains(FeatureRoCompat::DIR_NLINK),
            largedir: incompat.contains(FeatureIncompat::LARGEDIR),
            ea_inode: incompat.contains(FeatureIncompat::EA_INODE),
        }
    }

    /// Blocks behind the descriptors for those of a larger volume, at most as many as one block of
    /// pointers can name.
    fn reserved_gdt_blocks(&self, geometry: &Geometry) -> u16 {
        let most = u64::from(u32::MAX);
        let blocks = if self.blocks < most / GROWTH {
            self.blocks * GROWTH
        } else {
            most
        };
        let groups =
            (blocks - u64::from(self.first_data_block)).div_ceil(self.blocks_per_group.into());
        let table = groups.div_ceil(geometry.desc_per_block().into());
        let reserved = table.saturating_sub(geometry.desc_blocks().into());
        stetfs_format::width::must_fit(reserved.min(u64::from(self.block_size / 4)))
    }

    /// Checks that a whole group has room for its own metadata.
    fn check_overhead(&self, geometry: &Geometry) -> Result<(), MkfsError> {
        let table = if geometry.meta_bg {
            1
        } else {
            geometry.desc_blocks()
        };
        let overhead =
            3 + geometry.inode_table_blocks() + u32::from(geometry.reserved_gdt_blocks) + table;
        if overhead > self.blocks_per_group {
            return Err(MkfsError::TooManyInodes(self.blocks));
        }
        Ok(())
    }

    /// Returns the blocks of the last group if it is too small, else 0.
    fn last_group_to_drop(&self, geometry: &Geometry) -> Result<u64, MkfsError> {
        let mut overhead = 2 + geometry.inode_table_blocks();
        if geometry.has_super(GroupNo(geometry.groups_count - 1)) {
            overhead += 1 + geometry.desc_blocks() + u32::from(geometry.reserved_gdt_blocks);
        }
        let overhead = u64::from(overhead);
        let rest =
            (self.blocks - u64::from(self.first_data_block)) % u64::from(self.blocks_per_group);
        if geometry.groups_count == 1 && rest > 0 && rest < overhead {
            return Err(MkfsError::TooFewBlocks(self.blocks));
        }
        Ok(if rest < overhead + LAST_GROUP_MIN {
            rest
        } else {
            0
        })
    }

    /// Makes the volume smaller; the reserved blocks keep their share of it.
    fn drop_blocks(&mut self, params: &Params, dropped: u64) {
        self.blocks -= dropped;
        let asked = whole(params.reserved_percent * nearest_f64(params.blocks) / 100.0);
        let percent = 100.0 * nearest_f64(asked) / nearest_f64(params.blocks);
        self.reserved_blocks = whole(percent * nearest_f64(self.blocks) / 100.0);
    }
}

/// Inodes that the arguments ask for; 0 if the ratio gives none.
fn wanted_inodes(params: &Params) -> Result<u32, MkfsError> {
    let too_many = || MkfsError::TooManyInodes(params.blocks);
    let bytes = u128::from(params.blocks) * u128::from(params.block_size);
    let inodes = match params.inodes {
        Inodes::Count(count) => count,
        Inodes::Ratio(ratio) => match u32::try_from(bytes / u128::from(ratio)) {
            Ok(inodes) => inodes,
            Err(_) if params.incompat.contains(FeatureIncompat::IS_64BIT) => u32::MAX,
            Err(_) => return Err(too_many()),
        },
    };
    if u128::from(inodes) * u128::from(params.inode_size) >= bytes {
        return Err(too_many());
    }
    Ok(inodes)
}

/// The whole part of a number that is neither negative nor beyond 64 bits.
#[expect(
    clippy::as_conversions,
    reason = "cuts off the fraction, as mke2fs does"
)]
fn whole(n: f64) -> u64 {
    n as u64
}
