//! ext4 and JBD2 records: bytes to types and back, no I/O.
//!
//! One module per record. Each begins with a table of the record's fields (`*_LAYOUT`, also in
//! FORMAT.md) and has a typed form or a view. `decode` checks everything that later code relies on,
//! and names the check that failed ([`Corrupt`]). `encode` functions fill a scratch copy. No input
//! makes a decoder panic, loop without end or allocate much. An encoder asserts what it demands of
//! its caller.
//!
//! The checks take the volume's [`Geometry`], to which a [`Superblock`] dereferences.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

pub mod acl;
pub mod block_size;
pub mod bytes;
pub mod checksum;
pub mod delta_log;
pub mod dirent;
pub mod dirhash;
pub mod error;
pub mod extent;
pub mod features;
pub mod ftl;
pub mod geometry;
pub mod group;
pub mod htree;
pub mod indirect;
pub mod inode;
pub mod jbd2;
pub mod layout;
pub mod mmp;
pub mod nand;
pub mod num;
pub mod nvm_cache;
pub mod nvm_pair;
pub mod orphan;
pub mod private_log;
mod shape;
pub mod superblock;
pub mod width;
pub mod xattr;

pub use acl::{Acl, AclEntry};
pub use block_size::BlockSize;
pub use dirent::DirBlock;
pub use dirhash::{DirHash, HashVersion, Hasher};
pub use error::{Corrupt, Corruption, Place};
pub use extent::{Extent, ExtentNode, ExtentNodeMut, Index};
pub use features::{Feature, FeatureCheck, FeatureCompat, FeatureIncompat, FeatureRoCompat};
pub use geometry::{Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
pub use group::{GroupDesc, GroupFlags};
pub use htree::{DxBlock, DxBlockMut, DxEntry, DxInfo};
pub use inode::{FileType, Inode, InodeFlags, Time};
pub use num::{BlockAddr, BlockNo, GroupNo, InodeNo, LBlock, PageNo, Tid};
pub use superblock::{State, SuperFlags, Superblock};
pub use xattr::{Xattr, XattrArea, XattrBlock};

/// The layout of every record: the tables of FORMAT.md.
pub const LAYOUTS: [&layout::Layout; 49] = [
    &superblock::SUPERBLOCK_LAYOUT,
    &group::GROUP_DESC_LAYOUT,
    &inode::INODE_LAYOUT,
    &extent::EXTENT_HEADER_LAYOUT,
    &extent::EXTENT_LAYOUT,
    &extent::EXTENT_INDEX_LAYOUT,
    &dirent::DIRENT_LAYOUT,
    &dirent::DIRENT_TAIL_LAYOUT,
    &htree::DX_ROOT_LAYOUT,
    &htree::DX_NODE_LAYOUT,
    &htree::DX_ENTRY_LAYOUT,
    &htree::DX_TAIL_LAYOUT,
    &xattr::XATTR_HEADER_LAYOUT,
    &xattr::XATTR_ENTRY_LAYOUT,
    &acl::ACL_HEADER_LAYOUT,
    &acl::ACL_ENTRY_LAYOUT,
    &mmp::MMP_LAYOUT,
    &orphan::ORPHAN_TAIL_LAYOUT,
    &jbd2::HEADER_LAYOUT,
    &jbd2::JOURNAL_SUPERBLOCK_LAYOUT,
    &jbd2::TAG_LAYOUT,
    &jbd2::TAG3_LAYOUT,
    &jbd2::REVOKE_LAYOUT,
    &jbd2::COMMIT_LAYOUT,
    &nand::NAND_HEADER_LAYOUT,
    &nand::BLOCK_RECORD_LAYOUT,
    &ftl::FTL_SPARE_LAYOUT,
    &ftl::FTL_ANCHOR_LAYOUT,
    &ftl::FTL_LOG_LAYOUT,
    &ftl::FTL_RUN_LAYOUT,
    &ftl::FTL_POOL_LAYOUT,
    &private_log::LOG_HEADER_LAYOUT,
    &private_log::LOG_TRANSACTION_LAYOUT,
    &private_log::LOG_CHUNK_LAYOUT,
    &nvm_pair::REGION_HEADER_LAYOUT,
    &nvm_pair::REGION_STATE_LAYOUT,
    &nvm_pair::VOLUME_RECORD_LAYOUT,
    &delta_log::DJ_GEOMETRY_LAYOUT,
    &delta_log::DJ_IN_FLIGHT_LAYOUT,
    &delta_log::DJ_IN_FLIGHT_ENTRY_LAYOUT,
    &delta_log::DJ_DESCRIPTOR_LAYOUT,
    &delta_log::DJ_TAG_LAYOUT,
    &delta_log::DJ_COMMIT_LAYOUT,
    &nvm_cache::CACHE_GEOMETRY_LAYOUT,
    &nvm_cache::CACHE_ENTRY_LAYOUT,
    &nvm_cache::CACHE_RING_LAYOUT,
    &nvm_cache::CACHE_SUB_BLOCK_LAYOUT,
    &nvm_cache::CACHE_CHANGES_LAYOUT,
    &nvm_cache::CACHE_CHANGE_LAYOUT,
];
