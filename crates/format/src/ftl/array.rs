//! Pages that are plain arrays of little-endian `u32`: the map and its directory.

use crate::bytes;

/// Stands for "no page" in the place of a page's number.
pub const NO_PAGE: u32 = u32::MAX;

/// How many numbers an array page of `page_bytes` bytes holds.
pub const fn entries_of(page_bytes: u32) -> u32 {
    page_bytes / 4
}

/// Returns number `index` of an array page.
#[inline]
pub fn entry(page: &[u8], index: usize) -> u32 {
    bytes::read_u32le(page, index * 4)
}

/// Iterates over the numbers of an array page.
#[inline]
pub fn entries(page: &[u8]) -> impl Iterator<Item = u32> {
    let (numbers, _) = page.as_chunks::<4>();
    numbers.iter().map(|raw| u32::from_le_bytes(*raw))
}

/// Sets number `index` of an array page.
pub fn put_entry(page: &mut [u8], index: usize, value: u32) {
    bytes::write_u32le(page, index * 4, value);
}
