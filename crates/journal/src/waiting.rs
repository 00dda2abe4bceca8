//! Data that waits for a place past commits: which files have some, since when, and how much.
//!
//! Where a commit need not have the data of files (`data=ordered`, `data=writeback`), a block that
//! has no place yet belongs to no transaction. It *waits* until it is *enlisted* (`enlist.rs`):
//! what is deleted before then never reaches the device. Then it joins the running transaction, as
//! everything dirty does at once in the other modes.
//!
//! A file's blocks are enlisted in ascending order, and a new one before those that the running
//! transaction has joins it at once (`file_data.rs`): so no block gets a place while one before it
//! waits, and the file system can let the size that is stored end where the first one does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use stetfs_format::InodeNo;
use stetfs_sync::Mutex;

/// Which files have blocks that wait, the one that has had some the longest first.
#[derive(Default)]
pub(crate) struct Waiting {
    blocks: AtomicU32,
    list: Mutex<List>,
    /// The background has been asked to have less wait.
    pub(crate) is_told: AtomicBool,
}

#[derive(Default)]
struct List {
    /// The number of the next entry.
    next: u64,
    files: BTreeMap<u64, (InodeNo, Instant)>,
}

impl Waiting {
    /// How many blocks wait.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks.load(Relaxed)
    }

    pub(crate) fn add(&self, blocks: u32) {
        self.blocks.fetch_add(blocks, Relaxed);
    }

    pub(crate) fn sub(&self, blocks: u32) {
        self.blocks.fetch_sub(blocks, Relaxed);
    }

    /// The first block of a file waits; the number of its entry.
    pub(crate) fn begin(&self, ino: InodeNo) -> u64 {
        let mut list = self.list.lock();
        let number = list.next;
        list.next += 1;
        list.files.insert(number, (ino, Instant::now()));
        number
    }

    /// None of the file waits any more.
    pub(crate) fn end(&self, number: u64) {
        self.list.lock().files.remove(&number);
    }

    /// The file that has waited the longest among those with an entry from `number` on: its entry,
    /// which it is, and for how long.
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

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimits {
    /// How long (`dirty_expire=`).
    pub(crate) age: Duration,
    /// Blocks: whoever would have more wait enlists what is oldest first.
    pub(crate) blocks: u32,
}

impl WaitLimits {
    /// Blocks up to which the background leaves them alone.
    pub(crate) fn quiet(self) -> u32 {
        self.blocks - self.blocks / 4
    }
}
