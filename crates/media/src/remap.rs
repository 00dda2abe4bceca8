//! Remapping: what a device can do whose logical addresses are a table.
//!
//! A journal holds the new content of a home block. Where a table says what lies at an address, the
//! copy from the journal to the home is a change of that table: Lim, Choi, Park, HPCC 2007.
//!
//! | device | table | granularity | a list is |
//! |---|---|---|---|
//! | the flash translation layer (`stetfs-ftl`) | its own map | a sector | all or nothing |
//! | a file on XFS, Btrfs ([`FileDev`](crate::FileDev)) | the file system's, by reflink | the file system's block | not |

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
    /// They hold nothing any more and read as zeros. A sector that is also a home of the same list
    /// has the content that it got.
    Released,
    /// They keep their content: both addresses share one copy until one of them is written.
    Kept,
}

/// A device that gives a sector the content of another one without copying it.
pub trait Remap: Send + Sync {
    /// By what, for messages: `flash translation layer`, `reflink`.
    fn means(&self) -> &'static str;

    /// Bytes that can only be remapped together, a power of two and a multiple of the sector size.
    /// Pairs follow each other in the list in whole granules: aligned at this on both sides, the
    /// sectors in order.
    fn granularity(&self) -> u32;

    /// Whether a power cut leaves all of a list or nothing. If not, it leaves each granule of the
    /// homes with its old content or with the new one, whatever the others have; nothing else is
    /// touched, and the journal's sectors are released only when all homes are durable. Whoever
    /// needs the whole list then asks for [`JournalCopy::Kept`] and repeats it. And no sector may
    /// be a home and a journal's in one list.
    fn is_atomic(&self) -> bool;

    /// The shortest run of neighbouring pairs, in bytes, for which the device writes less than for
    /// a copy. 0: a remap costs nothing to speak of, so it is best done at once, and the journal's
    /// places are best released at once.
    fn least_run_bytes(&self) -> u32;

    /// Pairs that a list can have at least, however they lie. A list of consecutive sectors can be
    /// longer.
    fn max_pairs(&self) -> usize;

    /// Gives each `home` what its `journal` held when this was called, and does with the journal's
    /// sectors as told. When it returns, all of it is durable. What a power cut before leaves:
    /// [`is_atomic`](Self::is_atomic). The later pair counts when a home is named twice.
    ///
    /// [`MediaError::PastEnd`]: a sector lies beyond the device. [`MediaError::Misaligned`]: not in
    /// whole granules. [`Errno::TOOBIG`](crate::Errno::TOOBIG) in a [`MediaError::Io`]: the list is
    /// too long; [`Errno::INVAL`](crate::Errno::INVAL): a sector is a home and a journal's, and the
    /// device is not atomic. In all these cases nothing was changed. Any other error leaves what a
    /// power cut may leave.
    fn remap(&self, pairs: &[RemapPair], journal: JournalCopy) -> Result<(), MediaError>;

    /// Lets go of what the journal's places in a range (bytes, whole granules) still hold, which
    /// nobody needs any more and which will be written again. What a later read of it gives is
    /// undefined.
    fn release(&self, offset: u64, len: u64) -> Result<(), MediaError>;
}
