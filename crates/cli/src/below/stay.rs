//! `stetfs mount --foreground -o front=kernel`: stays until the mount is over, for a service
//! manager.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use stetfs_fuse::mountinfo;

use crate::failure::{Explain, Failure, Result};
use crate::notify;

/// Exit code (sysexits.h: EX_UNAVAILABLE): the server has died, and the mount was taken away. The
/// unit of systemd mounts it again.
const EXIT_DIED: u8 = 69;

/// Signals are heard from here on: the mount that follows must not be left alone.
pub(super) struct Stay {
    signals: UnixStream,
}

impl Stay {
    pub(super) fn begin() -> Result<Self> {
        let (signals, heard) = UnixStream::pair()?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            pipe::register(signal, heard.try_clone()?)?;
        }
        Ok(Self { signals })
    }

    /// Stays until the server of the mount of `device` on `dir` has ended. A signal unmounts; if
    /// files are open, the server ends with the last of them.
    ///
    /// # Errors
    /// The server has died.
    pub(super) fn until_over(mut self, device: &Path, dir: &Path, server: i32) -> Result<()> {
        let server = Pid::from_raw(server).ok_or(Errno::SRCH)?;
        let server: OwnedFd = pidfd_open(server, PidfdFlags::empty()).during(|| {
            let dir = dir.display();
            format!("the server of {dir}")
        })?;
        notify::ready();
        loop {
            let mut waited = [
                PollFd::new(&server, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            match poll(&mut waited, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let is = |n: usize| !waited[n].revents().is_empty();
            let (has_ended, is_told) = (is(0), is(1));
            if has_ended {
                break;
            }
            if is_told {
                self.signals.read_exact(&mut [0])?;
                // Somebody else may have unmounted it, and the server be about to end.
                if is_there(device, dir)? {
                    end(device, dir)?;
                }
            }
        }
        if !is_there(device, dir)? {
            return Ok(());
        }
        // Nothing is behind this mount any more.
        umount(dir, true)?;
        let failure = Failure::new(format!("{}: its server has died", dir.display()));
        Err(failure
            .advise("mount it again: everything that was fsynced is in the image")
            .exit(EXIT_DIED))
    }
}

/// Whether the device is mounted on `dir`.
fn is_there(device: &Path, dir: &Path) -> Result<bool> {
    let dir = mountinfo::resolve(dir).during(|| dir.display().to_string())?;
    let there = mountinfo::mounted_on(&dir).during(|| "the list of mounts".to_owned())?;
    Ok(there.is_some_and(|entry| entry.source == device))
}

/// Unmounts, if need be later.
fn end(device: &Path, dir: &Path) -> Result<()> {
    if umount(dir, false).is_ok() {
        return Ok(());
    }
    if is_there(device, dir)? {
        let dir = dir.display();
        eprintln!("stetfs: {dir}: files are open; it ends when they are closed");
    }
    let done = umount(dir, true);
    if is_there(device, dir)? { done } else { Ok(()) }
}

/// Has umount(8) unmount the kernel's ext4 from `dir`; at its last use, if `lazy`.
pub(super) fn umount(dir: &Path, lazy: bool) -> Result<()> {
    let mut umount = Command::new("umount");
    let done = umount
        .args(lazy.then_some("-l"))
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .during(|| "umount(8)".to_owned())?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(
        Failure::new(said.trim().trim_start_matches("umount: ").to_owned())
            .advise(format!("see who uses it: fuser -vm {}", dir.display())),
    )
}
