//! Opening the medium of a volume as its scheme needs it.

use std::path::Path;
use std::sync::Arc;

use stetfs_media::pmem::PmemOptions;
use stetfs_media::{BlockDev, FileOptions, MediaError, PmemDev};

use crate::options::MountOptions;

/// Opens the file or block device at `path` for a mount with these options: as memory if the scheme needs that, otherwise as a
/// block device. It is locked as long as the device lives.
///
/// An unknown scheme is no error here, but one of the mount.
///
/// # Errors
/// Whatever opening it says: [`MediaError::Busy`], [`MediaError::Open`].
pub fn open_device(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<dyn BlockDev>, MediaError> {
    let scheme = stetfs_journal::find(&options.scheme);
    if scheme.is_ok_and(|scheme| scheme.about.needs_pmem) {
        let pmem = PmemOptions::default()
            .survives(options.durability)
            .read_only(read_only)
            .open(path)?;
        return Ok(Arc::new(PmemDev::new(Arc::new(pmem))));
    }
    let file = FileOptions::default()
        .direct(options.direct)
        .read_only(read_only)
        .open(path)?;
    Ok(Arc::new(file))
}
