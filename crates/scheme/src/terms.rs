//! The terms to which a scheme has agreed, once it is open.

use serde::Serialize;
use stetfs_format::BlockSize;
use stetfs_media::DISK_JUMP_BYTES;

/// The terms on which a scheme serves a volume. They depend on the ground and on the options, and
/// hold from opening to closing.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The promise for file data after a crash, in the mode with which the scheme was opened.
    pub promise: DataPromise,
    /// The mark in the superblock while the scheme has the volume.
    pub mark: Mark,
    /// The most blocks that the handles of one transaction may log. Placing its data at the commit
    /// may log twice as many more. So a quarter of the log is usual: it leaves room for the next
    /// transaction.
    pub max_transaction: u32,
    /// [`commit`](crate::Scheme::commit) logs data blocks too: they count as credits, and freed
    /// ones are revoked.
    pub logs_data: bool,
    /// Without `logs_data`: [`commit`](crate::Scheme::commit) still makes
    /// [whole](crate::LoggedBlock::whole) blocks change with their transaction. Each counts as a
    /// credit, and from the first one on freed data blocks are revoked.
    pub logs_marked: bool,
    /// What the scheme wants to know of a change.
    pub wants: Wants,
    /// Whether the scheme asks for relocation
    /// ([`Placement::Relocate`](crate::Placement::Relocate)), and how far it is granted.
    pub relocates: Relocates,
    /// [`commit`](crate::Scheme::commit) writes new blocks where they stay, before the transaction
    /// counts. So a block that a transaction frees must not become a new block in the same
    /// transaction: the committed state still has its old content.
    pub places_new: bool,
    /// The device's means of getting committed blocks home without a copy, if the scheme uses one.
    pub remaps: Option<&'static str>,
    /// Its [cache](crate::Scheme::cache) is the only one for clean data: other memory keeps none.
    pub is_buffer_cache: bool,
    /// Closing the scheme leaves the newest content in its cache, where only the scheme finds it
    /// (`-o keep-cache`).
    pub keeps: bool,
}

impl Terms {
    /// The most blocks that one operation of the file system logs. Opening refuses a log that is
    /// too short for a transaction of this size.
    pub const LEAST_TRANSACTION: u32 = 96;

    /// Returns the terms of a private log that logs data too and wants nothing more.
    pub fn plain(max_transaction: u32) -> Self {
        Self {
            promise: DataPromise::Atomic,
            mark: Mark::PrivateLog,
            max_transaction,
            logs_data: true,
            logs_marked: true,
            wants: Wants::default(),
            relocates: Relocates::No,
            places_new: false,
            remaps: None,
            is_buffer_cache: false,
            keeps: false,
        }
    }

    /// True when overwritten data goes to its present home, independently of its transaction: it
    /// may go there [without](crate::Scheme::overwrite) a commit.
    pub fn overwrites_home(&self) -> bool {
        self.promise.is_apart() && !self.relocates.is_any()
    }
}

/// Whether blocks of data that have a home are relocated, and how far that may break files up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocates {
    /// Never: the journal does not call [`place`](crate::Scheme::place).
    No,
    /// Wherever there is space, because the place of a file's blocks costs nothing.
    Freely,
    /// As far as files stay in long extents. A block that would break them up keeps its home.
    Sparingly(Extents),
}

impl Relocates {
    /// True when the journal calls [`place`](crate::Scheme::place) at all.
    pub fn is_any(self) -> bool {
        self != Self::No
    }
}

/// The bound on how far relocation may break a file's extents up.
///
/// The file system looks at aligned windows of twice `mean` blocks of a file. It grants a
/// relocation that leaves each window with at most two starts of extents, or with no more than
/// before. So a file gets at most one more extent for each `mean` blocks. The relocation must also
/// have at least `run` blocks in a row, or leave fewer extents than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// The least blocks per extent of a file.
    pub mean: u32,
    /// The least blocks in a row that may become an extent of their own.
    pub run: u32,
}

impl Extents {
    /// For media on which the distance of blocks costs little: one extent more per eight blocks.
    pub const FLASH: Self = Self { mean: 8, run: 1 };

    /// For disks, on which each extent costs a movement of the head: the blocks that are
    /// transferred in the time of one.
    pub fn disk(block_size: BlockSize) -> Self {
        let run = block_size.block_of(DISK_JUMP_BYTES);
        let run = u32::try_from(run).unwrap_or(1).max(1);
        Self { mean: run, run }
    }
}

/// The knowledge of a change that a scheme wants. Knowledge that it does not want costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The content that each block had before the transaction
    /// ([`LoggedBlock::base`](crate::LoggedBlock::base)).
    pub base: bool,
    /// How precisely the scheme wants to know which bytes of a block changed
    /// ([`LoggedBlock::ranges`](crate::LoggedBlock::ranges)). 0: not at all; the ranges are the
    /// bytes that were written. n: the ranges are the bytes that changed, as long as fewer than n
    /// bytes changed; from n on, they may be the bytes that were written.
    pub changed_bytes: usize,
}

/// The mark by which a mounted volume warns other tools. The mount sets it in the superblock,
/// durably, after opening the scheme and before the first commit, and removes it after closing the
/// scheme. So a log counts if and only if its volume has the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Not cleanly unmounted: e2fsck must look at it after a crash.
    Unclean,
    /// `needs_recovery`: the kernel and e2fsck replay the journal.
    NeedsRecovery,
    /// The feature `PRIVATE_LOG`, which neither the kernel nor e2fsck knows: only the scheme can
    /// find the newest content. Block 1 of the journal area then names the scheme, in a
    /// [`LogHeader`](stetfs_format::private_log::LogHeader) or a
    /// [`VolumeRecord`](stetfs_format::nvm_pair::VolumeRecord). A mount without `scheme=` reads the
    /// name there; a mount with another scheme is refused.
    PrivateLog,
}

/// The promise for file data after a crash (for metadata see
/// [`About::atomic`](crate::About::atomic)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPromise {
    /// Data changes with its transaction: all of it or none.
    Atomic,
    /// New blocks hold the data that was written; an overwritten block may hold old or new bytes.
    Ordered,
    /// Any block written since the last sync may hold old, new or stale bytes.
    Writeback,
    /// Nothing is promised before a clean unmount.
    Nothing,
}

impl DataPromise {
    /// True when data changes apart from its transaction, but with a promise.
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Ordered | Self::Writeback)
    }
}
