//! Writing blocks to their homes: in ascending order, neighbours in one request, all requests at
//! once.

use hashbrown::HashSet;
use stetfs_format::BlockNo;
use stetfs_format::width::usize_as_u64;
use stetfs_media::{BlockDev, BlockRef, Cause, Class, Dirty, MediaError, Run, Tag};

use stetfs_scheme::{LoggedBlock, Result};
use stetfs_sync::{Condvar, Mutex};

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

/// The homes that a checkpoint is writing: data of a commit must not get there meanwhile, since the
/// block may have been metadata, freed since the checkpoint began to write it.
#[derive(Default)]
pub(crate) struct BusyHomes {
    homes: Mutex<HashSet<BlockNo>>,
    released: Condvar,
}

impl BusyHomes {
    /// Occupies the homes of what `find` finds. Both at once: a block that is freed and gets data
    /// meanwhile is no longer found, or its home is seen to be busy.
    pub(crate) fn occupy<D>(
        &self,
        find: impl FnOnce() -> Vec<D>,
        home: impl Fn(&D) -> BlockNo,
    ) -> Vec<D> {
        let mut homes = self.homes.lock();
        let due = find();
        homes.extend(due.iter().map(home));
        due
    }

    /// No home is busy any more, written or not.
    pub(crate) fn release(&self) {
        self.homes.lock().clear();
        self.released.notify_all();
    }

    /// Writes a commit's data home, as a part of a body that is flushed before anything vouches for
    /// it.
    pub(crate) fn write_data(
        &self,
        body: &mut Dirty<'_>,
        block_size: usize,
        data: &[LoggedBlock],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        {
            let mut homes = self.homes.lock();
            while !homes.is_empty() && data.iter().any(|b| homes.contains(&b.home)) {
                homes = self.released.wait(homes);
            }
        }
        let writes = data.iter().map(|b| Write {
            home: b.home,
            class: b.class,
            content: &b.content,
        });
        write_runs(block_size, Cause::Home, writes.collect(), |runs| {
            body.write_many(runs)
        })
    }
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
            offset: run[0].home.0 * usize_as_u64(block_size),
            parts: run.iter().map(|w| &w.content[..]).collect(),
            tag: Tag::new(run[0].class, cause),
        })
        .collect();
    Ok(write(&runs)?)
}
