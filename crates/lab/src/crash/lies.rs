//! A device that lies: it confirms flushes, or durable writes, that it has not done. A journal on it is like one whose author forgot
//! that barrier, and the judge must catch it: this tests the tester.

use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, MediaError, Meter, Tag};

/// What the device lies about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Flushes for this cause are not done.
    Flush(Cause),
    /// Durable writes for this cause are not durable.
    Durable(Cause),
}

/// A device behind a lie.
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

impl BlockDev for Liar {
    fn describe(&self) -> String {
        format!("{} that lies about {:?}", self.honest.describe(), self.lie)
    }

    fn size(&self) -> u64 {
        self.honest.size()
    }

    fn sector_size(&self) -> u32 {
        self.honest.sector_size()
    }

    fn atomic_unit(&self) -> u32 {
        self.honest.atomic_unit()
    }

    fn read_only(&self) -> bool {
        self.honest.read_only()
    }

    fn volatile_cache(&self) -> bool {
        self.honest.volatile_cache()
    }

    fn host_cached(&self) -> bool {
        self.honest.host_cached()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.honest.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.honest.write_vectored_at(offset, parts, tag)
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

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.honest.discard(offset, len)
    }

    fn meter(&self) -> &Meter {
        self.honest.meter()
    }
}
