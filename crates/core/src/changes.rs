//! Writing a changed block: only the bytes that differ.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use stetfs_format::BlockNo;
use stetfs_format::width::u32_as_usize;
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use crate::error::Result;

/// Writes the bytes of `new` that differ from `old`, the block's content, from byte `at` of the
/// block on. Writes all at once, so that nobody reads one part without the others.
pub(crate) fn write_changed(
    h: &Handle,
    (block, class): (BlockNo, Class),
    old: BlockRef,
    at: usize,
    new: &[u8],
) -> Result<()> {
    let changed = changed_ranges(&old[at..at + new.len()], new);
    // A block that is still borrowed would have to be copied before the change.
    drop(old);
    let parts = changed.into_iter().map(|r| (at + r.start, &new[r]));
    Ok(h.write_parts(block, class, parts)?)
}

/// Returns the ranges in which two byte strings of one length differ. Differences less than 32
/// bytes apart are one range, because a range costs more than the bytes between.
pub(crate) fn changed_ranges(old: &[u8], new: &[u8]) -> SmallVec<[Range<usize>; 4]> {
    const GAP: usize = 32;
    debug_assert_eq!(old.len(), new.len());
    let mut ranges: SmallVec<[Range<usize>; 4]> = smallvec![];
    let (old_words, old_rest) = old.as_chunks::<8>();
    let (new_words, _) = new.as_chunks::<8>();
    let mut note = |start: usize, end: usize| match ranges.last_mut() {
        Some(last) if start < last.end + GAP => last.end = end,
        _ => ranges.push(start..end),
    };
    for (i, (o, n)) in old_words.iter().zip(new_words).enumerate() {
        let diff = u64::from_le_bytes(*o) ^ u64::from_le_bytes(*n);
        if diff != 0 {
            let first = u32_as_usize(diff.trailing_zeros()) / 8;
            let last = 7 - u32_as_usize(diff.leading_zeros()) / 8;
            note(i * 8 + first, i * 8 + last + 1);
        }
    }
    for i in old.len() - old_rest.len()..old.len() {
        if old[i] != new[i] {
            note(i, i + 1);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_ranges_cover_exactly_what_differs() {
        let old = [0u8; 260];
        let mut new = old;
        assert!(changed_ranges(&old, &new).is_empty());
        new[3] = 1;
        new[20] = 1;
        new[100] = 1;
        new[259] = 1;
        let ranges = changed_ranges(&old, &new);
        assert_eq!(ranges.as_slice(), &[3..21, 100..101, 259..260]);
    }
}
