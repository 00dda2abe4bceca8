//! The ext4 superblock: 1,024 bytes at byte 1,024 of the volume.
//!
//! [`Superblock::decode`] checks everything that later code relies on, so that
//! whoever holds a [`Superblock`] or a [`Geometry`] may calculate with it.
//! Which features are supported is a question of its own:
//! [`Superblock::check_features`].
//!
//! Source: kernel `Documentation/filesystems/ext4/super.rst`.

use std::ops::Deref;

use bitflags::bitflags;

use crate::bytes::{read_u32le, write_u32le};
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::features::{
    self, Feature, FeatureCheck, FeatureCompat, FeatureIncompat, FeatureRoCompat,
};
use crate::geometry::{Geometry, SUPERBLOCK_SIZE};
use crate::layout::{Bytes, Le16, Le32, Le64, U8, layout};
use crate::width::{high32, low8, low32};

/// `s_magic`.
pub const SUPER_MAGIC: u16 = 0xef53;

layout! {
    /// The superblock.
    pub SUPERBLOCK_LAYOUT = "Superblock", SUPERBLOCK_SIZE, {
        0x000 Le32, INODES_COUNT = "s_inodes_count";
        0x004 Le32, BLOCKS_COUNT_LO = "s_blocks_count_lo";
        0x008 Le32, R_BLOCKS_COUNT_LO = "s_r_blocks_count_lo";
        0x00c Le32, FREE_BLOCKS_COUNT_LO = "s_free_blocks_count_lo";
        0x010 Le32, FREE_INODES_COUNT = "s_free_inodes_count";
        0x014 Le32, FIRST_DATA_BLOCK = "s_first_data_block";
        0x018 Le32, LOG_BLOCK_SIZE = "s_log_block_size";
        0x01c Le32, LOG_CLUSTER_SIZE = "s_log_cluster_size";
        0x020 Le32, BLOCKS_PER_GROUP = "s_blocks_per_group";
        0x024 Le32, CLUSTERS_PER_GROUP = "s_clusters_per_group";
        0x028 Le32, INODES_PER_GROUP = "s_inodes_per_group";
        0x02c Le32, MTIME_LO = "s_mtime";
        0x030 Le32, WTIME_LO = "s_wtime";
        0x034 Le16, MNT_COUNT = "s_mnt_count";
        0x036 Le16, MAX_MNT_COUNT = "s_max_mnt_count";
        0x038 Le16, MAGIC = "s_magic";
        0x03a Le16, STATE = "s_state";
        0x03c Le16, ERRORS = "s_errors";
        0x03e Le16, MINOR_REV_LEVEL = "s_minor_rev_level";
        0x040 Le32, LASTCHECK_LO = "s_lastcheck";
        0x044 Le32, CHECKINTERVAL = "s_checkinterval";
        0x048 Le32, CREATOR_OS = "s_creator_os";
        0x04c Le32, REV_LEVEL = "s_rev_level";
        0x050 Le16, DEF_RESUID = "s_def_resuid";
        0x052 Le16, DEF_RESGID = "s_def_resgid";
        0x054 Le32, FIRST_INO = "s_first_ino";
        0x058 Le16, INODE_SIZE = "s_inode_size";
        0x05a Le16, BLOCK_GROUP_NR = "s_block_group_nr";
        0x05c Le32, FEATURE_COMPAT = "s_feature_compat";
        0x060 Le32, FEATURE_INCOMPAT = "s_feature_incompat";
        0x064 Le32, FEATURE_RO_COMPAT = "s_feature_ro_compat";
        0x068 Bytes<16>, UUID = "s_uuid";
        0x078 Bytes<16>, VOLUME_NAME = "s_volume_name";
        0x088 Bytes<64>, LAST_MOUNTED = "s_last_mounted";
        0x0c8 Le32, ALGORITHM_USAGE_BITMAP = "s_algorithm_usage_bitmap";
        0x0cc U8, PREALLOC_BLOCKS = "s_prealloc_blocks";
        0x0cd U8, PREALLOC_DIR_BLOCKS = "s_prealloc_dir_blocks";
        0x0ce Le16, RESERVED_GDT_BLOCKS = "s_reserved_gdt_blocks";
        0x0d0 Bytes<16>, JOURNAL_UUID = "s_journal_uuid";
        0x0e0 Le32, JOURNAL_INUM = "s_journal_inum";
        0x0e4 Le32, JOURNAL_DEV = "s_journal_dev";
        0x0e8 Le32, LAST_ORPHAN = "s_last_orphan";
        0x0ec Bytes<16>, HASH_SEED = "s_hash_seed";
        0x0fc U8, DEF_HASH_VERSION = "s_def_hash_version";
        0x0fd U8, JNL_BACKUP_TYPE = "s_jnl_backup_type";
        0x0fe Le16, DESC_SIZE = "s_desc_size";
        0x100 Le32, DEFAULT_MOUNT_OPTS = "s_default_mount_opts";
        0x104 Le32, FIRST_META_BG = "s_first_meta_bg";
        0x108 Le32, MKFS_TIME_LO = "s_mkfs_time";
        0x10c Bytes<68>, JNL_BLOCKS = "s_jnl_blocks";
        0x150 Le32, BLOCKS_COUNT_HI = "s_blocks_count_hi";
        0x154 Le32, R_BLOCKS_COUNT_HI = "s_r_blocks_count_hi";
        0x158 Le32, FREE_BLOCKS_COUNT_HI = "s_free_blocks_count_hi";
        0x15c Le16, MIN_EXTRA_ISIZE = "s_min_extra_isize";
        0x15e Le16, WANT_EXTRA_ISIZE = "s_want_extra_isize";
        0x160 Le32, FLAGS = "s_flags";
        0x164 Le16, RAID_STRIDE = "s_raid_stride";
        0x166 Le16, MMP_INTERVAL = "s_mmp_interval";
        0x168 Le64, MMP_BLOCK = "s_mmp_block";
        0x170 Le32, RAID_STRIPE_WIDTH = "s_raid_stripe_width";
        0x174 U8, LOG_GROUPS_PER_FLEX = "s_log_groups_per_flex";
        0x175 U8, CHECKSUM_TYPE = "s_checksum_type";
        0x176 U8, ENCRYPTION_LEVEL = "s_encryption_level";
        0x178 Le64, KBYTES_WRITTEN = "s_kbytes_written";
        0x180 Le32, SNAPSHOT_INUM = "s_snapshot_inum";
        0x184 Le32, SNAPSHOT_ID = "s_snapshot_id";
        0x188 Le64, SNAPSHOT_R_BLOCKS_COUNT = "s_snapshot_r_blocks_count";
        0x190 Le32, SNAPSHOT_LIST = "s_snapshot_list";
        0x194 Le32, ERROR_COUNT = "s_error_count";
        0x198 Le32, FIRST_ERROR_TIME_LO = "s_first_error_time";
        0x19c Le32, FIRST_ERROR_INO = "s_first_error_ino";
        0x1a0 Le64, FIRST_ERROR_BLOCK = "s_first_error_block";
        0x1a8 Bytes<32>, FIRST_ERROR_FUNC = "s_first_error_func";
        0x1c8 Le32, FIRST_ERROR_LINE = "s_first_error_line";
        0x1cc Le32, LAST_ERROR_TIME_LO = "s_last_error_time";
        0x1d0 Le32, LAST_ERROR_INO = "s_last_error_ino";
        0x1d4 Le32, LAST_ERROR_LINE = "s_last_error_line";
        0x1d8 Le64, LAST_ERROR_BLOCK = "s_last_error_block";
        0x1e0 Bytes<32>, LAST_ERROR_FUNC = "s_last_error_func";
        0x200 Bytes<64>, MOUNT_OPTS = "s_mount_opts";
        0x240 Le32, USR_QUOTA_INUM = "s_usr_quota_inum";
        0x244 Le32, GRP_QUOTA_INUM = "s_grp_quota_inum";
        0x248 Le32, OVERHEAD_CLUSTERS = "s_overhead_clusters";
        0x24c Bytes<8>, BACKUP_BGS = "s_backup_bgs";
        0x254 Bytes<4>, ENCRYPT_ALGOS = "s_encrypt_algos";
        0x258 Bytes<16>, ENCRYPT_PW_SALT = "s_encrypt_pw_salt";
        0x268 Le32, LPF_INO = "s_lpf_ino";
        0x26c Le32, PRJ_QUOTA_INUM = "s_prj_quota_inum";
        0x270 Le32, CHECKSUM_SEED = "s_checksum_seed";
        0x274 U8, WTIME_HI = "s_wtime_hi";
        0x275 U8, MTIME_HI = "s_mtime_hi";
        0x276 U8, MKFS_TIME_HI = "s_mkfs_time_hi";
        0x277 U8, LASTCHECK_HI = "s_lastcheck_hi";
        0x278 U8, FIRST_ERROR_TIME_HI = "s_first_error_time_hi";
        0x279 U8, LAST_ERROR_TIME_HI = "s_last_error_time_hi";
        0x27a U8, FIRST_ERROR_ERRCODE = "s_first_error_errcode";
        0x27b U8, LAST_ERROR_ERRCODE = "s_last_error_errcode";
        0x27c Le16, ENCODING = "s_encoding";
        0x27e Le16, ENCODING_FLAGS = "s_encoding_flags";
        0x280 Le32, ORPHAN_FILE_INUM = "s_orphan_file_inum";
        0x3fc Le32, CHECKSUM = "s_checksum";
    }
}

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

