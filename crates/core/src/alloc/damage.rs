//! What can be wrong with the records of allocation. Each variant belongs to one check.

use stetfs_format::{BlockNo, GroupNo, InodeNo};

/// Bitmaps, descriptors and freed runs contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The block bitmap has another number of free blocks than its descriptor says.
    #[error(
        "group {group}: the block bitmap has {bitmap} free blocks, the descriptor says {descriptor}"
    )]
    FreeBlocks {
        /// The group.
        group: GroupNo,
        /// Clear bits.
        bitmap: u32,
        /// `bg_free_blocks_count`.
        descriptor: u32,
    },
    /// The inode bitmap has another number of free inodes than its descriptor says.
    #[error(
        "group {group}: the inode bitmap has {bitmap} free inodes, the descriptor says {descriptor}"
    )]
    FreeInodes {
        /// The group.
        group: GroupNo,
        /// Clear bits.
        bitmap: u32,
        /// `bg_free_inodes_count`.
        descriptor: u32,
    },
    /// The block bitmap says that one of the volume's own structures is free.
    #[error(
        "group {group}: block {block} holds the volume's own structures, but its bitmap says free"
    )]
    SystemBlockFree {
        /// The group.
        group: GroupNo,
        /// The block.
        block: BlockNo,
    },
    /// A reserved inode, or one past `bg_itable_unused`, has the wrong bit.
    #[error("group {group}: inode {ino} has the wrong bit in the inode bitmap")]
    InodeBit {
        /// The group.
        group: GroupNo,
        /// The inode.
        ino: InodeNo,
    },
    /// Blocks to be freed lie outside the volume.
    #[error("{count} blocks from {start} on are freed, which are not all in the volume")]
    FreeOutside {
        /// The first block.
        start: BlockNo,
        /// Their number.
        count: u32,
    },
    /// Blocks to be freed hold the volume's own structures.
    #[error(
        "{count} blocks from {start} on are freed, some of which hold the volume's own structures"
    )]
    FreeSystem {
        /// The first block.
        start: BlockNo,
        /// Their number.
        count: u32,
    },
    /// A block that is to be freed is free already.
    #[error("group {group}: block {block} is freed, but was free")]
    FreeTwice {
        /// The group.
        group: GroupNo,
        /// The block.
        block: BlockNo,
    },
    /// An inode that is to be freed is free already, or is one that no file can have.
    #[error("inode {0} is freed, but was not in use")]
    InodeFreeTwice(InodeNo),
    /// The descriptor counts no directory where one is removed.
    #[error("group {0}: a directory is freed, but the descriptor counts none")]
    UsedDirs(GroupNo),
}
