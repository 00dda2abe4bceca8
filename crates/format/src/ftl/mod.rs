//! What the flash translation layer keeps on a NAND part: the spare area of every page, and the
//! pages that are its own.
//!
//! A page's spare area says what the page is. Its checksum covers data and record, and begins with
//! the layer's UUID and the page's number, so that pages of another layer, of an earlier use of the
//! part or of another place are not taken for one. Map and directory pages are plain arrays of
//! little-endian `u32`; anchors, log and pool pages have the records of this module.
//!
//! Source: our own.

mod anchor;
mod error;
mod log;
mod spare;

pub use anchor::{FTL_ANCHOR_LAYOUT, FtlAnchor};
pub use error::FtlCorrupt;
pub use log::{FTL_LOG_LAYOUT, FTL_POOL_LAYOUT, FTL_RUN_LAYOUT, FtlLog, FtlRun, pool};
pub use spare::{FTL_SPARE_LAYOUT, FtlSpare, PageKind, SpareCodec};

use crate::bytes;

/// "Nothing" where a page's number could stand.
pub const NO_PAGE: u32 = u32::MAX;

/// Numbers of an array page.
pub const fn entries_of(page_bytes: u32) -> u32 {
    page_bytes / 4
}

/// Number `index` of an array page.
#[inline]
pub fn entry(page: &[u8], index: usize) -> u32 {
    bytes::read_u32le(page, index * 4)
}

/// The numbers of an array page.
#[inline]
pub fn entries(page: &[u8]) -> impl Iterator<Item = u32> {
    let (numbers, _) = page.as_chunks::<4>();
    numbers.iter().map(|raw| u32::from_le_bytes(*raw))
}

/// Sets number `index` of an array page.
pub fn put_entry(page: &mut [u8], index: usize, value: u32) {
    bytes::write_u32le(page, index * 4, value);
}
