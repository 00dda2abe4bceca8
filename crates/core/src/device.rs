//! Opening the medium of a volume as its scheme needs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stetfs_ftl::{Ftl, FtlError, MountOptions as FtlMount};
use stetfs_media::nand::{NandError, NandFile};
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{BlockDev, FileOptions, MediaError, PmemDev, Survives};

use crate::options::MountOptions;

/// Why a medium cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file or device itself.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The NAND part in the file, or the flash translation layer on it.
    #[error("{}: {source}", path.display())]
    Flash {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FtlError,
    },
}

/// Opens the file or block device at `path` for a mount with these options: as memory if the scheme needs that, otherwise as a
/// block device. The file of a NAND part (`stetfs nand create`) is opened with the flash translation layer on it. It is locked as long as the
/// device lives.
///
/// An unknown scheme is no error here, but one of the mount; so is a scheme whose needs the medium does not meet.
///
/// # Errors
/// Whatever opening it says: [`MediaError::Busy`], [`MediaError::Open`], and what is wrong with a NAND part.
pub fn open_device(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<dyn BlockDev>, OpenError> {
    if NandFile::is_at(path) {
        return open_flash(path, options, read_only);
    }
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

fn open_flash(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<dyn BlockDev>, OpenError> {
    let failed = |source| match source {
        FtlError::Nand(NandError::File(e)) => OpenError::Media(e),
        source => OpenError::Flash {
            path: path.to_owned(),
            source,
        },
    };
    let nand = NandFile::options()
        .synchronous(options.durability == Survives::PowerLoss)
        .read_only(read_only)
        .open(path)
        .map_err(|e| failed(e.into()))?;
    let mount = FtlMount {
        read_only,
        checkpoint_at_end: !read_only,
        ..FtlMount::default()
    };
    Ok(Arc::new(Ftl::mount(Arc::new(nand), mount).map_err(failed)?))
}
