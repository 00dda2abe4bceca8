//! Making and undoing the mount: mount(2) for root, fusermount3 for everybody else.
//!
//! Unmounting always takes the mount that was made, known by its device number, whatever is mounted
//! on the path by then.

mod device;
pub(crate) mod error;
mod named;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::label::Label;
use crate::mountinfo::{self, FS_TYPE, FS_TYPE_BLOCK};
use crate::options::{Allow, FuseOptions, OnBlock};
use crate::pages::Raised;
use crate::wire::DEVICE;
use device::{open_device, selinux_contexts};
use error::{HELPER, MountError, how_to_open};

/// A mount that stands.
#[derive(Debug, Clone)]
pub struct Mounted {
    /// The mount point, absolute and without symbolic links.
    pub dir: PathBuf,
    /// The device number, as in mountinfo.
    pub device: String,
}

/// Checks the mount point before anything is touched. Releases a mount there whose server has died.
///
/// # Errors
/// The directory cannot be used.
pub fn check_dir(dir: &Path) -> Result<PathBuf, MountError> {
    if inherited_session(dir).is_some() {
        return Ok(dir.to_owned());
    }
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
                image: entry.image(),
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

/// Returns the number of an inherited descriptor that is named in place of a mount point, as
/// libfuse has it: `/dev/fd/N`, and nothing behind it.
pub fn inherited_session(dir: &Path) -> Option<u32> {
    let number = dir.to_str()?.strip_prefix("/dev/fd/")?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| is_number)
}

/// Returns whether the FUSE mount on a directory has lost its server.
pub(crate) fn is_dead(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
}

/// A mount, and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) mounted: Mounted,
    /// True if it is mounted as a block device.
    pub(crate) is_block: bool,
    /// The largest write(2), in bytes, that is always one request.
    pub(crate) one_request: u32,
}

/// Mounts. Returns the open `/dev/fuse` on which the kernel waits for answers, and the mount.
/// Requests will have at most `max_request` bytes of data.
///
/// # Errors
/// What the kernel or fusermount3 refused.
pub(crate) fn mount(
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    max_request: u32,
) -> Result<(OwnedFd, Place), MountError> {
    let trusts = FuseOptions::trusts(image) && !options.fakeroot;
    let options = &FuseOptions {
        dev: options.dev.filter(|_| !options.fakeroot).or(Some(trusts)),
        suid: options.suid.filter(|_| !options.fakeroot).or(Some(trusts)),
        ..options.clone()
    };
    let raised = Raised::for_requests(max_request);
    if let Some(number) = options.session {
        let fd = stetfs_sys::inherited::take(number).map_err(|source| MountError::NoSession {
            number,
            source: source.into(),
        })?;
        let place = Place {
            one_request: raised.one_request(max_request),
            // No device has this number: nothing that is mounted is taken for it.
            mounted: Mounted {
                dir: dir.to_owned(),
                device: String::new(),
            },
            is_block: false,
        };
        return Ok((fd, place));
    }
    let fd = if rustix::process::geteuid().is_root() {
        mount_as_root(image, dir, options)?
    } else {
        mount_as_user(image, dir, options)?
    };
    let one_request = raised.one_request(max_request);
    drop(raised);
    let entry = mountinfo::mounted_on(dir).map_err(MountError::Proc)?;
    let Some(entry) = entry.filter(mountinfo::MountEntry::is_stetfs) else {
        return Err(MountError::NotMounted(dir.to_owned()));
    };
    let place = Place {
        is_block: entry.kind == FS_TYPE_BLOCK,
        one_request,
        mounted: Mounted {
            dir: dir.to_owned(),
            device: entry.device,
        },
    };
    Ok((fd, place))
}

/// Mounts as root: on a block device if that is wanted and possible.
fn mount_as_root(image: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let wants_block = match options.on_block {
        OnBlock::Never => false,
        OnBlock::Auto => !is_in_private_namespace(),
        OnBlock::Must => true,
    };
    if !wants_block {
        return mount_type(image, FS_TYPE, dir, options);
    }
    let label = match Label::attach(image, options.read_only) {
        Ok(label) => label,
        Err(source) if options.on_block == OnBlock::Must => {
            return Err(MountError::NoLoop {
                image: image.to_owned(),
                source,
            });
        }
        Err(e) => {
            tracing::debug!("no loop device for {}: {e}", image.display());
            return mount_type(image, FS_TYPE, dir, options);
        }
    };
    let on_device = named::mount(image, &label.path, dir, options).or_else(|e| {
        tracing::debug!("the mount shows {}: {e}", label.path.display());
        mount_type(&label.path, FS_TYPE_BLOCK, dir, options)
    });
    match on_device {
        Err(e) if options.on_block == OnBlock::Auto => {
            tracing::debug!("a plain FUSE mount: {e}");
            mount_type(image, FS_TYPE, dir, options)
        }
        done => done,
    }
}

