//! The three feature words of the superblock and what stetfs does about each bit.
//!
//! The rule is the kernel's. A volume with an unknown incompatible feature cannot be understood and
//! is refused. With an unknown read-only-compatible feature it cannot be written. Unknown
//! compatible features mean nothing.
//! Source: kernel `Documentation/filesystems/ext4/super.rst`.

use std::fmt;

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::layout::flag_words;

bitflags! {
    /// `s_feature_compat`: a program that does not know a bit may ignore it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FeatureCompat: u32 {
        /// Preallocate blocks for directories; never used by the kernel.
        const DIR_PREALLOC = 0x1;
        /// "imagic inodes"; never used by the kernel.
        const IMAGIC_INODES = 0x2;
        /// There is a journal.
        const HAS_JOURNAL = 0x4;
        /// There are extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks behind the descriptors are reserved for growth, owned by inode 7.
        const RESIZE_INODE = 0x10;
        /// Directories may have hash trees.
        const DIR_INDEX = 0x20;
        /// Uninitialised groups, of a kernel patch that was never merged.
        const LAZY_BG = 0x40;
        /// An inode of blocks excluded from snapshots; never merged.
        const EXCLUDE_INODE = 0x80;
        /// A bitmap of blocks excluded from snapshots; never merged.
        const EXCLUDE_BITMAP = 0x100;
        /// At most two backups of the superblock, in `s_backup_bgs`.
        const SPARSE_SUPER2 = 0x200;
        /// The journal has an area for fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID never change (for encryption).
        const STABLE_INODES = 0x800;
        /// Orphans are recorded in a file of their own.
        const ORPHAN_FILE = 0x1000;
    }
}

bitflags! {
    /// `s_feature_incompat`: a program that does not know a bit must not mount the volume.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FeatureIncompat: u32 {
        /// Compressed files.
        const COMPRESSION = 0x1;
        /// Directory entries hold the file type.
        const FILETYPE = 0x2;
        /// The journal must be replayed.
        const RECOVER = 0x4;
        /// This device is an external journal, not a file system.
        const JOURNAL_DEV = 0x8;
        /// Descriptors lie in meta block groups.
        const META_BG = 0x10;
        /// Files may be mapped by extents.
        const EXTENTS = 0x40;
        /// Block numbers of more than 32 bits, large descriptors.
        const IS_64BIT = 0x80;
        /// Multiple-mount protection.
        const MMP = 0x100;
        /// A group's bitmaps and inode table may lie in another group.
        const FLEX_BG = 0x200;
        /// Values of extended attributes may lie in inodes of their own.
        const EA_INODE = 0x400;
        /// Data in directory entries (Lustre).
        const DIRDATA = 0x1000;
        /// The seed of checksums is stored, not made from the UUID.
        const CSUM_SEED = 0x2000;
        /// Directories above 2 GiB and hash trees of three levels.
        const LARGEDIR = 0x4000;
        /// Small files lie in their inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted files.
        const ENCRYPT = 0x10000;
        /// Directories whose names are compared without regard to case.
        const CASEFOLD = 0x20000;
        /// stetfs's own: the newest content is in a log or a memory that only the scheme which
        /// wrote it can read. e2fsprogs calls it FEATURE_I31. A clean unmount removes it.
        const PRIVATE_LOG = 0x8000_0000;
    }
}

bitflags! {
    /// `s_feature_ro_compat`: a program that does not know a bit must not write.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FeatureRoCompat: u32 {
        /// Backups of the superblock only in groups 0, 1 and powers of 3, 5, 7.
        const SPARSE_SUPER = 0x1;
        /// There is a file of 2 GiB or more.
        const LARGE_FILE = 0x2;
        /// Directories as B-trees; never used by the kernel.
        const BTREE_DIR = 0x4;
        /// `i_blocks` of 48 bits, perhaps in file system blocks.
        const HUGE_FILE = 0x8;
        /// Descriptors have CRC-16 checksums; groups may be uninitialised.
        const GDT_CSUM = 0x10;
        /// A directory may have more than 65,000 subdirectories.
        const DIR_NLINK = 0x20;
        /// Inodes have fields beyond the first 128 bytes.
        const EXTRA_ISIZE = 0x40;
        /// Snapshots (Next3); never merged.
        const HAS_SNAPSHOT = 0x80;
        /// Quota in hidden inodes.
        const QUOTA = 0x100;
        /// Allocation in clusters of blocks.
        const BIGALLOC = 0x200;
        /// All metadata have CRC-32C checksums.
        const METADATA_CSUM = 0x400;
        /// Replicas; never used by the kernel.
        const REPLICA = 0x800;
        /// The volume must not be written.
        const READONLY = 0x1000;
        /// Project quota.
        const PROJECT = 0x2000;
        /// Blocks shared between files (read-only Android images).
        const SHARED_BLOCKS = 0x4000;
        /// Files with Merkle trees.
        const VERITY = 0x8000;
        /// The orphan file is not empty.
        const ORPHAN_PRESENT = 0x10000;
    }
}

flag_words!(FeatureCompat: u32, FeatureRoCompat: u32);

