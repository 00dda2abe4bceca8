//! Errors of media.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

/// An access to a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Bytes out of the medium.
    Read,
    /// Bytes into the medium.
    Write,
    /// Everything written before becomes durable.
    Flush,
    /// The content of a range is no longer needed.
    Discard,
    /// A block of a NAND part can be programmed again.
    Erase,
    /// An address gets the content of another one, without a copy.
    Remap,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Erase => "erase",
            Self::Remap => "remap",
        })
    }
}

/// A request that failed. Offsets, lengths and sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MediaError {
    /// The file or device could not be opened, or could not be queried.
    #[error("{}: cannot open: {source}", path.display())]
    Open {
        /// The file or device.
        path: PathBuf,
        /// The system's reason.
        source: Errno,
    },
    /// Somebody else uses the file or device.
    #[error("{}: already mounted or in use{by}", path.display())]
    Busy {
        /// The file or device.
        path: PathBuf,
        /// Who uses it, as " (...)"; empty if unknown.
        by: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: is a {what}, not a regular file or block device", path.display())]
    NotStorage {
        /// What was opened.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The device failed to carry out the request.
    #[error("{op} of {len} bytes at {offset} failed: {source}")]
    Io {
        /// The request.
        op: Op,
        /// First byte; 0 for a flush.
        offset: u64,
        /// Length; 0 for a flush.
        len: u64,
        /// The system's reason.
        source: Errno,
    },
    /// An earlier flush has failed: nobody knows which writes are lost, so none can be called
    /// durable any more.
    #[error("the device lost writes in an earlier failed flush")]
    WritesLost,
    /// The device ended before the request did, although it was larger when opened.
    #[error("{op} of {len} bytes at {offset}: the file ends after {done} of them")]
    Truncated {
        /// The request.
        op: Op,
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
        /// Bytes done before the end.
        done: u64,
    },
    /// The file was made shorter while it was open: the content beyond its new end is lost.
    #[error("{}: the file was cut to {is} bytes while it was in use; it had {was}", path.display())]
    Cut {
        /// The file.
        path: PathBuf,
        /// Its size when it was opened.
        was: u64,
        /// Its size now.
        is: u64,
    },
    /// The file was removed while it was open: all of its content is lost when it is closed.
    #[error("{}: the file was removed while it was in use; what it holds can be copied from \
        /proc/{}/fd until it is closed", path.display(), std::process::id())]
    Removed {
        /// Its former path.
        path: PathBuf,
    },
    /// The request reaches beyond the end of the device.
    #[error("{op} of {len} bytes at {offset} is beyond the end of the device ({size} bytes)")]
    PastEnd {
        /// The request.
        op: Op,
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
        /// The size of the device.
        size: u64,
    },
    /// Offset or length is not a multiple of the sector size.
    #[error("{op} of {len} bytes at {offset} is not in whole sectors of {sector} bytes")]
    Misaligned {
        /// The request.
        op: Op,
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
        /// The sector size.
        sector: u32,
    },
    /// The device was opened for reading only.
    #[error("{op} of {len} bytes at {offset}: the device is read-only")]
    ReadOnly {
        /// The request.
        op: Op,
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
    },
    /// The device cannot do this kind of request. Nothing was changed.
    #[error("the device has no {op}")]
    Unsupported {
        /// The request.
        op: Op,
    },
    /// The simulated power is off.
    #[error("{op} of {len} bytes at {offset}: the power is off")]
    PowerLost {
        /// The request.
        op: Op,
        /// First byte.
        offset: u64,
        /// Length.
        len: u64,
    },
}
