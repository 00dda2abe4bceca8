//! Memory behind a block layer: only whole sectors go through it, and the file system does not know
//! that it is memory.
//!
//! The Shortcut-JFS paper measures ext3 on a ram disk and says that the layer costs "a large
//! margin", but gives no figure. So the layer's own work takes no time here: in virtual time ext3
//! costs what its bytes cost. The real medium shows what a layer costs on this machine.

use std::sync::Arc;

use stetfs_media::{BlockDev, Layer, Pmem, PmemDev};

/// A block device that is memory.
pub struct BlockLayer(PmemDev);

impl BlockLayer {
    /// Puts the layer before this memory.
    pub fn new(pmem: Arc<dyn Pmem>) -> Self {
        Self(PmemDev::new(pmem))
    }
}

impl Layer for BlockLayer {
    fn below(&self) -> &dyn BlockDev {
        &self.0
    }

    fn describe(&self) -> String {
        format!("a block layer on {}", self.0.describe())
    }

    /// False, since the page cache lies above the layer and keeps what was read.
    fn host_cached(&self) -> bool {
        false
    }
}
