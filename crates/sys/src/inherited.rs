//! Descriptors that this process was started with, known by their numbers alone.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

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
