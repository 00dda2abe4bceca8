//! Requests to a Linux block device (`linux/fs.h`, group 0x12).
//!
//! On a descriptor that is no block device the kernel answers `ENOTTY` or `EINVAL`.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Opcode, Setter, opcode};

/// `BLKROSET` and `BLKROGET` take an `int`, although their numbers do not say so.
const BLKROSET: Opcode = opcode::none(0x12, 93);
const BLKROGET: Opcode = opcode::none(0x12, 94);
/// `BLKSSZGET` takes an `int`, although its number does not say so.
const BLKSSZGET: Opcode = opcode::none(0x12, 104);
/// `BLKGETSIZE64` is declared with `size_t` and answers with a `u64`.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKDISCARD` takes `uint64_t range[2]`: start and length in bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
/// `BLKZEROOUT` takes the same range.
const BLKZEROOUT: Opcode = opcode::none(0x12, 127);

/// Size of the device in bytes.
pub fn size_bytes(fd: impl AsFd) -> Result<u64, Errno> {
    // SAFETY: the kernel's BLKGETSIZE64 (`put_u64`) writes exactly one u64 through the pointer,
    // which is the type given to the getter. No driver gives the number another meaning: group 0x12
    // is reserved for block devices.
    unsafe { ioctl::ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Logical sector size in bytes: the smallest unit that the device transfers.
pub fn sector_size_bytes(fd: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: the kernel's BLKSSZGET (`put_int`) writes exactly one int through the pointer; u32
    // has its size and alignment, and every bit pattern is a valid u32.
    unsafe { ioctl::ioctl(fd, Getter::<BLKSSZGET, u32>::new()) }
}

/// Whether the device is write-protected. Opening it for writing works all the same, but a write
/// then fails (EPERM).
pub fn is_read_only(fd: impl AsFd) -> Result<bool, Errno> {
    // SAFETY: the kernel's BLKROGET (`put_int`) writes exactly one int through the pointer; u32 has
    // its size and alignment, and every bit pattern is a valid u32.
    unsafe { ioctl::ioctl(fd, Getter::<BLKROGET, u32>::new()) }.map(|it| it != 0)
}

/// Sets or removes the write protection of the device; for root.
pub fn set_read_only(fd: impl AsFd, read_only: bool) -> Result<(), Errno> {
    // SAFETY: BLKROSET reads exactly one int through the pointer, and that is what the setter
    // holds.
    unsafe { ioctl::ioctl(fd, Setter::<BLKROSET, i32>::new(read_only.into())) }
}

/// Tells the device that the content of a range is no longer needed. Both numbers are bytes and
/// multiples of the sector size; the content is undefined afterwards.
pub fn discard(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads exactly two u64 through the pointer, and that is what the setter
    // holds.
    unsafe { ioctl::ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// Fills a range with zeros, by a command of the device where it has one. Both numbers are bytes
/// and multiples of the sector size.
pub fn zero_out(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKZEROOUT reads exactly two u64 through the pointer, and that is what the setter
    // holds.
    unsafe { ioctl::ioctl(fd, Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len])) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `linux/fs.h` on x86-64 and AArch64.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(BLKROSET, 0x125d);
        assert_eq!(BLKROGET, 0x125e);
        assert_eq!(BLKSSZGET, 0x1268);
        assert_eq!(BLKGETSIZE64, 0x8008_1272);
        assert_eq!(BLKDISCARD, 0x1277);
        assert_eq!(BLKZEROOUT, 0x127f);
    }

    #[test]
    fn a_regular_file_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own binary can be read");
        assert!(size_bytes(&file).is_err());
        assert!(sector_size_bytes(&file).is_err());
        assert!(discard(&file, 0, 512).is_err());
        assert!(zero_out(&file, 0, 512).is_err());
    }
}
