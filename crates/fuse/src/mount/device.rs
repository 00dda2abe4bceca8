//! What both ways to mount as root share.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::error::MountError;
use crate::options::FuseOptions;
use crate::wire::DEVICE;

/// Opens `/dev/fuse`.
pub(super) fn open_device() -> Result<File, MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(MountError::NoFuse)
}

/// Returns the options for SELinux; none on a kernel without it, as with mount(8).
pub(super) fn selinux_contexts(options: &FuseOptions) -> &[String] {
    if Path::new("/sys/fs/selinux/enforce").exists() {
        &options.contexts
    } else {
        &[]
    }
}
