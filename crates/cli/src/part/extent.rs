//! A range of a file, and whether two of them share bytes.

use std::path::PathBuf;

/// A range of a file or device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Range {
    /// All of a file, however long.
    pub(crate) const WHOLE: Self = Self {
        offset: 0,
        size: u64::MAX,
    };

    /// Returns whether a byte is in both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| range.offset.saturating_add(range.size);
        self.offset < end(other) && other.offset < end(self)
    }
}

/// A part of a file or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) file: PathBuf,
    pub(crate) range: Range,
}
