//! Where each field of a record lies and what it means, written once.
//!
//! The `record!` macro turns one table into a struct, into the two functions that read and write
//! its fields, and into the [`Layout`] that a test compares with the tables of FORMAT.md. A field
//! that has a rule (a magic number, a checksum) is not in the struct: it is a constant through
//! which code reads and writes it. The `layout!` macro makes such constants alone. The compiler
//! checks that fields do not overlap and fit the record.

use crate::bytes::{self, read_u32le, write_u32le};
use crate::num::{BlockNo, InodeNo, LBlock, Tid};
use crate::width::{high16, high32, low8, low16, low32};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the record.
    pub offset: usize,
    /// Bytes that the field takes.
    pub size: usize,
    /// The kernel's name.
    pub name: &'static str,
}

impl Layout {
    /// Asserts that offsets rise and that fields do not overlap and lie inside the record.
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

/// The fields by rising offset.
pub(crate) const fn sorted<const N: usize>(mut fields: [Field; N]) -> [Field; N] {
    let mut end = 1;
    while end < N {
        let mut i = end;
        while i > 0 && fields[i].offset < fields[i - 1].offset {
            fields.swap(i, i - 1);
            i -= 1;
        }
        end += 1;
    }
    fields
}

/// The offset of a field; its type says how the bytes are read.
pub(crate) trait Place: Copy {
    /// The type of the word that is read there.
    type Word;
}

/// The value of a field, made of the one or two words at its places.
pub(crate) trait Value<Words> {
    fn of_words(words: Words) -> Self;
    fn words(&self) -> Words;
}

/// Values made of one word: the word itself, or another type.
macro_rules! one_word {
    ($($value:ty: $word:ty = $of:expr, $to:expr;)*) => {
        $(
            impl $crate::layout::Value<($word,)> for $value {
                #[inline]
                fn of_words((word,): ($word,)) -> Self {
                    $of(word)
                }

                #[inline]
                fn words(&self) -> ($word,) {
                    ($to(*self),)
                }
            }
        )*
    };
}

/// Sets of flags; bits without a name are kept.
macro_rules! flag_words {
    ($($flags:ident: $word:ty),*) => {
        $crate::layout::one_word! {
            $($flags: $word = $flags::from_bits_retain, |flags: $flags| flags.bits();)*
        }
    };
}

pub(crate) use {flag_words, one_word};

one_word! {
    u8: u8 = |n| n, |n| n;
    u16: u16 = |n| n, |n| n;
    u32: u32 = |n| n, |n| n;
    u64: u64 = |n| n, |n| n;
    i32: u32 = u32::cast_signed, i32::cast_unsigned;
    BlockNo: u64 = BlockNo, |block: BlockNo| block.0;
    LBlock: u32 = LBlock, |block: LBlock| block.0;
    InodeNo: u32 = InodeNo, |ino: InodeNo| ino.0;
    Tid: u32 = Tid, |tid: Tid| tid.0;
}

impl<const N: usize> Value<([u8; N],)> for [u8; N] {
    #[inline]
    fn of_words((bytes,): ([u8; N],)) -> Self {
        bytes
    }

    #[inline]
    fn words(&self) -> ([u8; N],) {
        (*self,)
    }
}

/// Little-endian words.
impl<const M: usize, const N: usize> Value<([u8; N],)> for [u32; M] {
    fn of_words((bytes,): ([u8; N],)) -> Self {
        const { assert!(N == 4 * M) };
        std::array::from_fn(|i| read_u32le(&bytes, 4 * i))
    }

