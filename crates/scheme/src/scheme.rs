//! The contract: what a journaling scheme does.

use serde::Serialize;
use stetfs_format::BlockNo;
use stetfs_media::BlockRef;

use crate::block::{DirtyBlock, Snapshot};
use crate::cache::Cache;
use crate::error::Result;

/// Where a block's newest committed version is.
#[derive(Clone, Debug)]
pub enum Held {
    /// The scheme holds it; this is its content.
    Here(BlockRef),
    /// It is home.
    Home,
}

/// Where a data block should go.
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

/// An action that a scheme chooses for a block where it has a choice, and what came of it so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActionCount {
    /// The action.
    pub name: &'static str,
    /// Blocks for which it was taken.
    pub taken: u64,
    /// What it was expected to cost for these, in bytes written until they are home for good.
    pub bytes: u64,
    /// What each of the scheme's actions was expected to cost for them, in the scheme's order.
    pub bytes_by_each: Vec<(&'static str, u64)>,
}

/// What waits to be brought home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// A background checkpoint is due.
    pub is_due: bool,
    /// Checkpoints that commits had to make because there was no room.
    pub forced: u64,
}

/// A journaling scheme that serves a volume. The first of its verbs is `open`, which makes it
/// ([`Registration::make`](crate::Registration::make)). One thread at a time calls `commit`. One
/// thread at a time calls `checkpoint`, possibly while another commits. Any thread calls the rest,
/// at any time.
pub trait Scheme: Send + Sync {
    /// The newest committed version of a home block, if the scheme holds one. The blocks of a
    /// transaction stay in memory until its commit returns, and nobody takes them from here or from
    /// home before. So a commit may write home what its log already has.
    fn read(&self, block: BlockNo) -> Result<Held>;

    /// False only if the scheme holds none of the `count` blocks from `start` on: a cheap filter
    /// before long reads.
    fn holds_any(&self, start: BlockNo, count: u32) -> bool;

    /// All of a data block that is not in memory is overwritten with `content`: whether the scheme
    /// wants to know what that changes of what is at `home`, which then is read. Asked of schemes
    /// that want [ranges of changes](crate::Wants::changed_bytes).
    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        let _ = (home, content);
        Ok(true)
    }

    /// Where a dirty data block that has a home should go. Asked when its transaction is closed,
    /// of schemes that [relocate](crate::Terms::relocates).
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// Makes the transaction durable. After an error the transaction may or may not be durable. No
    /// further commit is made then, and the scheme is not closed: the mark stays, and the next
    /// mount recovers.
    fn commit(&self, txn: &Snapshot) -> Result<()>;

    /// Writes data to the homes that it has, outside of any transaction; durable when it returns.
    /// False: nothing was written, and a commit has to. Asked of schemes whose terms say that such
    /// data [goes home](crate::Terms::overwrites_home), by any thread, also while another one
    /// commits; but not of a block that is in a commit under way. After an error as after that of a
    /// commit.
    fn overwrite(&self, blocks: &[(BlockNo, BlockRef)]) -> Result<bool> {
        let _ = blocks;
        Ok(false)
    }

    /// What waits to be brought home. Looked at after each commit.
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    /// Writes committed blocks home and frees their log space.
    fn checkpoint(&self, goal: Goal) -> Result<()>;

    /// Writes everything home and empties the log, so that a plain, clean ext4 image is left;
    /// unless the scheme [keeps](crate::Terms::keeps) its cache. No commit follows. The volume
    /// still has its mark, so a power cut meanwhile leads to a recovery.
    fn close(&self) -> Result<()>;

    /// What was chosen so far, for each action that can be; empty where there is no choice.
    fn actions(&self) -> Vec<ActionCount> {
        Vec::new()
    }

    /// The volume's cache, where the scheme's persistent memory is one.
    fn cache(&self) -> Option<&dyn Cache> {
        None
    }
}
