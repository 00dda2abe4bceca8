//! Opening the medium of a volume in the way that its scheme needs.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use stetfs_format::nvm_pair::{MAKING_WORD, RegionHeader, VolumeRecord};
use stetfs_format::{FeatureIncompat, Superblock};
use stetfs_ftl::{Ftl, FtlError, MountOptions as FtlMount};
use stetfs_media::nand::{NandError, NandFile};
use stetfs_media::pmem::{MappedPmem, PmemOptions};
use stetfs_media::{
    BlockDev, Class, Errno, FileOptions, MediaError, Overlay, Pmem, PmemDev, PmemLayer, Survives,
    Tag,
};
use stetfs_scheme::InMemory;

use crate::mount::journal_area::{
    is_log_in_lines, journal_extents, memory_record, private_log_owner,
};
use crate::mount::superblock;
use crate::options::MountOptions;

/// Why a medium cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file or device cannot be opened.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The persistent memory that the volume remembers cannot be used.
    #[error("the memory that the volume had beside it last, {}, {why}: name it with \
        nvm=FILE", path.display())]
    Memory {
        /// Where the volume says that it is.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The NAND part in the file, or the flash translation layer on it, is damaged or unusable.
    #[error("{}: {source}", path.display())]
    Flash {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FtlError,
    },
}

/// The media of a volume.
///
/// ```
/// # mod making { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/making/mod.rs")); }
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img");
/// # making::mke2fs(&path, 8)?;
/// use std::sync::Arc;
/// use stetfs::{Fs, MountOptions, open_media};
/// use stetfs_media::RamDev;
///
/// // A file or a block device, with the memory beside it that the options name.
/// let options = MountOptions::default();
/// let (fs, _) = Fs::mount(open_media(&path, &options, false)?, options.clone())?;
/// fs.unmount()?;
/// // Any device, here in memory.
/// let (fs, report) = Fs::mount(Arc::new(RamDev::from_file(&path)?), options)?;
/// assert!(!report.recovery.was_needed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Media {
    /// The volume itself.
    pub home: Arc<dyn BlockDev>,
    /// The persistent memory that its scheme has beside it ([`stetfs_scheme::About::nvm`]).
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

/// Opens the media for a mount with these options: the file or block device at `path`
/// ([`open_device`]), and the persistent memory that the options name.
///
/// If the memory's file is missing or empty, and can hold nothing of the volume, it is made with
/// the size that the scheme wants. If no mount uses it, dropping the media undoes that. If the
/// options name no memory, and some of the volume's content is in one, it is looked for where the
/// volume says that it last was.
///
/// # Errors
/// As [`open_device`], and [`OpenError::Memory`].
pub fn open_media(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Media, OpenError> {
    let home = open_device(path, options, read_only)?;
    let found = Found::on(&*home, path, options)?;
    if found.options.dax && home.pmem().is_none() {
        drop(home);
        return Ok(open_device(path, &found.options, read_only)?.into());
    }
    let nvm = match &found.nvm {
        None => None,
        Some(nvm) => {
            let may_make = found.may_make && !read_only;
            Some(open_nvm(nvm, &found.options, read_only, may_make)?)
        }
    };
    Ok(Media { home, nvm })
}

/// How a volume must be opened.
struct Found {
    /// The options, with the volume's own scheme if none is named, and with `dax` if the volume
    /// must be in memory.
    options: MountOptions,
    /// The file of the memory beside the volume.
    nvm: Option<PathBuf>,
    /// Whether that file may be made. Not if the volume may need its content: an empty file would
    /// not help then.
    may_make: bool,
}

impl Found {
    fn on(home: &dyn BlockDev, path: &Path, options: &MountOptions) -> Result<Self, OpenError> {
        let sb = superblock::load(home).ok();
        let is_marked =
            |sb: &Superblock| sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG);
        let marked = sb.as_ref().filter(|sb| is_marked(sb));
        let log = marked.and_then(|sb| Some((sb, journal_extents(home, sb).ok()?)));
        let owner = match (&log, options.names_scheme()) {
            (Some((sb, log)), false) => private_log_owner(home, sb, log).ok().flatten(),
            _ => None,
        };
        let scheme = owner.unwrap_or_else(|| options.scheme.clone());
        let nvm = match (&options.nvm, &log) {
            (Some(nvm), _) => Some(nvm.clone()),
            (None, Some((sb, log))) => match memory_record(home, sb, log).ok().flatten() {
                Some(record) if record.scheme == scheme && !record.path.is_empty() => {
                    let nvm = PathBuf::from(OsStr::from_bytes(&record.path));
                    check_remembered(&nvm, &record, path)?;
                    Some(nvm)
                }
                _ => None,
            },
            (None, None) => None,
        };
        let was_in_memory = log
            .as_ref()
            .is_some_and(|(sb, log)| is_log_in_lines(home, sb, log).unwrap_or(false));
        Ok(Self {
            options: MountOptions {
                dax: was_in_memory || is_in_memory(&scheme, options),
                scheme,
                ..options.clone()
            },
            nvm,
            may_make: sb.is_some_and(|sb| !is_marked(&sb)),
        })
    }
}

