//! One stream of operations for every kind of file system: the in-memory model, the library, and
//! any mounted one.
//!
//! - [`op`]: the operations.
//! - [`draw`]: random operations, from a seed.
//! - [`model`]: the effect that POSIX demands of each, in memory; its answers are compared with the
//!   kernel's ext4.
//! - [`library`]: the operations through the library, in this process.
//! - [`posix`]: the same operations as system calls below a mounted directory.
//! - [`text`]: the operations as lines of text.
//! - [`tree`]: everything visible in a tree, and the differences between two trees.
//!
//! Paths are relative to the directory `t` in the root of the volume, so that symbolic links can
//! climb one step with `..` and still stay on the volume.

pub mod acl;
pub mod draw;
pub mod library;
pub mod model;
pub mod names;
pub mod op;
pub mod posix;
pub mod sparse;
pub mod text;
pub mod tree;

use rustix::io::Errno;

use crate::world::op::Op;

/// The directory in the root of the volume that all paths start from.
pub const BASE: &str = "t";

/// Seconds and nanoseconds since 1970.
pub type Moment = (i64, u32);

/// Returns the time of the operation with this number, for tests that move the clock: each
/// operation has its own time.
pub fn moment(number: usize) -> Moment {
    const START: i64 = 1_700_000_000;
    let n = number as i64;
    (START + n, (n * 123_456_789 % 1_000_000_000) as u32)
}

/// The part of a stat that does not depend on the implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// File type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u64,
    /// Length; 0 for directories.
    pub size: u64,
}

/// The result of an operation that succeeded.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Done,
    /// Number of bytes read or written.
    Count(usize),
    /// Content, a link's target, or an attribute's value.
    Bytes(Vec<u8>),
    /// Attributes.
    Stat(Stat),
    /// Names in order, without `.` and `..`; for directories with the file type as in `d_type`.
    Names(Vec<(Vec<u8>, u8)>),
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Count(n) => write!(f, "{n} bytes"),
            Self::Bytes(bytes) if bytes.len() <= 64 => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Bytes(bytes) => {
                write!(f, "{} bytes, hash {:016x}", bytes.len(), tree::hash(bytes))
            }
            Self::Stat(stat) => write!(f, "{stat:?}"),
            Self::Names(names) => {
                let shown = names
                    .iter()
                    .map(|(n, kind)| format!("{}:{kind}", n.escape_ascii()));
                write!(f, "[{}]", shown.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// The answer to an operation.
pub type Outcome = Result<Reply, Errno>;

/// Something on which operations can be carried out.
pub trait World {
    /// Its name for messages.
    fn name(&self) -> String;

    /// Carries out one operation.
    fn apply(&mut self, op: &Op) -> Outcome;
}
