//! Numbers of ioctls: those of Linux' `fs.h` for 64-bit machines, and the 32-bit forms of the flag
//! ioctls.

pub(crate) const fn number(direction: u32, kind: u8, nr: u8, size: u32) -> u32 {
    direction << 30 | size << 16 | u32::from_be_bytes([0, 0, kind, nr])
}
pub(crate) const READ: u32 = 2;
pub(crate) const WRITE: u32 = 1;

/// `FS_IOC_GETFLAGS` (lsattr).
pub(crate) const GETFLAGS: u32 = number(READ, b'f', 1, 8);
/// `FS_IOC32_GETFLAGS`.
pub(crate) const GETFLAGS_32: u32 = number(READ, b'f', 1, 4);
/// `FS_IOC_SETFLAGS` (chattr).
pub(crate) const SETFLAGS: u32 = number(WRITE, b'f', 2, 8);
/// `FS_IOC32_SETFLAGS`.
pub(crate) const SETFLAGS_32: u32 = number(WRITE, b'f', 2, 4);
/// `FS_IOC_FSGETXATTR` (lsattr -p, xfs_io).
pub(crate) const FSGETXATTR: u32 = number(READ, b'X', 31, 28);
/// `FS_IOC_FSSETXATTR`.
pub(crate) const FSSETXATTR: u32 = number(WRITE, b'X', 32, 28);
/// `FS_IOC_GETVERSION` (lsattr -v): the generation.
pub(crate) const GETVERSION: u32 = number(READ, b'v', 1, 8);
/// `FS_IOC_SETVERSION` (chattr -v).
pub(crate) const SETVERSION: u32 = number(WRITE, b'v', 2, 8);
/// `EXT4_IOC_GETVERSION`, as ext4 numbers it.
pub(crate) const EXT4_GETVERSION: u32 = number(READ, b'f', 3, 8);
/// `EXT4_IOC_SETVERSION`.
pub(crate) const EXT4_SETVERSION: u32 = number(WRITE, b'f', 4, 8);
/// `FS_IOC_GETFSLABEL`: the label in [`LABEL_MAX`] bytes, ended by a zero.
pub(crate) const GETFSLABEL: u32 = number(READ, 0x94, 49, 256);
/// `FS_IOC_SETFSLABEL` (tune2fs -L, e2label).
pub(crate) const SETFSLABEL: u32 = number(WRITE, 0x94, 50, 256);
/// `FSLABEL_MAX`.
pub(crate) const LABEL_MAX: usize = 256;
/// `FITRIM` (fstrim).
pub(crate) const FITRIM: u32 = number(WRITE | READ, b'X', 121, 24);
/// `FS_IOC_SHUTDOWN` as the kernel declares it; its mode does not arrive.
pub(crate) const SHUTDOWN: u32 = number(READ, b'X', 125, 4);
/// `FS_IOC_SHUTDOWN` with the right direction, so that its mode arrives (a `u32`: 0 default, 1 log
/// flush, 2 no log flush).
pub const SHUTDOWN_WITH_MODE: u32 = number(WRITE, b'X', 125, 4);
