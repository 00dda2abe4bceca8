//! How much of a part is exported, and how the rest is used.
//!
//! Besides the anchors' region the layer reserves blocks so that it can always continue: free
//! blocks for a checkpoint, a log and moving pages before anything can be freed; the blocks that
//! the maps of two checkpoints take; and a share for blocks that go bad. Of the remaining blocks a
//! share is not exported either (over-provisioning): it holds the dead pages that let garbage
//! collection find victims.

use stetfs_format::ftl::{FtlAnchor, FtlLog, SpareCodec, entries_of, pool};
use stetfs_format::width::{must_fit, must_fit_u32, u32_as_usize};
use stetfs_media::nand::NandGeometry;

use crate::error::FtlError;

/// Blocks at the beginning of a part that hold only anchors.
pub(crate) const ANCHOR_BLOCKS: u32 = 8;
/// Blocks that are open for programming at the same time, one per stream.
pub(crate) const STREAMS: usize = 4;
/// When the pool is down to this many blocks, more are listed: enough for those that are opened, or
/// found bad, until the list is durable.
pub(crate) const POOL_LOW: usize = 4;
const POOL_MAX: u32 = 64;
/// How many pages are programmed for each page of the next checkpoint before it is due. So a
/// checkpoint costs at most a sixteenth.
pub(crate) const PROGRAMS_A_CHECKPOINT_PAGE: u64 = 16;

/// The properties of a new layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct FtlOptions {
    /// Share of the data pages that are not exported, in percent, from 1 to 90. A larger share
    /// makes garbage collection cheaper.
    pub over_provisioning_percent: u32,
    /// Share of all blocks that may go bad before the layer can no longer be written, in percent,
    /// not counting those that are bad already.
    pub bad_blocks_percent: u32,
}

impl Default for FtlOptions {
    fn default() -> Self {
        Self {
            over_provisioning_percent: 7,
            bad_blocks_percent: 2,
        }
    }
}

/// The numbers of a layer that follow from its part and its capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) geometry: NandGeometry,
    pub(crate) logical_pages: u32,
    /// Numbers in a map page.
    pub(crate) entries: u32,
    /// Map pages with the places of logical pages; those with erase counts follow.
    pub(crate) place_pages: u32,
    /// All map pages.
    pub(crate) map_pages: u32,
    pub(crate) directories: u32,
    /// Pages of the log between two checkpoints.
    pub(crate) log_pages: u32,
    /// Blocks that garbage collection keeps free.
    pub(crate) low_blocks: u32,
    /// Blocks that a checkpoint of the whole map takes.
    pub(crate) checkpoint_blocks: u32,
    /// Blocks that map and log may take: half of the map may be dead.
    map_blocks: u32,
    /// Blocks that a pool list names at most.
    pub(crate) pool_blocks: usize,
}

impl Shape {
    pub(crate) fn new(geometry: NandGeometry, logical_pages: u32) -> Result<Self, FtlError> {
        if geometry.spare_bytes < SpareCodec::SPARE_BYTES {
            return Err(FtlError::SpareTooSmall {
                found: geometry.spare_bytes,
                needed: SpareCodec::SPARE_BYTES,
            });
        }
        let entries = entries_of(geometry.page_bytes);
        let per_block = geometry.pages_per_block;
        let place_pages = logical_pages.div_ceil(entries);
        let map_pages = place_pages + geometry.blocks.div_ceil(entries);
        let directories = map_pages.div_ceil(entries);
        let room = FtlAnchor::room(geometry.page_bytes);
        let pool_blocks = room
            .saturating_sub(directories + must_fit_u32(STREAMS))
            .min(POOL_MAX)
            .min(pool::room(geometry.page_bytes));
        // The flag for shared pages takes one bit of a page number.
        if pool_blocks < 2 * must_fit_u32(POOL_LOW) || geometry.pages() >= 1 << 31 {
            return Err(FtlError::TooLarge {
                pages: geometry.pages(),
                page_bytes: geometry.page_bytes,
            });
        }
        let checkpoint_pages = map_pages + directories;
        let checkpoint_blocks = checkpoint_pages.div_ceil(per_block) + 1;
        let log_pages = (checkpoint_pages / 4).max(per_block).max(8);
        let log_blocks = log_pages.div_ceil(per_block) + 1;
        let open = must_fit_u32(STREAMS);
        Ok(Self {
            geometry,
            logical_pages,
            entries,
            place_pages,
            map_pages,
            directories,
            log_pages,
            low_blocks: must_fit_u32(POOL_LOW) + open + checkpoint_blocks + log_blocks + 1,
            checkpoint_blocks,
            map_blocks: 2 * checkpoint_blocks + log_blocks,
            pool_blocks: u32_as_usize(pool_blocks),
        })
    }

    /// Returns the shape of a new layer on a part; `good`: how many blocks outside the anchors'
    /// region are good.
    pub(crate) fn of_new(
        geometry: NandGeometry,
        good: u32,
        options: &FtlOptions,
    ) -> Result<Self, FtlError> {
        let percent = options.over_provisioning_percent;
        if !(1..=90).contains(&percent) {
            return Err(FtlError::OverProvisioning(percent));
        }
        let largest = Self::new(geometry, geometry.pages())?;
        let share = u64::from(geometry.blocks) * u64::from(options.bad_blocks_percent.min(100));
        let reserved = largest.reserved_blocks() + must_fit::<_, u32>(share.div_ceil(100));
        let data = u64::from(good.saturating_sub(reserved)) * u64::from(geometry.pages_per_block);
        let logical = data * u64::from(100 - percent) / 100;
        if logical == 0 {
            return Err(FtlError::TooSmall { good, reserved });
        }
        Self::new(geometry, must_fit(logical))
    }

    /// Blocks that hold no exported data, so that garbage collection can continue when all others
    /// are full.
    fn reserved_blocks(&self) -> u32 {
        self.low_blocks + must_fit_u32(STREAMS) + self.map_blocks + 2
    }

    /// The reserved blocks, and the blocks that hold all logical pages when every page is live and
    /// no block has a dead one.
    pub(crate) fn full_blocks(&self) -> u32 {
        self.reserved_blocks() + self.data_blocks()
    }

    /// Blocks that all logical pages fill.
    fn data_blocks(&self) -> u32 {
        self.logical_pages.div_ceil(self.geometry.pages_per_block)
    }

    /// The fewest good blocks outside the anchors' region with which the layer can still be
    /// written.
    pub(crate) fn least_good_blocks(&self) -> u32 {
        self.full_blocks() + self.data_blocks() / 64
    }

    /// How many runs a record of the log may have.
    pub(crate) fn runs_max(&self) -> usize {
        u32_as_usize(self.log_pages / 2 * FtlLog::room(self.geometry.page_bytes))
    }

    /// The map page with the place of a logical page.
    pub(crate) fn map_page_of(&self, logical: u32) -> u32 {
        logical / self.entries
    }

    /// The map page with the erase count of a block.
    pub(crate) fn wear_page_of(&self, block: u32) -> u32 {
        self.place_pages + block / self.entries
    }
}
