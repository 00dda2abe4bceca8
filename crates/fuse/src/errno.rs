//! The one table from what an operation answered to the errno that the kernel hands to the caller.
//!
//! The core knows no errno. Every [`Kind`] has exactly one here, the one that the kernel's ext4 gives for the
//! same reason; the compiler refuses a table with a kind missing.

use fuser::Errno;
use stetfs::{Error, Kind};

/// The errno of an error, and a line in the log when the volume or the device is at fault.
pub(crate) fn errno(error: &Error) -> Errno {
    let kind = error.kind();
    if matches!(kind, Kind::Corrupted | Kind::Io) {
        tracing::error!("{error}");
    }
    of_kind(kind)
}

/// The table.
pub(crate) fn of_kind(kind: Kind) -> Errno {
    match kind {
        Kind::NotFound => Errno::ENOENT,
        Kind::Exists => Errno::EEXIST,
        Kind::NotDirectory => Errno::ENOTDIR,
        Kind::IsDirectory => Errno::EISDIR,
        Kind::NotEmpty => Errno::ENOTEMPTY,
        Kind::Access => Errno::EACCES,
        Kind::NotPermitted => Errno::EPERM,
        Kind::NoSpace => Errno::ENOSPC,
        Kind::ReadOnly => Errno::EROFS,
        Kind::NameTooLong => Errno::ENAMETOOLONG,
        Kind::TooManyLinks => Errno::EMLINK,
        Kind::Loop => Errno::ELOOP,
        Kind::CrossDevice => Errno::EXDEV,
        Kind::Invalid => Errno::EINVAL,
        Kind::TooBig => Errno::EFBIG,
        Kind::NoData => Errno::ENODATA,
        Kind::Range => Errno::ERANGE,
        Kind::ArgTooBig => Errno::E2BIG,
        Kind::NotSupported => Errno::ENOTSUP,
        Kind::Busy => Errno::EBUSY,
        Kind::NoSuchDevice => Errno::ENXIO,
        Kind::Stale => Errno::ESTALE,
        Kind::Overflow => Errno::EOVERFLOW,
        Kind::BadFile => Errno::EBADF,
        Kind::Corrupted => Errno::from_i32(libc::EUCLEAN),
        Kind::Io | Kind::ShutDown => Errno::EIO,
    }
}
