//! What the allocator knows of one group.
//!
//! Invariants, while a group's `state` is not locked:
//! 1. `state.desc` is what the descriptor will be on the volume when the running transaction
//!    closes. Until then a changed group is in `Alloc::changed`. Its checksums are those of the
//!    bitmaps.
//! 2. `desc.free_blocks_count` is the number of clear bits in the block bitmap; of those,
//!    `Alloc::free_blocks[g]` are not pinned.
//! 3. No run of free, unpinned blocks is longer than `state.longest`.
//! 4. No inode below index `state.first_free_inode` is free.

use stetfs_format::BlockNo;
use stetfs_format::group::GroupDesc;
use stetfs_sync::Mutex;

use super::pins::Pins;

/// What the allocator knows of one group.
pub(crate) struct Group {
    /// Where its inode table begins; never changes.
    pub(super) inode_table: BlockNo,
    pub(super) state: Mutex<GroupState>,
}

pub(super) struct GroupState {
    pub(super) desc: GroupDesc,
    /// The block bitmap passed its check.
    pub(super) blocks_checked: bool,
    /// The inode bitmap passed its check.
    pub(super) inodes_checked: bool,
    /// Where the next search begins (next fit).
    pub(super) cursor: u32,
    pub(super) longest: u32,
    pub(super) first_free_inode: u32,
    pub(super) pins: Option<Box<Pins>>,
    /// Damage was found in it: nothing is allocated here any more.
    pub(super) set_aside: bool,
    /// The running transaction changed the descriptor: see `Alloc::store_descs`.
    pub(super) is_changed: bool,
}

/// The bitmap that a change is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Blocks,
    Inodes,
}

impl Group {
    pub(super) fn new(desc: GroupDesc) -> Self {
        Self {
            inode_table: desc.inode_table,
            state: Mutex::new(GroupState {
                desc,
                blocks_checked: false,
                inodes_checked: false,
                cursor: 0,
                longest: u32::MAX,
                first_free_inode: 0,
                pins: None,
                set_aside: false,
                is_changed: false,
            }),
        }
    }
}

impl GroupState {
    /// Returns the bits that a search must avoid besides those of the bitmap.
    pub(super) fn overlays(&self) -> [&[u64]; 3] {
        self.pins.as_ref().map_or([&[], &[], &[]], |p| p.overlays())
    }
}
