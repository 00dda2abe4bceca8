//! Which inodes the kernel has, as far as a set of fixed size can tell.
//!
//! A listing brings attributes along for those that it does not have: a program that looks at each
//! name then asks for nothing more. For the others they would be work for nothing. An inode that is
//! taken for another one costs no more than a request, or attributes that nobody needed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs_format::InodeNo;
use stetfs_format::width::u32_as_usize;

/// Inodes that are told apart, 256 KiB of bits.
const INODES: usize = 1 << 21;

/// The set: one bit for all inodes whose numbers are the same in it.
pub(crate) struct Known(Box<[AtomicU64]>);

impl Known {
    pub(crate) fn new() -> Self {
        Self((0..INODES / 64).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit(&self, ino: InodeNo) -> (&AtomicU64, u64) {
        let at = u32_as_usize(ino.0) % INODES;
        (&self.0[at / 64], 1 << (at % 64))
    }

    /// The kernel gets an entry that leads to the inode.
    pub(crate) fn add(&self, ino: InodeNo) {
        let (word, bit) = self.bit(ino);
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// The kernel has dropped it.
    pub(crate) fn remove(&self, ino: InodeNo) {
        let (word, bit) = self.bit(ino);
        word.fetch_and(!bit, Relaxed);
    }

    pub(crate) fn has(&self, ino: InodeNo) -> bool {
        let (word, bit) = self.bit(ino);
        word.load(Relaxed) & bit != 0
    }
}
