//! A device whose flushes take longer, for measurements.

use std::sync::Arc;
use std::time::Duration;

use stetfs_media::{BlockDev, Cause, Layer, MediaError};

/// A layer that waits behind each flush.
pub(crate) struct SlowFlush {
    pub(crate) below: Arc<dyn BlockDev>,
    pub(crate) flush: Duration,
}

impl Layer for SlowFlush {
    fn below(&self) -> &dyn BlockDev {
        &*self.below
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.below.flush(cause)?;
        std::thread::sleep(self.flush);
        Ok(())
    }
}
