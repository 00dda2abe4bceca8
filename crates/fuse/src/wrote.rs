//! Who writes how much to which files of a mount, as a server tells it: `writers.rs` counts it.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Bytes written.
    pub bytes: u64,
    /// Calls of fsync(2) and fdatasync(2), and direct writes that are synchronous.
    pub syncs: u64,
}

impl Count {
    /// Bytes that a sync weighs: a commit writes at least one block.
    const OF_SYNC: u64 = 4096;

    /// Returns what it weighs beside others, in bytes.
    pub fn weight(self) -> u64 {
        let syncs = self.syncs.saturating_mul(Self::OF_SYNC);
        self.bytes.saturating_add(syncs)
    }

    /// Returns whether nothing was asked for.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Returns what came since; all of it, if the counters began anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let bytes = self.bytes.checked_sub(before.bytes);
        match bytes.zip(self.syncs.checked_sub(before.syncs)) {
            Some((bytes, syncs)) => Self { bytes, syncs },
            None => self,
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.syncs += more.syncs;
    }
}

/// A program, and what it has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The name of its process.
    pub name: String,
    /// What it has asked for.
    #[serde(flatten)]
    pub count: Count,
}

/// A file, as a server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Known {
    /// By its number.
    Inode {
        /// The number.
        inode: u32,
    },
    /// By the name that it was made by.
    Made {
        /// The number of the directory.
        dir: u32,
        /// The name.
        name: String,
    },
}

impl Known {
    /// Returns the inode that its name is looked for by: its own, or the directory's.
    pub fn inode(&self) -> u32 {
        match self {
            Self::Inode { inode } => *inode,
            Self::Made { dir, .. } => *dir,
        }
    }
}

/// A file, and the programs that write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfFile {
    /// The file.
    #[serde(flatten)]
    pub file: Known,
    /// The programs.
    pub programs: Vec<Program>,
}

/// All of it; of programs and files only the heaviest, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrote {
    /// All that was asked for.
    pub all: Count,
    /// The programs.
    pub programs: Vec<Program>,
    /// The files. One that was made since the mount may be there twice: by its name, as long as it
    /// is open, and by its number.
    pub files: Vec<OfFile>,
}

impl Wrote {
    /// Returns what came since.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        let programs = |now: Vec<Program>, before: &[Program]| {
            let then = |name: &str| before.iter().find(|program| program.name == name);
            let programs = now.into_iter().map(|Program { name, count }| {
                let then = then(&name).map_or(Count::default(), |then| then.count);
                let count = count.since(then);
                Program { name, count }
            });
            programs
                .filter(|program| !program.count.is_none())
                .collect()
        };
        let files = self.files.into_iter().map(|file| {
            let then = before.files.iter().find(|then| then.file == file.file);
            OfFile {
                programs: programs(file.programs, then.map_or(&[], |then| &then.programs)),
                file: file.file,
            }
        });
        Self {
            all: self.all.since(before.all),
            programs: programs(self.programs, &before.programs),
            files: files.filter(|file| !file.programs.is_empty()).collect(),
        }
    }
}