/// True if this process may take its mount namespace with it when it dies, as in a container.
///
/// Everything in a container is killed at once. If the server is the last that leaves, the kernel
/// unmounts on its behalf. On a block device it then waits for the server's answer to DESTROY, with
/// the server's own thread, and before it closes the server's descriptors: for ever, and sync(2) of
/// the whole machine with it (`fuse_kill_sb_blk`, `exit_task_work`).
pub fn is_in_private_namespace() -> bool {
    /// The first namespace of processes (the kernel's `PID_NS_INIT_INO`).
    const FIRST: u64 = 0xeffffffc;
    let ino = |path: &str| Path::new(path).metadata().map(|meta| meta.ino()).ok();
    if ino("/proc/self/ns/pid") != Some(FIRST) {
        return true;
    }
    // The first process, and the kernel's first thread: nobody but root may look at them, and the
    // first process may refuse that.
    let of_first = ino("/proc/1/ns/mnt").or_else(|| ino("/proc/2/ns/mnt"));
    of_first.is_some() && of_first != ino("/proc/self/ns/mnt")
}

fn mount_type(
    source: &Path,
    kind: &str,
    dir: &Path,
    options: &FuseOptions,
) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let (uid, gid) = stetfs_sys::libc_files::effective_ids();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid}",
        device.as_raw_fd()
    );
    if !options.fakeroot {
        data.push_str(",default_permissions");
    }
    if options.allow != Allow::Owner {
        data.push_str(",allow_other");
    }
    if kind == FS_TYPE_BLOCK {
        data.push_str(&format!(",blksize={}", rustix::param::page_size()));
    }
    for context in selinux_contexts(options) {
        data.push(',');
        data.push_str(context);
    }
    let data = CString::new(data).expect("no NUL in it");
    let done = rustix::mount::mount(source, dir, kind, mount_flags(options), data.as_c_str());
    done.map_err(|e| MountError::Mount {
        image: source.to_owned(),
        dir: dir.to_owned(),
        source: e.into(),
    })?;
    Ok(device.into())
}

/// Changes what only the kernel decides of a mount: read-only or not, devices, set-user-ID,
/// programs, access times. A mount that becomes read-only is made durable. The server goes on with
/// its own options.
///
/// # Errors
/// Nothing of ours is mounted there, or the kernel refuses.
pub fn remount(dir: &Path, options: &FuseOptions) -> Result<(), MountError> {
    let failed = |source| MountError::Remount {
        dir: dir.to_owned(),
        source,
    };
    let path = mountinfo::resolve(dir).map_err(failed)?;
    let entry = mountinfo::mounted_on(&path).map_err(MountError::Proc)?;
    let Some(entry) = entry.filter(mountinfo::MountEntry::is_stetfs) else {
        return Err(MountError::NotMounted(path));
    };
    let flags = mount_flags(&FuseOptions {
        dev: options.dev.or(Some(!entry.has("nodev"))),
        suid: options.suid.or(Some(!entry.has("nosuid"))),
        ..options.clone()
    });
    rustix::mount::mount_remount(&path, flags, c"").map_err(|e| failed(e.into()))?;
    if options.read_only {
        // The kernel does not tell the server of a plain FUSE mount about a remount. Syncing the
        // root directory syncs everything.
        let root = File::open(&path).map_err(failed)?;
        root.sync_all().map_err(failed)?;
    }
    Ok(())
}

fn mount_flags(options: &FuseOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NODEV, options.dev == Some(false));
    flags.set(MountFlags::NOSUID, options.suid == Some(false));
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOSYMFOLLOW, options.nosymfollow);
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.noatime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    flags
}

/// Mounts as somebody who is not root. In a user namespace this process may have the right to mount
/// by itself, where fusermount3 cannot become root; libfuse tries this first, too.
fn mount_as_user(image: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    match mount_type(image, FS_TYPE, dir, options) {
        Ok(fd) => Ok(fd),
        Err(MountError::Mount { source, image, dir })
            if source.kind() != io::ErrorKind::PermissionDenied =>
        {
            Err(MountError::Mount { source, image, dir })
        }
        Err(e) => {
            tracing::debug!("the mount is made by {HELPER}: {e}");
            mount_by_helper(image, dir, options)
        }
    }
}

/// Mounts by fusermount3. It opens the device, mounts, and sends the descriptor over the socket
/// that is its standard input.
fn mount_by_helper(image: &Path, dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let nosymfollow = options.nosymfollow.then_some("nosymfollow");
    let contexts = selinux_contexts(options).iter().map(String::as_str);
    if let Some(word) = nosymfollow.into_iter().chain(contexts).next() {
        return Err(MountError::RootOnly(word.to_owned()));
    }
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
        _ => Err(MountError::Helper(refused_by_helper(&said))),
    }
}

