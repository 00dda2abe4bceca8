//! Numbers that must not be mixed up: each kind of number is a type of its own.

use std::fmt;

use crate::width::u32_as_usize;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number! {
    /// A block of the volume, counted in file system blocks from its start.
    BlockNo(u64)
}
number! {
    /// An inode, counted from 1; 0 means "none".
    InodeNo(u32)
}
number! {
    /// A block of a file, counted in file system blocks from its start.
    LBlock(u32)
}
number! {
    /// A block group, counted from 0.
    GroupNo(u32)
}
number! {
    /// A page of a NAND part, counted from its start.
    PageNo(u32)
}
number! {
    /// An erase block of a NAND part, counted from its start.
    BlockAddr(u32)
}

impl BlockNo {
    /// The block `n` blocks further on.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

impl LBlock {
    /// The block `n` blocks further on.
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

/// Numbers that count from 0 without gaps.
macro_rules! indexes {
    ($($name:ident),*) => {
        $(impl $name {
            /// Its place in a list of all.
            #[inline]
            pub const fn index(self) -> usize {
                u32_as_usize(self.0)
            }
        })*
    };
}

indexes!(GroupNo, PageNo, BlockAddr);

/// A transaction's sequence number. It wraps, so it is compared by distance
/// (JBD2's `tid_gt`, `tid_geq`), never by `<`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Tid(pub u32);

impl Tid {
    /// Whether it is later than `other`, at most 2^31 transactions apart.
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }

    /// Whether it is `other` or later.
    pub const fn is_at_or_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() >= 0
    }

    /// The transaction after this one.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The transaction before this one.
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tid({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tids_wrap() {
        assert!(Tid(0).is_after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).is_after(Tid(0)));
        assert!(Tid(7).is_at_or_after(Tid(7)));
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
        assert_eq!(Tid(0).previous(), Tid(u32::MAX));
    }
}
