//! Making and undoing the mount: mount(2) for root, fusermount3 for everybody else.
//!
//! fuser can mount too, but not under the type `fuse.stetfs` as root, and it unmounts the path
//! again when its session ends, whatever is mounted there by then. So the mount is made here, fuser is given the open
//! `/dev/fuse`, and what is unmounted is always the mount that was made (by its device number).

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::mountinfo;
use crate::options::{Allow, FuseOptions};

/// The type that `mount` and /etc/fstab show.
pub const FS_TYPE: &str = "fuse.stetfs";

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Why a mount could not be made or undone.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mount point {}: {source}", dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// A stetfs volume is mounted there already.
    #[error("{} already has the volume {} mounted on it", dir.display(), image.display())]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// What is mounted there.
        image: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error(
        "{DEVICE} cannot be opened: {0}; load the fuse module (modprobe fuse), or give the container the device"
    )]
    NoFuse(io::Error),
    /// fusermount3 is not there.
    #[error("{HELPER} cannot be run: {0}; it mounts for ordinary users (package fuse3)")]
    NoHelper(io::Error),
    /// fusermount3 refused.
    #[error("{HELPER}: {0}")]
    Helper(String),
    /// mount(2) refused.
    #[error("mounting {} on {}: {source}", image.display(), dir.display())]
    Mount {
        /// The volume.
        image: PathBuf,
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing is mounted there.
    #[error("{}: no stetfs volume is mounted there", .0.display())]
    NotMounted(PathBuf),
    /// umount(2) refused because of open files or working directories.
    #[error("{} is in use; close what is open there (fuser -vm DIR), or detach it with --lazy", .0.display())]
    Busy(PathBuf),
    /// umount(2) refused otherwise.
    #[error("unmounting {}: {source}", dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// /proc could not be read.
    #[error("/proc/self/mountinfo: {0}")]
    Proc(io::Error),
}

/// A mount that stands.
#[derive(Debug, Clone)]
pub struct Mounted {
    /// The mount point, absolute and without symbolic links.
    pub dir: PathBuf,
    /// The device number, as in mountinfo.
    pub device: String,
}

/// Checks the mount point, before anything is touched. Releases a mount there whose server has died.
///
/// # Errors
/// The directory cannot be used.
pub fn check_dir(dir: &Path) -> Result<PathBuf, MountError> {
    let at = |source| MountError::Dir {
        dir: dir.to_owned(),
        source,
    };
    let path = mountinfo::resolve(dir).map_err(at)?;
    let entry = mountinfo::mounted_on(&path).map_err(MountError::Proc)?;
    if let Some(entry) = entry.filter(mountinfo::MountEntry::is_stetfs) {
        if !is_dead(&path) {
            return Err(MountError::Occupied {
                dir: path,
                image: entry.source,
            });
        }
        tracing::warn!(
            "{}: the server of the volume mounted here has died; releasing the mount point",
            path.display()
        );
        unmount_at(&path, true)?;
    }
    if !std::fs::metadata(&path).map_err(at)?.is_dir() {
        return Err(MountError::NotDirectory(path));
    }
    Ok(path)
}

/// Whether a FUSE mount has lost its server.
pub(crate) fn is_dead(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
}

/// Mounts, and gives back the open `/dev/fuse` on which the kernel waits to be answered.
///
/// # Errors
/// What the kernel or fusermount3 refused.
pub(crate) fn mount(
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
) -> Result<(OwnedFd, Mounted), MountError> {
    let fd = if rustix::process::geteuid().is_root() {
        mount_as_root(image, dir, options)?
    } else {
        mount_by_helper(image, dir, options)?
    };
    let entry = mountinfo::mounted_on(dir).map_err(MountError::Proc)?;
    let Some(entry) = entry.filter(mountinfo::MountEntry::is_stetfs) else {
        return Err(MountError::NotMounted(dir.to_owned()));
    };
    let mounted = Mounted {
        dir: dir.to_owned(),
        device: entry.device,
    };
    Ok((fd, mounted))
}

