//! Integers of another width, by functions whose names say what becomes of the value.
//!
//! `as` does four things that look alike: it widens, it cuts off the upper bits, it changes what
//! the top bit means, and it rounds. The crates that read disks deny it
//! (`clippy::as_conversions`) and say which one they mean:
//!
//! | meant | written |
//! |---|---|
//! | wider, by the type | `u64::from(n)` |
//! | wider or equal, as `usize` has 64 bits | [`u32_as_usize`], [`u64_as_usize`], [`usize_as_u64`] |
//! | part of the value | [`low32`], [`high32`], [`low16`], [`high16`], [`low8`] |
//! | narrower; that it fits is an invariant of ours | [`must_fit`], [`must_fit_u32`], [`must_fit_u16`] |
//! | narrower; a disk or a caller says how much | `u32::try_from(n)`, with an error of its own |
//! | the same bits with a sign or without | `n.cast_signed()`, `n.cast_unsigned()` |
//! | rounded to 53 bits | [`nearest_f64`] |
//!
//! Only this module converts by `as`, apart from an enum's number on disk.
#![expect(
    clippy::as_conversions,
    reason = "its functions are what others call instead"
)]

const _: () = assert!(usize::BITS == 64, "stetfs counts bytes of media in usize");

/// Converts `n` without loss.
#[inline]
pub const fn usize_as_u64(n: usize) -> u64 {
    n as u64
}

/// Converts `n` without loss.
#[inline]
pub const fn u64_as_usize(n: u64) -> usize {
    n as usize
}

/// Converts `n` without loss.
#[inline]
pub const fn u32_as_usize(n: u32) -> usize {
    n as usize
}

/// Converts `n` without loss: `u32::from` for `const fn`.
#[inline]
pub const fn u16_as_u32(n: u16) -> u32 {
    n as u32
}

/// Converts `n` without loss: `u64::from` for `const fn`.
#[inline]
pub const fn u32_as_u64(n: u32) -> u64 {
    n as u64
}

/// Bits 0 to 31 of `n`; the others are cut off.
#[inline]
pub const fn low32(n: u64) -> u32 {
    n as u32
}

/// Bits 32 to 63 of `n`; the others are cut off.
#[inline]
pub const fn high32(n: u64) -> u32 {
    (n >> 32) as u32
}

/// Bits 0 to 15 of `n`; the others are cut off.
#[inline]
pub const fn low16(n: u32) -> u16 {
    n as u16
}

/// Bits 16 to 31 of `n`; the others are cut off.
#[inline]
pub const fn high16(n: u32) -> u16 {
    (n >> 16) as u16
}

/// Bits 0 to 7 of `n`; the others are cut off.
#[inline]
pub const fn low8(n: u32) -> u8 {
    n as u8
}

/// Converts `n` to the nearest `f64`.
#[inline]
pub const fn nearest_f64(n: u64) -> f64 {
    n as f64
}

/// Converts `n` to a type that may be narrower. For values that fit as long as this program is
/// correct: never for a number from a disk.
///
/// # Panics
///
/// If `n` does not fit.
#[inline]
#[track_caller]
pub fn must_fit<Wide, Narrow: TryFrom<Wide>>(n: Wide) -> Narrow {
    match Narrow::try_from(n) {
        Ok(narrow) => narrow,
        Err(_) => panic!("a number that fits in {}", std::any::type_name::<Narrow>()),
    }
}

/// [`must_fit`] for constants and `const fn`.
///
/// # Panics
///
/// If `n` does not fit; in a constant that is a compile error.
#[inline]
#[track_caller]
pub const fn must_fit_u32(n: usize) -> u32 {
    assert!(n <= u32_as_usize(u32::MAX), "a number that fits in u32");
    n as u32
}

/// As [`must_fit_u32`].
///
/// # Panics
///
/// If `n` does not fit; in a constant that is a compile error.
#[inline]
#[track_caller]
pub const fn must_fit_u16(n: usize) -> u16 {
    assert!(n <= 0xffff, "a number that fits in u16");
    n as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_value() {
        let n = 0x1122_3344_5566_7788;
        assert_eq!((high32(n), low32(n)), (0x1122_3344, 0x5566_7788));
        assert_eq!((high16(low32(n)), low16(low32(n))), (0x5566, 0x7788));
        assert_eq!(low8(low32(n)), 0x88);
    }

    #[test]
    fn what_must_fit_and_does() {
        assert_eq!(must_fit::<u64, u32>(u64::from(u32::MAX)), u32::MAX);
        assert_eq!(must_fit_u32(0xffff_ffff), u32::MAX);
        assert_eq!(must_fit_u16(0xffff), u16::MAX);
    }

    #[test]
    #[should_panic = "a number that fits in u8"]
    fn what_must_fit_and_does_not() {
        must_fit::<usize, u8>(256);
    }

    #[test]
    #[should_panic = "a number that fits in u16"]
    fn what_must_fit_a_constant_and_does_not() {
        must_fit_u16(0x1_0000);
    }
}
