//! ext4 and JBD2 records: bytes to types and back, no I/O.
#![forbid(unsafe_code)]

pub mod acl;
pub mod bytes;
pub mod checksum;
pub mod dirent;
pub mod dirhash;
pub mod error;
pub mod extent;
pub mod features;
pub mod geometry;
pub mod group;
pub mod htree;
pub mod indirect;
pub mod inode;
pub mod jbd2;
pub mod layout;
pub mod num;
pub mod orphan;
mod shape;
pub mod superblock;
pub mod xattr;

pub use acl::{Acl, AclEntry};
pub use dirent::DirBlock;
pub use dirhash::{DirHash, HashVersion, Hasher};
pub use error::{Corrupt, Corruption, Place};
pub use extent::{Extent, ExtentNode, ExtentNodeMut, Index};
pub use features::{Feature, FeatureCheck, FeatureCompat, FeatureIncompat, FeatureRoCompat};
pub use geometry::{Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
pub use group::{GroupDesc, GroupFlags};
pub use htree::{DxBlock, DxBlockMut, DxEntry, DxInfo};
pub use inode::{FileType, Inode, InodeFlags, Time};
pub use num::{BlockNo, GroupNo, InodeNo, LBlock, Tid};
pub use superblock::{State, SuperFlags, Superblock};
pub use xattr::{Xattr, XattrArea, XattrBlock};
