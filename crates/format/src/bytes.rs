//! Integers in byte slices, in the two orders of the formats: ext4 is
//! little-endian, JBD2 big-endian.
//!
//! Every function panics when the slice is too short, as indexing does: a
//! decoder checks the length of its input once and then reads at constant
//! offsets.

macro_rules! integer {
    ($read:ident, $write:ident, $int:ty, $from:ident, $to:ident, $what:literal) => {
        #[doc = concat!("Reads the ", $what, " at `offset`.")]
        #[inline]
        pub fn $read(bytes: &[u8], offset: usize) -> $int {
            const SIZE: usize = size_of::<$int>();
            let mut array = [0; SIZE];
            array.copy_from_slice(&bytes[offset..offset + SIZE]);
            <$int>::$from(array)
        }

        #[doc = concat!("Writes `value` as the ", $what, " at `offset`.")]
        #[inline]
        pub fn $write(bytes: &mut [u8], offset: usize, value: $int) {
            const SIZE: usize = size_of::<$int>();
            bytes[offset..offset + SIZE].copy_from_slice(&value.$to());
        }
    };
}

integer!(
    read_u16le,
    write_u16le,
    u16,
    from_le_bytes,
    to_le_bytes,
    "little-endian `u16`"
);
integer!(
    read_u32le,
    write_u32le,
    u32,
    from_le_bytes,
    to_le_bytes,
    "little-endian `u32`"
);
integer!(
    read_u64le,
    write_u64le,
    u64,
    from_le_bytes,
    to_le_bytes,
    "little-endian `u64`"
);
integer!(
    read_u16be,
    write_u16be,
    u16,
    from_be_bytes,
    to_be_bytes,
    "big-endian `u16`"
);
integer!(
    read_u32be,
    write_u32be,
    u32,
    from_be_bytes,
    to_be_bytes,
    "big-endian `u32`"
);
integer!(
    read_u64be,
    write_u64be,
    u64,
    from_be_bytes,
    to_be_bytes,
    "big-endian `u64`"
);

/// Copies the `N` bytes at `offset`.
#[inline]
pub fn read_array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

/// Writes `value` at `offset`.
#[inline]
pub fn write_array<const N: usize>(bytes: &mut [u8], offset: usize, value: &[u8; N]) {
    bytes[offset..offset + N].copy_from_slice(value);
}

/// The smallest range outside which `old` and `new`, of one length, are equal;
/// `None` when they are equal everywhere.
///
/// For a caller that edits a scratch copy of a block and then hands only what
/// changed to the journal.
pub fn diff_range(old: &[u8], new: &[u8]) -> Option<std::ops::Range<usize>> {
    debug_assert_eq!(old.len(), new.len());
    let start = old.iter().zip(new).position(|(a, b)| a != b)?;
    let same_at_end = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    Some(start..new.len() - same_at_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_orders() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(read_u16le(&bytes, 1), 0x0302);
        assert_eq!(read_u32le(&bytes, 1), 0x0504_0302);
        assert_eq!(read_u64le(&bytes, 1), 0x0908_0706_0504_0302);
        assert_eq!(read_u16be(&bytes, 1), 0x0203);
        assert_eq!(read_u32be(&bytes, 1), 0x0203_0405);
        assert_eq!(read_u64be(&bytes, 1), 0x0203_0405_0607_0809);
    }

    #[test]
    fn diff_is_smallest() {
        assert_eq!(diff_range(b"abcdef", b"abcdef"), None);
        assert_eq!(diff_range(b"abcdef", b"abXdYf"), Some(2..5));
        assert_eq!(diff_range(b"aaaa", b"aaba"), Some(2..3));
        assert_eq!(diff_range(b"aa", b"bb"), Some(0..2));
    }
}
