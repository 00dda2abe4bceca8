//! A volume mounted by a stetfs server process that a test can kill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::host::{is_mount_point, is_mounted, run, unmount, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A mount and its server; unmounted when dropped.
#[derive(Debug)]
pub struct Mounted {
    server: Option<Child>,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts `image` on `dir` with the program `serve` (`env!("CARGO_BIN_EXE_serve")` in a test).
    ///
    /// # Errors
    /// The server ended, or its mount did not appear.
    pub fn start(program: &str, image: &Path, dir: &Path, options: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg(image).arg(dir).arg(options);
        let server = Some(serve(command, dir)?);
        Ok(Self {
            server,
            dir: dir.to_owned(),
        })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts and waits for the server to commit and end.
    ///
    /// # Errors
    /// The unmount failed, or the server ended with an error.
    pub fn unmount(mut self) -> Result<()> {
        unmount(&self.dir)?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        wait_until("the server's end", PATIENCE, || {
            matches!(server.try_wait(), Ok(Some(_)))
        })?;
        let status = server.wait()?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }

    /// Kills the server with SIGKILL and removes the dead mount.
    ///
    /// # Errors
    /// The mount cannot be removed.
    pub fn kill(mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
            server.wait()?;
        }
        // The server's companion removes the mount too, and may have done so already.
        let _ = run("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
        let dir = self.dir.display();
        let is_mounted = is_mount_point(&self.dir);
        ensure!(!is_mounted, "the dead mount on {dir} was not released");
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else {
            return;
        };
        if unmount(&self.dir).is_err()
            || wait_until("", PATIENCE, || matches!(server.try_wait(), Ok(Some(_)))).is_err()
        {
            let _ = server.kill();
            let _ = server.wait();
            let _ = run("umount", &["--lazy".as_ref(), self.dir.as_os_str()]);
        }
    }
}

/// Starts a FUSE server in the foreground and waits until its mount exists.
///
/// # Errors
/// The server ended, or nothing was mounted in time.
pub fn serve(mut command: Command, dir: &Path) -> Result<Child> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut ended = None;
    wait_until("the mount", PATIENCE, || {
        ended = child.try_wait().ok().flatten();
        ended.is_some() || is_mounted(dir)
    })?;
    match ended {
        Some(status) => bail!("{command:?} ended with {status} before the mount stood"),
        None => Ok(child),
    }
}
