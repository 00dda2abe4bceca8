//! Requests to a file system about one of its files (`linux/fs.h`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Getter, NoArg, Opcode, Setter, Updater, opcode};

/// `FIGETBSZ` is declared without a type and answers with an `int`.
const FIGETBSZ: Opcode = opcode::none(0x00, 2);
/// `FICLONERANGE` takes `struct file_clone_range`.
const FICLONERANGE: Opcode = opcode::write::<FileCloneRange>(0x94, 13);

/// `F2FS_IOC_START_ATOMIC_WRITE` (`linux/f2fs.h`).
const START_ATOMIC_WRITE: Opcode = opcode::none(0xf5, 1);
/// `F2FS_IOC_COMMIT_ATOMIC_WRITE`.
const COMMIT_ATOMIC_WRITE: Opcode = opcode::none(0xf5, 2);
/// `F2FS_IOC_ABORT_ATOMIC_WRITE`.
const ABORT_ATOMIC_WRITE: Opcode = opcode::none(0xf5, 5);
/// `F2FS_IOC_GET_FEATURES`.
const GET_FEATURES: Opcode = opcode::read::<u32>(0xf5, 12);
/// `F2FS_FEATURE_ATOMIC_WRITE`.
const ATOMIC_WRITE: u32 = 0x0004;

/// `STETFS_IOC_BEGIN_GROUP` (`crates/ffi/include/stetfs_ioctl.h`).
const BEGIN_GROUP: Opcode = opcode::read::<[u8; 16]>(0xe7, 1);
/// `STETFS_IOC_JOIN_GROUP`.
const JOIN_GROUP: Opcode = opcode::write::<[u8; 16]>(0xe7, 2);

/// `STETFS_IOC_BEGIN_LAYER`.
const BEGIN_LAYER: Opcode = opcode::read::<[u8; 16]>(0xe7, 3);
/// `STETFS_IOC_LAY_OVER`.
const LAY_OVER: Opcode = opcode::read_write::<LayOver>(0xe7, 4);

/// `struct stetfs_lay_over`.
#[repr(C)]
pub struct LayOver {
    /// Name of the layer.
    pub name: [u8; 16],
    /// Set when the call fails: path of the file that was in the way, from the directory; ended by
    /// a NUL.
    pub path: [u8; 1008],
}

/// `STETFS_IOC_FILL_LAYER`.
const FILL_LAYER: Opcode = opcode::read_write::<FillLayer>(0xe7, 5);

/// `struct stetfs_fill_layer`.
#[repr(C)]
pub struct FillLayer {
    /// The layer; on failure, the path of the file at which it failed.
    pub what: LayOver,
    /// A batch of records.
    pub records: [u8; 15_344],
}

/// `struct file_clone_range`.
#[repr(C)]
struct FileCloneRange {
    src_fd: i64,
    src_offset: u64,
    src_length: u64,
    dest_offset: u64,
}

/// Returns the block size of the file system in bytes: cloned ranges are multiples of it.
pub fn block_size_bytes(fd: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: the kernel answers FIGETBSZ itself, before it asks any file system (`do_vfs_ioctl`),
    // and writes exactly one int through the pointer; u32 has its size and alignment, and every bit
    // pattern is a valid u32.
    unsafe { ioctl::ioctl(fd, Getter::<FIGETBSZ, u32>::new()) }
}

/// Whether writes through the descriptor can be one transaction, by the calls below (F2FS and
/// stetfs).
pub fn has_atomic_writes(fd: impl AsFd) -> bool {
    // SAFETY: the number says that a u32 is written, and both file systems that know it write
    // exactly that; a file system that does not know it answers ENOTTY.
    let features = unsafe { ioctl::ioctl(fd, Getter::<GET_FEATURES, u32>::new()) };
    features.is_ok_and(|features: u32| features & ATOMIC_WRITE != 0)
}

/// Starts a transaction of all later writes through the descriptor.
pub fn start_atomic_write(fd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the number takes no argument.
    unsafe { ioctl::ioctl(fd, NoArg::<START_ATOMIC_WRITE>::new()) }
}

