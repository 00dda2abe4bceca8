//! The kernel's end of a connection, seen from outside: it tells how many requests wait, and can
//! abort the connection.
//!
//! Source: Linux, `Documentation/filesystems/fuse/fuse.rst`, "Control filesystem". The files are
//! opened at the start: when they are needed, it may be too late to open them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::mount::Mounted;
use crate::mountinfo::{self, CONTROL_DIR};

/// The kernel's end of the connection.
pub(crate) struct Connection {
    mounted: Mounted,
    control: Option<Control>,
}

/// The connection's files in fusectl.
struct Control {
    /// The number of requests that are not answered yet.
    waiting: File,
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
        let mut text = [0; 24];
        let len = self.control.as_ref()?.waiting.read_at(&mut text, 0).ok()?;
        let mut digits = text[..len].iter();
        Some(digits.any(|digit| (b'1'..=b'9').contains(digit)))
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

    fn open_in(at: impl rustix::fd::AsFd, dir: &str) -> io::Result<Self> {
        let open = |file: &str, access| {
            let path = format!("{dir}/{file}");
            rustix::fs::openat(&at, path, access | OFlags::CLOEXEC, Mode::empty()).map(File::from)
        };
        Ok(Self {
            waiting: open("waiting", OFlags::RDONLY)?,
            abort: open("abort", OFlags::WRONLY)?,
        })
    }
}
