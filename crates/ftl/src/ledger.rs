//! What a mounted layer remembers from one step to the next: which map pages have changed, what the
//! log has still to write, how long hot data lives.

use stetfs_format::ftl::NO_PAGE;
use stetfs_format::num::PageNo;
use stetfs_format::width::u32_as_usize;

use crate::shape::Shape;

/// Where the map pages lie, and which of them have changed.
pub(crate) struct Table {
    /// The place of each map page, or `NO_PAGE`.
    pub(crate) places: Vec<u32>,
    pub(crate) dirty: Vec<bool>,
    pub(crate) dirty_count: u32,
    pub(crate) directories: Vec<PageNo>,
    /// Whether the next checkpoint is due whatever it costs.
    pub(crate) checkpoint_now: bool,
}

impl Table {
    pub(crate) fn new(shape: &Shape) -> Self {
        Self {
            places: vec![NO_PAGE; u32_as_usize(shape.map_pages)],
            dirty: vec![false; u32_as_usize(shape.map_pages)],
            dirty_count: 0,
            directories: Vec::new(),
            checkpoint_now: false,
        }
    }

    /// Notes that a number of a map page has changed.
    pub(crate) fn touch(&mut self, map_page: u32) {
        let dirty = &mut self.dirty[u32_as_usize(map_page)];
        self.dirty_count += u32::from(!*dirty);
        *dirty = true;
    }

    /// Notes that a map page was programmed.
    pub(crate) fn clean(&mut self, map_page: u32) {
        let dirty = &mut self.dirty[u32_as_usize(map_page)];
        self.dirty_count -= u32::from(*dirty);
        *dirty = false;
    }
}

/// A change that the log has not written yet.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) logical: u32,
    pub(crate) page: u32,
    pub(crate) count: u32,
    pub(crate) seq: u64,
}

/// The state of the map log, and the changes that it has still to write.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) pending: Vec<Pending>,
    /// Log and pool pages since the last checkpoint.
    pub(crate) pages: u32,
}

impl Log {
    /// Empties the log after a checkpoint, which holds all of its changes.
    pub(crate) fn clear(&mut self) {
        self.pending.clear();
        self.pages = 0;
    }
}

/// How long blocks of hot data live, in pages that the host writes: a moving average over about 16
/// such blocks. Before the first one, forever.
#[derive(Clone, Copy)]
pub(crate) struct Lifespan(pub(crate) u64);

impl Default for Lifespan {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Lifespan {
    pub(crate) fn add(&mut self, pages: u64) {
        self.0 = match self.0 {
            u64::MAX => pages,
            mean => mean - mean / 16 + pages / 16,
        };
    }
}
