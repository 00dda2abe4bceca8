//! Opening the medium of a volume as its scheme needs it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stetfs_format::FeatureIncompat;
use stetfs_ftl::{Ftl, FtlError, MountOptions as FtlMount};
use stetfs_media::nand::{NandError, NandFile};
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{BlockDev, Errno, FileOptions, MediaError, Overlay, Pmem, PmemDev, Survives};

use crate::mount::superblock;
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

/// What a volume is on.
#[derive(Clone)]
pub struct Media {
    /// The volume itself.
    pub home: Arc<dyn BlockDev>,
    /// The persistent memory that its scheme has beside it ([`stetfs_journal::About::nvm`]).
    pub nvm: Option<Arc<dyn Pmem>>,
}

impl From<Arc<dyn BlockDev>> for Media {
    fn from(home: Arc<dyn BlockDev>) -> Self {
        Self { home, nvm: None }
    }
}

impl<D: BlockDev + 'static> From<Arc<D>> for Media {
    fn from(home: Arc<D>) -> Self {
        Self { home, nvm: None }
    }
}

/// Opens what a mount with these options needs: the file or block device at `path` ([`open_device`]), and the persistent memory that the
/// options name. That is made, with the size that the scheme wants, when it is not there and nothing of the volume's can be in it.
///
/// # Errors
/// As [`open_device`].
pub fn open_media(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Media, OpenError> {
    let home = open_device(path, options, read_only)?;
    let Some(path) = &options.nvm else {
        return Ok(home.into());
    };
    // Whoever has lost the memory of a volume that needs it is not helped by an empty one.
    let may_make = !read_only
        && superblock::load(&*home).is_ok_and(|found| {
            !found
                .feature_incompat
                .contains(FeatureIncompat::PRIVATE_LOG)
        });
    let nvm = open_nvm(path, options, read_only, may_make)?;
    Ok(Media {
        home,
        nvm: Some(nvm),
    })
}

/// Opens the same for looking at it as a mount would find it after recovery: nothing is written, whatever the mount does stays in memory
/// and is forgotten with it.
///
/// # Errors
/// As [`open_device`].
pub fn open_overlay(path: &Path, options: &MountOptions) -> Result<Media, OpenError> {
    let private = PmemOptions::default().private(true);
    let scheme = stetfs_journal::find(&options.scheme);
    let home: Arc<dyn BlockDev> = match scheme.is_ok_and(|scheme| scheme.about.needs_pmem) {
        true => Arc::new(PmemDev::new(Arc::new(private.open(path)?))),
        false => Arc::new(Overlay::new(open_device(path, options, true)?)),
    };
    let nvm: Option<Arc<dyn Pmem>> = match &options.nvm {
        Some(nvm) => Some(Arc::new(private.open(nvm)?)),
        None => None,
    };
    Ok(Media { home, nvm })
}

fn open_nvm(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
    may_make: bool,
) -> Result<Arc<dyn Pmem>, MediaError> {
    let scheme = stetfs_journal::find(&options.scheme);
    if let Some(size) = scheme.ok().and_then(|scheme| scheme.about.nvm)
        && may_make
    {
        let failed = |e: std::io::Error| MediaError::Open {
            path: path.to_owned(),
            source: Errno::from_raw_os_error(e.raw_os_error().unwrap_or(0)),
        };
        match File::create_new(path) {
            Ok(new) => new.set_len(size).map_err(failed)?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let pmem = PmemOptions::default()
        .survives(options.durability)
        .read_only(read_only)
        .open(path)?;
    Ok(Arc::new(pmem))
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
