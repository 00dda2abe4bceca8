//! Writing blocks to their homes: in ascending order, neighbours in one request, all requests at once.

use stetfs_format::BlockNo;
use stetfs_media::{BlockDev, BlockRef, Cause, Class, Dirty, MediaError, Run, Tag};

use crate::error::Result;

/// Bytes of one request at most: enough to hide its cost, small enough not to keep others waiting.
const MOST: usize = 1 << 20;

/// A block to be written.
pub(crate) struct Write<'a> {
    pub(crate) home: BlockNo,
    pub(crate) class: Class,
    pub(crate) content: &'a BlockRef,
}

/// Writes the blocks home. Durable only after a flush.
pub(crate) fn write_home(
    dev: &dyn BlockDev,
    block_size: usize,
    cause: Cause,
    writes: Vec<Write<'_>>,
) -> Result<()> {
    write_runs(block_size, cause, writes, |runs| dev.write_many(runs))
}

/// Writes the blocks home as a part of a commit's body.
pub(crate) fn write_home_in(
    body: &mut Dirty<'_>,
    block_size: usize,
    cause: Cause,
    writes: Vec<Write<'_>>,
) -> Result<()> {
    write_runs(block_size, cause, writes, |runs| body.write_many(runs))
}

fn write_runs(
    block_size: usize,
    cause: Cause,
    mut writes: Vec<Write<'_>>,
    write: impl FnOnce(&[Run<'_>]) -> Result<(), MediaError>,
) -> Result<()> {
    writes.sort_unstable_by_key(|w| w.home);
    let most = MOST / block_size;
    let runs: Vec<Run<'_>> = writes
        .chunk_by(|a, b| a.home.0 + 1 == b.home.0 && a.class == b.class)
        .flat_map(|run| run.chunks(most))
        .map(|run| Run {
            offset: run[0].home.0 * block_size as u64,
            parts: run.iter().map(|w| &w.content[..]).collect(),
            tag: Tag::new(run[0].class, cause),
        })
        .collect();
    Ok(write(&runs)?)
}
