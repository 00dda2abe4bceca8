//! Remapping, on a device that maps logical addresses through a table.
//!
//! A journal holds the new content of a home block. On a device with such a table, changing the
//! table replaces the copy from the journal to the home: Lim, Choi, Park, HPCC 2007.
//!
//! | device | table | granularity | a list is |
//! |---|---|---|---|
//! | the flash translation layer (`stetfs-ftl`) | its own map | a sector | all or nothing |
//! | a file on XFS, Btrfs ([`FileDev`](crate::FileDev)) | the file system's, by reflink | the file system's block | not |

use crate::error::MediaError;

/// A sector that shall get the content of another one, both counted in sectors of the device.
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
    /// They hold nothing any more and read as zeros. If such a sector is also a home in the same
    /// list, it keeps the content that it got there.
    Released,
    /// They keep their content: both addresses share one copy until one of them is written.
    Kept,
}

/// A device that gives a sector the content of another one without copying it.
pub trait Remap: Send + Sync {
    /// The mechanism's name for messages: `flash translation layer`, `reflink`.
    fn means(&self) -> &'static str;

    /// Bytes that can only be remapped together (a granule): a power of two and a multiple of the
    /// sector size. The list consists of whole granules: pairs of consecutive sectors, aligned to
    /// the granule on both sides.
    fn granularity(&self) -> u32;

    /// Whether a power cut leaves all of a list or nothing.
    ///
    /// If not, it leaves each granule of the homes with its old or its new content, independently
    /// of the others, and touches nothing else. The device releases the journal's sectors only when
    /// all homes are durable. A caller that needs the whole list then asks for
    /// [`JournalCopy::Kept`] and repeats it. No sector may be both a home and a journal's in one
    /// list.
    fn is_atomic(&self) -> bool;

    /// The shortest run of neighbouring pairs, in bytes, for which a remap makes the device write
    /// less than a copy. 0: a remap costs next to nothing, so it is best to remap and to release
    /// the journal's sectors at once.
    fn least_run_bytes(&self) -> u32;

    /// Pairs that a list may always have, wherever they lie. A list of consecutive sectors may be
    /// longer.
    fn max_pairs(&self) -> usize;

    /// Gives each `home` the content that its `journal` had at the call, and treats the journal's
    /// sectors as `journal` says. All of it is durable on return; [`is_atomic`](Self::is_atomic)
    /// says what a power cut before that leaves. If a home is named twice, the later pair counts.
    ///
    /// [`MediaError::PastEnd`]: a sector lies beyond the device. [`MediaError::Misaligned`]: not in
    /// whole granules. [`Errno::TOOBIG`](crate::Errno::TOOBIG) in a [`MediaError::Io`]: the list is
    /// too long; [`Errno::INVAL`](crate::Errno::INVAL): a sector is a home and a journal's, and the
    /// device is not atomic. In all these cases nothing was changed. After any other error the
    /// device holds what a power cut might have left.
    fn remap(&self, pairs: &[RemapPair], journal: JournalCopy) -> Result<(), MediaError>;

    /// Releases the content of the journal's sectors in a range (bytes, whole granules) that nobody
    /// needs any more and that will be written again. A later read of them may return anything.
    fn release(&self, offset: u64, len: u64) -> Result<(), MediaError>;
}
