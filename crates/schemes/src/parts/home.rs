//! Writing blocks, or parts of them, home: in ascending order, neighbours in one request, and all
//! requests at once.

use hashbrown::HashSet;
use stetfs_format::width::usize_as_u64;
use stetfs_format::{BlockNo, BlockSize};
use stetfs_media::{BlockDev, BlockRef, Cause, Class, Dirty, Run, Tag};

use stetfs_scheme::{LoggedBlock, Result};
use stetfs_sync::{Condvar, Mutex};

/// The most bytes of one request: enough to hide its cost, and few enough for others not to wait
/// long.
const MOST: usize = 1 << 20;

/// A block to write.
pub(crate) struct Write<'a> {
    pub(crate) home: BlockNo,
    pub(crate) class: Class,
    pub(crate) content: &'a BlockRef,
}

/// Bytes to write, in whole sectors.
pub(crate) struct Piece<'a> {
    /// The byte offset on the device.
    pub(crate) offset: u64,
    pub(crate) class: Class,
    pub(crate) bytes: &'a [u8],
}

impl<'a> From<&'a LoggedBlock> for Write<'a> {
    fn from(block: &'a LoggedBlock) -> Self {
        Self {
            home: block.home,
            class: block.class,
            content: &block.content,
        }
    }
}

impl<'a> Write<'a> {
    /// Makes a write of file data.
    pub(crate) fn data((home, content): &'a (BlockNo, BlockRef)) -> Self {
        Self {
            home: *home,
            class: Class::Data,
            content,
        }
    }

    fn piece(&self, block_size: BlockSize) -> Piece<'a> {
        Piece {
            offset: block_size.start_of(self.home),
            class: self.class,
            bytes: self.content,
        }
    }
}

/// Writes the blocks home. Durable only after a flush.
pub(crate) fn write_home(
    dev: &dyn BlockDev,
    block_size: BlockSize,
    cause: Cause,
    writes: Vec<Write<'_>>,
) -> Result<()> {
    let pieces = writes.iter().map(|write| write.piece(block_size));
    write_pieces(dev, cause, pieces.collect())
}

/// Writes the pieces home. Durable only after a flush.
pub(crate) fn write_pieces(dev: &dyn BlockDev, cause: Cause, pieces: Vec<Piece<'_>>) -> Result<()> {
    Ok(dev.write_many(&runs_of(cause, pieces))?)
}

/// The homes that a checkpoint is writing. A commit must not write data there until the checkpoint
/// is done: the block may have been metadata that was freed after the checkpoint took it.
#[derive(Default)]
pub(crate) struct BusyHomes {
    homes: Mutex<HashSet<BlockNo>>,
    released: Condvar,
}

impl BusyHomes {
    /// Makes the homes of all that `find` returns busy, under one lock. So a block that is freed
    /// and gets data at this time is either not found, or its home is busy.
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

    /// Makes no home busy any more.
    pub(crate) fn release(&self) {
        self.homes.lock().clear();
        self.released.notify_all();
    }

    /// Waits until none of these homes is busy.
    pub(crate) fn wait_for(&self, wanted: impl Iterator<Item = BlockNo> + Clone) {
        let mut homes = self.homes.lock();
        while !homes.is_empty() && wanted.clone().any(|home| homes.contains(&home)) {
            homes = self.released.wait(homes);
        }
    }

    /// Writes a commit's data home, as part of a body that is flushed before a record vouches for
    /// it.
    pub(crate) fn write_data<'b>(
        &self,
        body: &mut Dirty<'_>,
        block_size: BlockSize,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Result<()> {
        let runs = self.data_runs(block_size, data);
        if runs.is_empty() {
            Ok(())
        } else {
            Ok(body.write_many(&runs)?)
        }
    }

    /// Writes data home as the last part of a body; all of the body is durable when it returns.
    pub(crate) fn write_last_data<'b>(
        &self,
        body: Dirty<'_>,
        block_size: BlockSize,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Result<()> {
        let runs = self.data_runs(block_size, data);
        let _durable = if runs.is_empty() {
            body.submit().flush(Cause::Home)?
        } else {
            body.write_last_many(&runs, Cause::Home)?
        };
        Ok(())
    }

    /// Returns the requests that write these blocks home, when none of them is busy.
    fn data_runs<'b>(
        &self,
        block_size: BlockSize,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Vec<Run<'b>> {
        let writes = data.map(Into::into);
        self.wait_for(writes.clone().map(|write: Write<'_>| write.home));
        let pieces = writes.map(|write| write.piece(block_size));
        runs_of(Cause::Home, pieces.collect())
    }
}

/// Returns the requests that write these pieces.
pub(crate) fn runs_of(cause: Cause, mut pieces: Vec<Piece<'_>>) -> Vec<Run<'_>> {
    pieces.sort_unstable_by_key(|piece| piece.offset);
    let mut together = 0;
    let joins = |a: &Piece<'_>, b: &Piece<'_>| {
        together += a.bytes.len();
        let follows = a.offset + usize_as_u64(a.bytes.len()) == b.offset && a.class == b.class;
        let joins = follows && together + b.bytes.len() <= MOST;
        if !joins {
            together = 0;
        }
        joins
    };
    pieces
        .chunk_by(joins)
        .map(|run| Run {
            offset: run[0].offset,
            parts: run.iter().map(|piece| piece.bytes).collect(),
            tag: Tag::new(run[0].class, cause),
        })
        .collect()
}
