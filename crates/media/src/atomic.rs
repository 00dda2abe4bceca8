//! Writing several ranges at once, on a device that maps logical addresses through a table.
//!
//! The device writes new content to places that no address refers to. One change of the table then
//! makes it the content of its addresses. A journal in front of such a device would repeat this
//! work: Ouyang and others, HPCA 2011; Kang and others, SIGMOD 2013.

use crate::error::MediaError;
use crate::range::Run;

/// A device that writes several ranges as a whole.
pub trait AtomicWrite: Send + Sync {
    /// Sectors that the ranges of one write may have together. A worn device gives less; 0: no
    /// atomic write is possible at present.
    fn max_sectors(&self) -> usize;

    /// Writes the ranges, of which no two overlap. When it returns, all of them and everything that
    /// was written before are durable. A power cut before that leaves all of them or none.
    ///
    /// [`MediaError::Misaligned`], [`MediaError::PastEnd`]: of one of the ranges.
    /// [`Errno::TOOBIG`](crate::Errno::TOOBIG) in a [`MediaError::Io`]: they are longer than
    /// [`max_sectors`](Self::max_sectors). In these cases nothing was changed. After any other
    /// error the device holds what a power cut might have left.
    fn write_whole(&self, runs: &[Run<'_>]) -> Result<(), MediaError>;
}
