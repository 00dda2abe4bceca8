//! The ext4 superblock: 1,024 bytes at byte 1,024 of the volume.
//!
//! [`Superblock::decode`] checks everything that later code relies on, so that code may calculate
//! with a [`Superblock`] or a [`Geometry`] without further checks. [`Superblock::check_features`]
//! tells separately which features are not supported.
//!
//! Source: kernel `Documentation/filesystems/ext4/super.rst`.

use std::ops::Deref;

use bitflags::bitflags;

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::features::{
    self, Feature, FeatureCheck, FeatureCompat, FeatureIncompat, FeatureRoCompat,
};
use crate::geometry::{Geometry, SUPERBLOCK_SIZE};
use crate::layout::{Bytes, Le16, Le32, Le64, U8, flag_words, record};

/// `s_magic`.
pub const SUPER_MAGIC: u16 = 0xef53;

bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct State: u16 {
        /// Cleanly unmounted.
        const VALID = 0x1;
        /// Errors were found.
        const ERROR = 0x2;
        /// Orphans are being recovered.
        const ORPHAN = 0x4;
        /// A fast commit is being replayed.
        const FC_REPLAY = 0x20;
    }
}

bitflags! {
    /// `s_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SuperFlags: u32 {
        /// Directory hashes take characters as signed.
        const SIGNED_HASH = 0x1;
        /// Directory hashes take characters as unsigned.
        const UNSIGNED_HASH = 0x2;
        /// To test development code.
        const TEST_FILESYS = 0x4;
    }
}

record! {
    /// The superblock.
    pub SUPERBLOCK_LAYOUT = "Superblock", SUPERBLOCK_SIZE, {
        0x038 Le16, MAGIC = "s_magic";
        0x060 Le32, FEATURE_INCOMPAT = "s_feature_incompat";
        0x3fc Le32, CHECKSUM = "s_checksum";
    }

