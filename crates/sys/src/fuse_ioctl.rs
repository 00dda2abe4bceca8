//! Requests to `/dev/fuse` (`linux/fuse.h`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter, opcode};

/// `FUSE_DEV_IOC_CLONE` takes the number of the descriptor that has the connection, but is declared
/// as a read.
const FUSE_DEV_IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Attaches `new`, an unused descriptor of `/dev/fuse`, to the connection of `session`. It gets its
/// own queue of requests in work.
pub fn clone_session(new: impl AsFd, session: impl AsFd) -> Result<(), Errno> {
    let session = session.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the kernel's FUSE_DEV_IOC_CLONE (`fuse_dev_ioctl_clone`) reads exactly one u32
    // through the pointer, which is what the setter holds. Any other file refuses the number with
    // ENOTTY (229 is FUSE's own in Documentation/userspace-api/ioctl/ioctl-number.rst).
    unsafe { ioctl::ioctl(new, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(session)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn the_number_is_that_of_the_kernel() {
        assert_eq!(FUSE_DEV_IOC_CLONE, 0x8004_e500);
    }

    #[test]
    fn a_regular_file_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own binary can be read");
        assert!(clone_session(&file, &file).is_err());
    }
}
