//! The anchor: where a checkpoint lies, and which blocks may have been programmed since.

use crate::ftl::array::{entry, put_entry};
use crate::ftl::error::FtlCorrupt;
use crate::layout::{Bytes, Le32, Le64, record};
use crate::num::{BlockAddr, PageNo};
use crate::width::{must_fit, must_fit_u32, u32_as_usize};

const SIZE: usize = 0x70;
const MAGIC_BYTES: [u8; 8] = *b"stetFTL\0";
const VERSION_1: u32 = 1;
const RECORD: &str = "FTL anchor";

record! {
    /// The head of an anchor page.
    pub FTL_ANCHOR_LAYOUT = "FTL anchor", SIZE, {
        0x00 Bytes<8>, MAGIC = "a_magic";
        0x08 Le32, VERSION = "a_version";
        0x60 Le32, DIRECTORIES = "a_directories";
        0x64 Le32, OPEN = "a_open";
        0x68 Le32, POOL = "a_pool";
    }

    /// An anchor.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct FtlAnchor from (raw) {
        /// How often the layer was mounted.
        0x0c Le32, mounts: u32 = "a_mounts";
        /// The layer's UUID.
        0x10 Bytes<16>, uuid: [u8; 16] = "a_uuid";
        /// The map contains everything up to this sequence number, and nothing after it.
        0x20 Le64, checkpoint: u64 = "a_checkpoint";
        /// Sequence numbers from here on were not used before this anchor was written.
        0x28 Le64, next_seq: u64 = "a_next_seq";
        /// Bytes of a page's data.
        0x30 Le32, page_bytes: u32 = "a_page_bytes";
        /// Pages of an erase block.
        0x34 Le32, pages_per_block: u32 = "a_pages_per_block";
        /// Erase blocks.
        0x38 Le32, blocks: u32 = "a_blocks";
        /// Logical pages: the capacity.
        0x3c Le32, logical_pages: u32 = "a_logical_pages";
        /// Pages programmed for the layer's user since it was made.
        0x40 Le64, host_pages: u64 = "a_host_pages";
        /// Pages moved to free blocks.
        0x48 Le64, gc_pages: u64 = "a_gc_pages";
        /// Pages of map, log and anchors.
        0x50 Le64, map_pages: u64 = "a_map_pages";
        /// Logical pages that were remapped instead of being programmed.
        0x58 Le64, remapped_pages: u64 = "a_remapped_pages";
    } {
        /// The directory, in order.
        pub directories: Vec<PageNo> = Vec::new();
        /// Blocks that were open for programming.
        pub open: Vec<BlockAddr> = Vec::new();
        /// Blocks that are going to be programmed next.
        pub pool: Vec<BlockAddr> = Vec::new();
    }
}

impl FtlAnchor {
    /// How many entries all lists of an anchor can have together.
    pub const fn room(page_bytes: u32) -> u32 {
        (page_bytes - must_fit_u32(SIZE)) / 4
    }

    /// Reads an anchor from a page's data, which is valid if and only if
    /// 1. `a_magic` is "stetFTL" and a zero,
    /// 2. `a_version` is 1,
    /// 3. the lists fit the page.
    ///
    /// The checksum is in the page's spare area; its seed is the UUID in here.
    ///
    /// # Errors
    /// The variant of [`FtlCorrupt`] that belongs to the check.
    pub fn decode(raw: &[u8]) -> Result<Self, FtlCorrupt> {
        if MAGIC.get(raw) != MAGIC_BYTES {
            return Err(FtlCorrupt::Magic(MAGIC.get(raw)));
        }
        if VERSION.get(raw) != VERSION_1 {
            return Err(FtlCorrupt::Version(VERSION.get(raw)));
        }
        let counts = [DIRECTORIES, OPEN, POOL].map(|field| field.get(raw));
        let count = counts.iter().map(|n| u64::from(*n)).sum();
        let room = Self::room(must_fit(raw.len())).into();
        if count > room {
            return Err(FtlCorrupt::Count {
                record: RECORD,
                count,
                room,
            });
        }
        let mut at = SIZE / 4;
        let mut list = |count: u32| {
            let first = at;
            at += u32_as_usize(count);
            (first..at).map(|index| entry(raw, index))
        };
        Ok(Self {
            directories: list(counts[0]).map(PageNo).collect(),
            open: list(counts[1]).map(BlockAddr).collect(),
            pool: list(counts[2]).map(BlockAddr).collect(),
            ..Self::read_fields(raw)
        })
    }

    /// Fills a page's data. Panics when the lists do not fit.
    pub fn encode(&self, raw: &mut [u8]) {
        raw.fill(0);
        MAGIC.put(raw, MAGIC_BYTES);
        VERSION.put(raw, VERSION_1);
        self.write_fields(raw);
        DIRECTORIES.put(raw, must_fit(self.directories.len()));
        OPEN.put(raw, must_fit(self.open.len()));
        POOL.put(raw, must_fit(self.pool.len()));
        let directories = self.directories.iter().map(|page| page.0);
        let blocks = self.open.iter().chain(&self.pool).map(|block| block.0);
        for (index, value) in (SIZE / 4..).zip(directories.chain(blocks)) {
            put_entry(raw, index, value);
        }
    }
}
