//! The inodes that the kernel knows, as far as a set of fixed size can tell.
//!
//! A listing sends attributes along for inodes that the kernel does not know: a program that looks
//! at each name then needs no more requests. For known inodes they would be wasted work. An inode
//! that is taken for another costs one more request, or attributes that nobody needed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs_format::InodeNo;
use stetfs_format::width::u32_as_usize;

/// Number of bits, 256 KiB in all.
const INODES: usize = 1 << 21;

/// The set. Inodes whose numbers are equal modulo [`INODES`] share a bit.
pub(crate) struct Known(Box<[AtomicU64]>);

impl Known {
    pub(crate) fn new() -> Self {
        Self((0..INODES / 64).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit(&self, ino: InodeNo) -> (&AtomicU64, u64) {
        let at = u32_as_usize(ino.0) % INODES;
        (&self.0[at / 64], 1 << (at % 64))
    }

    /// Notes that the kernel gets an entry that leads to the inode.
    pub(crate) fn add(&self, ino: InodeNo) {
        let (word, bit) = self.bit(ino);
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Notes that the kernel has dropped the inode.
    pub(crate) fn remove(&self, ino: InodeNo) {
        let (word, bit) = self.bit(ino);
        word.fetch_and(!bit, Relaxed);
    }

    pub(crate) fn has(&self, ino: InodeNo) -> bool {
        let (word, bit) = self.bit(ino);
        word.load(Relaxed) & bit != 0
    }
}