/// Returns fusermount3's message, and what helps.
fn refused_by_helper(said: &str) -> String {
    let said = said.trim().trim_start_matches("fusermount3: ");
    let is_closed = said.contains(DEVICE) && said.contains("Permission denied");
    if is_closed {
        format!(
            "{said}; {}",
            how_to_open(&io::ErrorKind::PermissionDenied.into())
        )
    } else {
        said.to_owned()
    }
}

/// Returns the options in fusermount3's words. Commas and backslashes in the source are escaped as
/// it wants.
fn helper_options(image: &Path, options: &FuseOptions) -> String {
    let name = image
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    let mut list = format!("fsname={name},subtype=stetfs");
    let words = [
        (!options.fakeroot, "default_permissions"),
        (options.allow != Allow::Owner, "allow_other"),
        (options.read_only, "ro"),
        (options.noatime, "noatime"),
        (!options.exec, "noexec"),
        (options.dev == Some(false), "nodev"),
        (options.suid == Some(false), "nosuid"),
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
    /// Returns whether the mount still stands where it was made, with no other mount on top of it.
    pub fn stands(&self) -> bool {
        matches!(mountinfo::mounted_on(&self.dir), Ok(Some(m)) if m.device == self.device)
    }

    /// Takes the mount out of the tree wherever it is mounted and can be reached. Mounts on top of
    /// it stay. Returns whether it is still mounted somewhere. `is_gone` tells that it no longer
    /// exists: then its device number may be that of another mount.
    ///
    /// # Errors
    /// The kernel or fusermount3 refused, or `/proc` cannot be read.
    pub(crate) fn release(&self, is_gone: impl Fn() -> bool) -> Result<bool, MountError> {
        let places = || mountinfo::mounts_of(&self.device).map_err(MountError::Proc);
        // Newest first: a mount on top goes before the one below.
        for place in places()?.into_iter().rev() {
            if place.dir != self.dir && !rustix::process::geteuid().is_root() {
                continue;
            }
            let here = Self {
                dir: place.dir,
                device: place.device,
            };
            here.detach_exactly(&is_gone)?;
        }
        places().map(|left| !left.is_empty() && !is_gone())
    }

    /// Detaches the mount on the directory if it is this file system. Looks and unmounts through
    /// one descriptor, so that no other mount can come in between.
    fn detach_exactly(&self, is_gone: impl Fn() -> bool) -> Result<(), MountError> {
        if !rustix::process::geteuid().is_root() {
            return if is_gone() {
                Ok(())
            } else {
                self.unmount(true)
            };
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(&self.dir, flags, Mode::empty()) else {
            return Ok(());
        };
        // Do not ask the server: it is dead.
        let no_question = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&fd, "", no_question, StatxFlags::empty());
        let is_it =
            found.is_ok_and(|s| format!("{}:{}", s.stx_dev_major, s.stx_dev_minor) == self.device);
        // As long as the descriptor is open, its file system keeps the number.
        if !is_it || is_gone() {
            return Ok(());
        }
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        rustix::mount::unmount(path, UnmountFlags::DETACH).map_err(|e| MountError::Unmount {
            dir: self.dir.clone(),
            source: e.into(),
        })
    }

    /// Returns where the kernel keeps the settings of the mount's page cache.
    pub(crate) fn backing_device(&self) -> PathBuf {
        mountinfo::backing_device(&self.device)
    }

    /// Unmounts, if the mount still stands. `lazy` takes it out of the tree even while files are
    /// open.
    ///
    /// # Errors
    /// The mount is busy, or the kernel or fusermount3 refused.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if !self.stands() {
            return Ok(());
        }
        unmount_at(&self.dir, lazy)
    }

    /// Takes the mount out of the tree and makes the kernel give up on the server: programs that
    /// still have a file open get errors from now on. Only root can; others can only detach.
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

/// Unmounts the topmost mount on the directory.
///
/// # Errors
/// The mount is busy, or the kernel or fusermount3 refused.
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

/// Makes the kernel read ahead as for a local file system. Only root can; without it the mount is
/// only slower.
pub(crate) fn tune_page_cache(mounted: &Mounted, options: &FuseOptions) {
    let file = mounted.backing_device().join("read_ahead_kb");
    if let Err(e) = std::fs::write(&file, (options.readahead / 1024).to_string()) {
        tracing::debug!("{}: {e}", file.display());
    }
}

/// Returns whether this process can open the FUSE device again, which cloning the descriptor needs.
pub(crate) fn can_clone() -> bool {
    File::options().read(true).write(true).open(DEVICE).is_ok()
}
