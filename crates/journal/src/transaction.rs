//! The blocks that a transaction collects while it runs: handles add them, the commit takes them.

use std::sync::Arc;

use hashbrown::HashSet;
use stetfs_format::BlockNo;

use crate::cache::Buffer;
use crate::file_data::FileData;
use crate::gate::{Blocks, Load};
use stetfs_sync::Mutex;

/// The blocks of a transaction, by what the commit does with them.
#[derive(Default)]
pub(crate) struct Transaction {
    meta: Mutex<Vec<Arc<Buffer>>>,
    files: Mutex<Vec<Arc<FileData>>>,
    revoked: Mutex<HashSet<BlockNo>>,
    blocks: Blocks,
    pinned: Blocks,
}

impl Load for Transaction {
    fn blocks(&self) -> u32 {
        self.blocks.get()
    }

    fn pinned(&self) -> u32 {
        self.pinned.get()
    }

    fn unpin(&self, blocks: u32) {
        self.pinned.sub(blocks);
    }

    fn is_empty(&self) -> bool {
        self.pinned.get() == 0 && self.revoked.lock().is_empty()
    }
}

impl Transaction {
    pub(crate) fn add_meta(&self, buffer: Arc<Buffer>) {
        self.meta.lock().push(buffer);
        self.pinned.add(1);
    }

    pub(crate) fn add_file(&self, file: Arc<FileData>) {
        self.files.lock().push(file);
    }

    pub(crate) fn add_blocks(&self, n: u32) {
        self.blocks.add(n);
    }

    pub(crate) fn add_pinned(&self, n: u32) {
        self.pinned.add(n);
    }

    /// Takes back `blocks` that might have been logged, and `pinned` that were dirty.
    pub(crate) fn give_back(&self, blocks: u32, pinned: u32) {
        self.blocks.sub(blocks);
        self.pinned.sub(pinned);
    }

    /// Notes a freed block; returns how many were noted before it.
    pub(crate) fn revoke(&self, block: BlockNo) -> usize {
        let mut revoked = self.revoked.lock();
        let before = revoked.len();
        revoked.insert(block);
        before
    }

    pub(crate) fn cancel_revoke(&self, block: BlockNo) {
        let mut revoked = self.revoked.lock();
        if !revoked.is_empty() {
            revoked.remove(&block);
        }
    }

    /// Hands the metadata blocks to the commit.
    pub(crate) fn take_meta(&self) -> Vec<Arc<Buffer>> {
        std::mem::take(&mut *self.meta.lock())
    }

    pub(crate) fn take_files(&self) -> Vec<Arc<FileData>> {
        std::mem::take(&mut *self.files.lock())
    }

    pub(crate) fn take_revoked(&self) -> HashSet<BlockNo> {
        std::mem::take(&mut *self.revoked.lock())
    }
}
