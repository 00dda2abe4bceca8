//! The errno that the kernel hands to the caller (`stetfs::Kind::errno`).

use rustix::io::Errno;
use stetfs::{Error, Kind};

/// The result of a request.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Returns the errno of an error. Logs it if the volume or the device is at fault.
pub(crate) fn errno(error: &Error) -> Errno {
    let kind = error.kind();
    if matches!(kind, Kind::Corrupted | Kind::Io) {
        tracing::error!("{error}");
    }
    kind.errno()
}
