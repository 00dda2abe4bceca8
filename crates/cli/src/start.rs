//! Starts servers in the background: of mounts and of exported devices.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stetfs_fuse::background::{self, StartError};

use crate::failure::{Explain, Failure, Result};
use crate::part;

/// Exit code of mount(8): wrong invocation or permissions.
pub(crate) const EXIT_USAGE: u8 = 1;
/// Exit code of mount(8): the mount failed.
pub(crate) const EXIT_MOUNT_FAILED: u8 = 32;

/// How long a mount waits for the server of an earlier mount that is unmounted and still commits.
pub(crate) const RELEASE_WAIT: Duration = Duration::from_secs(30);

/// Checks what can be checked before a server is started. The server itself looks at the mount
/// point, on which there may be a dead mount.
pub(crate) fn check(image: &Path, dir: &Path) -> Result<()> {
    let file = part::file_of(image);
    file.metadata().during(|| file.display().to_string())?;
    match dir.metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(
                Failure::new(format!("{}: there is no such directory", dir.display())).advise(
                    format!("make the mount point first: mkdir {}", dir.display()),
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Starts a server process and waits for its mount.
pub(crate) fn launch(server: Command) -> Result<()> {
    match background::start(server) {
        Ok(said) => Ok(io::stdout().write_all(&said)?),
        // The server has said why.
        Err(StartError::Failed { code }) => {
            Err(Failure::said().exit(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1)))
        }
        Err(e) => Err(e.into()),
    }
}

/// Waits for the server of an earlier mount, and says so.
pub(crate) fn wait_for_release(image: &Path) {
    stetfs_fuse::wait_for_release(image, RELEASE_WAIT, |holder| {
        eprintln!(
            "stetfs: {}: waiting for {holder}, which has it in use and is about to release it (at \
                most {} s)",
            image.display(),
            RELEASE_WAIT.as_secs()
        );
    });
}

pub(crate) fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .during(|| path.display().to_string())
}
