//! Writing blocks to their homes: in ascending order, neighbours in one request.

use stetfs_format::BlockNo;
use stetfs_media::{BlockDev, BlockRef, Cause, Class, Dirty, MediaError, Tag};

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
    write_runs(block_size, cause, writes, |at, parts, tag| {
        dev.write_vectored_at(at, parts, tag)
    })
}

/// Writes the blocks home as a part of a commit's body.
pub(crate) fn write_home_in(
    body: &mut Dirty<'_>,
    block_size: usize,
    cause: Cause,
    writes: Vec<Write<'_>>,
) -> Result<()> {
    write_runs(block_size, cause, writes, |at, parts, tag| {
        body.write(at, parts, tag)
    })
}

fn write_runs(
    block_size: usize,
    cause: Cause,
    mut writes: Vec<Write<'_>>,
    mut write: impl FnMut(u64, &[&[u8]], Tag) -> Result<(), MediaError>,
) -> Result<()> {
    writes.sort_unstable_by_key(|w| w.home);
    let most = MOST / block_size;
    for run in writes.chunk_by(|a, b| a.home.0 + 1 == b.home.0 && a.class == b.class) {
        for run in run.chunks(most) {
            let parts: smallvec::SmallVec<[&[u8]; 16]> =
                run.iter().map(|w| &w.content[..]).collect();
            let tag = Tag {
                class: run[0].class,
                cause,
            };
            write(run[0].home.0 * block_size as u64, &parts, tag)?;
        }
    }
    Ok(())
}
