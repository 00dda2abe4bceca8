//! A device for NBD clients: nbdkit with its file plugin, on the file that we export.
//!
//! nbdkit speaks the whole protocol (trim, zeroing, forced unit access, several connections), and
//! its file plugin turns each request into the system call that the exported file understands. The
//! process is our child, ends when we do, and tells us when it ends.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::failure::{Explain, Failure, Result};

const SERVER: &str = "nbdkit";

/// How often to look whether the socket is there.
const POLL: Duration = Duration::from_millis(10);

/// A server for NBD clients, and the directory of the file that it serves.
pub(crate) struct Nbd {
    socket: PathBuf,
    dir: PathBuf,
    /// nbdkit, while it runs.
    pid: Arc<AtomicI32>,
}

impl Nbd {
    /// Makes the directory. Nothing may be at `socket` except what a killed server has left.
    pub(crate) fn new(socket: &Path) -> Result<Self> {
        let shown = || socket.display().to_string();
        match socket.symlink_metadata() {
            Ok(found) if found.file_type().is_socket() => {
                if std::os::unix::net::UnixStream::connect(socket).is_ok() {
                    return Err(Failure::new(format!("{}: somebody serves it", shown())));
                }
                fs::remove_file(socket).during(shown)?;
            }
            Ok(_) => return Err(Failure::new(format!("{}: is there already", shown()))),
            Err(_) => {}
        }
        let dir = std::env::temp_dir().join(format!("stetfs-nbd-{}", getpid().as_raw_pid()));
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .during(|| dir.display().to_string())?;
        Ok(Self {
            socket: std::path::absolute(socket).during(shown)?,
            dir,
            pid: Arc::default(),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts nbdkit and returns when it listens. If it ends by itself, this process gets SIGTERM.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut child = Command::new(SERVER)
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&self.socket)
            .arg("file")
            .arg(self.dir.join(stetfs_fuse::FILE_NAME))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| {
                io::Error::new(
                    e.kind(),
                    format!("{SERVER} cannot be run: {e} (package nbdkit)"),
                )
            })?;
        while !self.socket.exists() {
            if child.try_wait()?.is_some() {
                return Err(io::Error::other(said(&mut child)));
            }
            thread::sleep(POLL);
        }
        self.pid.store(child.id().cast_signed(), Ordering::Relaxed);
        let pid = self.pid.clone();
        thread::Builder::new()
            .name(SERVER.to_owned())
            .spawn(move || {
                let said = said(&mut child);
                let _ = child.wait();
                if pid.swap(0, Ordering::Relaxed) != 0 {
                    tracing::error!("{SERVER} has ended: {said}");
                    let _ = kill_process(getpid(), Signal::TERM);
                }
            })?;
        Ok(())
    }

    /// Returns a function that ends nbdkit.
    pub(crate) fn stopper(&self) -> Box<dyn Fn() + Send> {
        let pid = self.pid.clone();
        Box::new(move || {
            if let Some(pid) = Pid::from_raw(pid.swap(0, Ordering::Relaxed)) {
                let _ = kill_process(pid, Signal::TERM);
            }
        })
    }
}

/// Returns what it said until it ended.
fn said(child: &mut Child) -> String {
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    said.trim().to_owned()
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.stopper()();
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_dir(&self.dir);
    }
}
