//! A device that is never flushed: mount option `nobarrier`, for devices whose cache survives a power cut.

use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, MediaError, Meter, Tag};

/// Passes everything on but flushes.
pub(super) struct NoBarrier(pub(super) Arc<dyn BlockDev>);

impl BlockDev for NoBarrier {
    fn describe(&self) -> String {
        self.0.describe()
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
        false
    }

    fn host_cached(&self) -> bool {
        self.0.host_cached()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.0.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.0.write_vectored_at(offset, parts, tag)
    }

    fn flush(&self, _: Cause) -> Result<(), MediaError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.0.discard(offset, len)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.0.write_zeros(offset, len, tag)
    }

    fn meter(&self) -> &Meter {
        self.0.meter()
    }
}
