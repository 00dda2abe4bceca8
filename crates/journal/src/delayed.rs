//! Delayed data: which files have some, since when, and how much.
//!
//! Where a commit need not have the data of files (`data=ordered`, `data=writeback`), a new block
//! without a home belongs to no transaction. It is *delayed* until it is *enlisted* (`enlist.rs`),
//! which makes it part of the running transaction; in the other modes every dirty block joins at
//! once. A file that is deleted while its data is delayed never reaches the device.
//!
//! A file's blocks are enlisted in ascending order. A new block before those that the running
//! transaction has enlisted joins it at once (`file_data.rs`). So no block gets a home while one
//! before it is delayed, and the file system can store a size that ends at the first delayed block.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use stetfs_format::InodeNo;
use stetfs_sync::Mutex;

/// The files with delayed blocks, the one that has had some longest first.
#[derive(Default)]
pub(crate) struct Delayed {
    blocks: AtomicU32,
    list: Mutex<List>,
    /// The background has been asked to enlist some.
    pub(crate) is_told: AtomicBool,
}

#[derive(Default)]
struct List {
    /// The number of the next entry.
    next: u64,
    files: BTreeMap<u64, (InodeNo, Instant)>,
}

impl Delayed {
    /// Returns the number of delayed blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Relaxed)
    }

    pub(crate) fn add(&self, blocks: u32) {
        self.blocks.fetch_add(blocks, Relaxed);
    }

    pub(crate) fn sub(&self, blocks: u32) {
        self.blocks.fetch_sub(blocks, Relaxed);
    }

    /// Adds a file whose first block is delayed now; returns the number of its entry.
    pub(crate) fn begin(&self, ino: InodeNo) -> u64 {
        let mut list = self.list.lock();
        let number = list.next;
        list.next += 1;
        list.files.insert(number, (ino, Instant::now()));
        number
    }

    /// Removes a file that has no delayed blocks any more.
    pub(crate) fn end(&self, number: u64) {
        self.list.lock().files.remove(&number);
    }

    /// Returns the file that has had delayed blocks longest, of the entries from `number` on: its
    /// entry, the file, and for how long.
    pub(crate) fn oldest(&self, number: u64) -> Option<(u64, InodeNo, Duration)> {
        let list = self.list.lock();
        let (number, (ino, since)) = list.files.range(number..).next()?;
        Some((*number, *ino, since.elapsed()))
    }

    /// The number of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.list.lock().next
    }
}

/// How much data may be delayed, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelayLimits {
    /// The longest time (`dirty_expire=`).
    pub(crate) age: Duration,
    /// The most blocks: an operation that finds more enlists the oldest first.
    pub(crate) blocks: u32,
}

impl DelayLimits {
    /// Blocks up to which the background leaves them alone.
    pub(crate) fn quiet(self) -> u32 {
        self.blocks - self.blocks / 4
    }
}
