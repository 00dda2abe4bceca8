//! Log pages, which change the map where no spare area does, and pool pages, which say where to
//! look for what is newer than the checkpoint.

use crate::ftl::array::{entry, put_entry};
use crate::ftl::error::FtlCorrupt;
use crate::layout::{Le32, Le64, layout, record};
use crate::num::BlockAddr;
use crate::width::{must_fit, must_fit_u32, u32_as_usize};

const SIZE: usize = 0x14;
const RUN_SIZE: usize = 0x10;
const POOL_SIZE: usize = 4;

layout! {
    /// The head of a pool page.
    pub FTL_POOL_LAYOUT = "FTL pool page", POOL_SIZE, {
        0x00 Le32, BLOCKS = "p_blocks";
    }
}

record! {
    /// A change in a log page.
    pub FTL_RUN_LAYOUT = "FTL log run", RUN_SIZE, {}

    /// Consecutive logical pages that lie in consecutive pages from now on, or nowhere.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FtlRun from (raw) {
        /// The first logical page.
        0x00 Le32, logical: u32 = "r_logical";
        /// Where it lies, or [`NO_PAGE`](super::NO_PAGE) for all.
        0x04 Le32, page: u32 = "r_page";
        /// How many.
        0x08 Le32, count: u32 = "r_count";
        /// How long before the record's sequence number this happened.
        0x0c Le32, age: u32 = "r_age";
    }
}

record! {
    /// The head of a log page.
    pub FTL_LOG_LAYOUT = "FTL log page", SIZE, {
        0x10 Le32, RUNS = "l_runs";
    }

    /// A part of a record of changes, which counts with all its parts or not at all.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FtlLog from (raw) {
        /// The record's sequence number: its own name, and when it happened.
        0x00 Le64, seq: u64 = "l_seq";
        /// Which part, from 0.
        0x08 Le32, part: u32 = "l_part";
        /// How many there are.
        0x0c Le32, parts: u32 = "l_parts";
    } {
        /// The changes.
        pub runs: Vec<FtlRun> = Vec::new();
    }
}

impl FtlLog {
    /// Runs that a page has room for.
    pub const fn room(page_bytes: u32) -> u32 {
        (page_bytes - must_fit_u32(SIZE)) / must_fit_u32(RUN_SIZE)
    }

    /// Reads a page's data, which is valid if and only if
    /// 1. `l_part` is below `l_parts`,
    /// 2. the runs fit the page.
    ///
    /// # Errors
    /// The variant of [`FtlCorrupt`] that belongs to the check.
    pub fn decode(raw: &[u8]) -> Result<Self, FtlCorrupt> {
        let log = Self::read_fields(raw);
        let (part, parts) = (log.part, log.parts);
        if part >= parts {
            return Err(FtlCorrupt::Part { part, parts });
        }
        let (count, room) = (RUNS.get(raw), Self::room(must_fit(raw.len())));
        if count > room {
            return Err(FtlCorrupt::Count {
                record: "FTL log page",
                count: count.into(),
                room: room.into(),
            });
        }
        let runs = raw[SIZE..].chunks_exact(RUN_SIZE).take(u32_as_usize(count));
        Ok(Self {
            runs: runs.map(FtlRun::read_fields).collect(),
            ..log
        })
    }

    /// Fills a page's data. Panics when the runs do not fit.
    pub fn encode(&self, raw: &mut [u8]) {
        raw.fill(0);
        self.write_fields(raw);
        RUNS.put(raw, must_fit(self.runs.len()));
        let places = raw[SIZE..].chunks_exact_mut(RUN_SIZE);
        assert!(self.runs.len() <= places.len(), "the runs fit the page");
        for (run, place) in self.runs.iter().zip(places) {
            run.write_fields(place);
        }
    }
}

/// Pool pages.
pub mod pool {
    use super::*;

    /// Blocks that a page has room for.
    pub const fn room(page_bytes: u32) -> u32 {
        (page_bytes - must_fit_u32(POOL_SIZE)) / 4
    }

    /// Reads a page's data, which is valid if and only if the blocks fit the page.
    ///
    /// # Errors
    /// [`FtlCorrupt::Count`].
    pub fn decode(raw: &[u8]) -> Result<Vec<BlockAddr>, FtlCorrupt> {
        let (count, room) = (BLOCKS.get(raw), room(must_fit(raw.len())));
        if count > room {
            return Err(FtlCorrupt::Count {
                record: "FTL pool page",
                count: count.into(),
                room: room.into(),
            });
        }
        let blocks = (1..=u32_as_usize(count)).map(|index| BlockAddr(entry(raw, index)));
        Ok(blocks.collect())
    }

    /// Fills a page's data. Panics when the blocks do not fit.
    pub fn encode(blocks: &[BlockAddr], raw: &mut [u8]) {
        raw.fill(0);
        BLOCKS.put(raw, must_fit(blocks.len()));
        for (index, block) in (1..).zip(blocks) {
            put_entry(raw, index, block.0);
        }
    }
}