    fn words(&self) -> ([u8; N],) {
        let mut bytes = [0; N];
        for (i, word) in self.iter().enumerate() {
            write_u32le(&mut bytes, 4 * i, *word);
        }
        (bytes,)
    }
}

/// Values made of two halves, the lower one first. Bits above the upper half are cut off.
macro_rules! two_words {
    ($($value:ty: $lo:ty, $hi:ty = $words:expr;)*) => {
        $(
            impl Value<($lo, $hi)> for $value {
                #[inline]
                fn of_words((lo, hi): ($lo, $hi)) -> Self {
                    Self::from(hi) << <$lo>::BITS | Self::from(lo)
                }

                #[inline]
                fn words(&self) -> ($lo, $hi) {
                    $words(*self)
                }
            }
        )*
    };
}

two_words! {
    u32: u16, u16 = |n| (low16(n), high16(n));
    u64: u32, u8 = |n| (low32(n), low8(high32(n)));
    u64: u32, u16 = |n| (low32(n), low16(high32(n)));
    u64: u32, u32 = |n| (low32(n), high32(n));
}

impl<Hi> Value<(u32, Hi)> for BlockNo
where
    u64: Value<(u32, Hi)>,
{
    #[inline]
    fn of_words(words: (u32, Hi)) -> Self {
        Self(u64::of_words(words))
    }

    #[inline]
    fn words(&self) -> (u32, Hi) {
        self.0.words()
    }
}

macro_rules! field_type {
    ($name:ident, $int:ty, $read:ident, $write:ident, $what:literal) => {
        #[doc = concat!("The offset of a ", $what, ".")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub usize);

        impl Place for $name {
            type Word = $int;
        }

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

impl Place for U8 {
    type Word = u8;
}

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

impl<const N: usize> Place for Bytes<N> {
    type Word = [u8; N];
}

#[allow(dead_code)]
impl<const N: usize> Bytes<N> {
    pub(crate) const SIZE: usize = N;

    #[inline]
    pub(crate) fn get(self, record: &[u8]) -> [u8; N] {
        bytes::read_array(record, self.0)
    }

    #[inline]
    pub(crate) fn put(self, record: &mut [u8], value: [u8; N]) {
        bytes::write_array(record, self.0, &value);
    }

    /// The first byte after the field.
    pub(crate) const fn end(self) -> usize {
        self.0 + N
    }
}

/// Declares the fields of a record that have a rule: a constant for each, and the [`Layout`] of
/// all.
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

/// Declares a record. First its [`Layout`], with the fields that have a rule, as in `layout!`. Then
/// its struct, whose rows are, by offset,
///
/// ```text
/// /// What it means.
/// 0x014 Le32, first_data_block: u32 = "s_first_data_block";
/// ```
///
/// or, for a number in two halves whose upper half counts only under a condition,
///
/// ```text
/// 0x004 Le32, 0x150 Le32 where wide, blocks_count: u64 = "s_blocks_count_lo", "s_blocks_count_hi";
/// ```
///
/// A field that does not count is read as 0 and not written. `from (raw, wide: bool)` names the
/// bytes and the inputs of the conditions. The macro makes two functions: `read_fields(raw, wide)`,
/// and `write_fields(&self, raw, wide)`, which keeps all bytes that are not in the rows.
///
/// A second block has the struct's other fields, each with the expression by which `read_fields`
/// fills it. Other code writes these.
macro_rules! record {
    (
        $(#[$layout_doc:meta])*
        pub $layout:ident = $title:literal, $size:expr, {
            $($rule_at:literal $rule_place:ty, $rule:ident = $rule_kernel:literal;)*
        }

        $(#[$doc:meta])*
        pub struct $record:ident from ($raw:ident $(, $given:ident: $given_type:ty)*) {
            $(
                $(#[$field_doc:meta])*
                $lo_at:literal $lo:ty $(where $lo_counts:expr)?,
                $($hi_at:literal $hi:ty $(where $hi_counts:expr)?,)?
                $field:ident: $type:ty = $lo_kernel:literal $(, $hi_kernel:literal)?;
            )*
        } $({
            $(
                $(#[$other_doc:meta])*
                $other_vis:vis $other:ident: $other_type:ty = $made:expr;
            )*
        })?
    ) => {
        $(
            #[allow(dead_code)]
            const $rule: $rule_place = { type T = $rule_place; T { 0: $rule_at } };
        )*

        $(#[$layout_doc])*
        pub const $layout: $crate::layout::Layout = $crate::layout::Layout {
            name: $title,
            size: $size,
            fields: &$crate::layout::sorted([
                $($crate::layout::Field {
                    offset: $rule_at,
                    size: <$rule_place>::SIZE,
                    name: $rule_kernel,
                },)*
                $(
                    $crate::layout::Field {
                        offset: $lo_at,
                        size: <$lo>::SIZE,
                        name: $lo_kernel,
                    },
                    $($crate::layout::Field {
                        offset: $hi_at,
                        size: <$hi>::SIZE,
                        name: $hi_kernel,
                    },)?
                )*
            ]),
        };

        const _: () = $layout.assert_sound();

        $(#[$doc])*
        pub struct $record {
            $($(#[$field_doc])* pub $field: $type,)*
            $($($(#[$other_doc])* $other_vis $other: $other_type,)*)?
        }

        impl $record {
            /// Reads the fields, unchecked.
            #[inline]
            pub(crate) fn read_fields($raw: &[u8] $(, $given: $given_type)*) -> Self {
                Self {
                    $($field: $crate::layout::Value::of_words((
                        $(if !$lo_counts { Default::default() } else)?
                        { type T = $lo; T { 0: $lo_at }.get($raw) },
                        $(
                            $(if !$hi_counts { Default::default() } else)?
                            { type T = $hi; T { 0: $hi_at }.get($raw) },
                        )?
                    )),)*
                    $($($other: $made,)*)?
                }
            }

            /// Writes the fields; all other bytes stay.
            #[inline]
            pub(crate) fn write_fields(&self, $raw: &mut [u8] $(, $given: $given_type)*) {
                $({
                    type Words = (
                        <$lo as $crate::layout::Place>::Word,
                        $(<$hi as $crate::layout::Place>::Word,)?
                    );
                    let words: Words = $crate::layout::Value::words(&self.$field);
                    $(if $lo_counts)? {
                        type T = $lo;
                        T { 0: $lo_at }.put($raw, words.0);
                    }
                    $($(if $hi_counts)? {
                        type T = $hi;
                        T { 0: $hi_at }.put($raw, words.1);
                    })?
                })*
            }
        }
    };
}

pub(crate) use {layout, record};
