//! Values of mount options, and the errors of reading them.

/// A mount option that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown mount option \"{0}\"")]
    Unknown(String),
    /// The option needs a value.
    #[error("mount option \"{0}\" needs a value")]
    NoValue(String),
    /// The option takes no value.
    #[error("mount option \"{0}\" takes no value")]
    UnwantedValue(String),
    /// The value cannot be read.
    #[error("mount option \"{option}={value}\": {expected}")]
    Value {
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// Which values are right.
        expected: &'static str,
    },
}

/// Reads a number as the kernel reads it in a mount option: `0x` begins a hexadecimal one, another
/// 0 an octal one. `None` if it is none.
pub(super) fn parse_u32(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (lower.as_str(), 10),
    };
    u32::from_str_radix(digits, radix).ok()
}

/// Reads a number of bytes with an optional K, M, G or T (powers of 1024). `None` if it is none.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        b'g' | b'G' => (&text[..text.len() - 1], 30),
        b't' | b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}
