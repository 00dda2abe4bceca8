//! A device that lies: it confirms flushes, or durable writes, that it has not done. A journal on
//! it is like one whose author forgot that barrier. The judge must catch it, which tests the judge.

use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, Layer, MediaError, Tag};

/// The lie of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Flushes for this cause are not done.
    Flush(Cause),
    /// Durable writes for this cause are not durable.
    Durable(Cause),
}

/// A device that lies.
pub struct Liar {
    honest: Arc<dyn BlockDev>,
    lie: Lie,
}

impl Liar {
    /// A liar in front of `honest`.
    pub fn new(honest: Arc<dyn BlockDev>, lie: Lie) -> Self {
        Self { honest, lie }
    }
}

impl Layer for Liar {
    fn below(&self) -> &dyn BlockDev {
        &*self.honest
    }

    fn describe(&self) -> String {
        format!("{} that lies about {:?}", self.honest.describe(), self.lie)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        if self.lie == Lie::Durable(tag.cause) {
            return self.honest.write_vectored_at(offset, parts, tag);
        }
        self.honest.write_durable(offset, parts, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        if self.lie == Lie::Flush(cause) {
            return Ok(());
        }
        self.honest.flush(cause)
    }
}
