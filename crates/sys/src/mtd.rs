//! Requests to a Linux MTD device: raw flash (`mtd/mtd-abi.h`).
//!
//! One request reads or writes a page with its out-of-band bytes (`MEMREAD`, Linux 6.1;
//! `MEMWRITE`). Those bytes lie where the error correction leaves room (`MTD_OPS_AUTO_OOB`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Opcode, Setter, Updater, opcode};

/// `MEMGETINFO` answers with `struct mtd_info_user`.
const MEMGETINFO: Opcode = opcode::read::<InfoUser>(b'M', 1);
/// `MEMGETBADBLOCK` takes a `loff_t` and answers with its return value.
const MEMGETBADBLOCK: Opcode = opcode::write::<i64>(b'M', 11);
/// `MEMSETBADBLOCK` takes a `loff_t`.
const MEMSETBADBLOCK: Opcode = opcode::write::<i64>(b'M', 12);
/// `MEMERASE64` takes `struct erase_info_user64`.
const MEMERASE64: Opcode = opcode::write::<[u64; 2]>(b'M', 20);
/// `MEMWRITE` takes `struct mtd_write_req`.
const MEMWRITE: Opcode = opcode::read_write::<WriteRequest>(b'M', 24);
/// `MEMREAD` takes and changes `struct mtd_read_req`.
const MEMREAD: Opcode = opcode::read_write::<ReadRequest>(b'M', 26);

/// The major number of MTD's character devices (`MTD_CHAR_MAJOR`).
const CHAR_MAJOR: u32 = 90;
/// `MTD_OPS_AUTO_OOB`.
const AUTO_OOB: u8 = 1;

/// `struct mtd_info_user`.
#[repr(C)]
struct InfoUser {
    kind: u8,
    flags: u32,
    size: u32,
    erase_size: u32,
    write_size: u32,
    oob_size: u32,
    padding: u64,
}

/// `struct mtd_write_req`.
#[repr(C)]
struct WriteRequest {
    start: u64,
    len: u64,
    oob_len: u64,
    data: u64,
    oob: u64,
    mode: u8,
    padding: [u8; 7],
}

/// `struct mtd_read_req`.
#[repr(C)]
struct ReadRequest {
    request: WriteRequest,
    statistics: EccStatistics,
    end: u32,
}

/// What error correction did in a read (`struct mtd_read_req_ecc_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EccStatistics {
    /// Codewords that could not be corrected.
    pub uncorrectable_errors: u32,
    /// Wrong bits that were corrected.
    pub corrected_bitflips: u32,
    /// The most wrong bits that were corrected in one codeword.
    pub max_bitflips: u32,
}

/// What kind of flash it is (`MTD_*` of `mtd-abi.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NAND.
    Nand,
    /// Something else, by its number.
    Other(u8),
}

/// What a device says of itself. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The kind of flash.
    pub kind: Kind,
    /// Whether it can be written.
    pub writable: bool,
    /// Bytes of an erase block.
    pub erase_size: u32,
    /// Bytes of a page.
    pub write_size: u32,
}

/// An open MTD device.
#[derive(Debug)]
pub struct Mtd {
    fd: OwnedFd,
    number: u32,
}

