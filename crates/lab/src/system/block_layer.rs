//! Memory behind a block layer: only whole sectors go through it, and nobody above knows that it is
//! memory.
//!
//! The Shortcut-JFS paper measures ext3 on a ram disk and says that the layer costs "a large
//! margin", and no figure. So no time is charged for the layer's own work: in virtual time ext3 is
//! as good as its bytes. What a layer costs on this machine is measured on the real medium.

use std::sync::Arc;

use stetfs_media::{BlockDev, Layer, Pmem, PmemDev};

/// A block device that happens to be memory.
pub struct BlockLayer(PmemDev);

impl BlockLayer {
    /// Before this memory.
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

    /// What was read stays in the page cache above the layer.
    fn host_cached(&self) -> bool {
        false
    }
}