/// Commits the writes since [`start_atomic_write`]; they are durable on return.
pub fn commit_atomic_write(fd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the number takes no argument.
    unsafe { ioctl::ioctl(fd, NoArg::<COMMIT_ATOMIC_WRITE>::new()) }
}

/// Drops the writes since [`start_atomic_write`].
pub fn abort_atomic_write(fd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the number takes no argument.
    unsafe { ioctl::ioctl(fd, NoArg::<ABORT_ATOMIC_WRITE>::new()) }
}

/// Does the same as [`start_atomic_write`], and returns the name by which other open files join
/// (stetfs).
pub fn begin_group(fd: impl AsFd) -> Result<[u8; 16], Errno> {
    // SAFETY: the number says that 16 bytes are written, and the kernel's FUSE copies no more.
    unsafe { ioctl::ioctl(fd, Getter::<BEGIN_GROUP, [u8; 16]>::new()) }
}

/// Makes all later writes through the descriptor part of the group of that name. Any descriptor of
/// the group commits or aborts it.
pub fn join_group(fd: impl AsFd, name: [u8; 16]) -> Result<(), Errno> {
    // SAFETY: the number says that 16 bytes are read, which is what the setter holds.
    unsafe { ioctl::ioctl(fd, Setter::<JOIN_GROUP, [u8; 16]>::new(name)) }
}

/// Announces a layer for the directory that this open file is in, and returns the layer's name.
/// `EBUSY`: another layer is under way on the volume (stetfs).
pub fn begin_layer(fd: impl AsFd) -> Result<[u8; 16], Errno> {
    // SAFETY: the number says that 16 bytes are written, and the kernel's FUSE copies no more.
    unsafe { ioctl::ioctl(fd, Getter::<BEGIN_LAYER, [u8; 16]>::new()) }
}

/// Lays the layer of that name over the directory, as one transaction, durable on return (stetfs).
pub fn lay_over(dir: impl AsFd, what: &mut LayOver) -> Result<(), Errno> {
    // SAFETY: the number says that as many bytes are read and written as a `LayOver` has, and the
    // kernel's FUSE copies no more; every bit pattern is valid in it.
    unsafe { ioctl::ioctl(dir, Updater::<LAY_OVER, LayOver>::new(what)) }
}

/// Applies a batch of records to the layer of that name, in this directory (stetfs).
pub fn fill_layer(dir: impl AsFd, what: &mut FillLayer) -> Result<(), Errno> {
    // SAFETY: the number says that as many bytes are read and written as a `FillLayer` has, and the
    // kernel's FUSE copies no more; every bit pattern is valid in it.
    unsafe { ioctl::ioctl(dir, Updater::<FILL_LAYER, FillLayer>::new(what)) }
}

/// Makes `len` bytes from `to` on share the blocks, and so the content, of those from `from` on in
/// the same file. All three numbers are multiples of [`block_size_bytes`], and the ranges do not
/// overlap. A `len` of 0 means up to the end of the file. `EOPNOTSUPP`: the file system cannot do
/// it.
pub fn clone_range(fd: impl AsFd, from: u64, len: u64, to: u64) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let range = FileCloneRange {
        src_fd: i64::from(fd.as_raw_fd()),
        src_offset: from,
        src_length: len,
        dest_offset: to,
    };
    // SAFETY: the kernel answers FICLONERANGE itself and reads exactly one
    // `struct file_clone_range`, which is what the setter holds; the descriptor in it is open as
    // long as `fd` lives.
    unsafe { ioctl::ioctl(fd, Setter::<FICLONERANGE, FileCloneRange>::new(range)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of `linux/fs.h` on x86-64 and AArch64.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(FIGETBSZ, 2);
        assert_eq!(FICLONERANGE, 0x4020_940d);
    }

    #[test]
    fn a_file_that_cannot_be_written_gets_no_clone() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own binary can be read");
        let block = block_size_bytes(&file).expect("a file is on a file system");
        assert!(block.is_power_of_two(), "{block}");
        assert!(clone_range(&file, 0, u64::from(block), u64::from(block)).is_err());
    }
}
