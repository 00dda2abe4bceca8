//! Memory behind a block layer: only whole sectors go through it, and nobody above knows that it is memory.
//!
//! The Shortcut-JFS paper measures ext3 on a ram disk and says that the layer costs "a large margin", and no figure. So no time
//! is charged for the layer's own work: in virtual time ext3 is as good as its bytes. What a layer costs on this machine
//! is measured on the real medium.

use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, MediaError, Meter, Pmem, PmemDev, Tag};

/// A block device that happens to be memory.
pub struct BlockLayer(PmemDev);

impl BlockLayer {
    /// Before this memory.
    pub fn new(pmem: Arc<dyn Pmem>) -> Self {
        Self(PmemDev::new(pmem))
    }
}

impl BlockDev for BlockLayer {
    fn describe(&self) -> String {
        format!("a block layer on {}", self.0.describe())
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }

    fn atomic_unit(&self) -> u32 {
        self.0.atomic_unit()
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    fn volatile_cache(&self) -> bool {
        self.0.volatile_cache()
    }

    /// What was read stays in the page cache above the layer.
    fn host_cached(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.0.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.0.write_vectored_at(offset, parts, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.0.flush(cause)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.0.discard(offset, len)
    }

    fn meter(&self) -> &Meter {
        self.0.meter()
    }
}
