//! What makes one volume different from another of the same content: UUIDs, and the time.

use std::fs::File;
use std::io::Read;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use stetfs_format::Time;

use crate::failure::{Explain, Failure, Result};
use crate::tree::Stamp;

/// The variable by which builds that can be repeated set the time of what they make
/// (<https://reproducible-builds.org/specs/source-date-epoch/>).
const SOURCE_DATE_EPOCH: &str = "SOURCE_DATE_EPOCH";

/// A UUID that was given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl FromStr for Uuid {
    type Err = String;

    /// Parses 32 hexadecimal digits, with the usual dashes or without any.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a UUID; uuidgen(1) makes one");
        let parts: Vec<usize> = text.split('-').map(str::len).collect();
        if !text.is_ascii() || ![&[32][..], &[8, 4, 4, 4, 12]].contains(&&*parts) {
            return Err(wrong());
        }
        let digits = text.replace('-', "");
        let mut uuid = [0; 16];
        for (i, byte) in uuid.iter_mut().enumerate() {
            let digits = &digits[2 * i..2 * i + 2];
            // `from_str_radix` takes a sign too.
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(uuid))
    }
}

/// Makes a UUID that nobody else has.
pub(crate) fn random() -> Result<Uuid> {
    let mut uuid = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut uuid));
    read.during(|| "/dev/urandom".to_owned())?;
    // Version 4, variant of RFC 9562.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(Uuid(uuid))
}

/// Returns the time that new things have, in seconds since 1970: that of `SOURCE_DATE_EPOCH`, or
/// now.
pub(crate) fn time() -> Result<u64> {
    if let Some(seconds) = source_date_epoch()? {
        return Ok(seconds);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.unwrap_or_default().as_secs())
}

/// Returns `SOURCE_DATE_EPOCH`, if it is set.
pub(crate) fn source_date_epoch() -> Result<Option<u64>> {
    let Some(text) = std::env::var_os(SOURCE_DATE_EPOCH) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    let seconds = text.parse().ok();
    match seconds.filter(|seconds| *seconds <= Time::MAX_SEC.cast_unsigned()) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(Failure::new(format!(
            "{SOURCE_DATE_EPOCH} is `{text}`, which is no time that a file can have"
        ))
        .advise("it is in seconds since 1970, as `date +%s` prints them")
        .exit(2)),
    }
}

/// Returns the time that no file may be later than: that of `SOURCE_DATE_EPOCH`, if it is set.
pub(crate) fn latest() -> Result<Option<Stamp>> {
    let seconds = source_date_epoch()?;
    Ok(seconds.map(|seconds| (seconds.cast_signed(), 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_32_digits() {
        let expected = Uuid(*b"\x01\x23\x45\x67\x89\xab\xcd\xef0123456\xff");
        for text in [
            "01234567-89ab-cdef-3031-3233343536ff",
            "0123456789ABCDEF30313233343536FF",
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for text in [
            "",
            "0123456789abcdef30313233343536f",
            "01234567-89abcdef-3031-3233-343536ff",
            "+1234567-89ab-cdef-3031-3233343536ff",
            "g1234567-89ab-cdef-3031-3233343536ff",
            "\u{e4}234567-89ab-cdef-3031-3233343536ff",
        ] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
