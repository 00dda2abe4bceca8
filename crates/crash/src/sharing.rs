//! What explorations need to be shared by machines or resumed: parts ([`Shard`]), a comparison of
//! two requests ([`check_same`]), and a file that keeps the finished part ([`write_durably`]).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Checks that two requests are the same. Fields in `first` are compared before the others, since
/// they say most.
///
/// # Errors
/// The first difference.
pub fn check_same<T: Serialize>(first: &[&str], ours: &T, theirs: &T) -> Result<()> {
    let (ours, theirs) = (serde_json::to_value(ours)?, serde_json::to_value(theirs)?);
    let of = |name: &&str| difference(name, &ours[*name], &theirs[*name]);
    let all = ours
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.keys());
    let mut names = first.iter().copied().chain(all.map(String::as_str));
    match names.find_map(|name| of(&name)) {
        Some(difference) => bail!(difference),
        None => Ok(()),
    }
}

/// Returns the first place where two values differ.
fn difference(name: &str, ours: &Value, theirs: &Value) -> Option<String> {
    if let (Value::Object(ours), Value::Object(theirs)) = (ours, theirs) {
        let null = Value::Null;
        return ours.iter().find_map(|(key, value)| {
            difference(
                &format!("{name}.{key}"),
                value,
                theirs.get(key).unwrap_or(&null),
            )
        });
    }
    (ours != theirs).then(|| format!("its {name} is {theirs}, and not {ours}"))
}

/// One of several parts of an exploration. The key of a workload or state decides its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number of the part, from 1.
    number: u64,
    of: u64,
}

impl Shard {
    /// The only part: everything.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// The largest number of parts.
    const MOST: u64 = 10_000;

    /// True if the workload or state with this key belongs to this part.
    pub fn has(&self, key: u64) -> bool {
        key % self.of == self.number - 1
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/');
        let numbers = numbers.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((number, of)) if of <= Self::MOST && (1..=of).contains(&number) => {
                Ok(Self { number, of })
            }
            _ => Err(format!(
                "`{text}` is not I/N, with I from 1 to N and N of {} at most",
                Self::MOST
            )),
        }
    }
}

/// Parts of an exploration that a report is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shards {
    /// The number of parts in all.
    pub of: u64,
    /// The numbers of the parts, from 1.
    pub these: BTreeSet<u64>,
}

impl Shards {
    /// Returns the numbers of the missing parts.
    pub fn missing(&self) -> Vec<u64> {
        (1..=self.of).filter(|n| !self.these.contains(n)).collect()
    }

    /// Adds parts that are not yet among them.
    ///
    /// # Errors
    /// They are parts of another division, or one is in both.
    pub fn add(&mut self, more: Self) -> Result<()> {
        ensure!(
            self.of == more.of,
            "it is shard {more}, where others are shards of {}",
            self.of
        );
        let both: Vec<_> = more.these.intersection(&self.these).copied().collect();
        ensure!(
            both.is_empty(),
            "shard {} of {} is in another report too",
            listed(both.iter()),
            self.of
        );
        self.these.extend(more.these);
        Ok(())
    }

    /// Checks that the numbers are possible.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self) -> Result<()> {
        let right = 1..=self.of;
        ensure!(
            self.of <= Shard::MOST && self.these.iter().all(|n| right.contains(n)),
            "shards {:?} of {} cannot be",
            self.these,
            self.of
        );
        Ok(())
    }
}

impl From<Shard> for Shards {
    fn from(shard: Shard) -> Self {
        Self {
            of: shard.of,
            these: [shard.number].into(),
        }
    }
}

/// Writes one part as `2/4`, several as `1,2/4`.
impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", listed(self.these.iter()), self.of)
    }
}

/// Writes ascending numbers with commas, and runs of three and more as `5-9`.
pub fn listed<'a>(numbers: impl Iterator<Item = &'a u64>) -> String {
    let numbers: Vec<u64> = numbers.copied().collect();
    let mut out: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [first, _, .., last] => out.push(format!("{first}-{last}")),
            few => out.extend(few.iter().map(u64::to_string)),
        }
    }
    out.join(",")
}

/// Writes a value as JSON: into a file beside `path`, which takes its place when it is durable.
///
/// # Errors
/// The file cannot be written; it still has its old content.
pub fn write_durably<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let written = || {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        // The mode of any file that a user makes.
        let mode = fs::Permissions::from_mode(0o666);
        let mut beside = tempfile::Builder::new()
            .permissions(mode)
            .tempfile_in(dir)?;
        beside.write_all(&serde_json::to_vec(value)?)?;
        beside.as_file().sync_all()?;
        beside.persist(path)?;
        fs::File::open(dir)?.sync_all()?;
        Ok::<_, anyhow::Error>(())
    };
    written().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_numbers_are_short() {
        let text = |numbers: &[u64]| listed(numbers.iter());
        assert_eq!(text(&[1, 2]), "1,2");
        assert_eq!(text(&[1, 3, 4, 5, 9, 10, 12]), "1,3-5,9,10,12");
        assert_eq!(text(&[]), "");
    }
}
