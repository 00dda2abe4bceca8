//! What can be wrong with the map of a file, beyond what one node or block shows alone. Each
//! variant belongs to one check.

use stetfs_format::{BlockNo, InodeNo, LBlock};

/// The records of a file's map contradict each other, or the change that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// An entry of an extent node reaches past the range that the parent gives the node.
    #[error(
        "inode {ino}: the extent tree's entry for logical block {lblk} reaches into the next \
            node's range"
    )]
    OutOfRange {
        /// The file.
        ino: InodeNo,
        /// Where the entry begins.
        lblk: LBlock,
    },
    /// Blocks are to be mapped where others are mapped already.
    #[error("inode {ino}: logical block {lblk} is mapped already")]
    Overlap {
        /// The file.
        ino: InodeNo,
        /// The first block that was to be mapped.
        lblk: LBlock,
    },
    /// A block that must be mapped is a hole.
    #[error("inode {ino}: logical block {lblk} is not mapped")]
    NotMapped {
        /// The file.
        ino: InodeNo,
        /// The block.
        lblk: LBlock,
    },
    /// More blocks are unmapped than `i_blocks` counts.
    #[error("inode {ino}: it maps more blocks than i_blocks counts")]
    BlockCount {
        /// The file.
        ino: InodeNo,
    },
    /// A block to be mapped has a number that block pointers (32 bits) cannot hold.
    #[error("inode {ino}: block {block} is beyond what block pointers reach")]
    PointerWidth {
        /// The file.
        ino: InodeNo,
        /// The block.
        block: BlockNo,
    },
}
