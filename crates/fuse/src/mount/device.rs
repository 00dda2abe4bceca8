//! What both ways to mount as root begin with.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::error::MountError;
use crate::options::FuseOptions;
use crate::wire::DEVICE;

/// Opens the device.
pub(super) fn open_device() -> Result<File, MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(MountError::NoFuse)
}

/// What SELinux is to be told, where there is one: as mount(8) does, a kernel without it is not.
pub(super) fn selinux_contexts(options: &FuseOptions) -> &[String] {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        &options.contexts
    } else {
        &[]
    }
}
