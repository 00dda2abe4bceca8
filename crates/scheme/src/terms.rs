//! What a scheme has agreed to, once it is open.

use serde::Serialize;

/// The terms on which a scheme serves a volume. They depend on the ground and on the options, and
/// hold from opening to closing.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What a crash may do to file data.
    pub promise: DataPromise,
    /// What the superblock says while the scheme has the volume.
    pub mark: Mark,
    /// The most blocks that one transaction may log.
    pub max_transaction: u32,
    /// Data blocks go through the log of [`commit`](crate::Scheme::commit): they count as credits,
    /// and freed ones are revoked.
    pub logs_data: bool,
    /// What the scheme wants to know of a change.
    pub wants: Wants,
    /// It may ask for relocation ([`Placement::Relocate`](crate::Placement::Relocate)).
    pub relocates: bool,
    /// By what means of the device committed blocks get home without being copied, if they do.
    pub remaps: Option<&'static str>,
    /// Its [cache](crate::Scheme::cache) is all that there is for clean data: none is kept in other
    /// memory too.
    pub is_buffer_cache: bool,
    /// The newest content stays where only the scheme finds it when it is closed.
    pub keeps: bool,
}

/// What a scheme wants to know of a change. What it does not want costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// The content that each block had before the transaction
    /// ([`LoggedBlock::base`](crate::LoggedBlock::base)).
    pub base: bool,
    /// Ranges ([`LoggedBlock::ranges`](crate::LoggedBlock::ranges)) with the bytes that changed,
    /// as long as fewer than so many of a block changed. Beyond that, and always with 0, a range
    /// may also have bytes that were written with the value that they had.
    pub changed_bytes: usize,
}

/// How a volume that is mounted is marked for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Not cleanly unmounted: e2fsck must look at it after a crash.
    Unclean,
    /// `needs_recovery`: the kernel and e2fsck replay the journal.
    NeedsRecovery,
    /// The feature `PRIVATE_LOG`, which neither the kernel nor e2fsck knows: the newest content is
    /// where only the scheme finds it.
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
