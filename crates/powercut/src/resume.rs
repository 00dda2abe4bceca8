//! Keeps the check's verdicts in a file, so that a later run does not ask the check about the same
//! states again.
//!
//! A verdict of the user's check depends only on the tree and the promises, so the file serves
//! every model, shard and recording. Where what the run shows is the judge, it serves one
//! recording.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs_crash::sharing::{check_same, write_durably};

use crate::call::Recording;
use crate::judge::{Check, Key, Rule, Verdict, Verdicts};
use crate::report::checksum;
use crate::run::End;

/// How often verdicts are kept, where that costs little.
const KEEP_EVERY: Duration = Duration::from_secs(2);

/// The request of the verdicts. Verdicts of another check or version are of no use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The version of the program that asked.
    pub version: String,
    /// The check.
    pub check: String,
    /// What makes a state right.
    #[serde(default)]
    pub rule: Rule,
    /// A checksum of the recording if it matters, else empty.
    #[serde(default)]
    pub of: String,
    /// The check's time limit.
    pub timeout: Duration,
    /// Bytes of the volume on which states are shown.
    pub size: u64,
}

impl Asked {
    /// The request for this check, by this program.
    pub fn new(check: &Check, recording: &Recording, size: u64) -> Self {
        let of = match check.rule {
            Rule::Holds => String::new(),
            Rule::Prints | Rule::Files => checksum(recording),
        };
        Self {
            rule: check.rule,
            of,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            check: check.command.clone(),
            timeout: check.timeout,
            size,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    asked: Asked,
    verdicts: Vec<Said>,
}

/// The verdict on a state.
#[derive(Serialize, Deserialize)]
struct Said {
    /// In hexadecimal, since JSON has no numbers of this length.
    tree: String,
    marks: String,
    end: End,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    output: String,
}

impl Said {
    fn new(key: Key, verdict: &Verdict) -> Self {
        Self {
            tree: format!("{:032x}", key.tree),
            marks: format!("{:016x}", key.marks),
            end: verdict.end,
            // Only failures are shown.
            output: if verdict.holds() {
                String::new()
            } else {
                verdict.output.clone()
            },
        }
    }

    fn read(self) -> Result<(Key, Verdict)> {
        let key = Key {
            tree: u128::from_str_radix(&self.tree, 16)?,
            marks: u64::from_str_radix(&self.marks, 16)?,
        };
        let (end, output) = (self.end, self.output);
        Ok((key, Verdict { end, output }))
    }
}

/// A file with verdicts.
pub struct Resumed {
    path: PathBuf,
    asked: Asked,
    /// When the verdicts are to be kept again.
    due: Mutex<Instant>,
}

impl Resumed {
    /// Reads the verdicts of a file into `verdicts`. If there is no such file, makes one.
    ///
    /// # Errors
    /// The file is of another check, or is no such file; it then stays as it is. Or it cannot be
    /// read or written.
    pub fn open(path: &Path, asked: Asked, verdicts: &Verdicts) -> Result<Self> {
        let resumed = Self {
            path: path.to_owned(),
            asked,
            due: Mutex::new(Instant::now()),
        };
        let read = resumed.read(verdicts);
        read.with_context(|| path.display().to_string())?;
        resumed.keep(verdicts)?;
        Ok(resumed)
    }

    fn read(&self, verdicts: &Verdicts) -> Result<()> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let kept: Kept =
            serde_json::from_slice(&text).context("it holds no verdicts of a check")?;
        check_same(&[], &self.asked, &kept.asked).context("its verdicts are of another check")?;
        for said in kept.verdicts {
            let (key, verdict) = said.read().context("it is damaged")?;
            verdicts.insert(key, Arc::new(verdict));
        }
        Ok(())
    }

    /// Keeps the verdicts, if it is time and no other thread is about to.
    ///
    /// # Errors
    /// The file cannot be written; it still has its old content.
    pub fn keep_sometimes(&self, verdicts: &Verdicts) -> Result<()> {
        match self.due.try_lock() {
            Some(mut due) if Instant::now() >= *due => self.write(verdicts, &mut due),
            _ => Ok(()),
        }
    }

    /// Keeps the verdicts.
    ///
    /// # Errors
    /// The file cannot be written; it still has its old content.
    pub fn keep(&self, verdicts: &Verdicts) -> Result<()> {
        self.write(verdicts, &mut self.due.lock())
    }

    fn write(&self, verdicts: &Verdicts, due: &mut Instant) -> Result<()> {
        let begin = Instant::now();
        let said = verdicts.all();
        let said = said.iter().map(|(key, verdict)| Said::new(*key, verdict));
        let kept = Kept {
            asked: self.asked.clone(),
            verdicts: said.collect(),
        };
        write_durably(&self.path, &kept)?;
        // Writing a long list takes at most a twentieth of the time.
        *due = Instant::now() + KEEP_EVERY.max(begin.elapsed() * 20);
        Ok(())
    }
}
