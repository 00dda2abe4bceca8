//! Workloads by name, with their parameters as settings.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::text::{Bytes, all, parse};
use crate::workload::calls::{self, Pace, Recorded, blkparse, strace};
use crate::workload::sqlite::JournalMode;
use crate::workload::tpcc::Cardinality;
use crate::workload::{
    Bonnie, Filebench, Fio, Iozone, Overwrite, Personality, Postmark, Single, Tpcc, Updates,
    Workload, bonnie, iozone, overwrite, single,
};

/// A workload that a question can name.
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    make: fn(&str, u64) -> Result<Box<dyn Workload>>,
    /// All of its settings as words; a setting that is not given has its default.
    all: fn(&str) -> Result<String>,
    source: fn(&str) -> Result<Option<PathBuf>>,
}

/// Every workload.
pub const LOADS: &[Load] = &[
    load::<FioSettings>(
        "fio",
        "reads and writes of one size at random places of a file",
    ),
    load::<IozoneSettings>("iozone", "a file written once, record by record"),
    load::<PostmarkSettings>(
        "postmark",
        "small files made, read, appended to and deleted",
    ),
    load::<Server<0>>(
        "fileserver",
        "filebench's: files made, appended to, read whole, deleted",
    ),
    load::<Server<1>>(
        "webproxy",
        "filebench's: files replaced, each read whole five times",
    ),
    load::<Server<2>>(
        "varmail",
        "filebench's: mails written, each synced, and read",
    ),
    load::<OverwriteSettings>("overwrite", "blocks overwritten, of which a share changes"),
    load::<SingleSettings>(
        "single",
        "files made, removed, renamed or appended to, each made durable",
    ),
    load::<UpdatesSettings>(
        "sqlite",
        "updates of 100 bytes in SQLite, each a transaction",
    ),
    load::<TpccSettings>("tpcc", "TPC-C on SQLite"),
    load::<BonnieSettings>(
        "bonnie",
        "a file written by the character or the block, or rewritten",
    ),
    load::<CallsSettings>("calls", "calls of your own, listed in a file"),
    load::<StraceSettings>(
        "strace",
        "what `strace -f -y -ttt -o FILE` saw of a program",
    ),
    load::<BlktraceSettings>(
        "blktrace",
        "what blktrace saw of a disk, printed by blkparse, on a file as large as what it touched",
    ),
    load::<RecordingSettings>(
        "recording",
        "what `stetfs crash --keep FILE -- PROGRAM` recorded",
    ),
];

const fn load<S: Settings>(name: &'static str, what: &'static str) -> Load {
    Load {
        name,
        what,
        make: |words, seed| parse::<S>(words)?.make(seed),
        all: |words| all(&parse::<S>(words)?),
        source: |words| Ok(parse::<S>(words)?.source().map(PathBuf::from)),
    }
}

impl Load {
    /// Finds the workload of that name; returns it with the words behind the name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(text: &str) -> Result<(&'static Self, &str)> {
        let (name, words) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let found = LOADS.iter().find(|load| load.name == name);
        let names = || {
            LOADS
                .iter()
                .map(|load| load.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let found =
            found.with_context(|| format!("there is no workload {name}; there are {}", names()));
        Ok((found?, words))
    }

    /// Makes the workload with these settings.
    ///
    /// # Errors
    /// Those of the words.
    pub fn make(&self, words: &str, seed: u64) -> Result<Box<dyn Workload>> {
        (self.make)(words, seed).with_context(|| format!("workload {}", self.name))
    }
}

impl Load {
    /// Returns all of its settings as words; a setting that is not given has its default.
    ///
    /// # Errors
    /// Those of the words.
    pub fn all(&self, words: &str) -> Result<String> {
        (self.all)(words).with_context(|| format!("workload {}", self.name))
    }

    /// Returns the file that the workload is read from; `None` when it is not read from one.
    ///
    /// # Errors
    /// Those of the words.
    pub fn source(&self, words: &str) -> Result<Option<PathBuf>> {
        (self.source)(words).with_context(|| format!("workload {}", self.name))
    }
}

trait Settings: Default + Serialize + DeserializeOwned {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>>;

    /// The file that the workload is read from.
    fn source(&self) -> Option<&str> {
        None
    }
}

/// As in the papers of caches in NVM, but smaller.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FioSettings {
    file: Bytes,
    block: Bytes,
    /// Percent.
    reads: u8,
    ops: u64,
    /// Writes before an fsync, on average; 0: none.
    fsync: f64,
}

