//! The anchor: where a checkpoint lies, and which blocks may have been programmed since.

use crate::ftl::array::{entry, put_entry};
use crate::ftl::error::FtlCorrupt;
use crate::layout::{Bytes, Le32, Le64, layout};
use crate::num::{BlockAddr, PageNo};
use crate::width::{must_fit, must_fit_u32, u32_as_usize};

const SIZE: usize = 0x70;
const MAGIC_BYTES: [u8; 8] = *b"stetFTL\0";
const VERSION_1: u32 = 1;
const RECORD: &str = "FTL anchor";

layout! {
    /// The head of an anchor page.
    pub FTL_ANCHOR_LAYOUT = "FTL anchor", SIZE, {
        0x00 Bytes<8>, MAGIC = "a_magic";
        0x08 Le32, VERSION = "a_version";
        0x0c Le32, MOUNTS = "a_mounts";
        0x10 Bytes<16>, UUID = "a_uuid";
        0x20 Le64, CHECKPOINT = "a_checkpoint";
        0x28 Le64, NEXT_SEQ = "a_next_seq";
        0x30 Le32, PAGE_BYTES = "a_page_bytes";
        0x34 Le32, PAGES_PER_BLOCK = "a_pages_per_block";
        0x38 Le32, BLOCKS = "a_blocks";
        0x3c Le32, LOGICAL_PAGES = "a_logical_pages";
        0x40 Le64, HOST_PAGES = "a_host_pages";
        0x48 Le64, GC_PAGES = "a_gc_pages";
        0x50 Le64, MAP_PAGES = "a_map_pages";
        0x58 Le64, REMAPPED_PAGES = "a_remapped_pages";
        0x60 Le32, DIRECTORIES = "a_directories";
        0x64 Le32, OPEN = "a_open";
        0x68 Le32, POOL = "a_pool";
    }
}

/// An anchor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FtlAnchor {
    /// The layer's UUID.
    pub uuid: [u8; 16],
    /// How often the layer was mounted.
    pub mounts: u32,
    /// The map contains everything up to this sequence number, and nothing after it.
    pub checkpoint: u64,
    /// Sequence numbers from here on were not used before this anchor was written.
    pub next_seq: u64,
    /// Bytes of a page's data.
    pub page_bytes: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
    /// Erase blocks.
    pub blocks: u32,
    /// Logical pages: the capacity.
    pub logical_pages: u32,
    /// Pages programmed for the layer's user since it was made.
    pub host_pages: u64,
    /// Pages moved to free blocks.
    pub gc_pages: u64,
    /// Pages of map, log and anchors.
    pub map_pages: u64,
    /// Logical pages that were remapped instead of being programmed.
    pub remapped_pages: u64,
    /// The directory, in order.
    pub directories: Vec<PageNo>,
    /// Blocks that were open for programming.
    pub open: Vec<BlockAddr>,
    /// Blocks that are going to be programmed next.
    pub pool: Vec<BlockAddr>,
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
    /// The checksum is the page's, whose seed is the UUID in here.
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
            uuid: UUID.get(raw),
            mounts: MOUNTS.get(raw),
            checkpoint: CHECKPOINT.get(raw),
            next_seq: NEXT_SEQ.get(raw),
            page_bytes: PAGE_BYTES.get(raw),
            pages_per_block: PAGES_PER_BLOCK.get(raw),
            blocks: BLOCKS.get(raw),
            logical_pages: LOGICAL_PAGES.get(raw),
            host_pages: HOST_PAGES.get(raw),
            gc_pages: GC_PAGES.get(raw),
            map_pages: MAP_PAGES.get(raw),
            remapped_pages: REMAPPED_PAGES.get(raw),
            directories: list(counts[0]).map(PageNo).collect(),
            open: list(counts[1]).map(BlockAddr).collect(),
            pool: list(counts[2]).map(BlockAddr).collect(),
        })
    }

    /// Fills a page's data. Panics when the lists do not fit.
    pub fn encode(&self, raw: &mut [u8]) {
        raw.fill(0);
        MAGIC.put(raw, &MAGIC_BYTES);
        VERSION.put(raw, VERSION_1);
        MOUNTS.put(raw, self.mounts);
        UUID.put(raw, &self.uuid);
        CHECKPOINT.put(raw, self.checkpoint);
        NEXT_SEQ.put(raw, self.next_seq);
        PAGE_BYTES.put(raw, self.page_bytes);
        PAGES_PER_BLOCK.put(raw, self.pages_per_block);
        BLOCKS.put(raw, self.blocks);
        LOGICAL_PAGES.put(raw, self.logical_pages);
        HOST_PAGES.put(raw, self.host_pages);
        GC_PAGES.put(raw, self.gc_pages);
        MAP_PAGES.put(raw, self.map_pages);
        REMAPPED_PAGES.put(raw, self.remapped_pages);
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
