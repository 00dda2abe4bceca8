//! Decoding a superblock: from its numbers to a [`Geometry`], when they agree.
//!
//! The checks are those of the kernel's `ext4_fill_super` and `ext4_check_geometry`, or e2fsck's
//! where they are stricter.

use crate::block_size::BlockSize;
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::features::{FeatureCompat, FeatureIncompat, FeatureRoCompat};
use crate::geometry::{Geometry, SUPERBLOCK_SIZE};
use crate::superblock::{Superblock, feature_incompat, has_upper_halves};

const GOOD_OLD_INODE_SIZE: u16 = 128;
const GOOD_OLD_FIRST_INO: u32 = 11;
const MIN_DESC_SIZE: u16 = 32;
const MIN_DESC_SIZE_64BIT: u16 = 64;
const MAX_DESC_SIZE: u16 = 1024;
const MAX_LOG_BLOCK_SIZE: u32 = 2;
/// `sizeof(struct ext4_inode) - 128` of today's kernel.
const EXTRA_ISIZE: u16 = 32;

impl Superblock {
    /// Decodes the first 1,024 bytes of `raw`.
    ///
    /// A superblock is valid if and only if: 1. it has the magic, is a file
    /// system's and of revision 0 or 1; 2. with `metadata_csum`, its checksum
    /// fits; 3. its numbers agree as [`Geometry`] needs them.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Super`, for the first check that failed.
    pub fn decode(raw: &[u8]) -> Result<Self, Corrupt> {
        let raw = raw.get(..SUPERBLOCK_SIZE).ok_or(Corrupt::TooShort {
            record: "superblock",
            needed: SUPERBLOCK_SIZE,
            found: raw.len(),
        })?;
        Self::check_magic(raw)?;
        let mut superblock = Self::read_fields(raw, has_upper_halves(feature_incompat(raw)));
        superblock.check_identity(raw)?;
        superblock.geometry = check(&superblock)?;
        Ok(superblock)
    }
}

/// Checks sizes, then the groups, then the counts.
fn check(sb: &Superblock) -> Result<Geometry, Corrupt> {
    let mut geometry = Geometry::EMPTY;
    features(sb, &mut geometry);
    sizes(sb, &mut geometry)?;
    groups(sb, &mut geometry)?;
    counts(sb, &geometry)?;
    geometry.want_extra_isize = want_extra_isize(sb, geometry.inode_size);
    Ok(geometry)
}

fn features(sb: &Superblock, geometry: &mut Geometry) {
    let (incompat, ro_compat) = (sb.feature_incompat, sb.feature_ro_compat);
    geometry.metadata_csum = ro_compat.contains(FeatureRoCompat::METADATA_CSUM);
    geometry.gdt_csum = ro_compat.contains(FeatureRoCompat::GDT_CSUM) && !geometry.metadata_csum;
    geometry.huge_file = ro_compat.contains(FeatureRoCompat::HUGE_FILE);
    geometry.dir_nlink = ro_compat.contains(FeatureRoCompat::DIR_NLINK);
    geometry.sparse_super = ro_compat.contains(FeatureRoCompat::SPARSE_SUPER);
    geometry.sparse_super2 = sb.feature_compat.contains(FeatureCompat::SPARSE_SUPER2);
    geometry.dir_index = sb.feature_compat.contains(FeatureCompat::DIR_INDEX);
    geometry.is_64bit = incompat.contains(FeatureIncompat::IS_64BIT);
    geometry.meta_bg = incompat.contains(FeatureIncompat::META_BG);
    geometry.flex_bg = incompat.contains(FeatureIncompat::FLEX_BG);
    geometry.extents = incompat.contains(FeatureIncompat::EXTENTS);
    geometry.filetype = incompat.contains(FeatureIncompat::FILETYPE);
    geometry.largedir = incompat.contains(FeatureIncompat::LARGEDIR);
    geometry.ea_inode = incompat.contains(FeatureIncompat::EA_INODE);
    geometry.uuid = sb.uuid;
    geometry.csum_seed = if incompat.contains(FeatureIncompat::CSUM_SEED) {
        sb.checksum_seed
    } else {
        crc32c(!0, &sb.uuid)
    };
    geometry.groups_per_flex = if geometry.flex_bg && (1..32).contains(&sb.log_groups_per_flex) {
        1 << sb.log_groups_per_flex
    } else {
        1
    };
}

fn sizes(sb: &Superblock, geometry: &mut Geometry) -> Result<(), Corrupt> {
    if sb.log_block_size > MAX_LOG_BLOCK_SIZE {
        return Err(Corrupt::SuperBlockSize(sb.log_block_size));
    }
    geometry.block = BlockSize::of_bits(10 + sb.log_block_size);

    let bigalloc = sb.feature_ro_compat.contains(FeatureRoCompat::BIGALLOC);
    let cluster_fits = if bigalloc {
        // The kernel's EXT4_MAX_CLUSTER_LOG_SIZE is 30.
        (sb.log_block_size..=20).contains(&sb.log_cluster_size)
    } else {
        sb.log_cluster_size == sb.log_block_size
    };
    if !cluster_fits {
        return Err(Corrupt::SuperClusterSize {
            cluster: sb.log_cluster_size,
            block: sb.log_block_size,
        });
    }
    geometry.cluster_bits = sb.log_cluster_size - sb.log_block_size;

    let block_size = geometry.block_size();
    let dynamic = sb.rev_level >= 1;
    geometry.inode_size = if dynamic {
        sb.inode_size
    } else {
        GOOD_OLD_INODE_SIZE
    };
    if geometry.inode_size < GOOD_OLD_INODE_SIZE
        || !geometry.inode_size.is_power_of_two()
        || usize::from(geometry.inode_size) > block_size
    {
        return Err(Corrupt::SuperInodeSize(geometry.inode_size));
    }
    geometry.first_ino = if dynamic {
        sb.first_ino
    } else {
        GOOD_OLD_FIRST_INO
    };
    if geometry.first_ino < GOOD_OLD_FIRST_INO {
        return Err(Corrupt::SuperFirstInode(geometry.first_ino));
    }
    geometry.desc_size = MIN_DESC_SIZE;
    if geometry.is_64bit {
        geometry.desc_size = sb.desc_size;
        if !(MIN_DESC_SIZE_64BIT..=MAX_DESC_SIZE).contains(&sb.desc_size)
            || !sb.desc_size.is_power_of_two()
        {
            return Err(Corrupt::SuperDescSize(sb.desc_size));
        }
    }
    Ok(())
}

