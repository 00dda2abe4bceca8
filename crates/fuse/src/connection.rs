//! The kernel's end of a connection, seen from outside: it tells how many requests wait, and can
//! abort the connection.
//!
//! Source: Linux, `Documentation/filesystems/fuse/fuse.rst`, "Control filesystem". The directory is
//! opened at the start: when it is needed, it may be too late, and its name may be another
//! connection's.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::mount::Mounted;
use crate::mountinfo::{self, CONTROL_DIR};

/// The kernel's end of the connection.
pub(crate) struct Connection {
    mounted: Mounted,
    control: Option<Control>,
}

/// One look at whether a request waits.
pub(crate) struct Look(File);

impl Look {
    /// Whether one waits now; `None` if the kernel does not say.
    pub(crate) fn has_waiting(mut self) -> Option<bool> {
        let mut text = [0; 24];
        let len = self.0.read(&mut text).ok()?;
        let mut digits = text[..len].iter();
        Some(digits.any(|digit| (b'1'..=b'9').contains(digit)))
    }
}

/// The connection's directory in fusectl, and the file in it that aborts the connection.
struct Control {
    dir: OwnedFd,
    abort: File,
}

impl Connection {
    pub(crate) fn open(mounted: &Mounted) -> Self {
        let control = Control::open(mounted);
        if let Err(e) = &control {
            tracing::debug!("fusectl: {e}");
        }
        Self {
            mounted: mounted.clone(),
            control: control.ok(),
        }
    }

    /// Returns the mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.mounted.dir
    }

    /// Returns whether a request waits to be answered; `None` if the kernel does not say.
    pub(crate) fn has_waiting(&self) -> Option<bool> {
        self.look()?.has_waiting()
    }

    /// Opens what is needed for one look at whether a request waits, which takes no memory of the
    /// kernel's then. `None` if the kernel does not say.
    pub(crate) fn look(&self) -> Option<Look> {
        Some(Look(self.control.as_ref()?.file("waiting").ok()?.into()))
    }

    /// Returns whether the mount no longer exists; false if the kernel does not say. Its device
    /// number is free for another mount only after that.
    pub(crate) fn is_gone(&self) -> bool {
        let waiting = self.control.as_ref().map(|control| control.file("waiting"));
        matches!(waiting, Some(Err(Errno::NOENT)))
    }

    /// Makes the kernel give up on the server: every request, waiting or new, fails.
    pub(crate) fn abort(&self) {
        let control = self.control.as_ref();
        let written = control.map(|control| (&control.abort).write_all(b"1"));
        if !matches!(written, Some(Ok(())))
            && let Err(e) = self.mounted.abort()
        {
            tracing::error!("{e}");
        }
    }
}

impl Control {
    fn open(mounted: &Mounted) -> io::Result<Self> {
        let name = mountinfo::connection(&mounted.device).unwrap_or_default();
        if Path::new(CONTROL_DIR).join(&name).is_dir() {
            return Self::open_in(CWD, &format!("{CONTROL_DIR}/{name}"));
        }
        // fusectl is not mounted: make a mount of our own that is in no directory.
        let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        let root: OwnedFd = rustix::mount::fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::empty(),
        )?;
        Self::open_in(&root, &name)
    }

    fn open_in(at: impl AsFd, dir: &str) -> io::Result<Self> {
        let open = |at: BorrowedFd<'_>, path: &str, access| {
            rustix::fs::openat(at, path, access | OFlags::CLOEXEC, Mode::empty())
        };
        let dir = open(at.as_fd(), dir, OFlags::PATH | OFlags::DIRECTORY)?;
        let abort = open(dir.as_fd(), "abort", OFlags::WRONLY)?.into();
        Ok(Self { dir, abort })
    }

    /// Opens a file to be read, anew each time, since it can be read only once. `NOENT`: the
    /// connection is gone.
    fn file(&self, file: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, file, flags, Mode::empty())
    }
}
