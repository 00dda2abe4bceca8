//! The superblock: the decoder's demands, then those that e2fsck has beyond them.

use stetfs_format::features::{self, FeatureCompat, FeatureIncompat, FeatureRoCompat};
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{
    GroupFlags, InodeNo, Place, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State, Superblock,
};

use crate::finding::Fault;
use crate::source::Source;
use crate::state::{Check, Found};

/// Compatible features that e2fsprogs and the kernel know. Any other may mean unknown structures.
const COMPAT: FeatureCompat = FeatureCompat::DIR_PREALLOC
    .union(FeatureCompat::IMAGIC_INODES)
    .union(FeatureCompat::HAS_JOURNAL)
    .union(FeatureCompat::EXT_ATTR)
    .union(FeatureCompat::RESIZE_INODE)
    .union(FeatureCompat::DIR_INDEX)
    .union(FeatureCompat::SPARSE_SUPER2)
    .union(FeatureCompat::FAST_COMMIT)
    .union(FeatureCompat::STABLE_INODES)
    .union(FeatureCompat::ORPHAN_FILE);

/// Incompatible features whose structures this checker can judge.
const INCOMPAT: FeatureIncompat = FeatureIncompat::FILETYPE
    .union(FeatureIncompat::RECOVER)
    .union(FeatureIncompat::META_BG)
    .union(FeatureIncompat::EXTENTS)
    .union(FeatureIncompat::IS_64BIT)
    .union(FeatureIncompat::FLEX_BG)
    .union(FeatureIncompat::CSUM_SEED)
    .union(FeatureIncompat::LARGEDIR);

/// Read-only-compatible features whose structures this checker can judge.
const RO_COMPAT: FeatureRoCompat = FeatureRoCompat::SPARSE_SUPER
    .union(FeatureRoCompat::LARGE_FILE)
    .union(FeatureRoCompat::HUGE_FILE)
    .union(FeatureRoCompat::GDT_CSUM)
    .union(FeatureRoCompat::DIR_NLINK)
    .union(FeatureRoCompat::EXTRA_ISIZE)
    .union(FeatureRoCompat::METADATA_CSUM)
    .union(FeatureRoCompat::ORPHAN_PRESENT);

/// The value of `s_creator_os` for the Hurd.
const HURD: u32 = 1;

/// Read-only-compatible features that change the place or the owner of structures: without
/// understanding them, the checker can judge nothing that follows.
const OPAQUE_RO_COMPAT: FeatureRoCompat = FeatureRoCompat::BIGALLOC
    .union(FeatureRoCompat::SHARED_BLOCKS)
    .union(FeatureRoCompat::BTREE_DIR)
    .union(FeatureRoCompat::HAS_SNAPSHOT)
    .union(FeatureRoCompat::REPLICA);

/// Reads the superblock. `None`, with a finding, if there is none that describes the volume.
pub(crate) fn read(source: &dyn Source, found: &mut Found) -> Option<Superblock> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    let size = match source.size() {
        Ok(size) => size,
        Err(error) => {
            found.push(Place::Superblock, Fault::Unreadable(error.kind()));
            return None;
        }
    };
    if size < SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE) {
        let kind = std::io::ErrorKind::UnexpectedEof;
        found.push(Place::Superblock, Fault::Unreadable(kind));
        return None;
    }
    if let Err(error) = source.read(SUPERBLOCK_OFFSET, &mut raw) {
        found.push(Place::Superblock, Fault::Unreadable(error.kind()));
        return None;
    }
    let sb = match Superblock::decode(&raw) {
        Ok(sb) => sb,
        Err(corrupt) => {
            found.push(Place::Superblock, corrupt);
            return None;
        }
    };
    // Checked before anything is allocated for the size that the volume claims.
    let room = sb.block.block_of(size);
    if sb.blocks_count > room {
        let blocks = sb.blocks_count;
        found.push(Place::Superblock, Fault::VolumeTooLarge { blocks, room });
        return None;
    }
    // The table of each group must fit into it, which also bounds the number of inodes.
    let most = u64::from(sb.inodes_per_block()) * u64::from(sb.blocks_per_group - 4);
    if u64::from(sb.inodes_per_group) > most {
        found.push(
            Place::Superblock,
            Fault::InodesPerGroup(sb.inodes_per_group),
        );
        return None;
    }
    Some(sb)
}

