//! Stored runs: what was asked once need not be run again.
//!
//! A run is a small file in the directory of the code that ran it, `DIR/SOURCES/QUESTION.json`. Its
//! name is a checksum of the question, and the question is in it too. A file gets its name when it
//! is complete. So several programs may keep runs in one directory, and a killed program leaves no
//! broken run. Runs of other code stay where they are, and are never read.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs_crash::sharing::write_durably;

use super::load::Load;
use super::run::Cell;
use crate::system::{Access, Outcome};
use crate::text::all;

/// A checksum of the sources that determine a run's numbers.
pub(crate) const SOURCES: &str = env!("STETFS_SOURCES");

/// A directory of runs.
#[derive(Clone, Debug)]
pub struct Store {
    /// The directory of this code.
    dir: PathBuf,
}

/// A complete question: equal questions have equal numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Question {
    /// Mount options, which a system's name does not tell.
    options: String,
    access: String,
    machine: String,
    workload: String,
    /// A checksum of the file that the workload is read from; `None` when it is not read from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    seed: u64,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    sources: String,
    question: Question,
    outcome: Outcome,
}

impl Question {
    fn of(cell: &Cell) -> Result<Self> {
        let (load, words) = Load::find(&cell.workload)?;
        let source = load.source(words)?.map(|path| -> Result<String> {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            Ok(format!("{:016x}", checksum(&bytes)))
        });
        Ok(Self {
            options: cell.system.options.to_owned(),
            access: match cell.system.access {
                Access::Bytes => "bytes",
                Access::Blocks => "blocks",
            }
            .to_owned(),
            machine: all(&cell.machine)?,
            workload: format!("{} {}", load.name, load.all(words)?),
            source: source.transpose()?,
            seed: cell.seed,
        })
    }

    fn key(&self) -> Result<u64> {
        Ok(checksum(&serde_json::to_vec(self)?))
    }
}

impl Cell {
    /// Returns a checksum of the cell's question: its name in a store, the same on every machine.
    ///
    /// # Errors
    /// There is no such workload.
    pub fn key(&self) -> Result<u64> {
        Question::of(self)?.key()
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Store {
    /// Opens the runs of this code in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// Those of the directory.
    pub fn open(dir: &Path) -> Result<Self> {
        let dir = dir.join(SOURCES);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { dir })
    }

    fn place(&self, question: &Question) -> Result<PathBuf> {
        Ok(self.dir.join(format!("{:016x}.json", question.key()?)))
    }

    /// Returns the stored outcome of a cell; `None` when there is none.
    ///
    /// # Errors
    /// Its file cannot be read, or belongs to another run; there is no such workload.
    pub fn get(&self, cell: &Cell) -> Result<Option<Outcome>> {
        self.answer(&Question::of(cell)?)
    }

    fn answer(&self, question: &Question) -> Result<Option<Outcome>> {
        let path = self.place(question)?;
        let read = || -> Result<Option<Outcome>> {
            let text = match fs::read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let kept: Kept = serde_json::from_slice(&text)?;
            let is_it = kept.sources == SOURCES && kept.question == *question;
            ensure!(is_it, "it is of another run");
            Ok(Some(kept.outcome))
        };
        read().with_context(|| format!("{}: no run is kept there; remove it", path.display()))
    }

    /// Returns the stored outcome of a cell; otherwise runs the cell and stores its outcome.
    ///
    /// # Errors
    /// Those of the run and of the file.
    pub fn run(&self, cell: &Cell) -> Result<Outcome> {
        let question = Question::of(cell)?;
        if let Some(outcome) = self.answer(&question)? {
            return Ok(outcome);
        }
        let outcome = cell.run(&|_, _| {})?;
        let path = self.place(&question)?;
        let kept = Kept {
            sources: SOURCES.to_owned(),
            question,
            outcome,
        };
        write_durably(&path, &kept)?;
        Ok(kept.outcome)
    }
}
