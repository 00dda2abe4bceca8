//! Attribute blocks that several inodes may share.
//!
//! A small table from a block's hash to a block that had it. The table is only a hint: its user
//! reads the block and compares all attributes. Its lock also guards every reference count: it is
//! held from reading a count to writing it, inside a handle and inside `Inode::state`.

use hashbrown::HashMap;
use parking_lot::MutexGuard;
use stetfs_format::BlockNo;
use stetfs_sync::Mutex;

/// How many blocks are remembered.
const BLOCKS_MAX: usize = 1024;

/// Known attribute blocks by their hash.
#[derive(Default)]
pub(crate) struct SharedBlocks(Mutex<Known>);

#[derive(Default)]
pub(super) struct Known(HashMap<u32, BlockNo>);

impl SharedBlocks {
    pub(super) fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

impl Known {
    /// A block that had this hash when it was remembered.
    pub(super) fn find(&self, hash: u32) -> Option<BlockNo> {
        self.0.get(&hash).copied()
    }

    /// Remembers a block. Hash 0 marks blocks that may not be shared.
    pub(super) fn insert(&mut self, hash: u32, block: BlockNo) {
        if hash == 0 {
            return;
        }
        if self.0.len() >= BLOCKS_MAX {
            self.0.clear();
        }
        self.0.insert(hash, block);
    }

    /// Forgets a block that is rewritten or freed.
    pub(super) fn forget(&mut self, hash: u32, block: BlockNo) {
        if self.find(hash) == Some(block) {
            self.0.remove(&hash);
        }
    }
}
