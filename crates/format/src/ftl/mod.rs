//! What the flash translation layer keeps on a NAND part: the spare area of every page, and the
//! pages that are its own.
//!
//! A page's spare area says what the page is. Its checksum covers the layer's UUID, the page's
//! number, the data and the record. So a page of another layer, of an earlier use of the part or of
//! another place is not taken for one of this layer. Map and directory pages are plain arrays of
//! little-endian `u32`; anchors, log and pool pages have the records of this module.
//!
//! Source: our own.

mod anchor;
mod array;
mod error;
mod log;
mod spare;

pub use anchor::{FTL_ANCHOR_LAYOUT, FtlAnchor};
pub use array::{NO_PAGE, entries, entries_of, entry, put_entry};
pub use error::FtlCorrupt;
pub use log::{FTL_LOG_LAYOUT, FTL_POOL_LAYOUT, FTL_RUN_LAYOUT, FtlLog, FtlRun, pool};
pub use spare::{FTL_SPARE_LAYOUT, FtlSpare, PageKind, SpareCodec};
