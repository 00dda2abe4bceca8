//! The contract: the verbs of a journaling scheme.

use serde::Serialize;
use stetfs_format::BlockNo;
use stetfs_media::BlockRef;

use crate::block::{DirtyBlock, Snapshot};
use crate::cache::Cache;
use crate::error::Result;

/// The place of a block's newest committed version.
#[derive(Clone, Debug)]
pub enum Held {
    /// The scheme holds it; this is its content.
    Here(BlockRef),
    /// It is home.
    Home,
}

/// The place where a data block should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its present home.
    Home,
    /// To a new block. The same transaction switches the file's mapping to it.
    Relocate,
}

/// How much a checkpoint writes home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Enough to bring the log back to a comfortable size; for the background.
    Background,
    /// A part that takes a moment; for callers that show progress.
    Some,
    /// Every committed block.
    All,
}

/// One of the actions that a scheme can choose for a block, with its counts so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionCount {
    /// The action.
    pub name: &'static str,
    /// Blocks for which it was taken.
    pub taken: u64,
    /// Its expected cost for these blocks: bytes written until they are home for good.
    pub bytes: u64,
    /// The expected cost of each of the scheme's actions for these blocks, in the scheme's order.
    pub bytes_by_each: Vec<(&'static str, u64)>,
}

/// The held blocks, as far as the journal must know of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// A background checkpoint is due.
    pub is_due: bool,
    /// Checkpoints that commits had to make because there was no room.
    pub forced: u64,
}

/// A journaling scheme that serves a volume. Its first verb is `open`, which makes it
/// ([`Registration::make`](crate::Registration::make)).
///
/// One thread at a time calls `commit`. One thread at a time calls `checkpoint`, possibly during a
/// commit. Any thread calls the other verbs at any time.
pub trait Scheme: Send + Sync {
    /// Returns the newest committed version of a block, if the scheme holds one. The blocks of a
    /// transaction stay in memory until its commit returns, and nobody reads them from here or from
    /// home before. So a commit may write blocks home as soon as its log has them.
    fn read(&self, block: BlockNo) -> Result<Held>;

    /// Returns false only if the scheme holds none of the `count` blocks from `start` on: a cheap
    /// filter before long reads.
    fn holds_any(&self, start: BlockNo, count: u32) -> bool;

    /// Returns whether the scheme wants the ranges that change when `content` overwrites all of a
    /// data block that is not in memory. If so, the journal reads the block from `home` first. It
    /// asks only schemes that want [ranges of changes](crate::Wants::changed_bytes).
    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        let _ = (home, content);
        Ok(true)
    }

    /// Returns where a dirty data block that has a home should go. The journal asks when it closes
    /// the transaction, and only schemes that [relocate](crate::Terms::relocates).
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// Makes the transaction durable. After an error it may or may not be durable. The journal then
    /// makes no further commit and does not close the scheme: the mark stays, and the next mount
    /// recovers.
    fn commit(&self, txn: &Snapshot) -> Result<()>;

    /// Writes data to its present homes, outside of any transaction; durable when it returns.
    /// Returns false if it wrote nothing, so that a commit must.
    ///
    /// The journal asks only schemes whose terms [allow this](crate::Terms::overwrites_home). Any
    /// thread may call it, also during a commit, but not for a block in that commit. After an error
    /// the same holds as after one of [`commit`](Self::commit).
    fn overwrite(&self, blocks: &[(BlockNo, BlockRef)]) -> Result<bool> {
        let _ = blocks;
        Ok(false)
    }

    /// Returns the backlog, which the journal looks at after each commit.
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    /// Writes committed blocks home and frees their log space.
    fn checkpoint(&self, goal: Goal) -> Result<()>;

    /// Writes everything home and empties the log, so that a plain, clean ext4 image is left. A
    /// scheme that [keeps](crate::Terms::keeps) its cache leaves it as it is. No commit follows.
    /// The volume still has its mark, so a power cut during the call leads to a recovery.
    fn close(&self) -> Result<()>;

    /// Returns the counts of all actions; empty for a scheme without a choice.
    fn actions(&self) -> Vec<ActionCount> {
        Vec::new()
    }

    /// Returns the volume's cache, if the scheme's persistent memory is one.
    fn cache(&self) -> Option<&dyn Cache> {
        None
    }
}