    /// The superblock. Fields carry the kernel's names without `s_`; words that the
    /// disk keeps in two halves are joined.
    ///
    /// It dereferences to its [`Geometry`], which is what [`decode`](Self::decode)
    /// found and does not follow later changes of the fields.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Superblock from (raw, wide: bool) {
        /// Inodes of the volume.
        0x000 Le32, inodes_count: u32 = "s_inodes_count";
        /// Blocks of the volume.
        0x004 Le32, 0x150 Le32 where wide,
        blocks_count: u64 = "s_blocks_count_lo", "s_blocks_count_hi";
        /// Blocks that only root may use.
        0x008 Le32, 0x154 Le32 where wide,
        r_blocks_count: u64 = "s_r_blocks_count_lo", "s_r_blocks_count_hi";
        /// Free blocks; exact only after a clean unmount.
        0x00c Le32, 0x158 Le32 where wide,
        free_blocks_count: u64 = "s_free_blocks_count_lo", "s_free_blocks_count_hi";
        /// Free inodes; exact only after a clean unmount.
        0x010 Le32, free_inodes_count: u32 = "s_free_inodes_count";
        /// The first block of group 0.
        0x014 Le32, first_data_block: u32 = "s_first_data_block";
        /// The block size is `1024 << log_block_size`.
        0x018 Le32, log_block_size: u32 = "s_log_block_size";
        /// The cluster size is `1024 << log_cluster_size`.
        0x01c Le32, log_cluster_size: u32 = "s_log_cluster_size";
        /// Blocks of a group.
        0x020 Le32, blocks_per_group: u32 = "s_blocks_per_group";
        /// Clusters of a group; equal to blocks without `bigalloc`.
        0x024 Le32, clusters_per_group: u32 = "s_clusters_per_group";
        /// Inodes of a group.
        0x028 Le32, inodes_per_group: u32 = "s_inodes_per_group";
        /// When it was last mounted, in seconds since 1970.
        0x02c Le32, 0x275 U8, mtime: u64 = "s_mtime", "s_mtime_hi";
        /// When it was last written, in seconds since 1970.
        0x030 Le32, 0x274 U8, wtime: u64 = "s_wtime", "s_wtime_hi";
        /// Mounts since the last check.
        0x034 Le16, mnt_count: u16 = "s_mnt_count";
        /// Mounts after which a check is due; 0 and 0xffff mean never.
        0x036 Le16, max_mnt_count: u16 = "s_max_mnt_count";
        /// What the last unmount left.
        0x03a Le16, state: State = "s_state";
        /// On an error: 1 continue, 2 remount read-only, 3 panic.
        0x03c Le16, errors: u16 = "s_errors";
        /// Minor revision.
        0x03e Le16, minor_rev_level: u16 = "s_minor_rev_level";
        /// When it was last checked, in seconds since 1970.
        0x040 Le32, 0x277 U8, lastcheck: u64 = "s_lastcheck", "s_lastcheck_hi";
        /// Seconds between checks; 0 means none.
        0x044 Le32, checkinterval: u32 = "s_checkinterval";
        /// 0 Linux, 1 Hurd, 3 FreeBSD.
        0x048 Le32, creator_os: u32 = "s_creator_os";
        /// 0: original format with 128-byte inodes; 1: the fields from 0x54 on are valid.
        0x04c Le32, rev_level: u32 = "s_rev_level";
        /// The user who may use reserved blocks.
        0x050 Le16, def_resuid: u16 = "s_def_resuid";
        /// The group that may use reserved blocks.
        0x052 Le16, def_resgid: u16 = "s_def_resgid";
        /// The first inode that is not reserved.
        0x054 Le32, first_ino: u32 = "s_first_ino";
        /// Bytes of an inode.
        0x058 Le16, inode_size: u16 = "s_inode_size";
        /// The group of this copy of the superblock.
        0x05a Le16, block_group_nr: u16 = "s_block_group_nr";
        /// Compatible features.
        0x05c Le32, feature_compat: FeatureCompat = "s_feature_compat";
        /// Read-only-compatible features.
        0x064 Le32, feature_ro_compat: FeatureRoCompat = "s_feature_ro_compat";
        /// The volume's UUID.
        0x068 Bytes<16>, uuid: [u8; 16] = "s_uuid";
        /// The volume's label.
        0x078 Bytes<16>, volume_name: [u8; 16] = "s_volume_name";
        /// Where it was last mounted.
        0x088 Bytes<64>, last_mounted: [u8; 64] = "s_last_mounted";
        /// For compression; not used.
        0x0c8 Le32, algorithm_usage_bitmap: u32 = "s_algorithm_usage_bitmap";
        /// Not used by the kernel.
        0x0cc U8, prealloc_blocks: u8 = "s_prealloc_blocks";
        /// Not used by the kernel.
        0x0cd U8, prealloc_dir_blocks: u8 = "s_prealloc_dir_blocks";
        /// Blocks behind the descriptors that are reserved for growth.
        0x0ce Le16, reserved_gdt_blocks: u16 = "s_reserved_gdt_blocks";
        /// UUID of an external journal.
        0x0d0 Bytes<16>, journal_uuid: [u8; 16] = "s_journal_uuid";
        /// The journal's inode; 0 when there is none or it is external.
        0x0e0 Le32, journal_inum: u32 = "s_journal_inum";
        /// Device number of an external journal.
        0x0e4 Le32, journal_dev: u32 = "s_journal_dev";
        /// Head of the list of orphan inodes; 0 when it is empty.
        0x0e8 Le32, last_orphan: u32 = "s_last_orphan";
        /// Seed of directory hashes.
        0x0ec Bytes<16>, hash_seed: [u32; 4] = "s_hash_seed";
        /// Hash of new hash trees: 0 legacy, 1 half MD4, 2 TEA.
        0x0fc U8, def_hash_version: u8 = "s_def_hash_version";
        /// 1 when `jnl_blocks` is a copy of the journal inode's map.
        0x0fd U8, jnl_backup_type: u8 = "s_jnl_backup_type";
        /// Bytes of a descriptor with `64bit`.
        0x0fe Le16, desc_size: u16 = "s_desc_size";
        /// Default mount options (bits as tune2fs -o sets them).
        0x100 Le32, default_mount_opts: u32 = "s_default_mount_opts";
        /// The first meta block group.
        0x104 Le32, first_meta_bg: u32 = "s_first_meta_bg";
        /// When it was made, in seconds since 1970.
        0x108 Le32, 0x276 U8, mkfs_time: u64 = "s_mkfs_time", "s_mkfs_time_hi";
        /// Copy of the journal inode: `i_block[15]`, high and low word of its size.
        0x10c Bytes<68>, jnl_blocks: [u32; 17] = "s_jnl_blocks";
        /// Every inode has this much beyond 128 bytes.
        0x15c Le16, min_extra_isize: u16 = "s_min_extra_isize";
        /// New inodes get this much beyond 128 bytes.
        0x15e Le16, want_extra_isize: u16 = "s_want_extra_isize";
        /// Miscellaneous flags.
        0x160 Le32, flags: SuperFlags = "s_flags";
        /// RAID stride in blocks.
        0x164 Le16, raid_stride: u16 = "s_raid_stride";
        /// Seconds between multiple-mount checks.
        0x166 Le16, mmp_interval: u16 = "s_mmp_interval";
        /// Block of the multiple-mount record.
        0x168 Le64, mmp_block: u64 = "s_mmp_block";
        /// RAID stripe width in blocks.
        0x170 Le32, raid_stripe_width: u32 = "s_raid_stripe_width";
        /// log2 of the groups of a flexible group.
        0x174 U8, log_groups_per_flex: u8 = "s_log_groups_per_flex";
        /// 1: CRC-32C.
        0x175 U8, checksum_type: u8 = "s_checksum_type";
        /// Version of encryption.
        0x176 U8, encryption_level: u8 = "s_encryption_level";
        /// KiB written over the volume's life.
        0x178 Le64, kbytes_written: u64 = "s_kbytes_written";
        /// Of a feature that was never merged.
        0x180 Le32, snapshot_inum: u32 = "s_snapshot_inum";
        /// Of a feature that was never merged.
        0x184 Le32, snapshot_id: u32 = "s_snapshot_id";
        /// Of a feature that was never merged.
        0x188 Le64, snapshot_r_blocks_count: u64 = "s_snapshot_r_blocks_count";
        /// Of a feature that was never merged.
        0x190 Le32, snapshot_list: u32 = "s_snapshot_list";
        /// Errors found since the last check.
        0x194 Le32, error_count: u32 = "s_error_count";
        /// When the first error was found, in seconds since 1970.
        0x198 Le32, 0x278 U8, first_error_time: u64 = "s_first_error_time", "s_first_error_time_hi";
        /// Inode of the first error.
        0x19c Le32, first_error_ino: u32 = "s_first_error_ino";
        /// Block of the first error.
        0x1a0 Le64, first_error_block: u64 = "s_first_error_block";
        /// Function that found the first error.
        0x1a8 Bytes<32>, first_error_func: [u8; 32] = "s_first_error_func";
        /// Source line of the first error.
        0x1c8 Le32, first_error_line: u32 = "s_first_error_line";
        /// When the latest error was found, in seconds since 1970.
        0x1cc Le32, 0x279 U8, last_error_time: u64 = "s_last_error_time", "s_last_error_time_hi";
        /// Inode of the latest error.
        0x1d0 Le32, last_error_ino: u32 = "s_last_error_ino";
        /// Source line of the latest error.
        0x1d4 Le32, last_error_line: u32 = "s_last_error_line";
        /// Block of the latest error.
        0x1d8 Le64, last_error_block: u64 = "s_last_error_block";
        /// Function that found the latest error.
        0x1e0 Bytes<32>, last_error_func: [u8; 32] = "s_last_error_func";
        /// Default mount options as text.
        0x200 Bytes<64>, mount_opts: [u8; 64] = "s_mount_opts";
        /// Inode of user quota.
        0x240 Le32, usr_quota_inum: u32 = "s_usr_quota_inum";
        /// Inode of group quota.
        0x244 Le32, grp_quota_inum: u32 = "s_grp_quota_inum";
        /// Blocks of metadata that can never be data; 0 when not computed.
        0x248 Le32, overhead_clusters: u32 = "s_overhead_clusters";
        /// Groups with backups with `sparse_super2`.
        0x24c Bytes<8>, backup_bgs: [u32; 2] = "s_backup_bgs";
        /// Encryption algorithms in use.
        0x254 Bytes<4>, encrypt_algos: [u8; 4] = "s_encrypt_algos";
        /// Salt for encryption keys from passwords.
        0x258 Bytes<16>, encrypt_pw_salt: [u8; 16] = "s_encrypt_pw_salt";
        /// Inode of lost+found.
        0x268 Le32, lpf_ino: u32 = "s_lpf_ino";
        /// Inode of project quota.
        0x26c Le32, prj_quota_inum: u32 = "s_prj_quota_inum";
        /// Seed of checksums with `metadata_csum_seed`.
        0x270 Le32, checksum_seed: u32 = "s_checksum_seed";
        /// Kernel's code of the first error.
        0x27a U8, first_error_errcode: u8 = "s_first_error_errcode";
        /// Kernel's code of the latest error.
        0x27b U8, last_error_errcode: u8 = "s_last_error_errcode";
        /// Character encoding of names (`casefold`).
        0x27c Le16, encoding: u16 = "s_encoding";
        /// Flags of the encoding.
        0x27e Le16, encoding_flags: u16 = "s_encoding_flags";
        /// Inode of the orphan file (`orphan_file`).
        0x280 Le32, orphan_file_inum: u32 = "s_orphan_file_inum";
    } {
        /// Incompatible features.
        pub feature_incompat: FeatureIncompat = feature_incompat(raw);
        /// The volume's shape, which the fields together make.
        pub(crate) geometry: Geometry = Geometry::EMPTY;
    }
}

