//! The contract: what a journaling scheme does.

use stetfs_format::BlockNo;
use stetfs_media::BlockRef;

use crate::block::{DirtyBlock, Snapshot};
use crate::cache::Cache;
use crate::error::Result;

/// Whether a scheme holds a block's newest committed version.
#[derive(Clone, Debug)]
pub enum Held {
    /// This is it.
    Here(BlockRef),
    /// It is at home.
    Home,
}

/// Where a data block should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its present home.
    Home,
    /// To a new block, to which the file's mapping is switched in the same transaction.
    Relocate,
}

/// How much of the log to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// As much as brings the log back to a comfortable size; called in the background.
    Background,
    /// As much as takes a moment: for those who show progress.
    Some,
    /// Everything that is committed.
    All,
}

/// What waits to be brought home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// A checkpoint in the background is due.
    pub is_due: bool,
    /// Checkpoints that commits have made since there was no room.
    pub forced: u64,
}

/// A journaling scheme that serves a volume. The first of its verbs is `open`, which makes it
/// ([`Registration::make`](crate::Registration::make)). One thread at a time commits; one thread at
/// a time calls `checkpoint`, possibly while another commits; the rest is called by any thread.
pub trait Scheme: Send + Sync {
    /// The newest committed version of a home block, if the scheme holds one.
    fn read(&self, block: BlockNo) -> Result<Held>;

    /// Some block from `start` on, `count` blocks long, may be held: a cheap filter before long
    /// reads.
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

    /// Makes the transaction durable. After an error nothing may be assumed of it and no further
    /// commit is made.
    fn commit(&self, txn: &Snapshot) -> Result<()>;

    /// What waits to be brought home. Looked at after each commit.
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    /// Writes committed blocks home and frees their log space.
    fn checkpoint(&self, goal: Goal) -> Result<()>;

    /// Leaves a plain, clean ext4 image: everything home, the log empty; unless it
    /// [keeps](crate::Terms::keeps) it. No commit follows.
    fn close(&self) -> Result<()>;

    /// The volume's cache, where the scheme's persistent memory is one.
    fn cache(&self) -> Option<&dyn Cache> {
        None
    }
}
