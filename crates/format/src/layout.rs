//! Where each field of a record lies, written once.
//!
//! The `layout!` macro turns one table into the constants that the
//! codecs read and write through and into the [`Layout`] that a test compares
//! with the tables of FORMAT.md. That the fields lie in order, do not overlap
//! and fit the record is checked when the crate is compiled.

use crate::bytes;

/// The fields of one on-disk record.
#[derive(Debug)]
pub struct Layout {
    /// The heading in FORMAT.md.
    pub name: &'static str,
    /// Bytes that the record takes.
    pub size: usize,
    /// The fields by rising offset.
    pub fields: &'static [Field],
}

/// One field of a record.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes that the field takes.
    pub size: usize,
    /// The kernel's name.
    pub name: &'static str,
}

impl Layout {
    /// Rising offsets, no overlap, inside the record.
    pub(crate) const fn assert_sound(&self) {
        let mut end = 0;
        let mut i = 0;
        while i < self.fields.len() {
            assert!(
                self.fields[i].offset >= end,
                "fields overlap or are out of order"
            );
            end = self.fields[i].offset + self.fields[i].size;
            i += 1;
        }
        assert!(end <= self.size, "a field lies outside the record");
    }
}

macro_rules! field_type {
    ($name:ident, $int:ty, $read:ident, $write:ident, $what:literal) => {
        #[doc = concat!("The offset of a ", $what, ".")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub usize);

        #[allow(dead_code)]
        impl $name {
            pub(crate) const SIZE: usize = size_of::<$int>();

            #[inline]
            pub(crate) fn get(self, record: &[u8]) -> $int {
                bytes::$read(record, self.0)
            }

            #[inline]
            pub(crate) fn put(self, record: &mut [u8], value: $int) {
                bytes::$write(record, self.0, value);
            }

            /// The first byte after the field.
            pub(crate) const fn end(self) -> usize {
                self.0 + Self::SIZE
            }
        }
    };
}

field_type!(Le16, u16, read_u16le, write_u16le, "little-endian `u16`");
field_type!(Le32, u32, read_u32le, write_u32le, "little-endian `u32`");
field_type!(Le64, u64, read_u64le, write_u64le, "little-endian `u64`");
field_type!(Be16, u16, read_u16be, write_u16be, "big-endian `u16`");
field_type!(Be32, u32, read_u32be, write_u32be, "big-endian `u32`");
field_type!(Be64, u64, read_u64be, write_u64be, "big-endian `u64`");

/// The offset of a byte.
#[derive(Clone, Copy)]
pub(crate) struct U8(pub usize);

#[allow(dead_code)]
impl U8 {
    pub(crate) const SIZE: usize = 1;

    #[inline]
    pub(crate) fn get(self, record: &[u8]) -> u8 {
        record[self.0]
    }

    #[inline]
    pub(crate) fn put(self, record: &mut [u8], value: u8) {
        record[self.0] = value;
    }

    /// The first byte after the field.
    pub(crate) const fn end(self) -> usize {
        self.0 + 1
    }
}

/// The offset of `N` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<const N: usize>(pub usize);

#[allow(dead_code)]
impl<const N: usize> Bytes<N> {
    pub(crate) const SIZE: usize = N;

    #[inline]
    pub(crate) fn get(self, record: &[u8]) -> [u8; N] {
        bytes::read_array(record, self.0)
    }

    #[inline]
    pub(crate) fn put(self, record: &mut [u8], value: &[u8; N]) {
        bytes::write_array(record, self.0, value);
    }

    /// The first byte after the field.
    pub(crate) const fn end(self) -> usize {
        self.0 + N
    }
}

/// Declares a record: a constant for each field, and the [`Layout`] of all.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        pub $layout:ident = $name:literal, $size:expr, {
            $($offset:literal $type:ty, $field:ident = $kernel:literal;)*
        }
    ) => {
        $(
            #[allow(dead_code)]
            const $field: $type = { type T = $type; T { 0: $offset } };
        )*

        $(#[$doc])*
        pub const $layout: $crate::layout::Layout = $crate::layout::Layout {
            name: $name,
            size: $size,
            fields: &[$($crate::layout::Field {
                offset: $offset,
                size: <$type>::SIZE,
                name: $kernel,
            },)*],
        };

        const _: () = $layout.assert_sound();
    };
}

pub(crate) use layout;
