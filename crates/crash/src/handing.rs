//! Media that hand the turn on before each change, so that other threads may run first.

use std::sync::Arc;

use stetfs::Schedule;
use stetfs_media::{AtomicWrite, BlockDev, Layer, MediaError, Pmem, PmemLayer, Remap, Tag};

use super::turns::Turns;

/// A block device.
pub(super) struct HandingDev {
    pub(super) dev: Arc<dyn BlockDev>,
    pub(super) turns: Arc<Turns>,
}

impl Layer for HandingDev {
    fn below(&self) -> &dyn BlockDev {
        &*self.dev
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.turns.pass();
        self.dev.write_vectored_at(offset, parts, tag)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.turns.pass();
        self.dev.write_durable(offset, parts, tag)
    }

    /// Its table changes in one step.
    fn remap(&self) -> Option<&dyn Remap> {
        self.dev.remap()
    }

    /// It too changes in one step.
    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        self.dev.atomic_write()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.turns.pass();
        self.dev.discard(offset, len)
    }
}

/// Persistent memory.
pub(super) struct HandingPmem {
    pub(super) pmem: Arc<dyn Pmem>,
    pub(super) turns: Arc<Turns>,
}

impl PmemLayer for HandingPmem {
    fn below(&self) -> &dyn Pmem {
        &*self.pmem
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.turns.pass();
        self.pmem.store(offset, data, tag)
    }

    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError> {
        self.turns.pass();
        self.pmem.store_u64(offset, value, tag)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.turns.pass();
        self.pmem.store_nt(offset, data, tag)
    }
}