/// Whether a volume with that scheme must be opened as memory.
fn is_in_memory(scheme: &str, options: &MountOptions) -> bool {
    let found = stetfs_schemes::find(scheme);
    options.dax || found.is_ok_and(|found| found.about.in_memory == InMemory::Only)
}

/// Checks the file that a volume names as its memory before anything is opened for writing: the
/// image may come from a stranger. The file must be a regular file or a block device, belong to the
/// image's owner, and begin with the header that the volume expects.
fn check_remembered(nvm: &Path, record: &VolumeRecord, image: &Path) -> Result<(), OpenError> {
    let refused = |why: String| {
        Err(OpenError::Memory {
            path: nvm.to_owned(),
            why,
        })
    };
    // Look at its type before opening it: opening some devices has effects.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match rustix::fs::open(nvm, flags, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT) => return refused("is not there".to_owned()),
        Err(e) => return refused(format!("cannot be opened: {e}")),
    };
    let failed = |e: Errno| OpenError::Memory {
        path: nvm.to_owned(),
        why: format!("cannot be read: {e}"),
    };
    let stat = rustix::fs::fstat(&found).map_err(failed)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return refused("is neither a file nor a block device".to_owned());
    }
    if rustix::fs::stat(image).is_ok_and(|image| image.st_uid != stat.st_uid) {
        return refused("has another owner than the volume".to_owned());
    }
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = rustix::fs::open(same, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(failed)?;
    let mut raw = [0; RegionHeader::SIZE];
    let len = rustix::io::pread(&file, &mut raw, 0).map_err(failed)?;
    let is_its = RegionHeader::decode(&raw[..len]).is_ok_and(|header| {
        (header.uuid, header.epoch) == (record.uuid, record.epoch) && header.scheme == record.scheme
    });
    if is_its {
        Ok(())
    } else {
        refused("is not what the volume had there last".to_owned())
    }
}

