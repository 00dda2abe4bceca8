//! Which metadata blocks have passed their whole check since the mount.
//!
//! A full check of a node (checksum, order, every range) costs more than the search in it, so it is
//! made once, when the block is first read. The memory is a fixed table with one slot for each
//! hash: a collision costs another check, nothing else. Freeing a block forgets it. Readers are
//! safe even with content that was never checked: they still check bounds.

use std::sync::atomic::{AtomicU64, Ordering};

use stetfs_format::BlockNo;
use stetfs_format::width::u64_as_usize;

const SLOTS: usize = 1 << 13;

/// A bounded set of block numbers.
pub(crate) struct Verified {
    slots: Box<[AtomicU64]>,
}

impl Verified {
    /// Returns an empty set.
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn slot(&self, b: BlockNo) -> &AtomicU64 {
        let hash = b.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51;
        &self.slots[u64_as_usize(hash) % SLOTS]
    }

    /// Whether `b` was noted and not forgotten. Never for block 0, which holds no node.
    #[inline]
    pub(crate) fn is_noted(&self, b: BlockNo) -> bool {
        b.0 != 0 && self.slot(b).load(Ordering::Relaxed) == b.0
    }

    /// Notes that `b` passed its check.
    pub(crate) fn note(&self, b: BlockNo) {
        self.slot(b).store(b.0, Ordering::Relaxed);
    }

    /// Forgets `b`, which was freed.
    pub(crate) fn forget(&self, b: BlockNo) {
        let _ = self
            .slot(b)
            .compare_exchange(b.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_until_forgotten() {
        let v = Verified::new();
        assert!(!v.is_noted(BlockNo(0)));
        v.note(BlockNo(77));
        assert!(v.is_noted(BlockNo(77)) && !v.is_noted(BlockNo(78)));
        v.forget(BlockNo(78));
        assert!(v.is_noted(BlockNo(77)));
        v.forget(BlockNo(77));
        assert!(!v.is_noted(BlockNo(77)));
    }
}