fn groups(sb: &Superblock, geometry: &mut Geometry) -> Result<(), Corrupt> {
    let bits_per_block = 8 * geometry.block.bytes_u32();
    // Counted in clusters, a group's bitmap fills at most one block.
    let cluster_fits = sb
        .clusters_per_group
        .checked_shl(geometry.cluster_bits)
        .is_some_and(|blocks| {
            blocks >> geometry.cluster_bits == sb.clusters_per_group
                && blocks == sb.blocks_per_group
        });
    if geometry.cluster_bits == 0 && sb.blocks_per_group > bits_per_block
        || sb.blocks_per_group < 8
        || !sb.blocks_per_group.is_multiple_of(8)
    {
        return Err(Corrupt::SuperBlocksPerGroup(sb.blocks_per_group));
    }
    if !cluster_fits
        || sb.clusters_per_group > bits_per_block
        || !sb.clusters_per_group.is_multiple_of(8)
    {
        return Err(Corrupt::SuperClustersPerGroup {
            clusters: sb.clusters_per_group,
            blocks: sb.blocks_per_group,
        });
    }
    geometry.blocks_per_group = sb.blocks_per_group;

    if sb.inodes_per_group == 0
        || sb.inodes_per_group > bits_per_block
        || !sb
            .inodes_per_group
            .is_multiple_of(geometry.inodes_per_block())
        || !sb.inodes_per_group.is_multiple_of(8)
    {
        return Err(Corrupt::SuperInodesPerGroup(sb.inodes_per_group));
    }
    geometry.inodes_per_group = sb.inodes_per_group;

    // The boot block takes the whole block 0 only when blocks are of 1 KiB.
    let expected = u32::from(sb.log_cluster_size == 0);
    if sb.first_data_block != expected {
        return Err(Corrupt::SuperFirstDataBlock(sb.first_data_block));
    }
    geometry.first_data_block = sb.first_data_block;
    geometry.inodes_count = sb.inodes_count;
    geometry.reserved_gdt_blocks = sb.reserved_gdt_blocks;
    geometry.backup_bgs = sb.backup_bgs;
    geometry.first_meta_bg = sb.first_meta_bg;
    geometry.blocks_count = sb.blocks_count;
    geometry.groups_count = sb
        .blocks_count
        .checked_sub(u64::from(sb.first_data_block))
        .filter(|blocks| *blocks > 0)
        .map(|blocks| blocks.div_ceil(u64::from(sb.blocks_per_group)))
        .and_then(|groups| u32::try_from(groups).ok())
        .filter(|groups| *groups <= u32::MAX - geometry.desc_per_block())
        .ok_or(Corrupt::SuperBlocksCount(sb.blocks_count))?;
    Ok(())
}

fn counts(sb: &Superblock, geometry: &Geometry) -> Result<(), Corrupt> {
    let computed = u64::from(geometry.groups_count) * u64::from(geometry.inodes_per_group);
    if u64::from(sb.inodes_count) != computed {
        return Err(Corrupt::SuperInodesCount {
            stored: sb.inodes_count,
            computed,
        });
    }
    if geometry.first_ino > sb.inodes_count {
        return Err(Corrupt::SuperFirstInode(geometry.first_ino));
    }
    if sb.r_blocks_count > sb.blocks_count {
        return Err(Corrupt::SuperReservedBlocks {
            reserved: sb.r_blocks_count,
            blocks: sb.blocks_count,
        });
    }
    if usize::from(sb.reserved_gdt_blocks) > geometry.block_size() / 4 {
        return Err(Corrupt::SuperReservedGdt(sb.reserved_gdt_blocks));
    }
    if geometry.meta_bg && sb.first_meta_bg > geometry.desc_blocks() {
        return Err(Corrupt::SuperFirstMetaBg {
            first: sb.first_meta_bg,
            blocks: geometry.desc_blocks(),
        });
    }
    let last = crate::num::GroupNo(geometry.groups_count - 1);
    if geometry.base_meta_blocks(last) >= geometry.group_blocks(last) {
        return Err(Corrupt::SuperLastGroup(geometry.group_blocks(last)));
    }
    Ok(())
}

/// As the kernel chooses `s_want_extra_isize`: today's inode, or more when the
/// superblock asks for it and the inode has room.
fn want_extra_isize(sb: &Superblock, inode_size: u16) -> u16 {
    let room = inode_size - GOOD_OLD_INODE_SIZE;
    if room < EXTRA_ISIZE {
        return 0;
    }
    let mut want = EXTRA_ISIZE;
    if sb.feature_ro_compat.contains(FeatureRoCompat::EXTRA_ISIZE) {
        want = want.max(sb.want_extra_isize).max(sb.min_extra_isize);
    }
    if want > room || !want.is_multiple_of(4) {
        EXTRA_ISIZE
    } else {
        want
    }
}
