//! Remapping: what a device can do whose logical addresses are a table.
//!
//! A journal holds the new content of a home block. Where a table says what lies at an address, the copy from the
//! journal to the home is a change of that table: Lim, Choi, Park: "Journal Remap-Based FTL for Journaling File System with Flash
//! Memory".

use crate::error::MediaError;

/// A sector that is to have the content of another one, both counted in sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemapPair {
    /// The sector that gets the content.
    pub home: u64,
    /// The sector that holds it.
    pub journal: u64,
}

/// What becomes of the journal's sectors after a remap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JournalCopy {
    /// They hold nothing any more and read as zeros. A sector that is also a home of the same list has the content that it got.
    Released,
    /// They keep their content: both addresses share one copy until one of them is written.
    Kept,
}

/// A device that gives a sector the content of another one without copying it.
pub trait Remap: Send + Sync {
    /// Pairs that a list can have at least, however they lie. A list of consecutive sectors can be longer.
    fn max_pairs(&self) -> usize;

    /// Gives each `home` what its `journal` held when this was called, and does with the journal's sectors as told. When it
    /// returns, all of it is durable; a power cut before leaves all of it or nothing, the journal's sectors
    /// included. The later pair counts when a home is named twice.
    ///
    /// [`MediaError::PastEnd`]: a sector lies beyond the device. [`Errno::TOOBIG`](crate::Errno::TOOBIG) in a
    /// [`MediaError::Io`]: the list is too long. In both cases nothing was changed.
    fn remap(&self, pairs: &[RemapPair], journal: JournalCopy) -> Result<(), MediaError>;
}
