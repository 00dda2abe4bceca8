//! A block device for an image file, so that the kernel treats the mount as one of a block device.
//!
//! A FUSE mount of type `fuseblk` hears of sync(2), syncfs(2) and of being remounted read-only
//! (FUSE_SYNCFS, since Linux 6.18), and umount(2) waits until its server is done (FUSE_DESTROY).
//! Plain FUSE mounts have neither. The kernel wants a block device for that. So an image file gets
//! a loop device, which carries no data: the server goes on reading and writing the file itself.
//! While it is mounted the kernel holds the device exclusively. So neither the kernel's ext4 nor
//! mount(8)'s `-o loop`, which finds the loop device, can mount the same file a second time.
//!
//! The device goes away by itself when nobody has it open any more.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stetfs_media::loop_whole_file;
use stetfs_sys::{block_ioctl, loop_ioctl};

const CONTROL: &str = "/dev/loop-control";

/// How often another process may take the free device first.
const ATTEMPTS: u32 = 20;

/// A loop device that is attached to an image.
#[derive(Debug)]
pub(crate) struct Label {
    /// Its path: `/dev/loop3`.
    pub(crate) path: PathBuf,
    /// Keeps the device attached until the mount does.
    _device: File,
}

impl Label {
    /// Attaches `image`. Nothing is written through the device.
    pub(crate) fn attach(image: &Path, read_only: bool) -> io::Result<Self> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        let file = File::options().read(true).write(!read_only).open(image)?;
        let mut tries = 0;
        loop {
            let path = PathBuf::from(format!("/dev/loop{}", loop_ioctl::free_device(&control)?));
            let device = File::options().read(true).write(!read_only).open(&path)?;
            let name = image.as_os_str().as_bytes();
            match loop_ioctl::attach(&device, &file, loop_ioctl::AUTOCLEAR, name) {
                Ok(()) => {
                    // Somebody may have left the device write-protected (`blockdev --setro`), and
                    // then the kernel makes no writable mount on it.
                    if !read_only && block_ioctl::is_read_only(&device)? {
                        block_ioctl::set_read_only(&device, false)?;
                    }
                    return Ok(Self {
                        path,
                        _device: device,
                    });
                }
                Err(Errno::BUSY) if tries < ATTEMPTS => tries += 1,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Returns the file that `device` is a loop device of, if it is one and shows all of the file.
pub(crate) fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.strip_prefix("/dev").ok()?.to_str()?;
    loop_whole_file(&Path::new("/sys/block").join(name))
}
