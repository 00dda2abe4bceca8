//! Writing several ranges at once: what a device can do whose logical addresses are a table.
//!
//! New content goes to places that nobody looks at, and becomes what lies at its addresses with one
//! change of the table. A journal in front of such a device would do the same thing once more:
//! Ouyang and others, HPCA 2011; Kang and others, SIGMOD 2013.

use crate::error::MediaError;
use crate::range::Run;

/// A device that writes several ranges as a whole.
pub trait AtomicWrite: Send + Sync {
    /// Sectors that the ranges of one write may have together. Less when the device is worn; 0:
    /// none at present.
    fn max_sectors(&self) -> usize;

    /// Writes the ranges, of which no two overlap. When it returns, all of them are durable, and so
    /// is everything that was written before; a power cut before leaves all of them or none.
    ///
    /// [`MediaError::Misaligned`], [`MediaError::PastEnd`]: of one of the ranges.
    /// [`Errno::TOOBIG`](crate::Errno::TOOBIG) in a [`MediaError::Io`]: they are longer than
    /// [`max_sectors`](Self::max_sectors). In these cases nothing was changed. Any other error
    /// leaves what a power cut may leave.
    fn write_whole(&self, runs: &[Run<'_>]) -> Result<(), MediaError>;
}