impl Check<'_> {
    /// Checks the superblock. Returns false if the rest cannot be judged.
    pub(crate) fn check_superblock(&mut self) -> bool {
        let can_go_on = self.check_features();
        self.check_feature_pairs();
        self.check_numbers();
        self.check_quota_inodes();
        if self.sb.feature_incompat.contains(FeatureIncompat::RECOVER) {
            self.push(Place::Superblock, Fault::NeedsRecovery);
        }
        if !self.sb.state.contains(State::VALID) || self.sb.state.contains(State::ERROR) {
            self.push(Place::Superblock, Fault::NotClean(self.sb.state));
        }
        if self.sb.last_orphan != 0 {
            let first = InodeNo(self.sb.last_orphan);
            self.push(Place::Superblock, Fault::OrphanList(first));
        }
        can_go_on
    }

    fn check_features(&mut self) -> bool {
        let compat = self.sb.feature_compat.difference(COMPAT);
        let incompat = self.sb.feature_incompat.difference(INCOMPAT);
        let ro_compat = self.sb.feature_ro_compat.difference(RO_COMPAT);
        for feature in features::all(compat, incompat, ro_compat) {
            self.push(Place::Superblock, Fault::UnsupportedFeature(feature));
        }
        let mut can_go_on = incompat.is_empty() && !ro_compat.intersects(OPAQUE_RO_COMPAT);
        if self.sb.creator_os == HURD {
            // Hurd's inodes have other fields after the first hundred bytes.
            self.push(
                Place::Superblock,
                Fault::Unsupported("a volume of the Hurd"),
            );
            can_go_on = false;
        }
        can_go_on
    }

    fn check_feature_pairs(&mut self) {
        let (compat, incompat, ro_compat) = (
            self.sb.feature_compat,
            self.sb.feature_incompat,
            self.sb.feature_ro_compat,
        );
        let resize = compat.contains(FeatureCompat::RESIZE_INODE);
        let csum = ro_compat.contains(FeatureRoCompat::METADATA_CSUM);
        for (is_wrong, why) in [
            (
                csum && ro_compat.contains(FeatureRoCompat::GDT_CSUM),
                "features metadata_csum and uninit_bg exclude each other",
            ),
            (
                !csum && incompat.contains(FeatureIncompat::CSUM_SEED),
                "feature metadata_csum_seed without metadata_csum",
            ),
            (
                self.g.is_64bit && !self.g.extents,
                "feature 64bit without extent",
            ),
            (
                self.g.meta_bg && resize,
                "features meta_bg and resize_inode exclude each other",
            ),
            (
                ro_compat.contains(FeatureRoCompat::ORPHAN_PRESENT)
                    && !compat.contains(FeatureCompat::ORPHAN_FILE),
                "feature orphan_present without orphan_file",
            ),
        ] {
            if is_wrong {
                self.push(Place::Superblock, Fault::Features(why));
            }
        }
        if !resize && self.sb.reserved_gdt_blocks != 0 {
            let blocks = self.sb.reserved_gdt_blocks;
            self.push(Place::Superblock, Fault::ReservedGdtBlocks(blocks));
        }
    }

    fn check_numbers(&mut self) {
        if self.sb.r_blocks_count > self.sb.blocks_count / 2 {
            let blocks = self.sb.r_blocks_count;
            self.push(Place::Superblock, Fault::ReservedBlocks(blocks));
        }
        let desc_size = self.sb.desc_size;
        if desc_size != 0 && (!desc_size.is_power_of_two() || desc_size > 1024) {
            self.push(Place::Superblock, Fault::DescSize(desc_size));
        }
        if self.sb.log_groups_per_flex > 31 {
            let log = self.sb.log_groups_per_flex;
            self.push(Place::Superblock, Fault::GroupsPerFlex(log));
        }
        let most = self.g.inode_size - 128;
        for (field, value) in [
            ("s_min_extra_isize", self.sb.min_extra_isize),
            ("s_want_extra_isize", self.sb.want_extra_isize),
        ] {
            // If the inode has no room for the fields, their sizes have no meaning.
            if most > 0 && value != 0 && (value < 4 || value > most || value % 4 != 0) {
                self.push(Place::Superblock, Fault::SuperExtraSize { field, value });
            }
        }
    }

    /// Checks the quota inodes: e2fsck treats these as quota inodes with or without the feature.
    fn check_quota_inodes(&mut self) {
        if self.sb.feature_ro_compat.contains(FeatureRoCompat::QUOTA) {
            // The feature itself was reported as unsupported.
            return;
        }
        for (field, ino) in [
            ("s_usr_quota_inum", self.sb.usr_quota_inum),
            ("s_grp_quota_inum", self.sb.grp_quota_inum),
            ("s_prj_quota_inum", self.sb.prj_quota_inum),
        ] {
            let ino = InodeNo(ino);
            if ino.0 != 0 {
                self.push(Place::Superblock, Fault::QuotaInode { field, ino });
            }
        }
    }

    /// The valid flags of a group.
    pub(crate) fn group_flags(&self, g: u32) -> GroupFlags {
        self.s.groups[u32_as_usize(g)].flags(&self.g)
    }
}
