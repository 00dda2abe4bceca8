//! The superblock's bytes, field by field.

use stetfs_format::superblock::{SUPER_MAGIC, SUPERBLOCK_LAYOUT, State, SuperFlags, reseal};
use stetfs_format::width::{high32, low32, must_fit};
use stetfs_format::{FeatureCompat, FeatureIncompat, FeatureRoCompat, SUPERBLOCK_SIZE, Superblock};

use crate::error::MkfsError;
use crate::fields::Fields;
use crate::files::{self, Files};
use crate::groups::Groups;
use crate::params::Params;
use crate::shape::{FIRST_INO, Shape};

/// `s_errors`: go on.
const ERRORS_CONTINUE: u64 = 1;
/// `s_max_mnt_count`: never check because of it.
const NEVER: u64 = 0xffff;
/// `s_default_mount_opts`: `acl,user_xattr`, from `mke2fs.conf`.
const DEFAULT_MOUNT_OPTS: u64 = 0xc;
/// `s_def_hash_version`: half MD4.
const HALF_MD4: u64 = 1;
/// `s_jnl_backup_type`: `s_jnl_blocks` is a copy of the journal's map.
const JNL_BACKUP_BLOCKS: u64 = 1;
/// `s_checksum_type`: CRC-32C.
const CRC32C: u64 = 1;
/// `s_kbytes_written` of what knows that field.
const KBYTES_WRITTEN: u64 = 1;

/// What a superblock is made of.
pub(crate) struct Parts<'a> {
    pub params: &'a Params,
    pub shape: &'a Shape,
    pub groups: &'a Groups,
    pub files: &'a Files,
    /// Blocks that can never hold a file.
    pub overhead: u64,
}

