//! Sizes as people write them: `512M` in, `512.0 MiB` out.

use std::fmt;
use std::str::FromStr;

use stetfs_format::width::nearest_f64;

/// A number of bytes given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    /// Parses `4096`, `4K`, `1.5G`, `64MiB` or `64MB`: powers of 1024 in every spelling, as mke2fs
    /// and lvcreate have it.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a size; write bytes or a number with K, M, G or T, such as 512M"
            )
        };
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(wrong()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let too_large = || format!("`{text}` is larger than any volume");
        let mut bytes = whole
            .parse::<u64>()
            .map_err(|_| {
                if whole.len() > 15 {
                    too_large()
                } else {
                    wrong()
                }
            })?
            .checked_mul(1 << shift)
            .ok_or_else(too_large)?;
        if !fraction.is_empty() {
            let parsed: f64 = format!("0.{fraction}").parse().map_err(|_| wrong())?;
            bytes = bytes
                .checked_add(rounded_down(parsed * nearest_f64(1u64 << shift)))
                .ok_or_else(too_large)?;
        }
        // The largest volume has 2^48 blocks of 4 KiB.
        if bytes > 1 << 60 {
            Err(too_large())
        } else {
            Ok(Self(bytes))
        }
    }
}

impl fmt::Display for Size {
    /// Writes three or four significant digits, in binary units.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = nearest_f64(self.0);
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value < 1000.0 && value.fract() != 0.0);
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// Returns `n` rounded down, or the nearest number of this type; 0 for NaN.
#[expect(clippy::as_conversions, reason = "nothing else rounds")]
pub(crate) fn rounded_down(n: f64) -> u64 {
    n as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("64MiB", 64 << 20),
            ("64MB", 64 << 20),
            ("2T", 2 << 40),
            ("0.5K", 512),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1X",
            "1.2.3K",
            "99999999999999999999",
            "99999999T",
            ".5G",
            "1 G",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1 << 30, "1 GiB"),
            (1_500_000, "1.4 MiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
