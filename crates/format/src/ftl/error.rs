//! What can be wrong with a page of the flash translation layer: one variant for each check.

use crate::num::PageNo;

/// A check that a page failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FtlCorrupt {
    /// The checksum of a page does not fit its content.
    #[error("page {page}: checksum {stored:#010x}, computed {computed:#010x}")]
    PageChecksum {
        /// The page.
        page: PageNo,
        /// The checksum in its spare area.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// A kind of page that does not exist.
    #[error("page {page}: kind {kind} is not known")]
    PageKind {
        /// The page.
        page: PageNo,
        /// The kind.
        kind: u8,
    },
    /// An anchor does not begin with the magic.
    #[error("not an anchor of a flash translation layer: magic {0:02x?}")]
    Magic([u8; 8]),
    /// A version that is not known.
    #[error("flash translation layer: version {0} is not known")]
    Version(u32),
    /// A list is longer than its page.
    #[error("{record}: {count} entries where {room} have room")]
    Count {
        /// The record.
        record: &'static str,
        /// Entries that it says to have.
        count: u64,
        /// Entries for which there is room.
        room: u64,
    },
    /// A log record gives a part a number that the record does not have.
    #[error("FTL log page: part {part} of {parts}")]
    Part {
        /// The part.
        part: u32,
        /// Parts of the record.
        parts: u32,
    },
}
