//! Unmounting, and waiting for what `umount` alone does not wait for.
//!
//! The kernel takes a FUSE mount out of the tree and returns; the server then still commits. Who looks at the
//! image at once (e2fsck, a copy, a kernel mount) would see it in the middle of that. So the server's process is
//! asked for first, and its end waited for.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::mount::{MountError, Mounted, is_dead, unmount_at};
use crate::{control, mountinfo};

/// Why unmounting did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum UmountError {
    /// It could not be unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The server has not finished in time. It goes on; the image must not be touched yet.
    #[error("the server (process {pid}) is still writing to {} after {} s; wait before using it", image.display(), after.as_secs())]
    StillBusy {
        /// The server.
        pid: u32,
        /// The volume.
        image: PathBuf,
        /// How long it was waited for.
        after: Duration,
    },
}

/// What was unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmounted {
    /// The volume.
    pub image: PathBuf,
    /// Where it was.
    pub dir: PathBuf,
    /// Whether the server has finished, so that the image may be used.
    pub finished: bool,
    /// The server had died before; the journal will be recovered at the next mount.
    pub was_dead: bool,
}

/// Unmounts the volume on `dir` and waits until its server has finished, at most `timeout`. With `lazy` it is
/// detached even while files are open, and only waited for when none is.
///
/// # Errors
/// Nothing of ours is mounted there, it is in use, or the server takes longer.
pub fn umount(dir: &Path, lazy: bool, timeout: Duration) -> Result<Unmounted, UmountError> {
    let dir = mountinfo::resolve(dir).map_err(|source| MountError::Dir {
        dir: dir.to_owned(),
        source,
    })?;
    let entry = mountinfo::mounted_on(&dir).map_err(MountError::Proc)?;
    let Some(entry) = entry.filter(mountinfo::MountEntry::is_stetfs) else {
        return Err(MountError::NotMounted(dir).into());
    };
    let mut unmounted = Unmounted {
        image: entry.source,
        dir,
        finished: true,
        was_dead: false,
    };
    if is_dead(&unmounted.dir) {
        unmounted.was_dead = true;
        unmount_at(&unmounted.dir, true)?;
        return Ok(unmounted);
    }
    let server = server_of(&unmounted.dir);
    Mounted {
        dir: unmounted.dir.clone(),
        device: entry.device,
    }
    .unmount(lazy)?;
    let Some(pid) = server else {
        unmounted.finished = false;
        return Ok(unmounted);
    };
    let timeout = if lazy {
        Duration::from_millis(200)
    } else {
        timeout
    };
    unmounted.finished = wait_for_end(pid, timeout);
    if !unmounted.finished && !lazy {
        return Err(UmountError::StillBusy {
            pid,
            image: unmounted.image,
            after: timeout,
        });
    }
    Ok(unmounted)
}

/// Waits until a server that has been unmounted but still commits has released the image, at most `timeout`; for a new mount
/// right after `umount`. Returns at once when the image is free, cannot be looked at, or is still mounted: opening it
/// then says what is to be said.
pub fn wait_for_release(image: &Path, timeout: Duration) {
    let Ok(file) = std::fs::File::open(image) else {
        return;
    };
    let deadline = Instant::now() + timeout;
    while let Err(std::fs::TryLockError::WouldBlock) = file.try_lock_shared() {
        let mounted = mountinfo::mounts()
            .is_ok_and(|all| all.iter().any(|m| m.is_stetfs() && m.source == image));
        if mounted || Instant::now() > deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process that serves the mount.
fn server_of(dir: &Path) -> Option<u32> {
    let stats = control::query_stats(dir).ok()?;
    let stats: serde_json::Value = serde_json::from_str(&stats).ok()?;
    u32::try_from(stats["server"]["pid"].as_u64()?).ok()
}

/// Whether the process ends within the time.
fn wait_for_end(pid: u32, timeout: Duration) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return true;
    };
    let Ok(fd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        // Gone already.
        return true;
    };
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::warn!(
                    "waiting for process {}: {}",
                    pid.as_raw_pid(),
                    io::Error::from(e)
                );
                return false;
            }
        }
    }
}
