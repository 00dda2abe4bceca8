//! Settings as text: `name=value` words, for machines, workloads and command lines alike.
//!
//! A word sets a field of a value that serde can read. Other fields keep their default. An unknown
//! field is an error that names the known ones.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// Returns the default value with these settings.
///
/// # Errors
/// An unknown setting, or an invalid value.
pub fn parse<T: DeserializeOwned + Serialize + Default>(words: &str) -> Result<T> {
    set(&T::default(), words)
}

/// Returns a value with some of its fields set anew.
///
/// # Errors
/// As [`parse`].
pub fn set<T: DeserializeOwned + Serialize>(value: &T, words: &str) -> Result<T> {
    let mut fields = fields(value)?;
    for word in words.split_whitespace() {
        let (name, text) = word
            .split_once('=')
            .with_context(|| format!("{word}: settings are NAME=VALUE"))?;
        if !fields.contains_key(name) {
            let known: Vec<_> = fields.keys().map(String::as_str).collect();
            bail!("there is no setting {name}; there are {}", known.join(", "));
        }
        fields.insert(name.to_owned(), of(text));
    }
    serde_json::from_value(Value::Object(fields)).with_context(|| words.to_owned())
}

/// Keeps the named items, and those that always stay. Where none is named, keeps all.
pub(crate) fn narrow<T>(
    all: &mut Vec<T>,
    is_named: impl Fn(&T) -> bool,
    stays: impl Fn(&T) -> bool,
) {
    if all.iter().any(&is_named) {
        all.retain(|one| stays(one) || is_named(one));
    }
}

/// Returns all fields of a value, as words.
///
/// # Errors
/// A field is neither a number nor a word.
pub fn all<T: Serialize>(value: &T) -> Result<String> {
    let fields = fields(value)?;
    let words = fields
        .iter()
        .map(|(name, value)| Ok(format!("{name}={}", shown(value)?)));
    Ok(words.collect::<Result<Vec<_>>>()?.join(" "))
}

fn fields<T: Serialize>(value: &T) -> Result<Map<String, Value>> {
    match serde_json::to_value(value)? {
        Value::Object(fields) => Ok(fields),
        other => bail!("{other}: settings are fields"),
    }
}

/// Reads a number where the text is one, else a word.
fn of(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        _ => Value::String(text.to_owned()),
    }
}

fn shown(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(is_so) => Ok(is_so.to_string()),
        other => bail!("{other} is neither a number nor a word"),
    }
}

/// Bytes, as text with a binary unit: `4096`, `4K`, `16M`, `1.5G`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// Binary units, the largest first.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl Bytes {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Returns it as 32 bits. A larger one becomes the most that fits: workloads refuse that.
    pub fn small(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// Reads a text; `None` when it is no size.
    pub fn parse(text: &str) -> Option<Self> {
        let unit = UNITS.into_iter().find(|(name, _)| text.ends_with(*name));
        let (number, shift) = match unit {
            Some((name, shift)) => (text.strip_suffix(name)?, shift),
            None => (text, 0),
        };
        let number: f64 = number
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite() && *n >= 0.0)?;
        Some(Self((number * (1u64 << shift) as f64).round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .into_iter()
            .find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Nanoseconds, as text with a unit: `50ns`, `20us`, `1.5ms`, `5s`; a number alone is seconds.
/// `never` is a time that does not come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A time that does not come.
    pub const NEVER: Self = Self(u64::MAX);

    fn read(text: &str) -> Option<Self> {
        if text == "never" {
            return Some(Self::NEVER);
        }
        let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("", 1e9)];
        let (number, factor) = units
            .into_iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
        let number: f64 = number
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite() && *n >= 0.0)?;
        Some(Self((number * factor).round() as u64))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
        let whole = units
            .into_iter()
            .find(|(_, unit)| self.0.is_multiple_of(*unit));
        match (*self, whole) {
            (Self::NEVER, _) => f.write_str("never"),
            (_, Some((name, unit))) => write!(f, "{}{name}", self.0 / unit),
            (_, None) => write!(f, "{}ns", self.0),
        }
    }
}

/// Text in documents and files, a number from command lines.
macro_rules! as_text {
    ($($kind:ident),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = match Value::deserialize(from)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                let wrong = || D::Error::custom(format!("{text}: {}", $kind::SYNTAX));
                Self::read(&text).ok_or_else(wrong)
            }
        }
    )*};
}

impl Bytes {
    fn read(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    const SYNTAX: &str = "bytes are a number with K, M, G, T or nothing behind it";
}

impl Nanos {
    const SYNTAX: &str = "a time is a number with ns, us, ms or s behind it, or `never`";
}

as_text!(Bytes, Nanos);

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::{Bytes, Nanos, all, parse};

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Some {
        size: Bytes,
        every: Nanos,
        times: u32,
        way: String,
    }

    #[test]
    fn words_and_values_are_the_same() {
        let some: Some = parse("size=1.5K every=20us times=3 way=there").expect("settings");
        let (size, every) = (Bytes(1536), Nanos(20_000));
        let way = "there".to_owned();
        assert_eq!(
            some,
            Some {
                size,
                every,
                times: 3,
                way
            }
        );
        let words = all(&some).expect("words");
        assert_eq!(words, "every=20us size=1536 times=3 way=there");
        assert_eq!(parse::<Some>(&words).expect("the same"), some);
        for (words, why) in [
            ("sise=1", "no setting sise"),
            ("size", "NAME=VALUE"),
            ("size=-1", "bytes are"),
            ("every=1h", "a time is"),
            ("times=-3", "times"),
        ] {
            let error = format!("{:#}", parse::<Some>(words).expect_err(words));
            assert!(error.contains(why), "{words}: {error}");
        }
        assert_eq!(Nanos::NEVER.to_string(), "never");
    }
}