flag_words!(State: u16, SuperFlags: u32);

/// `s_feature_incompat`, which says how the other fields are read.
pub(crate) fn feature_incompat(raw: &[u8]) -> FeatureIncompat {
    FeatureIncompat::from_bits_retain(FEATURE_INCOMPAT.get(raw))
}

/// Whether block counts have upper halves: without `64bit` those mean nothing.
pub(crate) fn has_upper_halves(features: FeatureIncompat) -> bool {
    features.contains(FeatureIncompat::IS_64BIT)
}

impl Deref for Superblock {
    type Target = Geometry;

    fn deref(&self) -> &Geometry {
        &self.geometry
    }
}

impl Superblock {
    /// Whether it is a superblock at all.
    pub(crate) fn check_magic(raw: &[u8]) -> Result<(), Corrupt> {
        match MAGIC.get(raw) {
            SUPER_MAGIC => Ok(()),
            other => Err(Corrupt::SuperMagic(other)),
        }
    }

    pub(crate) fn check_identity(&self, raw: &[u8]) -> Result<(), Corrupt> {
        if self.feature_incompat.contains(FeatureIncompat::JOURNAL_DEV) {
            return Err(Corrupt::SuperIsJournal);
        }
        if self.rev_level > 1 {
            return Err(Corrupt::SuperRevision(self.rev_level));
        }
        if self
            .feature_ro_compat
            .contains(FeatureRoCompat::METADATA_CSUM)
        {
            if self.checksum_type != CHECKSUM_CRC32C {
                return Err(Corrupt::SuperChecksumType(self.checksum_type));
            }
            let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw));
            if stored != computed {
                return Err(Corrupt::SuperChecksum { stored, computed });
            }
        }
        Ok(())
    }

    /// Writes every field into the first 1,024 bytes of `raw`, an older version of this superblock.
    /// Bytes that belong to no field stay. With `metadata_csum` the checksum is made anew.
    ///
    /// # Panics
    /// When `raw` is shorter than 1,024 bytes.
    pub fn encode_into(&self, raw: &mut [u8]) {
        let raw = &mut raw[..SUPERBLOCK_SIZE];
        MAGIC.put(raw, SUPER_MAGIC);
        FEATURE_INCOMPAT.put(raw, self.feature_incompat.bits());
        self.write_fields(raw, has_upper_halves(self.feature_incompat));
        if self
            .feature_ro_compat
            .contains(FeatureRoCompat::METADATA_CSUM)
        {
            CHECKSUM.put(raw, checksum_of(raw));
        }
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What stetfs cannot do because of a feature that it does not support.
    pub fn check_features(&self) -> FeatureCheck {
        features::check(self.feature_incompat, self.feature_ro_compat)
    }

    /// All features that are set, in the order of dumpe2fs.
    pub fn features(&self) -> impl Iterator<Item = Feature> {
        features::all(
            self.feature_compat,
            self.feature_incompat,
            self.feature_ro_compat,
        )
    }

    /// Whether directory hashes take characters as unsigned. The flags decide. Where neither flag
    /// is set, the kernel takes its own `char`; stetfs takes signed ones, as on x86.
    pub fn unsigned_hash(&self) -> bool {
        self.flags.contains(SuperFlags::UNSIGNED_HASH)
            && !self.flags.contains(SuperFlags::SIGNED_HASH)
    }

    /// The label, without the zeros behind it.
    pub fn label(&self) -> &[u8] {
        let length = self.volume_name.iter().position(|&byte| byte == 0);
        &self.volume_name[..length.unwrap_or(self.volume_name.len())]
    }
}

const CHECKSUM_CRC32C: u8 = 1;

/// Makes the checksum of the 1,024 bytes in `raw` anew, whatever they are.
pub fn reseal(raw: &mut [u8]) {
    let computed = checksum_of(raw);
    CHECKSUM.put(raw, computed);
}

fn checksum_of(raw: &[u8]) -> u32 {
    crc32c(!0, &raw[..CHECKSUM.0])
}
