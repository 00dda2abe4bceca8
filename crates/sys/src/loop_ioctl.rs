//! Requests to loop devices and to `/dev/loop-control` (`linux/loop.h`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{self, Getter, NoArg, Opcode, Setter};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;

/// The device goes away when nobody has it open any more (`LO_FLAGS_AUTOCLEAR`).
pub const AUTOCLEAR: u32 = 4;
/// The device reads and writes the file past the page cache (`LO_FLAGS_DIRECT_IO`).
pub const DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const ZERO: LoopInfo = LoopInfo {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    sizelimit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// The file that a loop device is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// The device number of the file system that the file is on, as the kernel's `new_encode_dev`
    /// packs it.
    pub device: u64,
    /// The file's inode number.
    pub inode: u64,
    /// Where in the file the device begins, in bytes.
    pub offset: u64,
    /// How many bytes of the file the device has; 0 for all of it.
    pub sizelimit: u64,
}

/// Returns the number of a loop device that is not in use. Another process may take it before the
/// caller does.
pub fn free_device(control: impl AsFd) -> Result<u32, Errno> {
    /// Returns the result of ioctl(2) as its output.
    struct GetFree;
    // SAFETY: the kernel's LOOP_CTL_GET_FREE takes no argument and writes through no pointer;
    // ioctl(2) returns the number.
    unsafe impl ioctl::Ioctl for GetFree {
        type Output = u32;
        const IS_MUTATING: bool = false;
        fn opcode(&self) -> Opcode {
            LOOP_CTL_GET_FREE
        }
        fn as_ptr(&mut self) -> *mut std::ffi::c_void {
            std::ptr::null_mut()
        }
        unsafe fn output_from_ptr(
            out: ioctl::IoctlOutput,
            _: *mut std::ffi::c_void,
        ) -> rustix::io::Result<u32> {
            u32::try_from(out).map_err(|_| Errno::INVAL)
        }
    }
    // SAFETY: see above. A descriptor that is not /dev/loop-control refuses the request: group 'L'
    // (0x4C) belongs to loop devices.
    unsafe { ioctl::ioctl(control, GetFree) }
}

/// Attaches a whole file to a loop device. `EBUSY`: the device is attached already.
pub fn attach(device: impl AsFd, file: impl AsFd, flags: u32, name: &[u8]) -> Result<(), Errno> {
    let file = file.as_fd();
    let mut info = LoopInfo { flags, ..ZERO };
    let len = name.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&name[..len]);
    let config = LoopConfig {
        fd: file.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info,
        reserved: [0; 8],
    };
    // SAFETY: the kernel's LOOP_CONFIGURE reads exactly one `struct loop_config`, which is what the
    // setter holds; the descriptor in it is open as long as `file` lives, and the kernel takes a
    // reference of its own.
    unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Detaches a loop device, at once or when its last user closes it.
pub fn detach(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the kernel's LOOP_CLR_FD takes no argument.
    unsafe { ioctl::ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Returns the file that a loop device is attached to. `ENXIO`: it is attached to none.
pub fn backing(device: impl AsFd) -> Result<Backing, Errno> {
    // SAFETY: the kernel's LOOP_GET_STATUS64 writes exactly one `struct loop_info64`, which is what
    // the getter has room for; every bit pattern is a valid one.
    let info = unsafe { ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new())? };
    Ok(Backing {
        device: info.device,
        inode: info.inode,
        offset: info.offset,
        sizelimit: info.sizelimit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own binary can be read");
        assert!(free_device(&file).is_err());
        assert!(attach(&file, &file, 0, b"").is_err());
        assert!(detach(&file).is_err());
        assert!(backing(&file).is_err());
    }
}
