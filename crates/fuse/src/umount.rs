//! Unmounting, and waiting for what `umount` alone does not wait for.
//!
//! The kernel takes a FUSE mount out of the tree and returns; the server then still commits. Who
//! looks at the image at once (e2fsck, a copy, a kernel mount) would see it in the middle of that.
//! So the server's process is asked for first, and its end waited for.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use stetfs_media::{LockHolder, lock_holder};

use crate::mount::error::MountError;
use crate::mount::{Mounted, is_dead, unmount_at};
use crate::question::Question;
use crate::{control, mountinfo};

/// Why unmounting did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum UmountError {
    /// It could not be unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The server has not finished in time. It goes on; the image must not be touched yet.
    #[error("the server (process {pid}) is still writing to {} after {} s; wait before using \
        it", image.display(), after.as_secs())]
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
    /// The volume is mounted elsewhere too, so its server goes on: where, if that can be seen from
    /// here.
    pub still: Option<Option<PathBuf>>,
    /// What had stopped the volume before, so that nothing written since then is on it.
    pub stopped: Option<String>,
}

/// How long somebody who only looks (df, a file manager) is waited for.
const LOOK: Duration = Duration::from_secs(2);
/// How long a server that has lost its last mount needs to be seen to end, before it is asked
/// whether there is another one.
const USUAL: Duration = Duration::from_millis(500);

/// Unmounts the volume on `dir` and waits until its server has finished, at most `timeout`. With
/// `lazy` it is detached even while files are open, and only waited for when none is.
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
        image: entry.image(),
        dir,
        finished: true,
        was_dead: false,
        still: None,
        stopped: None,
    };
    let mounted = Mounted {
        dir: unmounted.dir.clone(),
        device: entry.device,
    };
    // A server that is stopped or hangs is asked nothing more.
    let is_silent = |mut question: Question| !question.is_answered(LOOK);
    if lazy && Question::ask(&unmounted.dir).is_ok_and(is_silent) {
        unmount_patiently(&mounted, true)?;
        unmounted.finished = false;
        return Ok(unmounted);
    }
    if is_dead(&unmounted.dir) {
        unmounted.was_dead = true;
        unmount_at(&unmounted.dir, true)?;
        return Ok(unmounted);
    }
    let server = Server::of(&unmounted.dir);
    let (server, stopped) = server.map(|s| (s.pid, s.stopped)).unzip();
    unmounted.stopped = stopped.flatten();
    unmount_patiently(&mounted, lazy)?;
    unmounted.still = other_place(&mounted.device);
    let Some(pid) = server.filter(|_| unmounted.still.is_none()) else {
        unmounted.finished = false;
        return Ok(unmounted);
    };
    if lazy {
        unmounted.finished = wait_for_end(pid, USUAL);
        return Ok(unmounted);
    }
    if wait_for_end(pid, USUAL.min(timeout)) {
        return Ok(unmounted);
    }
    if is_connected(&mounted.device) {
        unmounted.still = Some(None);
        unmounted.finished = false;
        return Ok(unmounted);
    }
    if wait_for_end(pid, timeout.saturating_sub(USUAL)) {
        return Ok(unmounted);
    }
    Err(UmountError::StillBusy {
        pid,
        image: unmounted.image,
        after: timeout,
    })
}

/// Unmounts; whoever only looks at it for a moment does not keep it.
fn unmount_patiently(mounted: &Mounted, lazy: bool) -> Result<(), MountError> {
    let deadline = Instant::now() + LOOK;
    loop {
        match mounted.unmount(lazy) {
            Err(MountError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Another place where the file system is mounted.
fn other_place(device: &str) -> Option<Option<PathBuf>> {
    let left = mountinfo::mounts_of(device).ok()?;
    Some(Some(left.into_iter().next()?.dir))
}

/// Whether the kernel still has the connection to the server: in a mount namespace that cannot be
/// seen from here, or because files are open. Where the kernel's control file system is not
/// mounted, no.
fn is_connected(device: &str) -> bool {
    let name = mountinfo::connection(device).unwrap_or_default();
    !name.is_empty() && Path::new(mountinfo::CONTROL_DIR).join(name).is_dir()
}

/// How long a release is waited for in silence.
const SILENCE: Duration = Duration::from_millis(300);

/// Waits until a server that has been unmounted but still commits has released the image, at most
/// `timeout`; for a new mount right after `umount`. `say` hears whom it waits for, unless that is
/// over in a moment. Returns at once when the image is free, cannot be looked at, or is in use by
/// somebody who will not release it soon: by a mount that stands or was only detached (`umount
/// --lazy`, with files open), or by another program. Opening it then says what is to be said.
pub fn wait_for_release(image: &Path, timeout: Duration, say: impl FnOnce(&LockHolder)) {
    let is_storage = |m: &std::fs::Metadata| m.is_file() || m.file_type().is_block_device();
    if !image.metadata().is_ok_and(|m| is_storage(&m)) {
        // Opening a pipe would wait for its other end.
        return;
    }
    let Ok(file) = std::fs::File::open(image) else {
        return;
    };
    let began = Instant::now();
    let mut say = Some(say);
    while let Err(std::fs::TryLockError::WouldBlock) = file.try_lock_shared() {
        let is_mounted = mountinfo::mounts()
            .is_ok_and(|all| all.iter().any(|m| m.is_stetfs() && m.is_of(image)));
        let holder = lock_holder(image);
        let will_stay = |holder: &LockHolder| !is_server(holder) || serves(holder.pid);
        if is_mounted || holder.as_ref().is_some_and(will_stay) || began.elapsed() > timeout {
            return;
        }
        if let Some(holder) = holder.filter(|_| began.elapsed() > SILENCE)
            && let Some(say) = say.take()
        {
            say(&holder);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process can be a server of ours, as far as can be seen: it has the name of this one.
fn is_server(holder: &LockHolder) -> bool {
    let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    holder.name.as_ref().is_none_or(|name| name == own.trim())
}

/// Whether a process still serves a FUSE mount, which the kernel says of each descriptor by which
/// it does (`fuse_connection`, since Linux 6.16). The descriptors are open until the volume is
/// closed, and the mount's page cache has gone by then.
fn serves(pid: u32) -> bool {
    let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return false;
    };
    let number = |text: String| {
        let mut lines = text.lines();
        let value = lines.find_map(|l| l.strip_prefix("fuse_connection:"));
        value?.trim().parse::<u32>().ok()
    };
    all.flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .filter_map(number)
        .any(mountinfo::has_backing)
}

/// What a server says of itself.
struct Server {
    pid: u32,
    stopped: Option<String>,
}

impl Server {
    fn of(dir: &Path) -> Option<Self> {
        let stats = control::query_stats(dir).ok()?;
        let stats: serde_json::Value = serde_json::from_str(&stats).ok()?;
        Some(Self {
            pid: u32::try_from(stats["server"]["pid"].as_u64()?).ok()?,
            stopped: stats["stopped"].as_str().map(str::to_owned),
        })
    }
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
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
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
