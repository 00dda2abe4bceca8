//! Descriptors that this process was started with, known by their numbers alone, and those that it
//! leaves to the program that it becomes.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use rustix::io::{Errno, FdFlags};

/// Returns another descriptor of what the inherited descriptor `number` leads to. Programs that
/// this process starts inherit neither of the two.
///
/// # Errors
/// There is no such descriptor.
pub fn take(number: u32) -> Result<OwnedFd, Errno> {
    let number = libc::c_int::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: both calls only look the number up in the table of descriptors. The flag of the old
    // descriptor takes nothing from whoever owns it: Rust's own have it anyway.
    let new = unsafe {
        let new = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3);
        if new >= 0 {
            libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        new
    };
    if new < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::BADF));
    }
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// Has programs that this process starts inherit the descriptor `number`, which it has inherited
/// itself.
///
/// # Errors
/// There is no such descriptor.
pub fn leave_again(number: u32) -> Result<(), Errno> {
    let number = libc::c_int::try_from(number).map_err(|_| Errno::BADF)?;
    // SAFETY: it takes no descriptor from anybody; it changes what becomes of it in programs that
    // are started later.
    if unsafe { libc::fcntl(number, libc::F_SETFD, 0) } < 0 {
        return Err(Errno::BADF);
    }
    Ok(())
}

/// Decides whether the program that this process becomes (execve(2)) has the descriptor too, by the
/// same number. Returns that number.
///
/// # Errors
/// Those of fcntl(2).
pub fn leave(descriptor: impl AsFd, to_next: bool) -> Result<u32, Errno> {
    let flags = if to_next {
        FdFlags::empty()
    } else {
        FdFlags::CLOEXEC
    };
    let descriptor = descriptor.as_fd();
    rustix::io::fcntl_setfd(descriptor, flags)?;
    u32::try_from(descriptor.as_raw_fd()).map_err(|_| Errno::BADF)
}

/// Has no program that is started from now on inherit what this process has inherited, beside the
/// three standard descriptors and those of these numbers: a lock, a pipe, a file on a mount. Before
/// Linux 5.11 it does nothing.
pub fn leave_only(kept: &[u32]) {
    let mut kept: Vec<u32> = kept.iter().copied().filter(|number| *number > 2).collect();
    kept.sort_unstable();
    kept.dedup();
    let mut first: libc::c_uint = 3;
    for number in kept {
        leave_none(first, number - 1);
        first = number.saturating_add(1);
    }
    leave_none(first, libc::c_uint::MAX);
}

/// Has no program inherit the descriptors of these numbers. An empty range is an error, which
/// changes nothing.
fn leave_none(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: it takes no descriptor from anybody; it changes what becomes of them in programs that
    // are started later.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        );
    }
}

/// Becomes a program with these arguments, its name first, and with this process's environment
/// (execve(2)). Returns only if that fails; nothing has changed then.
pub fn become_program(program: &Path, arguments: &[OsString]) -> Errno {
    let c_string = |word: &OsStr| CString::new(word.as_bytes());
    let Ok(program) = c_string(program.as_os_str()) else {
        return Errno::INVAL;
    };
    let Ok(words) = arguments
        .iter()
        .map(|word| c_string(word))
        .collect::<Result<Vec<_>, _>>()
    else {
        return Errno::INVAL;
    };
    let mut pointers: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.push(ptr::null());
    // SAFETY: the path and the words are ended by a NUL, the list of words by a null pointer, and
    // all of them live until the call returns. All other threads end with the old program.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_taken_descriptor_is_another_one_of_the_same_file() {
        let mut file = tempfile();
        let number = u32::try_from(file.as_raw_fd()).unwrap();
        let mut taken = std::fs::File::from(take(number).unwrap());
        file.write_all(b"shared").unwrap();
        // They share one position.
        assert_eq!(taken.stream_position().unwrap(), 6);
        drop(file);
        taken.rewind().unwrap();
        let mut text = String::new();
        taken.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
    }

    #[test]
    fn there_is_no_such_descriptor() {
        assert_eq!(take(1 << 20).unwrap_err(), Errno::BADF);
        assert_eq!(take(u32::MAX).unwrap_err(), Errno::BADF);
    }

    fn tempfile() -> std::fs::File {
        let name = rustix::fs::memfd_create("inherited", rustix::fs::MemfdFlags::CLOEXEC);
        std::fs::File::from(name.unwrap())
    }
}
