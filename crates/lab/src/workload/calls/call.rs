//! One call, in words that every system understands.

use std::ops::Range;
use std::time::Duration;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The line that it was read from, for messages.
    pub line: usize,
    /// When it was made, counted from any moment; `None` where the source has no times.
    pub at: Option<Duration>,
    /// What it is.
    pub what: What,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this byte.
    At(u64),
    /// Behind its last byte.
    End,
    /// At a multiple of the call's length, drawn by the seed from all that lie in the file.
    Random,
}

/// The content of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// This many bytes, drawn by the seed.
    Random(u64),
    /// These bytes.
    Given(Vec<u8>),
}

impl Bytes {
    /// How many bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Random(len) => *len,
            Self::Given(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a call is. Names are paths from the root of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// mkdir(2).
    Mkdir(String),
    /// rmdir(2).
    Rmdir(String),
    /// open(2) with O_CREAT and O_EXCL.
    Create(String),
    /// pwrite(2), or write(2) with O_APPEND.
    Write(String, Place, Bytes),
    /// pread(2) of this many bytes.
    Read(String, Place, u64),
    /// truncate(2).
    Truncate(String, u64),
    /// fallocate(2): these bytes get room.
    Allocate(String, Range<u64>),
    /// fallocate(2) with FALLOC_FL_PUNCH_HOLE: these bytes become zeros without room.
    Punch(String, Range<u64>),
    /// fsync(2).
    Fsync(String),
    /// fdatasync(2).
    Fdatasync(String),
    /// close(2).
    Close(String),
    /// rename(2).
    Rename(String, String),
    /// link(2).
    Link(String, String),
    /// symlink(2): what it says, and its name.
    Symlink(String, String),
    /// unlink(2).
    Unlink(String),
    /// stat(2).
    Stat(String),
    /// getdents(2), all of a directory.
    List(String),
    /// sync(2).
    Sync,
    /// No call: the program does something else for this long.
    Wait(Duration),
}

/// Returns the new name of a path when `from` becomes `to`; `None` if the path stays as it is.
pub(crate) fn renamed(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}