fn mount_as_root(image: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(MountError::NoFuse)?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions",
        device.as_raw_fd()
    );
    if options.allow != Allow::Owner {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no NUL in it");
    rustix::mount::mount(image, dir, FS_TYPE, mount_flags(options), data.as_c_str()).map_err(
        |e| {
            let (image, dir) = (image.to_owned(), dir.to_owned());
            MountError::Mount {
                image,
                dir,
                source: e.into(),
            }
        },
    )?;
    Ok(device.into())
}

fn mount_flags(options: &FuseOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags
}

/// fusermount3 opens the device, mounts, and sends the descriptor over the socket that it finds as its standard input.
fn mount_by_helper(image: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::NoHelper)?;
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(image, options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    let fd = receive_descriptor(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    let status = helper.wait().map_err(MountError::NoHelper)?;
    match fd {
        Some(fd) if status.success() => {
            let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
            Ok(fd)
        }
        _ => Err(MountError::Helper(
            said.trim().trim_start_matches("fusermount3: ").to_owned(),
        )),
    }
}

/// The options in fusermount3's words. Commas and backslashes in the source are escaped as it wants.
fn helper_options(image: &Path, options: &FuseOptions) -> String {
    let name = image
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    let mut list = format!("fsname={name},subtype=stetfs,default_permissions");
    let words = [
        (options.allow != Allow::Owner, "allow_other"),
        (options.read_only, "ro"),
        (options.noatime, "noatime"),
        (!options.exec, "noexec"),
        (!options.dev, "nodev"),
        (!options.suid, "nosuid"),
        (options.sync, "sync"),
        (options.dirsync, "dirsync"),
    ];
    for (_, word) in words.iter().filter(|(wanted, _)| *wanted) {
        list.push(',');
        list.push_str(word);
    }
    list
}

fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let iov = &mut [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

impl Mounted {
    /// Whether the mount still stands where it was made.
    pub fn stands(&self) -> bool {
        matches!(mountinfo::mounted_on(&self.dir), Ok(Some(m)) if m.device == self.device)
    }

    /// Unmounts, if it still stands. `lazy` takes it out of the tree even while files are open.
    ///
    /// # Errors
    /// It is busy, or the kernel or fusermount3 refused.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if !self.stands() {
            return Ok(());
        }
        unmount_at(&self.dir, lazy)
    }

    /// Takes it out of the tree and makes the kernel give up on the server: whoever still has a
    /// file open gets errors from now on. Only root can; others can only detach.
    ///
    /// # Errors
    /// As [`Self::unmount`].
    pub(crate) fn abort(&self) -> Result<(), MountError> {
        if self.stands()
            && rustix::mount::unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok()
        {
            return Ok(());
        }
        self.unmount(true)
    }
}

/// Unmounts whatever is topmost on the directory.
///
/// # Errors
/// It is busy, or the kernel or fusermount3 refused.
pub(crate) fn unmount_at(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(MountError::Busy(dir.to_owned())),
        Err(rustix::io::Errno::INVAL) => Err(MountError::NotMounted(dir.to_owned())),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(dir, lazy),
        Err(e) => Err(MountError::Unmount {
            dir: dir.to_owned(),
            source: e.into(),
        }),
    }
}

fn unmount_by_helper(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let out = command
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(MountError::NoHelper)?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("busy") {
        return Err(MountError::Busy(dir.to_owned()));
    }
    Err(MountError::Helper(
        said.trim().trim_start_matches("fusermount3: ").to_owned(),
    ))
}

/// Makes the kernel treat the mount's pages like a local file system's: read ahead by 1 MiB, and no share of
/// one percent of the dirty pages (which is what FUSE mounts get otherwise). Root only; without it
/// the mount is only slower.
pub(crate) fn tune_page_cache(mounted: &Mounted, options: &FuseOptions) {
    let bdi = PathBuf::from(format!("/sys/class/bdi/{}", mounted.device));
    let readahead = (options.readahead / 1024).to_string();
    for (file, value) in [
        ("read_ahead_kb", readahead.as_str()),
        ("max_ratio", "100"),
        ("strict_limit", "0"),
    ] {
        if let Err(e) = std::fs::write(bdi.join(file), value) {
            tracing::debug!("{}/{file}: {e}", bdi.display());
        }
    }
}

/// Whether this process can open the FUSE device again, which cloning the descriptor needs.
pub(crate) fn can_clone() -> bool {
    File::options().read(true).write(true).open(DEVICE).is_ok()
}
