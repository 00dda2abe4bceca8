//! The contract of persistent memory: what caches and logs in it may rely on.
//!
//! - Offsets and lengths are bytes within the memory. A range beyond the end is
//!   [`MediaError::PastEnd`], a word that is not at a multiple of 8 [`MediaError::Misaligned`];
//!   both change nothing. (The simulated memory panics instead, so that tests find such a mistake
//!   of ours.) Callers get copies, never the memory itself.
//! - Every later load sees a store, with one exception: another thread may see a store past the
//!   cache ([`Pmem::store_nt`]) only after a fence, or after the storing thread has released a
//!   lock.
//! - A store through the cache is *durable* when the lines of 64 bytes that it touches were flushed
//!   after it, and a fence after the flush has returned. A store past the cache is durable when a
//!   fence after it has returned. The flush, or the store past the cache, must have happened before
//!   the fence in the sense of threads: in the same thread, or handed over through a lock.
//! - Until then a power cut keeps or loses each word of 8 bytes independently, in whatever order
//!   the stores came: a line may leave the cache at any time, flushed or not. A word at a multiple
//!   of 8 is never torn: one of its versions since the last durable one is there, whole.
//! - So only fences order changes on the medium, and only a change of one word is atomic.
//! - After a failed fence nobody knows what is durable, even if a later one were to succeed. So no
//!   later one does ([`MediaError::WritesLost`]). Only memory on an ordinary file can fail like
//!   this.
//! - The [`Meter`] counts every access that succeeded: loads as reads, stores as writes, fences,
//!   and the lines flushed (changed or not) or stored past the cache.

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

/// Bytes of a word, which is never torn.
pub const WORD: u64 = 8;

/// Which failure durable content survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Survives {
    /// The death of the process only. The content is in the kernel's page cache, and a crash of the
    /// system loses what the kernel has not written yet.
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
    /// The memory's name and what it survives, for messages.
    fn describe(&self) -> String;

    /// The absolute path of its file; `None` if it is not in one.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// The first offset from `offset` on that may hold something other than zeros, as far as this
    /// is known without reading.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// Size in bytes, a multiple of [`LINE`]. It does not change.
    fn size(&self) -> u64;

    /// Which failure durable content survives.
    fn survives(&self) -> Survives;

    /// Whether stores are refused.
    fn read_only(&self) -> bool;

    /// Fills `out` with the newest content.
    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError>;

    /// Loads the word at `offset`, a multiple of 8, in one piece; little-endian. If this load sees
    /// the value of a [`store_u64`](Self::store_u64), later loads see all stores before that one.
    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError>;

    /// Stores `data` through the processor's cache: for short data, and for data that soon changes
    /// again.
    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError>;

    /// Stores the word at `offset`, a multiple of 8, little-endian and in one piece, through the
    /// cache.
    fn store_u64(&self, offset: u64, value: u64, tag: Tag) -> Result<(), MediaError>;

    /// Stores whole words past the cache (`offset` and length are multiples of 8): for long data.
    /// It needs no flush, and costs less than a store with one.
    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError>;

    /// Starts the write-back of the lines that a range touches.
    fn flush(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError>;

    /// Returns when everything flushed or stored past the cache before this call is durable.
    fn fence(&self, cause: Cause) -> Result<(), MediaError>;

    /// Checks the file, as [`BlockDev::check_backing`](crate::BlockDev::check_backing) does; fences
    /// do not.
    fn check_backing(&self) -> Result<(), MediaError> {
        Ok(())
    }

    /// The account of everything done in this memory.
    fn meter(&self) -> &Meter;
}

/// Returns how many lines a range touches.
pub(crate) fn lines_touched(offset: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    (offset + len).div_ceil(LINE) - offset / LINE
}

/// Checks that a range lies within the memory and is in whole words.
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
