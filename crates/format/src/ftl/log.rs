//! Log pages, which change the map where no spare area does, and pool pages, which say where to
//! look for what is newer than the checkpoint.

use crate::ftl::array::{entry, put_entry};
use crate::ftl::error::FtlCorrupt;
use crate::layout::{Le32, Le64, layout};
use crate::num::BlockAddr;
use crate::width::{must_fit, must_fit_u32, u32_as_usize};

const SIZE: usize = 0x14;
const RUN_SIZE: usize = 0x10;
const POOL_SIZE: usize = 4;

layout! {
    /// The head of a log page.
    pub FTL_LOG_LAYOUT = "FTL log page", SIZE, {
        0x00 Le64, SEQ = "l_seq";
        0x08 Le32, PART = "l_part";
        0x0c Le32, PARTS = "l_parts";
        0x10 Le32, RUNS = "l_runs";
    }
}

layout! {
    /// A change in a log page.
    pub FTL_RUN_LAYOUT = "FTL log run", RUN_SIZE, {
        0x00 Le32, LOGICAL = "r_logical";
        0x04 Le32, PAGE = "r_page";
        0x08 Le32, COUNT = "r_count";
        0x0c Le32, AGE = "r_age";
    }
}

layout! {
    /// The head of a pool page.
    pub FTL_POOL_LAYOUT = "FTL pool page", POOL_SIZE, {
        0x00 Le32, BLOCKS = "p_blocks";
    }
}

/// Consecutive logical pages that lie in consecutive pages from now on, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlRun {
    /// The first logical page.
    pub logical: u32,
    /// Where it lies, or [`NO_PAGE`](super::NO_PAGE) for all.
    pub page: u32,
    /// How many.
    pub count: u32,
    /// How long before the record's sequence number this happened.
    pub age: u32,
}

/// A part of a record of changes, which counts with all its parts or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtlLog {
    /// The record's sequence number: its own name, and when it happened.
    pub seq: u64,
    /// Which part, from 0.
    pub part: u32,
    /// How many there are.
    pub parts: u32,
    /// The changes.
    pub runs: Vec<FtlRun>,
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
        let (part, parts) = (PART.get(raw), PARTS.get(raw));
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
            seq: SEQ.get(raw),
            part,
            parts,
            runs: runs
                .map(|run| FtlRun {
                    logical: LOGICAL.get(run),
                    page: PAGE.get(run),
                    count: COUNT.get(run),
                    age: AGE.get(run),
                })
                .collect(),
        })
    }

    /// Fills a page's data. Panics when the runs do not fit.
    pub fn encode(&self, raw: &mut [u8]) {
        raw.fill(0);
        SEQ.put(raw, self.seq);
        PART.put(raw, self.part);
        PARTS.put(raw, self.parts);
        RUNS.put(raw, must_fit(self.runs.len()));
        for (index, run) in self.runs.iter().enumerate() {
            let at = SIZE + index * RUN_SIZE;
            let into = &mut raw[at..at + RUN_SIZE];
            LOGICAL.put(into, run.logical);
            PAGE.put(into, run.page);
            COUNT.put(into, run.count);
            AGE.put(into, run.age);
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
