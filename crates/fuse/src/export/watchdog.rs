//! Watches that requests make progress, and aborts the connection when they do not.
//!
//! A request that the server works on for too long is stuck; so is one that waits in the kernel
//! while the server answers none, because then the server waits for memory in between. The second
//! is only seen where the kernel's control file system for FUSE (`fusectl`) can be reached. Its
//! files are opened at the start, and nothing is allocated until something is stuck.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::mount::Mounted;
use crate::mountinfo::{self, CONTROL_DIR};
use crate::session::{Event, SessionError, spawn};
use crate::system_log::{self, Severity};

/// What the worker does, told by itself.
#[derive(Default)]
pub(super) struct Pulse {
    /// Requests begun.
    begun: AtomicU64,
    /// Requests answered.
    served: AtomicU64,
}

/// A request in work.
pub(super) struct Busy<'a>(&'a Pulse);

impl Pulse {
    pub(super) fn begin(&self) -> Busy<'_> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != self.served()
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.served.fetch_add(1, Ordering::Relaxed);
    }
}

/// The kernel's end of the connection.
pub(super) struct Connection {
    mounted: Mounted,
    control: Option<Control>,
}

/// Its files in fusectl.
struct Control {
    /// Requests that are not answered yet.
    waiting: File,
    abort: File,
}

impl Connection {
    pub(super) fn open(mounted: &Mounted) -> Self {
        let control = Control::open(mounted);
        if let Err(e) = &control {
            tracing::debug!("fusectl: {e}");
        }
        Self {
            mounted: mounted.clone(),
            control: control.ok(),
        }
    }

    /// Whether a request waits to be answered; false where it is not known.
    fn has_waiting(&self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let mut text = [0; 24];
        let len = control.waiting.read_at(&mut text, 0).unwrap_or(0);
        text[..len]
            .iter()
            .any(|digit| (b'1'..=b'9').contains(digit))
    }

    /// Makes the kernel give up on the server: every request, waiting or new, fails.
    pub(super) fn abort(&self) {
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
        // Not mounted there: a mount of our own that is in no directory.
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

/// Starts watching. When nothing was answered for `limit` although something should be, aborts the
/// connection and tells.
pub(super) fn start(
    limit: Duration,
    pulse: Arc<Pulse>,
    connection: Arc<Connection>,
    tell: mpsc::Sender<Event>,
) -> Result<(), SessionError> {
    let step = (limit / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    spawn("watchdog", move || {
        let mut served = pulse.served();
        let mut since = Instant::now();
        loop {
            thread::sleep(step);
            let now = pulse.served();
            if now != served || !(pulse.is_busy() || connection.has_waiting()) {
                served = now;
                since = Instant::now();
            } else if since.elapsed() >= limit {
                break;
            }
        }
        // First, so that the end of the session is not taken for one that somebody wanted.
        let _ = tell.send(Event::Stuck(limit));
        connection.abort();
        let message = format!(
            "{}: a request has been stuck for {} s, probably because memory is short; the \
                connection is aborted: who uses the device gets \
             errors from now on, what was flushed is in the NAND file",
            connection.mounted.dir.display(),
            since.elapsed().as_secs()
        );
        system_log::write(Severity::Error, &message);
        tracing::error!("{message}");
    })
}