impl AsFd for Mtd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Mtd {
    /// Takes an open descriptor. `ENODEV`: it belongs to no MTD device.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let stat = fstat(&fd)?;
        let is_char = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_char || major(stat.st_rdev) != CHAR_MAJOR {
            return Err(Errno::NODEV);
        }
        // Each device has two nodes: one for reading and writing, one for reading only.
        let number = minor(stat.st_rdev) / 2;
        Ok(Self { fd, number })
    }

    /// The `N` of `mtdN`.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns what the device says of itself.
    pub fn info(&self) -> Result<Info, Errno> {
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMGETINFO writes exactly
        // one `struct mtd_info_user` through the pointer, which is what the getter has room for;
        // every bit pattern is a valid one.
        let info = unsafe { ioctl::ioctl(&self.fd, Getter::<MEMGETINFO, InfoUser>::new())? };
        // MTD_NANDFLASH, MTD_MLCNANDFLASH; MTD_WRITEABLE.
        let is_nand = matches!(info.kind, 4 | 8);
        Ok(Info {
            kind: if is_nand {
                Kind::Nand
            } else {
                Kind::Other(info.kind)
            },
            writable: info.flags & 0x400 != 0,
            erase_size: info.erase_size,
            write_size: info.write_size,
        })
    }

    /// Reads a page's `data` and its first free out-of-band bytes; either may be empty. The
    /// statistics come with the errno and say more about `EUCLEAN` (corrected) and `EBADMSG` (not
    /// correctable). `ENOTTY`: the kernel is older than 6.1.
    pub fn read(
        &self,
        start: u64,
        data: &mut [u8],
        oob: &mut [u8],
    ) -> (Result<(), Errno>, EccStatistics) {
        let mut request = ReadRequest {
            request: WriteRequest {
                start,
                len: wide(data.len()),
                oob_len: wide(oob.len()),
                data: address(data.as_mut_ptr(), data.len()),
                oob: address(oob.as_mut_ptr(), oob.len()),
                mode: AUTO_OOB,
                padding: [0; 7],
            },
            statistics: EccStatistics::default(),
            end: 0,
        };
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMREAD reads and writes
        // exactly one `struct mtd_read_req` through the pointer, which is what the updater points
        // to, and writes at most `len` bytes at `data` and `ooblen` at `oob`: exclusive borrows of
        // that many bytes, which live as long as this call.
        let done =
            unsafe { ioctl::ioctl(&self.fd, Updater::<MEMREAD, ReadRequest>::new(&mut request)) };
        (done, request.statistics)
    }

    /// Writes a page's `data` with its first free out-of-band bytes.
    pub fn write(&self, start: u64, data: &[u8], oob: &[u8]) -> Result<(), Errno> {
        let mut request = WriteRequest {
            start,
            len: wide(data.len()),
            oob_len: wide(oob.len()),
            data: address(data.as_ptr(), data.len()),
            oob: address(oob.as_ptr(), oob.len()),
            mode: AUTO_OOB,
            padding: [0; 7],
        };
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMWRITE reads exactly one
        // `struct mtd_write_req` through the pointer, which is what the updater points to, and only
        // reads `len` bytes at `data` and `ooblen` at `oob`: borrows of that many bytes, which live
        // as long as this call.
        unsafe {
            ioctl::ioctl(
                &self.fd,
                Updater::<MEMWRITE, WriteRequest>::new(&mut request),
            )
        }
    }

    /// Erases whole blocks. `EIO`: the erase failed.
    pub fn erase(&self, start: u64, len: u64) -> Result<(), Errno> {
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMERASE64 reads exactly
        // one `struct erase_info_user64` through the pointer: two u64, start and length, which is
        // what the setter holds.
        unsafe { ioctl::ioctl(&self.fd, Setter::<MEMERASE64, [u64; 2]>::new([start, len])) }
    }

    /// Whether the block at `start` is bad.
    pub fn is_bad(&self, start: u64) -> Result<bool, Errno> {
        let start = i64::try_from(start).map_err(|_| Errno::INVAL)?;
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMGETBADBLOCK reads
        // exactly one `loff_t` through the pointer, which is what it is given, and writes nothing.
        unsafe { ioctl::ioctl(&self.fd, GetBadBlock(start)) }
    }

    /// Marks the block at `start` bad, for good.
    pub fn mark_bad(&self, start: u64) -> Result<(), Errno> {
        let start = i64::try_from(start).map_err(|_| Errno::INVAL)?;
        // SAFETY: the descriptor is one of an MTD device (`new`), where MEMSETBADBLOCK reads
        // exactly one `loff_t` through the pointer, which is what the setter holds.
        unsafe { ioctl::ioctl(&self.fd, Setter::<MEMSETBADBLOCK, i64>::new(start)) }
    }
}

/// The address of bytes for the kernel; 0 when there are none.
fn address<T>(pointer: *const T, len: usize) -> u64 {
    if len == 0 {
        0
    } else {
        wide(pointer.expose_provenance())
    }
}

/// Converts a length or an address without loss.
#[expect(clippy::as_conversions, reason = "`usize` has at most 64 bits")]
const fn wide(n: usize) -> u64 {
    const { assert!(usize::BITS <= u64::BITS) };
    n as u64
}

/// MEMGETBADBLOCK, whose answer is the return value of the call.
struct GetBadBlock(i64);

// SAFETY: the opcode is MEMGETBADBLOCK's, the pointer is to the `loff_t` in it, which the kernel
// only reads; the answer is taken from the returned number alone.
unsafe impl ioctl::Ioctl for GetBadBlock {
    type Output = bool;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        MEMGETBADBLOCK
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        returned: ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> Result<bool, Errno> {
        Ok(returned != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `mtd/mtd-abi.h` on x86-64 and AArch64.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(MEMGETINFO, 0x8020_4d01);
        assert_eq!(MEMGETBADBLOCK, 0x4008_4d0b);
        assert_eq!(MEMSETBADBLOCK, 0x4008_4d0c);
        assert_eq!(MEMERASE64, 0x4010_4d14);
        assert_eq!(MEMWRITE, 0xc030_4d18);
        assert_eq!(MEMREAD, 0xc040_4d1a);
    }

    #[test]
    fn what_is_no_mtd_device_is_refused() {
        for path in ["/dev/null", "/proc/self/exe"] {
            let file = std::fs::File::open(path).expect("it can be read");
            assert_eq!(Mtd::new(file.into()).expect_err("it is none"), Errno::NODEV);
        }
    }
}
