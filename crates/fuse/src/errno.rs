//! The one table from what an operation answered to the errno that the kernel hands to the caller.
//!
//! The core knows no errno. Every [`Kind`] has exactly one here, the one that the kernel's ext4
//! gives for the same reason; the compiler refuses a table with a kind missing.

use rustix::io::Errno;
use stetfs::{Error, Kind};

/// The errno of an error, and a line in the log when the volume or the device is at fault.
pub(crate) fn errno(error: &Error) -> Errno {
    let kind = error.kind();
    if matches!(kind, Kind::Corrupted | Kind::Io) {
        tracing::error!("{error}");
    }
    of_kind(kind)
}

/// The errno of an answer.
pub fn of_kind(kind: Kind) -> Errno {
    match kind {
        Kind::NotFound => Errno::NOENT,
        Kind::Exists => Errno::EXIST,
        Kind::NotDirectory => Errno::NOTDIR,
        Kind::IsDirectory => Errno::ISDIR,
        Kind::NotEmpty => Errno::NOTEMPTY,
        Kind::Access => Errno::ACCESS,
        Kind::NotPermitted => Errno::PERM,
        Kind::NoSpace => Errno::NOSPC,
        Kind::ReadOnly => Errno::ROFS,
        Kind::NameTooLong => Errno::NAMETOOLONG,
        Kind::TooManyLinks => Errno::MLINK,
        Kind::Loop => Errno::LOOP,
        Kind::CrossDevice => Errno::XDEV,
        Kind::Invalid => Errno::INVAL,
        Kind::TooBig => Errno::FBIG,
        Kind::NoData => Errno::NODATA,
        Kind::Range => Errno::RANGE,
        Kind::ArgTooBig => Errno::TOOBIG,
        Kind::NotSupported => Errno::NOTSUP,
        Kind::Busy => Errno::BUSY,
        Kind::NoSuchDevice => Errno::NXIO,
        Kind::Stale => Errno::STALE,
        Kind::Overflow => Errno::OVERFLOW,
        Kind::BadFile => Errno::BADF,
        Kind::Corrupted => Errno::UCLEAN,
        Kind::Io | Kind::ShutDown => Errno::IO,
    }
}