impl Parts<'_> {
    /// The superblock of group 0.
    pub(crate) fn encode(&self) -> Result<[u8; SUPERBLOCK_SIZE], MkfsError> {
        let mut raw = [0; SUPERBLOCK_SIZE];
        let fields = Fields::of(&SUPERBLOCK_LAYOUT, &mut raw);
        let fields = self.identity(self.numbers(fields));
        self.journal(fields);
        if self.shape.geometry.metadata_csum {
            reseal(&mut raw);
        }
        let decoded = Superblock::decode(&raw)?;
        debug_assert_eq!(decoded.geometry(), &self.shape.geometry);
        Ok(raw)
    }

    fn numbers<'f>(&self, fields: Fields<'f>) -> Fields<'f> {
        let geometry = &self.shape.geometry;
        let log_block_size = u64::from(geometry.block.bits() - 10);
        let extra_isize = u64::from(geometry.want_extra_isize);
        let desc_size = if geometry.is_64bit {
            geometry.desc_size
        } else {
            0
        };
        fields
            .little("s_inodes_count", geometry.inodes_count.into())
            .halves(
                "s_blocks_count_lo",
                "s_blocks_count_hi",
                geometry.blocks_count,
            )
            .halves(
                "s_r_blocks_count_lo",
                "s_r_blocks_count_hi",
                self.shape.reserved_blocks,
            )
            .halves(
                "s_free_blocks_count_lo",
                "s_free_blocks_count_hi",
                self.groups.free_blocks,
            )
            .little("s_free_inodes_count", self.groups.free_inodes.into())
            .little("s_first_data_block", geometry.first_data_block.into())
            .little("s_log_block_size", log_block_size)
            .little("s_log_cluster_size", log_block_size)
            .little("s_blocks_per_group", geometry.blocks_per_group.into())
            .little("s_clusters_per_group", geometry.blocks_per_group.into())
            .little("s_inodes_per_group", geometry.inodes_per_group.into())
            .little("s_first_ino", FIRST_INO.into())
            .little("s_inode_size", geometry.inode_size.into())
            .little("s_reserved_gdt_blocks", geometry.reserved_gdt_blocks.into())
            .little("s_desc_size", desc_size.into())
            .little("s_min_extra_isize", extra_isize)
            .little("s_want_extra_isize", extra_isize)
            .little("s_raid_stride", self.params.raid.0.into())
            .little("s_raid_stripe_width", self.params.raid.1.into())
            .little("s_log_groups_per_flex", self.params.flex_bits().into())
            .little("s_overhead_clusters", low32(self.overhead).into())
    }

    fn identity<'f>(&self, fields: Fields<'f>) -> Fields<'f> {
        let (params, shape) = (self.params, self.shape);
        let (incompat, time) = (shape.incompat, params.time);
        let mut compat = shape.compat;
        compat.set(FeatureCompat::HAS_JOURNAL, self.files.journal_blocks > 0);
        let mut ro_compat = params.ro_compat;
        if self.files.has_large_file() {
            ro_compat |= FeatureRoCompat::LARGE_FILE;
        }
        let mut fields = fields
            .little("s_magic", SUPER_MAGIC.into())
            .little("s_rev_level", 1)
            .little("s_state", State::VALID.bits().into())
            .little("s_errors", ERRORS_CONTINUE)
            .little("s_max_mnt_count", NEVER)
            .little("s_wtime", low32(time).into())
            .little("s_wtime_hi", high32(time).into())
            .little("s_lastcheck", low32(time).into())
            .little("s_lastcheck_hi", high32(time).into())
            .little("s_mkfs_time", low32(time).into())
            .little("s_mkfs_time_hi", high32(time).into())
            .little("s_feature_compat", compat.bits().into())
            .little("s_feature_incompat", incompat.bits().into())
            .little("s_feature_ro_compat", ro_compat.bits().into())
            .bytes("s_uuid", &params.uuid)
            .bytes("s_volume_name", &params.label)
            .bytes("s_hash_seed", &params.hash_seed)
            .bytes("s_mount_opts", &params.mount_opts)
            .little("s_def_hash_version", HALF_MD4)
            .little("s_default_mount_opts", DEFAULT_MOUNT_OPTS)
            .little("s_flags", SuperFlags::SIGNED_HASH.bits().into());
        if shape.geometry.metadata_csum {
            fields = fields.little("s_checksum_type", CRC32C);
        }
        if incompat.contains(FeatureIncompat::CSUM_SEED) {
            fields = fields.little("s_checksum_seed", shape.geometry.csum_seed.into());
        }
        let of_ext4 = FeatureRoCompat::HUGE_FILE
            | FeatureRoCompat::GDT_CSUM
            | FeatureRoCompat::DIR_NLINK
            | FeatureRoCompat::METADATA_CSUM
            | FeatureRoCompat::EXTRA_ISIZE;
        if incompat.contains(FeatureIncompat::FLEX_BG) || ro_compat.intersects(of_ext4) {
            fields = fields.little("s_kbytes_written", KBYTES_WRITTEN);
        }
        fields
    }

    fn journal<'f>(&self, fields: Fields<'f>) -> Fields<'f> {
        let Some(inode) = self.files.journal_inode() else {
            return fields;
        };
        fields
            .little("s_journal_inum", files::JOURNAL_INO.0.into())
            .little("s_jnl_backup_type", JNL_BACKUP_BLOCKS)
            .bytes("s_jnl_blocks", &files::journal_backup(inode))
    }
}

/// Makes a superblock the copy for group `g`. A copy does not say that the volume is clean.
pub(crate) fn make_copy(raw: &mut [u8; SUPERBLOCK_SIZE], g: u32, has_checksum: bool) {
    // The field has 16 bits.
    let g = g.min(u16::MAX.into());
    Fields::of(&SUPERBLOCK_LAYOUT, raw)
        .little("s_block_group_nr", must_fit::<_, u16>(g).into())
        .little("s_state", 0);
    if has_checksum {
        reseal(raw);
    }
}
