//! What a scheme has agreed to, once it is open.

use serde::Serialize;
use stetfs_format::width::usize_as_u64;
use stetfs_media::DISK_JUMP_BYTES;

/// The terms on which a scheme serves a volume. They depend on the ground and on the options, and
/// hold from opening to closing.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What a crash may do to file data, in the mode that the scheme was opened with.
    pub promise: DataPromise,
    /// The mark in the superblock while the scheme has the volume.
    pub mark: Mark,
    /// The most blocks that the handles of one transaction may log. Placing data when it is closed
    /// may log twice as many more, so a quarter of the log is the usual answer: then the next
    /// transaction has room too.
    pub max_transaction: u32,
    /// [`commit`](crate::Scheme::commit) logs data blocks too: they count as credits, and freed
    /// ones are revoked.
    pub logs_data: bool,
    /// Where that is false: [`commit`](crate::Scheme::commit) makes the blocks that are to be
    /// [whole](crate::LoggedBlock::whole) change with their transaction all the same. Each counts
    /// as a credit, and from the first one on freed data blocks are revoked.
    pub logs_marked: bool,
    /// What the scheme wants to know of a change.
    pub wants: Wants,
    /// Whether the scheme may ask for relocation
    /// ([`Placement::Relocate`](crate::Placement::Relocate)), and what of it is granted.
    pub relocates: Relocates,
    /// [`commit`](crate::Scheme::commit) writes blocks that lay in nobody's file to where they stay
    /// before anything makes the transaction count. A block must not become one of them in the
    /// transaction that takes its content away: what is committed still has it.
    pub places_new: bool,
    /// The device's means of getting committed blocks home without a copy, if the scheme uses one.
    pub remaps: Option<&'static str>,
    /// Its [cache](crate::Scheme::cache) is the only one for clean data: other memory keeps none.
    pub is_buffer_cache: bool,
    /// When the scheme is closed, the newest content stays where only the scheme finds it
    /// (`-o keep-cache`).
    pub keeps: bool,
}

impl Terms {
    /// The most blocks that one operation of the file system must be able to log: a log that is too
    /// short for transactions of so many is refused when it is opened.
    pub const LEAST_TRANSACTION: u32 = 96;

    /// Those of a log of the scheme's own that takes data too, and asks for nothing.
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

    /// Overwritten data goes to the home that it has, and nothing of its transaction depends on
    /// when: it may go there [without](crate::Scheme::overwrite) the transaction.
    pub fn overwrites_home(&self) -> bool {
        self.promise.is_apart() && !self.relocates.is_any()
    }
}

/// Whether blocks of data that have a home are relocated, and how far that may break files up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocates {
    /// Never: [`place`](crate::Scheme::place) is not asked.
    No,
    /// Wherever there is space: where a file's blocks lie costs nothing.
    Freely,
    /// As far as files stay in long extents; what would break them up stays home.
    Sparingly(Extents),
}

impl Relocates {
    /// Whether the scheme is asked at all.
    pub fn is_any(self) -> bool {
        self != Self::No
    }
}

/// What relocation must leave of a file's extents.
///
/// Aligned windows of twice `mean` blocks of a file are looked at. A relocation is granted if it
/// leaves each window with at most two beginnings of extents, or with no more than before: so a
/// file comes to at most one extent more for each `mean` blocks. And it must have at least `run`
/// blocks in a row, or leave fewer extents than there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Blocks that a file has for each extent, at least.
    pub mean: u32,
    /// The least blocks in a row that are worth an extent of their own.
    pub run: u32,
}

impl Extents {
    /// Where the distance of blocks costs little: one extent more for every eight blocks.
    pub const FLASH: Self = Self { mean: 8, run: 1 };

    /// Where each extent costs a movement of the head: what is transferred in the time of one.
    pub fn disk(block_size: usize) -> Self {
        let run = DISK_JUMP_BYTES / usize_as_u64(block_size);
        let run = u32::try_from(run).unwrap_or(1).max(1);
        Self { mean: run, run }
    }
}

/// What a scheme wants to know of a change. What it does not want costs nothing.
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
/// durably, after the scheme was opened and before the first commit, and takes it away after the
/// scheme was closed. So a log counts if and only if its volume has the mark.
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
    /// [`VolumeRecord`](stetfs_format::nvm_pair::VolumeRecord): a mount without `scheme=` reads it
    /// there, and another scheme is refused.
    PrivateLog,
}

/// What a crash may do to file data (metadata: see [`About::atomic`](crate::About::atomic)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPromise {
    /// Data changes with its transaction: all of it or none.
    Atomic,
    /// New blocks hold what was written to them; an overwritten block may hold old or new bytes.
    Ordered,
    /// Any block written since the last sync may hold old, new or stale bytes.
    Writeback,
    /// Nothing is promised before a clean unmount.
    Nothing,
}

impl DataPromise {
    /// Data does not change with its transaction, and yet something is promised of it.
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Ordered | Self::Writeback)
    }
}
