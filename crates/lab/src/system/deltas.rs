//! What scheme dj logs in NVRAM, by the descriptors of its transactions.

use std::mem::take;
use std::ops::Sub;

use parking_lot::Mutex;
use serde::Serialize;
use stetfs_format::Tid;
use stetfs_format::delta_log::{
    DELTA_HEADER, DESCRIPTOR_SIZE, Record, Tag as BlockTag, TagFlags, descriptor_tags,
};
use stetfs_format::nvm_pair::COMMITTED_OFFSET;
use stetfs_media::sim::SimPmem;
use stetfs_media::{Cause, Class, MediaError, Pmem, PmemLayer, Tag};

/// Blocks that were logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeltaCount {
    /// Transactions.
    pub transactions: u64,
    /// Blocks logged as deltas.
    pub deltas: u64,
    /// Bytes of these, compressed, without tags and checksums.
    pub delta_bytes: u64,
    /// Blocks logged whole, in the device's journal.
    pub wholes: u64,
}

impl DeltaCount {
    /// The mean size of a delta in bytes; `None` where there is no delta.
    pub fn mean(&self) -> Option<f64> {
        (self.deltas > 0).then(|| self.delta_bytes as f64 / self.deltas as f64)
    }

    fn add(&mut self, record: &[u8]) {
        let Some(head) = record.first_chunk::<DESCRIPTOR_SIZE>() else {
            return;
        };
        let sequence = Tid(u32::from_le_bytes([head[8], head[9], head[10], head[11]]));
        let Some(tags) = descriptor_tags(head, sequence, record.len() as u64) else {
            return;
        };
        self.transactions += 1;
        for n in 0..tags {
            let tag = BlockTag::decode(&record[Record::tag_at(n)..]);
            if tag.flags.contains(TagFlags::NON_DELTA) {
                self.wholes += 1;
            } else if !tag.flags.contains(TagFlags::REVOKE) {
                self.deltas += 1;
                self.delta_bytes += u64::from(tag.length) - DELTA_HEADER as u64;
            }
        }
    }
}

impl Sub for DeltaCount {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            transactions: self.transactions.saturating_sub(before.transactions),
            deltas: self.deltas.saturating_sub(before.deltas),
            delta_bytes: self.delta_bytes.saturating_sub(before.delta_bytes),
            wholes: self.wholes.saturating_sub(before.wholes),
        }
    }
}

/// Memory that counts these, and whose fences take time.
pub(super) struct CountedPmem {
    pmem: SimPmem,
    fence_ns: u64,
    counting: Mutex<Counting>,
}

/// The count, and what was stored for the log since the last fence: a transaction, in two pieces
/// where the ring begins anew.
#[derive(Default)]
struct Counting {
    count: DeltaCount,
    stored: Vec<u8>,
}

impl CountedPmem {
    pub(super) fn new(pmem: SimPmem, fence_ns: u64) -> Self {
        Self {
            pmem,
            fence_ns,
            counting: Mutex::default(),
        }
    }

    pub(super) fn memory(&self) -> &SimPmem {
        &self.pmem
    }

    pub(super) fn fence_ns(&self) -> u64 {
        self.fence_ns
    }

    pub(super) fn count(&self) -> DeltaCount {
        self.counting.lock().count
    }

    fn note(&self, offset: u64, data: &[u8], tag: Tag) {
        // The word that names the durable transaction is no part of a transaction.
        if tag == Tag::new(Class::Journal, Cause::Log) && offset != COMMITTED_OFFSET {
            self.counting.lock().stored.extend_from_slice(data);
        }
    }
}

impl PmemLayer for CountedPmem {
    fn below(&self) -> &dyn Pmem {
        &self.pmem
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.note(offset, data, tag);
        self.pmem.store(offset, data, tag)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.note(offset, data, tag);
        self.pmem.store_nt(offset, data, tag)
    }

    fn fence(&self, cause: Cause) -> Result<(), MediaError> {
        let mut counting = self.counting.lock();
        let stored = take(&mut counting.stored);
        counting.count.add(&stored);
        drop(counting);
        self.pmem.rig().clock.advance(self.fence_ns);
        self.pmem.fence(cause)
    }
}