impl FeatureIncompat {
    /// What stetfs understands and can keep right while it writes.
    pub const SUPPORTED: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::IS_64BIT)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA)
        .union(Self::PRIVATE_LOG);
}

impl FeatureIncompat {
    /// What stetfs understands, but cannot keep right while it writes.
    pub const READABLE: Self = Self::EA_INODE;
}

impl FeatureRoCompat {
    /// What stetfs can keep right while it writes.
    pub const SUPPORTED: Self = Self::SPARSE_SUPER
        .union(Self::LARGE_FILE)
        .union(Self::HUGE_FILE)
        .union(Self::GDT_CSUM)
        .union(Self::DIR_NLINK)
        .union(Self::EXTRA_ISIZE)
        .union(Self::METADATA_CSUM)
        .union(Self::ORPHAN_PRESENT);
}

/// One bit of one feature word, shown by the name that mke2fs and dumpe2fs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A bit of `s_feature_compat`.
    Compat(u32),
    /// A bit of `s_feature_incompat`.
    Incompat(u32),
    /// A bit of `s_feature_ro_compat`.
    RoCompat(u32),
}

impl Feature {
    /// The name that `mke2fs -O` takes; `None` when e2fsprogs has no name either.
    pub fn name(self) -> Option<&'static str> {
        let (bit, names): (u32, &[(u32, &str)]) = match self {
            Self::Compat(bit) => (bit, &COMPAT_NAMES),
            Self::Incompat(bit) => (bit, &INCOMPAT_NAMES),
            Self::RoCompat(bit) => (bit, &RO_COMPAT_NAMES),
        };
        names
            .iter()
            .find(|(known, _)| *known == bit)
            .map(|(_, name)| *name)
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        // e2fsprogs names unknown bits in this way.
        match self {
            Self::Compat(bit) => write!(f, "FEATURE_C{}", bit.trailing_zeros()),
            Self::Incompat(bit) => write!(f, "FEATURE_I{}", bit.trailing_zeros()),
            Self::RoCompat(bit) => write!(f, "FEATURE_R{}", bit.trailing_zeros()),
        }
    }
}

const COMPAT_NAMES: [(u32, &str); 13] = [
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "snapshot_bitmap"),
    (0x100, "exclude_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: [(u32, &str); 16] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x10000, "encrypt"),
    (0x20000, "casefold"),
];

const RO_COMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x10000, "orphan_present"),
];

/// Features that stetfs does not fully support, by the consequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureCheck {
    /// Each of these forbids mounting.
    pub refuse: SmallVec<[Feature; 4]>,
    /// Each of these forbids writing.
    pub read_only: SmallVec<[Feature; 4]>,
}

impl FeatureCheck {
    /// Whether the volume can be mounted, at least for reading.
    pub fn can_mount(&self) -> bool {
        self.refuse.is_empty()
    }

    /// Whether the volume can be mounted for writing.
    pub fn can_write(&self) -> bool {
        self.refuse.is_empty() && self.read_only.is_empty()
    }
}

/// The names of `features`, separated by commas.
pub fn names(features: &[Feature]) -> String {
    features
        .iter()
        .map(Feature::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Sorts the features that are set and not supported by their consequence.
pub fn check(incompat: FeatureIncompat, ro_compat: FeatureRoCompat) -> FeatureCheck {
    let known = FeatureIncompat::SUPPORTED | FeatureIncompat::READABLE;
    let read_only = incompat & FeatureIncompat::READABLE;
    FeatureCheck {
        refuse: bits(incompat.bits() & !known.bits())
            .map(Feature::Incompat)
            .collect(),
        read_only: bits(read_only.bits())
            .map(Feature::Incompat)
            .chain(
                bits(ro_compat.bits() & !FeatureRoCompat::SUPPORTED.bits()).map(Feature::RoCompat),
            )
            .collect(),
    }
}

/// All features that are set, in the order in which dumpe2fs lists them.
pub fn all(
    compat: FeatureCompat,
    incompat: FeatureIncompat,
    ro_compat: FeatureRoCompat,
) -> impl Iterator<Item = Feature> {
    bits(compat.bits())
        .map(Feature::Compat)
        .chain(bits(incompat.bits()).map(Feature::Incompat))
        .chain(bits(ro_compat.bits()).map(Feature::RoCompat))
}

fn bits(word: u32) -> impl Iterator<Item = u32> {
    (0..32)
        .map(|shift| 1 << shift)
        .filter(move |bit| word & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_named() {
        let found = check(
            FeatureIncompat::SUPPORTED
                | FeatureIncompat::ENCRYPT
                | FeatureIncompat::from_bits_retain(1 << 30),
            FeatureRoCompat::SUPPORTED | FeatureRoCompat::BIGALLOC | FeatureRoCompat::VERITY,
        );
        assert_eq!(names(&found.refuse), "encrypt, FEATURE_I30");
        assert_eq!(names(&found.read_only), "bigalloc, verity");
        assert!(!found.can_mount() && !found.can_write());
        let found = check(FeatureIncompat::SUPPORTED, FeatureRoCompat::SUPPORTED);
        assert!(found.can_mount() && found.can_write());
    }
}
