//! The contract of persistent memory, against which caches and logs in it are written.
//!
//! - Offsets and lengths are bytes within the memory; a range beyond the end is
//!   [`MediaError::PastEnd`], a word that is not at a multiple of 8 [`MediaError::Misaligned`], and
//!   changes nothing. (The simulated memory panics instead: there it is a mistake of ours and shall
//!   be found.) The memory itself is never handed out, only copies.
//! - What was stored is seen by every later load, except that another thread may see what was
//!   stored past the cache ([`Pmem::store_nt`]) only after a fence, or after the storing thread has
//!   released a lock.
//! - A store is *durable* when the lines of 64 bytes that it touches were flushed after it, and a
//!   fence after that has returned; one past the cache when a fence after it has returned. The
//!   flush, or the store past the cache, must have happened before the fence in the sense of
//!   threads: by the same one, or handed over through a lock.
//! - Until then a power cut keeps or loses each word of 8 bytes by itself, whatever the order of
//!   the stores was: a line may leave the cache at any time, flushed or not. A word at a multiple
//!   of 8 is never torn: of its versions since the last that is durable one is there, whole.
//! - So the only order on the medium is that of fences, and the only change that is there or not as
//!   one is a word.
//! - After a failed fence nobody knows what is durable, even if a later one were to succeed: none
//!   does ([`MediaError::WritesLost`]). Only memory on an ordinary file can fail so.
//! - Every access that succeeded is counted by the [`Meter`]: loads as reads, stores as writes,
//!   lines that were flushed (changed or not) or stored past the cache, fences.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use stetfs_format::width::must_fit;

use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::range::check_in_device;
use crate::tag::{Cause, Tag};

/// Bytes of a cache line: the unit of flushing.
pub const LINE: u64 = 64;

/// Bytes of a word: what is never torn.
pub const WORD: u64 = 8;

/// What durable content survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Survives {
    /// The death of the process only: the content is in the kernel's page cache, and a crash of the
    /// system takes what the kernel has not written yet.
    ProcessCrash,
    /// Power loss too.
    PowerLoss,
}

impl fmt::Display for Survives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ProcessCrash => "survives the death of the process only",
            Self::PowerLoss => "survives power loss",
        })
    }
}

/// Memory that keeps its content.
pub trait Pmem: Send + Sync {
    /// What it is and what it survives, for messages.
    fn describe(&self) -> String;

    /// The absolute path of the file that it is in, if it is in one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Where from `offset` on something other than zeros may begin, as far as that is known without
    /// a look.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// Size in bytes, a multiple of [`LINE`]. It does not change.
    fn size(&self) -> u64;

    /// What durable content survives.
    fn survives(&self) -> Survives;

    /// Whether stores are refused.
    fn read_only(&self) -> bool;

    /// Fills `out` with the newest content.
    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError>;

    /// The word at `offset`, a multiple of 8, in one piece; little-endian. What was stored before
    /// the [`store_u64`](Self::store_u64) whose value this sees is seen by later loads.
    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError>;

    /// Stores `data` through the processor's cache: for little, and for what is changed again soon.
    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError>;

    /// Stores the word at `offset`, a multiple of 8, little-endian and in one piece, through the
    /// cache.
    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError>;

    /// Stores whole words past the cache (`offset` and length are multiples of 8): for much. It
    /// needs no flush, and it costs less than one.
    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError>;

    /// Begins to write back the lines that a range touches.
    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError>;

    /// Returns when everything that was flushed or stored past the cache before this call is
    /// durable.
    fn fence(&self, cause: Cause) -> Result<(), MediaError>;

    /// As [`BlockDev::check_backing`](crate::BlockDev::check_backing); fences do not ask it.
    fn check_backing(&self) -> Result<(), MediaError> {
        Ok(())
    }

    /// The account of everything done in this memory.
    fn meter(&self) -> &Meter;
}

/// How many lines a range touches.
pub(crate) fn lines_touched(offset: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    (offset + len).div_ceil(LINE) - offset / LINE
}

/// Whether a range lies within the memory and is in whole words.
pub(crate) fn check_words(op: Op, offset: u64, len: u64, size: u64) -> Result<(), MediaError> {
    if !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
        return Err(MediaError::Misaligned {
            op,
            offset,
            len,
            sector: must_fit(WORD),
        });
    }
    check_in_device(op, offset, len, size)
}