/// The superblock. Fields carry the kernel's names without `s_`; words that the
/// disk keeps in two halves are joined.
///
/// It dereferences to its [`Geometry`], which is what [`decode`](Self::decode)
/// found and does not follow later changes of the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Blocks of the volume.
    pub blocks_count: u64,
    /// Blocks that only root may use.
    pub r_blocks_count: u64,
    /// Free blocks; exact only after a clean unmount.
    pub free_blocks_count: u64,
    /// When it was last mounted, in seconds since 1970.
    pub mtime: u64,
    /// When it was last written, in seconds since 1970.
    pub wtime: u64,
    /// When it was last checked, in seconds since 1970.
    pub lastcheck: u64,
    /// When it was made, in seconds since 1970.
    pub mkfs_time: u64,
    /// When the first error was found, in seconds since 1970.
    pub first_error_time: u64,
    /// When the latest error was found, in seconds since 1970.
    pub last_error_time: u64,
    /// Inodes of the volume.
    pub inodes_count: u32,
    /// Free inodes; exact only after a clean unmount.
    pub free_inodes_count: u32,
    /// The first block of group 0.
    pub first_data_block: u32,
    /// The block size is `1024 << log_block_size`.
    pub log_block_size: u32,
    /// The cluster size is `1024 << log_cluster_size`.
    pub log_cluster_size: u32,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Clusters of a group; equal to blocks without `bigalloc`.
    pub clusters_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Mounts since the last check.
    pub mnt_count: u16,
    /// Mounts after which a check is due; 0 and 0xffff mean never.
    pub max_mnt_count: u16,
    /// What the last unmount left.
    pub state: State,
    /// On an error: 1 continue, 2 remount read-only, 3 panic.
    pub errors: u16,
    /// Minor revision.
    pub minor_rev_level: u16,
    /// Seconds between checks; 0 means none.
    pub checkinterval: u32,
    /// 0 Linux, 1 Hurd, 3 FreeBSD.
    pub creator_os: u32,
    /// 0: original format with 128-byte inodes; 1: the fields from 0x54 on are valid.
    pub rev_level: u32,
    /// The user who may use reserved blocks.
    pub def_resuid: u16,
    /// The group that may use reserved blocks.
    pub def_resgid: u16,
    /// The first inode that is not reserved.
    pub first_ino: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// The group of this copy of the superblock.
    pub block_group_nr: u16,
    /// Compatible features.
    pub feature_compat: FeatureCompat,
    /// Incompatible features.
    pub feature_incompat: FeatureIncompat,
    /// Read-only-compatible features.
    pub feature_ro_compat: FeatureRoCompat,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume's label.
    pub volume_name: [u8; 16],
    /// Where it was last mounted.
    pub last_mounted: [u8; 64],
    /// For compression; not used.
    pub algorithm_usage_bitmap: u32,
    /// Not used by the kernel.
    pub prealloc_blocks: u8,
    /// Not used by the kernel.
    pub prealloc_dir_blocks: u8,
    /// Blocks behind the descriptors that are reserved for growth.
    pub reserved_gdt_blocks: u16,
    /// UUID of an external journal.
    pub journal_uuid: [u8; 16],
    /// The journal's inode; 0 when there is none or it is external.
    pub journal_inum: u32,
    /// Device number of an external journal.
    pub journal_dev: u32,
    /// Head of the list of orphan inodes; 0 when it is empty.
    pub last_orphan: u32,
    /// Seed of directory hashes.
    pub hash_seed: [u32; 4],
    /// Hash of new hash trees: 0 legacy, 1 half MD4, 2 TEA.
    pub def_hash_version: u8,
    /// 1 when `jnl_blocks` is a copy of the journal inode's map.
    pub jnl_backup_type: u8,
    /// Bytes of a descriptor with `64bit`.
    pub desc_size: u16,
    /// Default mount options (bits as tune2fs -o sets them).
    pub default_mount_opts: u32,
    /// The first meta block group.
    pub first_meta_bg: u32,
    /// Copy of the journal inode: `i_block[15]`, high and low word of its size.
    pub jnl_blocks: [u32; 17],
    /// Every inode has this much beyond 128 bytes.
    pub min_extra_isize: u16,
    /// New inodes get this much beyond 128 bytes.
    pub want_extra_isize: u16,
    /// Miscellaneous flags.
    pub flags: SuperFlags,
    /// RAID stride in blocks.
    pub raid_stride: u16,
    /// Seconds between multiple-mount checks.
    pub mmp_interval: u16,
    /// Block of the multiple-mount record.
    pub mmp_block: u64,
    /// RAID stripe width in blocks.
    pub raid_stripe_width: u32,
    /// log2 of the groups of a flexible group.
    pub log_groups_per_flex: u8,
    /// 1: CRC-32C.
    pub checksum_type: u8,
    /// Version of encryption.
    pub encryption_level: u8,
    /// KiB written over the volume's life.
    pub kbytes_written: u64,
    /// Of a feature that was never merged.
    pub snapshot_inum: u32,
    /// Of a feature that was never merged.
    pub snapshot_id: u32,
    /// Of a feature that was never merged.
    pub snapshot_r_blocks_count: u64,
    /// Of a feature that was never merged.
    pub snapshot_list: u32,
    /// Errors found since the last check.
    pub error_count: u32,
    /// Inode of the first error.
    pub first_error_ino: u32,
    /// Block of the first error.
    pub first_error_block: u64,
    /// Function that found the first error.
    pub first_error_func: [u8; 32],
    /// Source line of the first error.
    pub first_error_line: u32,
    /// Inode of the latest error.
    pub last_error_ino: u32,
    /// Source line of the latest error.
    pub last_error_line: u32,
    /// Block of the latest error.
    pub last_error_block: u64,
    /// Function that found the latest error.
    pub last_error_func: [u8; 32],
    /// Default mount options as text.
    pub mount_opts: [u8; 64],
    /// Inode of user quota.
    pub usr_quota_inum: u32,
    /// Inode of group quota.
    pub grp_quota_inum: u32,
    /// Blocks of metadata that can never be data; 0 when not computed.
    pub overhead_clusters: u32,
    /// Groups with backups with `sparse_super2`.
    pub backup_bgs: [u32; 2],
    /// Encryption algorithms in use.
    pub encrypt_algos: [u8; 4],
    /// Salt for encryption keys from passwords.
    pub encrypt_pw_salt: [u8; 16],
    /// Inode of lost+found.
    pub lpf_ino: u32,
    /// Inode of project quota.
    pub prj_quota_inum: u32,
    /// Seed of checksums with `metadata_csum_seed`.
    pub checksum_seed: u32,
    /// Kernel's code of the first error.
    pub first_error_errcode: u8,
    /// Kernel's code of the latest error.
    pub last_error_errcode: u8,
    /// Character encoding of names (`casefold`).
    pub encoding: u16,
    /// Flags of the encoding.
    pub encoding_flags: u16,
    /// Inode of the orphan file (`orphan_file`).
    pub orphan_file_inum: u32,
    pub(crate) geometry: Geometry,
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

    /// What the fields say, without a shape.
    pub(crate) fn read_fields(raw: &[u8]) -> Self {
        let incompat = FeatureIncompat::from_bits_retain(FEATURE_INCOMPAT.get(raw));
        let join = |lo: Le32, hi: Le32| {
            // Without `64bit` the upper halves mean nothing.
            let hi = if incompat.contains(FeatureIncompat::IS_64BIT) {
                hi.get(raw)
            } else {
                0
            };
            u64::from(hi) << 32 | u64::from(lo.get(raw))
        };
        let time = |lo: u32, hi: u8| u64::from(hi) << 32 | u64::from(lo);
        Self {
            blocks_count: join(BLOCKS_COUNT_LO, BLOCKS_COUNT_HI),
            r_blocks_count: join(R_BLOCKS_COUNT_LO, R_BLOCKS_COUNT_HI),
            free_blocks_count: join(FREE_BLOCKS_COUNT_LO, FREE_BLOCKS_COUNT_HI),
            mtime: time(MTIME_LO.get(raw), MTIME_HI.get(raw)),
            wtime: time(WTIME_LO.get(raw), WTIME_HI.get(raw)),
            lastcheck: time(LASTCHECK_LO.get(raw), LASTCHECK_HI.get(raw)),
            mkfs_time: time(MKFS_TIME_LO.get(raw), MKFS_TIME_HI.get(raw)),
            first_error_time: time(FIRST_ERROR_TIME_LO.get(raw), FIRST_ERROR_TIME_HI.get(raw)),
            last_error_time: time(LAST_ERROR_TIME_LO.get(raw), LAST_ERROR_TIME_HI.get(raw)),
            inodes_count: INODES_COUNT.get(raw),
            free_inodes_count: FREE_INODES_COUNT.get(raw),
            first_data_block: FIRST_DATA_BLOCK.get(raw),
            log_block_size: LOG_BLOCK_SIZE.get(raw),
            log_cluster_size: LOG_CLUSTER_SIZE.get(raw),
            blocks_per_group: BLOCKS_PER_GROUP.get(raw),
            clusters_per_group: CLUSTERS_PER_GROUP.get(raw),
            inodes_per_group: INODES_PER_GROUP.get(raw),
            mnt_count: MNT_COUNT.get(raw),
            max_mnt_count: MAX_MNT_COUNT.get(raw),
            state: State::from_bits_retain(STATE.get(raw)),
            errors: ERRORS.get(raw),
            minor_rev_level: MINOR_REV_LEVEL.get(raw),
            checkinterval: CHECKINTERVAL.get(raw),
            creator_os: CREATOR_OS.get(raw),
            rev_level: REV_LEVEL.get(raw),
            def_resuid: DEF_RESUID.get(raw),
            def_resgid: DEF_RESGID.get(raw),
            first_ino: FIRST_INO.get(raw),
            inode_size: INODE_SIZE.get(raw),
            block_group_nr: BLOCK_GROUP_NR.get(raw),
            feature_compat: FeatureCompat::from_bits_retain(FEATURE_COMPAT.get(raw)),
            feature_incompat: FeatureIncompat::from_bits_retain(FEATURE_INCOMPAT.get(raw)),
            feature_ro_compat: FeatureRoCompat::from_bits_retain(FEATURE_RO_COMPAT.get(raw)),
            uuid: UUID.get(raw),
            volume_name: VOLUME_NAME.get(raw),
            last_mounted: LAST_MOUNTED.get(raw),
            algorithm_usage_bitmap: ALGORITHM_USAGE_BITMAP.get(raw),
            prealloc_blocks: PREALLOC_BLOCKS.get(raw),
            prealloc_dir_blocks: PREALLOC_DIR_BLOCKS.get(raw),
            reserved_gdt_blocks: RESERVED_GDT_BLOCKS.get(raw),
            journal_uuid: JOURNAL_UUID.get(raw),
            journal_inum: JOURNAL_INUM.get(raw),
            journal_dev: JOURNAL_DEV.get(raw),
            last_orphan: LAST_ORPHAN.get(raw),
            hash_seed: words_of(&HASH_SEED.get(raw)),
            def_hash_version: DEF_HASH_VERSION.get(raw),
            jnl_backup_type: JNL_BACKUP_TYPE.get(raw),
            desc_size: DESC_SIZE.get(raw),
            default_mount_opts: DEFAULT_MOUNT_OPTS.get(raw),
            first_meta_bg: FIRST_META_BG.get(raw),
            jnl_blocks: words_of(&JNL_BLOCKS.get(raw)),
            min_extra_isize: MIN_EXTRA_ISIZE.get(raw),
            want_extra_isize: WANT_EXTRA_ISIZE.get(raw),
            flags: SuperFlags::from_bits_retain(FLAGS.get(raw)),
            raid_stride: RAID_STRIDE.get(raw),
            mmp_interval: MMP_INTERVAL.get(raw),
            mmp_block: MMP_BLOCK.get(raw),
            raid_stripe_width: RAID_STRIPE_WIDTH.get(raw),
            log_groups_per_flex: LOG_GROUPS_PER_FLEX.get(raw),
            checksum_type: CHECKSUM_TYPE.get(raw),
            encryption_level: ENCRYPTION_LEVEL.get(raw),
            kbytes_written: KBYTES_WRITTEN.get(raw),
            snapshot_inum: SNAPSHOT_INUM.get(raw),
            snapshot_id: SNAPSHOT_ID.get(raw),
            snapshot_r_blocks_count: SNAPSHOT_R_BLOCKS_COUNT.get(raw),
            snapshot_list: SNAPSHOT_LIST.get(raw),
            error_count: ERROR_COUNT.get(raw),
            first_error_ino: FIRST_ERROR_INO.get(raw),
            first_error_block: FIRST_ERROR_BLOCK.get(raw),
            first_error_func: FIRST_ERROR_FUNC.get(raw),
            first_error_line: FIRST_ERROR_LINE.get(raw),
            last_error_ino: LAST_ERROR_INO.get(raw),
            last_error_line: LAST_ERROR_LINE.get(raw),
            last_error_block: LAST_ERROR_BLOCK.get(raw),
            last_error_func: LAST_ERROR_FUNC.get(raw),
            mount_opts: MOUNT_OPTS.get(raw),
            usr_quota_inum: USR_QUOTA_INUM.get(raw),
            grp_quota_inum: GRP_QUOTA_INUM.get(raw),
            overhead_clusters: OVERHEAD_CLUSTERS.get(raw),
            backup_bgs: words_of(&BACKUP_BGS.get(raw)),
            encrypt_algos: ENCRYPT_ALGOS.get(raw),
            encrypt_pw_salt: ENCRYPT_PW_SALT.get(raw),
            lpf_ino: LPF_INO.get(raw),
            prj_quota_inum: PRJ_QUOTA_INUM.get(raw),
            checksum_seed: CHECKSUM_SEED.get(raw),
            first_error_errcode: FIRST_ERROR_ERRCODE.get(raw),
            last_error_errcode: LAST_ERROR_ERRCODE.get(raw),
            encoding: ENCODING.get(raw),
            encoding_flags: ENCODING_FLAGS.get(raw),
            orphan_file_inum: ORPHAN_FILE_INUM.get(raw),
            geometry: Geometry::EMPTY,
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

    /// Writes every field into the first 1,024 bytes of `raw`, which hold an older
    /// version of this superblock: bytes that are no field stay. With
    /// `metadata_csum` the checksum is made anew.
    ///
    /// # Panics
    /// When `raw` is shorter than 1,024 bytes.
    pub fn encode_into(&self, raw: &mut [u8]) {
        let raw = &mut raw[..SUPERBLOCK_SIZE];
        let is_64bit = self.feature_incompat.contains(FeatureIncompat::IS_64BIT);
        let split = |raw: &mut [u8], lo: Le32, hi: Le32, value: u64| {
            lo.put(raw, low32(value));
            if is_64bit {
                hi.put(raw, high32(value));
            }
        };
        MAGIC.put(raw, SUPER_MAGIC);
        split(raw, BLOCKS_COUNT_LO, BLOCKS_COUNT_HI, self.blocks_count);
        split(
            raw,
            R_BLOCKS_COUNT_LO,
            R_BLOCKS_COUNT_HI,
            self.r_blocks_count,
        );
        split(
            raw,
            FREE_BLOCKS_COUNT_LO,
            FREE_BLOCKS_COUNT_HI,
            self.free_blocks_count,
        );
        MTIME_LO.put(raw, low32(self.mtime));
        MTIME_HI.put(raw, low8(high32(self.mtime)));
        WTIME_LO.put(raw, low32(self.wtime));
        WTIME_HI.put(raw, low8(high32(self.wtime)));
        LASTCHECK_LO.put(raw, low32(self.lastcheck));
        LASTCHECK_HI.put(raw, low8(high32(self.lastcheck)));
        MKFS_TIME_LO.put(raw, low32(self.mkfs_time));
        MKFS_TIME_HI.put(raw, low8(high32(self.mkfs_time)));
        FIRST_ERROR_TIME_LO.put(raw, low32(self.first_error_time));
        FIRST_ERROR_TIME_HI.put(raw, low8(high32(self.first_error_time)));
        LAST_ERROR_TIME_LO.put(raw, low32(self.last_error_time));
        LAST_ERROR_TIME_HI.put(raw, low8(high32(self.last_error_time)));
        INODES_COUNT.put(raw, self.inodes_count);
        FREE_INODES_COUNT.put(raw, self.free_inodes_count);
        FIRST_DATA_BLOCK.put(raw, self.first_data_block);
        LOG_BLOCK_SIZE.put(raw, self.log_block_size);
        LOG_CLUSTER_SIZE.put(raw, self.log_cluster_size);
        BLOCKS_PER_GROUP.put(raw, self.blocks_per_group);
        CLUSTERS_PER_GROUP.put(raw, self.clusters_per_group);
        INODES_PER_GROUP.put(raw, self.inodes_per_group);
        MNT_COUNT.put(raw, self.mnt_count);
        MAX_MNT_COUNT.put(raw, self.max_mnt_count);
        STATE.put(raw, self.state.bits());
        ERRORS.put(raw, self.errors);
        MINOR_REV_LEVEL.put(raw, self.minor_rev_level);
        CHECKINTERVAL.put(raw, self.checkinterval);
        CREATOR_OS.put(raw, self.creator_os);
        REV_LEVEL.put(raw, self.rev_level);
        DEF_RESUID.put(raw, self.def_resuid);
        DEF_RESGID.put(raw, self.def_resgid);
        FIRST_INO.put(raw, self.first_ino);
        INODE_SIZE.put(raw, self.inode_size);
        BLOCK_GROUP_NR.put(raw, self.block_group_nr);
        FEATURE_COMPAT.put(raw, self.feature_compat.bits());
        FEATURE_INCOMPAT.put(raw, self.feature_incompat.bits());
        FEATURE_RO_COMPAT.put(raw, self.feature_ro_compat.bits());
        UUID.put(raw, &self.uuid);
        VOLUME_NAME.put(raw, &self.volume_name);
        LAST_MOUNTED.put(raw, &self.last_mounted);
        ALGORITHM_USAGE_BITMAP.put(raw, self.algorithm_usage_bitmap);
        PREALLOC_BLOCKS.put(raw, self.prealloc_blocks);
        PREALLOC_DIR_BLOCKS.put(raw, self.prealloc_dir_blocks);
        RESERVED_GDT_BLOCKS.put(raw, self.reserved_gdt_blocks);
        JOURNAL_UUID.put(raw, &self.journal_uuid);
        JOURNAL_INUM.put(raw, self.journal_inum);
        JOURNAL_DEV.put(raw, self.journal_dev);
        LAST_ORPHAN.put(raw, self.last_orphan);
        HASH_SEED.put(raw, &bytes_of(&self.hash_seed));
        DEF_HASH_VERSION.put(raw, self.def_hash_version);
        JNL_BACKUP_TYPE.put(raw, self.jnl_backup_type);
        DESC_SIZE.put(raw, self.desc_size);
        DEFAULT_MOUNT_OPTS.put(raw, self.default_mount_opts);
        FIRST_META_BG.put(raw, self.first_meta_bg);
        JNL_BLOCKS.put(raw, &bytes_of(&self.jnl_blocks));
        MIN_EXTRA_ISIZE.put(raw, self.min_extra_isize);
        WANT_EXTRA_ISIZE.put(raw, self.want_extra_isize);
        FLAGS.put(raw, self.flags.bits());
        RAID_STRIDE.put(raw, self.raid_stride);
        MMP_INTERVAL.put(raw, self.mmp_interval);
        MMP_BLOCK.put(raw, self.mmp_block);
        RAID_STRIPE_WIDTH.put(raw, self.raid_stripe_width);
        LOG_GROUPS_PER_FLEX.put(raw, self.log_groups_per_flex);
        CHECKSUM_TYPE.put(raw, self.checksum_type);
        ENCRYPTION_LEVEL.put(raw, self.encryption_level);
        KBYTES_WRITTEN.put(raw, self.kbytes_written);
        SNAPSHOT_INUM.put(raw, self.snapshot_inum);
        SNAPSHOT_ID.put(raw, self.snapshot_id);
        SNAPSHOT_R_BLOCKS_COUNT.put(raw, self.snapshot_r_blocks_count);
        SNAPSHOT_LIST.put(raw, self.snapshot_list);
        ERROR_COUNT.put(raw, self.error_count);
        FIRST_ERROR_INO.put(raw, self.first_error_ino);
        FIRST_ERROR_BLOCK.put(raw, self.first_error_block);
        FIRST_ERROR_FUNC.put(raw, &self.first_error_func);
        FIRST_ERROR_LINE.put(raw, self.first_error_line);
        LAST_ERROR_INO.put(raw, self.last_error_ino);
        LAST_ERROR_LINE.put(raw, self.last_error_line);
        LAST_ERROR_BLOCK.put(raw, self.last_error_block);
        LAST_ERROR_FUNC.put(raw, &self.last_error_func);
        MOUNT_OPTS.put(raw, &self.mount_opts);
        USR_QUOTA_INUM.put(raw, self.usr_quota_inum);
        GRP_QUOTA_INUM.put(raw, self.grp_quota_inum);
        OVERHEAD_CLUSTERS.put(raw, self.overhead_clusters);
        BACKUP_BGS.put(raw, &bytes_of(&self.backup_bgs));
        ENCRYPT_ALGOS.put(raw, &self.encrypt_algos);
        ENCRYPT_PW_SALT.put(raw, &self.encrypt_pw_salt);
        LPF_INO.put(raw, self.lpf_ino);
        PRJ_QUOTA_INUM.put(raw, self.prj_quota_inum);
        CHECKSUM_SEED.put(raw, self.checksum_seed);
        FIRST_ERROR_ERRCODE.put(raw, self.first_error_errcode);
        LAST_ERROR_ERRCODE.put(raw, self.last_error_errcode);
        ENCODING.put(raw, self.encoding);
        ENCODING_FLAGS.put(raw, self.encoding_flags);
        ORPHAN_FILE_INUM.put(raw, self.orphan_file_inum);
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

    /// Directory hashes take characters as unsigned. The kernel decides by the flag,
    /// and where neither flag is set by its own `char`; there this says signed, as on x86.
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

fn words_of<const N: usize, const M: usize>(bytes: &[u8; N]) -> [u32; M] {
    const { assert!(N == 4 * M) };
    std::array::from_fn(|i| read_u32le(bytes, 4 * i))
}

fn bytes_of<const M: usize, const N: usize>(words: &[u32; M]) -> [u8; N] {
    const { assert!(N == 4 * M) };
    let mut bytes = [0; N];
    for (i, word) in words.iter().enumerate() {
        write_u32le(&mut bytes, 4 * i, *word);
    }
    bytes
}
