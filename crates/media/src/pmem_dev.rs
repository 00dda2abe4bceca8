//! Persistent memory used as a block device: the home medium of schemes that also store single
//! bytes into it.
//!
//! Its sectors are cache lines, but a power cut tears them at words of 8 bytes
//! ([`BlockDev::atomic_unit`]). Writes bypass the processor's cache, and a flush is a fence.

use std::sync::Arc;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::pmem::contract::{LINE, Pmem, WORD};
use crate::range::{check_parts, check_range};
use crate::tag::{Cause, Tag};
use stetfs_format::width::{must_fit, usize_as_u64};

/// A block device in persistent memory.
pub struct PmemDev {
    pmem: Arc<dyn Pmem>,
    size: u64,
}

impl PmemDev {
    /// The memory as a device.
    pub fn new(pmem: Arc<dyn Pmem>) -> Self {
        let size = pmem.size();
        Self { pmem, size }
    }
}

impl BlockDev for PmemDev {
    fn describe(&self) -> String {
        self.pmem.describe()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        must_fit(LINE)
    }

    fn atomic_unit(&self) -> u32 {
        must_fit(WORD)
    }

    fn read_only(&self) -> bool {
        self.pmem.read_only()
    }

    fn volatile_cache(&self) -> bool {
        true
    }

    fn host_cached(&self) -> bool {
        true
    }

    fn jump_bytes(&self) -> u64 {
        0
    }

    fn pmem(&self) -> Option<&Arc<dyn Pmem>> {
        Some(&self.pmem)
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        check_range(
            Op::Read,
            offset,
            usize_as_u64(out.len()),
            self.sector_size(),
            self.size,
        )?;
        self.pmem.load(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        check_parts(offset, parts, self.sector_size(), self.size)?;
        let mut at = offset;
        for part in parts {
            self.pmem.store_nt(at, part, tag)?;
            at += usize_as_u64(part.len());
        }
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.pmem.fence(cause)
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.pmem.check_backing()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(Op::Discard, offset, len, self.sector_size(), self.size)?;
        Err(MediaError::Unsupported { op: Op::Discard })
    }

    fn meter(&self) -> &Meter {
        self.pmem.meter()
    }
}