/// Opens the media to look at the volume as a mount would find it after recovery. Nothing is
/// written: all changes of the mount stay in memory and go with it.
///
/// # Errors
/// As [`open_device`].
pub fn open_overlay(path: &Path, options: &MountOptions) -> Result<Media, OpenError> {
    let home = open_device(path, options, true)?;
    let found = Found::on(&*home, path, options)?;
    let private = PmemOptions::default()
        .private(true)
        .mounted(options.in_use.is_some());
    let home: Arc<dyn BlockDev> = if found.options.dax {
        drop(home);
        Arc::new(PmemDev::new(Arc::new(private.open(path)?)))
    } else {
        Arc::new(Overlay::new(home))
    };
    let nvm: Option<Arc<dyn Pmem>> = match &found.nvm {
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
    let scheme = stetfs_schemes::find(&options.scheme);
    let size = scheme.ok().and_then(|scheme| scheme.about.nvm.size());
    let made = match size.filter(|_| may_make) {
        Some(size) => make(path, size)?,
        None => None,
    };
    let opened = PmemOptions::default()
        .survives(options.durability)
        .read_only(read_only)
        .open(path);
    match (opened, made) {
        (Ok(pmem), Some(made)) => Ok(Arc::new(MadePmem { pmem, made })),
        (Ok(pmem), None) => Ok(Arc::new(pmem)),
        (Err(e), made) => {
            if let Some(made) = made {
                made.take_back();
            }
            Err(e)
        }
    }
}

/// Makes a file of zeros, or fills an empty one with zeros; `None` if the file has content.
fn make(path: &Path, size: u64) -> Result<Option<Made>, MediaError> {
    let failed = |e: std::io::Error| MediaError::Open {
        path: path.to_owned(),
        source: Errno::from_raw_os_error(e.raw_os_error().unwrap_or(0)),
    };
    let (file, was_there) = match File::create_new(path) {
        Ok(new) => (new, false),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let is_empty = |m: Metadata| m.is_file() && m.len() == 0;
            if !fs::metadata(path).is_ok_and(is_empty) {
                return Ok(None);
            }
            let there = File::options().write(true).open(path).map_err(failed)?;
            (there, true)
        }
        Err(e) => return Err(failed(e)),
    };
    let made = Made {
        path: path.to_owned(),
        was_there,
    };
    if let Err(e) = file.set_len(size) {
        made.take_back();
        return Err(failed(e));
    }
    Ok(Some(made))
}

/// A file made to become a region of memory.
struct Made {
    path: PathBuf,
    /// It existed before, and was empty.
    was_there: bool,
}

impl Made {
    /// Undoes the making.
    fn take_back(&self) {
        let _ = if self.was_there {
            File::options()
                .write(true)
                .open(&self.path)
                .and_then(|file| file.set_len(0))
        } else {
            fs::remove_file(&self.path)
        };
    }
}

/// Memory in a made file. Dropping it undoes the making unless a region was begun in it.
struct MadePmem {
    pmem: MappedPmem,
    made: Made,
}

impl PmemLayer for MadePmem {
    fn below(&self) -> &dyn Pmem {
        &self.pmem
    }
}

impl Drop for MadePmem {
    fn drop(&mut self) {
        let first = self.pmem.load_u64(0, Tag::read(Class::Journal));
        if first.is_ok_and(|word| word == 0 || word == MAKING_WORD) {
            self.made.take_back();
        }
    }
}

/// Opens the file or block device at `path` for a mount with these options: as memory if the scheme
/// needs that or the options say so, otherwise as a block device. The file of a NAND part (`stetfs
/// nand create`) is opened with the flash translation layer on it. The file is locked as long as
/// the device lives.
///
/// An unknown scheme, or a medium that the scheme cannot use, is an error of the mount, not of this
/// call.
///
/// # Errors
/// [`MediaError::Busy`], [`MediaError::Open`], and damage of a NAND part.
pub fn open_device(
    path: &Path,
    options: &MountOptions,
    read_only: bool,
) -> Result<Arc<dyn BlockDev>, OpenError> {
    if NandFile::is_at(path) {
        return open_flash(path, options, read_only);
    }
    if is_in_memory(&options.scheme, options) {
        let pmem = PmemOptions::default()
            .survives(options.durability)
            .read_only(read_only)
            .mounted(options.in_use.is_some())
            .open(path)?;
        return Ok(Arc::new(PmemDev::new(Arc::new(pmem))));
    }
    let file = FileOptions::default()
        .direct(options.direct)
        .read_only(read_only)
        .mounted(options.in_use.is_some())
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
        .mounted(options.in_use.is_some())
        .open(path)
        .map_err(|e| failed(e.into()))?;
    let mount = FtlMount {
        read_only,
        checkpoint_at_end: !read_only,
        ..FtlMount::default()
    };
    Ok(Arc::new(Ftl::mount(Arc::new(nand), mount).map_err(failed)?))
}