impl Default for FioSettings {
    fn default() -> Self {
        Self {
            file: Bytes::mib(32),
            block: Bytes::kib(4),
            reads: 0,
            ops: 4096,
            fsync: 1.0,
        }
    }
}

impl Settings for FioSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Fio {
            file_bytes: self.file.0,
            block_bytes: self.block.small(),
            read_percent: self.reads,
            operations: self.ops,
            fsync_every: self.fsync,
            seed,
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IozoneSettings {
    test: iozone::Test,
    file: Bytes,
    record: Bytes,
    /// From one record to the next; 0: they are packed.
    room: Bytes,
}

impl Default for IozoneSettings {
    fn default() -> Self {
        Self {
            test: iozone::Test::Write,
            file: Bytes::mib(16),
            record: Bytes::kib(4),
            room: Bytes(0),
        }
    }
}

impl Settings for IozoneSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        let Self {
            test, file, record, ..
        } = self;
        let packed = Iozone::packed(*test, file.0, record.small(), seed);
        let room_bytes = self.room.small().max(packed.room_bytes);
        Ok(Box::new(Iozone {
            room_bytes,
            ..packed
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PostmarkSettings {
    files: u32,
    least: Bytes,
    most: Bytes,
    transactions: u32,
    directories: u32,
    /// Bytes of a read or a write; 0: through a buffer, as much as is asked for.
    block: Bytes,
}

impl Default for PostmarkSettings {
    fn default() -> Self {
        Self {
            files: 500,
            least: Bytes(500),
            most: Bytes(10_000),
            transactions: 5000,
            directories: 0,
            block: Bytes(0),
        }
    }
}

impl Settings for PostmarkSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Postmark {
            files: self.files,
            size_low: self.least.0,
            size_high: self.most.0,
            transactions: self.transactions,
            subdirectories: self.directories,
            seed,
            ..match self.block.small() {
                0 => Postmark::default(),
                block => Postmark {
                    read_block: block,
                    write_block: block,
                    buffered: false,
                    ..Postmark::default()
                },
            }
        }))
    }
}

/// One of filebench's personalities, by its place.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server<const N: usize> {
    /// Bytes of the set, which give the number of files, each handled once; 0: `files` and `loops`
    /// count.
    data: Bytes,
    files: u32,
    /// Mean bytes of a file.
    mean: Bytes,
    threads: u32,
    /// Bytes of a piece in which files are written and read whole.
    piece: Bytes,
    loops: u32,
}

impl<const N: usize> Default for Server<N> {
    fn default() -> Self {
        let own = Filebench::new(Personality::ALL[N], 10, 0);
        Self {
            data: Bytes(0),
            files: 1000,
            mean: Bytes(own.mean_file_bytes),
            threads: own.threads,
            piece: Bytes(own.piece_bytes.into()),
            loops: own.loops,
        }
    }
}

impl<const N: usize> Settings for Server<N> {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        let (files, loops) = match self.data.0.checked_div(self.mean.0.max(1)) {
            None | Some(0) => (self.files, self.loops),
            Some(files) => {
                // Each thread has one of the files open that do not exist in the beginning.
                let files = u32::try_from(files).unwrap_or(u32::MAX);
                let files = files.max(6 * self.threads);
                (files, files.div_ceil(self.threads.max(1)))
            }
        };
        Ok(Box::new(Filebench {
            files,
            mean_file_bytes: self.mean.0,
            threads: self.threads,
            piece_bytes: self.piece.small(),
            ..Filebench::new(Personality::ALL[N], loops, seed)
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverwriteSettings {
    file: Bytes,
    ops: u64,
    order: overwrite::Order,
    /// Percent of a block, or their distribution: `zipf:3`, `bathtub:0.08`, `uniform`.
    differ: overwrite::Differences,
    change: overwrite::Change,
}

impl Default for OverwriteSettings {
    fn default() -> Self {
        Self {
            file: Bytes::mib(16),
            ops: 8192,
            order: overwrite::Order::Random,
            differ: overwrite::Differences::Fixed(10),
            change: overwrite::Change::NewValues,
        }
    }
}

impl Settings for OverwriteSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Overwrite {
            differences: self.differ,
            change: self.change,
            order: self.order,
            blocks: self.file.0 / overwrite::BLOCK as u64,
            overwrites: self.ops,
            seed,
        }))
    }
}

