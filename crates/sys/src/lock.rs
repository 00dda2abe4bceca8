//! Memory that is never paged out.

use rustix::io::Errno;

/// Locks every page that the process has or will have in memory, and brings in those that it has (`mlockall(2)`). Pages that it gets
/// later come when they are asked for, not when they are first used.
pub fn lock_memory() -> Result<(), Errno> {
    // SAFETY: mlockall takes no pointer and changes no content.
    let done = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
