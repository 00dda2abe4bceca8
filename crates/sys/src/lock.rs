//! Memory that is never paged out; locks on ranges of files.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Locks a range of a file for as long as this open file description lives (`F_OFD_SETLK`). A `len`
/// of 0 means to the end and beyond. Shared locks are compatible with each other; an exclusive lock
/// needs a descriptor that is open for writing. `EAGAIN`: another process has a lock on a part of
/// the range.
pub fn lock_range(file: impl AsFd, offset: u64, len: u64, exclusive: bool) -> Result<(), Errno> {
    let how = if exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    let range = lock_of(how, offset, len)?;
    // SAFETY: the kernel's F_OFD_SETLK reads one `struct flock64`, which lives until the call
    // returns.
    let done = unsafe {
        libc::fcntl(
            file.as_fd().as_raw_fd(),
            libc::F_OFD_SETLK,
            &raw const range,
        )
    };
    match done {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

/// Returns whether another open file description has a lock, shared or not, on a part of this range
/// of a file (`F_OFD_GETLK`).
pub fn is_range_locked(file: impl AsFd, offset: u64, len: u64) -> Result<bool, Errno> {
    let mut range = lock_of(libc::F_WRLCK, offset, len)?;
    // SAFETY: the kernel's F_OFD_GETLK reads and writes one `struct flock64`, which lives until the
    // call returns.
    let done = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    match done {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(libc::c_int::from(range.l_type) != libc::F_UNLCK),
    }
}

fn lock_of(how: libc::c_int, offset: u64, len: u64) -> Result<libc::flock64, Errno> {
    Ok(libc::flock64 {
        l_type: libc::c_short::try_from(how).map_err(|_| Errno::OVERFLOW)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(|_| Errno::OVERFLOW)?,
        l_start: i64::try_from(offset).map_err(|_| Errno::OVERFLOW)?,
        l_len: i64::try_from(len).map_err(|_| Errno::OVERFLOW)?,
        l_pid: 0,
    })
}

/// Locks every page that the process has or will have in memory (`mlockall(2)`), and brings in
/// those that it has. Later pages are brought in when they are mapped, not at their first use.
pub fn lock_memory() -> Result<(), Errno> {
    // SAFETY: mlockall takes no pointer and changes no content.
    let done = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
