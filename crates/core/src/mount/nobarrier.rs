//! A device that is never flushed: mount option `nobarrier`, for devices whose cache survives a
//! power cut.

use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, Layer, MediaError, Tag};

/// Passes everything on but flushes.
pub(super) struct NoBarrier(pub(super) Arc<dyn BlockDev>);

impl Layer for NoBarrier {
    fn below(&self) -> &dyn BlockDev {
        &*self.0
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    fn flush(&self, _: Cause) -> Result<(), MediaError> {
        Ok(())
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.0.write_zeros(offset, len, tag)
    }
}
