//! The one table from the [`Kind`] of an error to the errno that a caller in C gets, from the
//! kernel above a mount or from the library.
//!
//! Every [`Kind`] has exactly one errno, which the kernel's ext4 returns for the same reason. The
//! compiler refuses a table with a kind missing.

use rustix::io::Errno;

use crate::error::Kind;

impl Kind {
    /// Returns the errno of this kind.
    pub fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::Access => Errno::ACCESS,
            Self::NotPermitted => Errno::PERM,
            Self::NoSpace => Errno::NOSPC,
            Self::ReadOnly => Errno::ROFS,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::TooManyLinks => Errno::MLINK,
            Self::Loop => Errno::LOOP,
            Self::CrossDevice => Errno::XDEV,
            Self::Invalid => Errno::INVAL,
            Self::TooBig => Errno::FBIG,
            Self::NoData => Errno::NODATA,
            Self::Range => Errno::RANGE,
            Self::ArgTooBig => Errno::TOOBIG,
            Self::NotSupported => Errno::NOTSUP,
            Self::Busy => Errno::BUSY,
            Self::NoSuchDevice => Errno::NXIO,
            Self::Stale => Errno::STALE,
            Self::Overflow => Errno::OVERFLOW,
            Self::BadFile => Errno::BADF,
            Self::Corrupted => Errno::UCLEAN,
            Self::Io | Self::ShutDown => Errno::IO,
        }
    }
}