/// The kinds of [`single::Operation`] that can be repeated without limit.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Op {
    Create,
    Append,
    Unlink,
    Mkdir,
    Rename,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SingleSettings {
    op: Op,
    times: u64,
}

impl Default for SingleSettings {
    fn default() -> Self {
        Self {
            op: Op::Create,
            times: 500,
        }
    }
}

impl Settings for SingleSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        let operation = match self.op {
            Op::Create => single::Operation::Create,
            Op::Append => single::Operation::Append,
            Op::Unlink => single::Operation::Unlink,
            Op::Mkdir => single::Operation::Mkdir,
            Op::Rename => single::Operation::Rename,
        };
        Ok(Box::new(Single {
            operation,
            times: self.times,
            seed,
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdatesSettings {
    mode: JournalMode,
    rows: u64,
    updates: u64,
}

impl Default for UpdatesSettings {
    fn default() -> Self {
        Self {
            mode: JournalMode::Delete,
            rows: 10_000,
            updates: 500,
        }
    }
}

impl Settings for UpdatesSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        let Self {
            mode,
            rows,
            updates,
        } = *self;
        Ok(Box::new(Updates {
            mode,
            rows,
            updates,
            seed,
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TpccSettings {
    mode: JournalMode,
    /// Factor on the specification's one warehouse.
    scale: f64,
    /// Decks of 23 transactions.
    decks: u32,
    page: Bytes,
}

impl Default for TpccSettings {
    fn default() -> Self {
        Self {
            mode: JournalMode::Delete,
            scale: 0.05,
            decks: 4,
            page: Bytes::kib(4),
        }
    }
}

impl Settings for TpccSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Tpcc {
            size: Cardinality::scaled(self.scale),
            decks: self.decks,
            journal: self.mode,
            page_bytes: self.page.small(),
            seed,
        }))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BonnieSettings {
    test: bonnie::Test,
    file: Bytes,
    block: Bytes,
}

impl Default for BonnieSettings {
    fn default() -> Self {
        Self {
            test: bonnie::Test::BlockWrite,
            file: Bytes::mib(16),
            block: Bytes::kib(4),
        }
    }
}

impl Settings for BonnieSettings {
    fn make(&self, _: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Bonnie {
            test: self.test,
            file_bytes: self.file.0,
            block_bytes: self.block.small(),
        }))
    }
}

/// The file of a workload that is read from one.
fn file(name: &str) -> Result<&Path> {
    ensure!(!name.is_empty(), "which file? file=PATH");
    Ok(Path::new(name))
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallsSettings {
    file: String,
}

impl Settings for CallsSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(calls::text::read(file(&self.file)?, seed)?))
    }

    fn source(&self) -> Option<&str> {
        Some(&self.file)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StraceSettings {
    file: String,
    /// The directory whose files are replayed.
    under: String,
    pace: Pace,
}

impl Default for StraceSettings {
    fn default() -> Self {
        Self {
            file: String::new(),
            under: String::new(),
            pace: Pace::Full,
        }
    }
}

impl Settings for StraceSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        ensure!(
            self.under.starts_with('/'),
            "the files of which directory? under=/DIR"
        );
        let calls = strace::read(file(&self.file)?, &self.under, self.pace, seed)?;
        Ok(Box::new(calls))
    }

    fn source(&self) -> Option<&str> {
        Some(&self.file)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlktraceSettings {
    file: String,
    pace: Pace,
}

impl Default for BlktraceSettings {
    fn default() -> Self {
        Self {
            file: String::new(),
            pace: Pace::Full,
        }
    }
}

impl Settings for BlktraceSettings {
    fn make(&self, seed: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(blkparse::read(
            file(&self.file)?,
            self.pace,
            seed,
        )?))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordingSettings {
    file: String,
    pace: Pace,
}

impl Default for RecordingSettings {
    fn default() -> Self {
        Self {
            file: String::new(),
            pace: Pace::Full,
        }
    }
}

impl Settings for RecordingSettings {
    fn make(&self, _: u64) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Recorded::read(file(&self.file)?, self.pace)?))
    }

    fn source(&self) -> Option<&str> {
        Some(&self.file)
    }
}
