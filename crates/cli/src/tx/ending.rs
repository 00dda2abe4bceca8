//! How a transaction ends: signals, and why it did not happen.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use stetfs_format::width::must_fit;
use stetfs_fuse::tx::layer::plan;

use crate::failure::{Failure, Result};
use crate::ran::{failed, in_words};
use crate::shown::shown;

/// How often to look whether there was a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Explains that there is no plan because directories lie too deep.
pub(super) fn too_deep(dir: &Path, path: &[u8]) -> Failure {
    let at = below(dir, path);
    failed(format!(
        "{at}: directories lie too deep for one transaction"
    ))
}

/// Returns a file's path from the directory, as messages show it.
pub(super) fn below(dir: &Path, path: &[u8]) -> String {
    let dir = shown(dir.as_os_str().as_bytes());
    match path {
        [] => dir.to_string(),
        path => format!("{dir}/{}", shown(path)),
    }
}

pub(super) fn conflict(at: &str, path: &[u8]) -> Failure {
    if path == plan::PLACE.as_bytes() {
        return failed(format!("{at}: stetfs tx reserves this name"));
    }
    failed(format!(
        "{at} was changed by others since the command began; nothing was changed"
    ))
    .advise("run it again")
}

/// Explains why the server refused a request, because of the file with this path from the
/// directory. A NUL ends the path.
pub(super) fn refused(dir: &Path, e: Errno, path: &[u8]) -> Failure {
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let at = below(dir, path);
    match e {
        Errno::BUSY => conflict(&at, path),
        Errno::NAMETOOLONG => too_deep(dir, path),
        Errno::FBIG => failed(format!(
            "{at}: the changes are more than one transaction of this volume holds; nothing was \
                changed"
        ))
        .advise(
            "do it in several steps, or give the volume a larger journal (stetfs info IMAGE shows \
                its size)",
        ),
        Errno::CANCELED => failed(format!(
            "{at}: the volume's server has lost the transaction; nothing was changed"
        )),
        e => failed(format!("{at}: {}; nothing was changed", in_words(e))),
    }
}

/// Signals that end the command, and the transaction with it.
pub(super) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    pub(super) fn listen() -> Result<Self> {
        let signal = Arc::default();
        for number in [SIGINT, SIGTERM] {
            flag::register_usize(number, Arc::clone(&signal), must_fit(number))?;
        }
        Ok(Self(signal))
    }

    pub(super) fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::SeqCst))
            .ok()
            .filter(|n| *n != 0)
    }

    /// Waits for the end of a process, and passes signals on to it.
    pub(super) fn wait(&self, child: &mut Child) -> Result<ExitStatus> {
        let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let look = Timespec::try_from(LOOK)?;
        let mut is_told = false;
        loop {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&look)) {
                Ok(1) => return Ok(child.wait()?),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let signal = match self.signal().map(i32::from) {
                Some(SIGINT) => Signal::INT,
                Some(_) => Signal::TERM,
                None => continue,
            };
            if !std::mem::replace(&mut is_told, true) {
                let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
            }
        }
    }
}
