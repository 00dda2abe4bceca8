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

/// Whether two explorations were asked the same, and in what they differ. `first`: fields that are
/// compared before the others, since they say most.
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

/// Where two values first differ.
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

/// One of so many parts of an exploration; which part a workload or a state belongs to is told by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    number: u64,
    of: u64,
}

impl Shard {
    /// All of them.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// So many at most.
    const MOST: u64 = 10_000;

    /// Whether what has this key is of this part.
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
    /// So many there are.
    pub of: u64,
    /// From 1.
    pub these: BTreeSet<u64>,
}

impl Shards {
    /// Those that are missing.
    pub fn missing(&self) -> Vec<u64> {
        (1..=self.of).filter(|n| !self.these.contains(n)).collect()
    }

    /// Adds parts that are not among them.
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

    /// Whether they can be.
    ///
    /// # Errors
    /// They cannot.
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

/// `2/4`; of several `1,2/4`.
impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", listed(self.these.iter()), self.of)
    }
}

/// Ascending numbers with commas, runs of three and more as `5-9`.
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

/// Writes a value as JSON: beside the file first, and in its place when that is durable.
///
/// # Errors
/// The file cannot be written; what it said before, it still says.
pub fn write_durably<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let written = || {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        // As any file that a user makes.
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
