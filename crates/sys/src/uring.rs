//! What the users of io_uring here share.

use std::io;

use io_uring::{IoUring, cqueue, squeue};
use rustix::io::Errno;

/// Why there is no ring: the kernel has none, or this process may not have one.
pub(crate) fn no_ring(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::NOSYS)
}

/// Submits what was pushed, and waits for this many ends. There may be fewer, after a signal for
/// instance, and what was pushed may still be to be submitted: the caller calls again. A failure
/// that leaves open what the kernel has ends the process: the kernel may go on using memory that
/// the caller would take back.
pub(crate) fn enter<S, C>(ring: &IoUring<S, C>, want: usize)
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    if let Err(error) = ring.submit_and_wait(want) {
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
            _ => {
                eprintln!("io_uring_enter: {error}");
                std::process::abort();
            }
        }
    }
}

/// The result of a command that has ended.
pub(crate) fn ended(entry: &cqueue::Entry) -> Result<(), Errno> {
    match entry.result() {
        result if result < 0 => Err(Errno::from_raw_os_error(-result)),
        _ => Ok(()),
    }
}
