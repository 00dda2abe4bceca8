//! Ranges of a device, and the checks that a request's range has to pass.

use smallvec::SmallVec;

use crate::error::{MediaError, Op};
use crate::tag::Tag;
use stetfs_format::width::usize_as_u64;

/// A contiguous range to be written.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// First byte.
    pub offset: u64,
    /// The bytes, in whole sectors.
    pub parts: SmallVec<[&'a [u8]; 4]>,
    /// The label of the bytes.
    pub tag: Tag,
}

/// Checks that a range lies within the device; safe for any numbers.
pub(crate) fn check_in_device(op: Op, offset: u64, len: u64, size: u64) -> Result<(), MediaError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(MediaError::PastEnd {
            op,
            offset,
            len,
            size,
        }),
    }
}

/// Checks that a range lies within the device and is in whole sectors.
pub(crate) fn check_range(
    op: Op,
    offset: u64,
    len: u64,
    sector: u32,
    size: u64,
) -> Result<(), MediaError> {
    let unit = u64::from(sector);
    if !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) {
        return Err(MediaError::Misaligned {
            op,
            offset,
            len,
            sector,
        });
    }
    check_in_device(op, offset, len, size)
}

/// Returns the length of all `parts` together. Checks that each is in whole sectors and that they
/// lie within the device.
pub(crate) fn check_parts(
    offset: u64,
    parts: &[&[u8]],
    sector: u32,
    size: u64,
) -> Result<u64, MediaError> {
    let mut len = 0;
    for part in parts {
        let part_len = usize_as_u64(part.len());
        if !part_len.is_multiple_of(u64::from(sector)) {
            return Err(MediaError::Misaligned {
                op: Op::Write,
                offset,
                len: part_len,
                sector,
            });
        }
        len += part_len;
    }
    check_range(Op::Write, offset, len, sector, size)?;
    Ok(len)
}
