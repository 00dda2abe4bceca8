//! Unmounting, and waiting for the server, which `umount` alone does not do.
//!
//! The kernel takes a FUSE mount out of the tree and returns; the server then still commits. A
//! program that looks at the image at once (e2fsck, a copy, a kernel mount) would see it in the
//! middle of that. So we ask for the server's process first, and wait for its end.

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
        /// How long we waited for it.
        after: Duration,
    },
}

/// A mount that was unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmounted {
    /// The volume.
    pub image: PathBuf,
    /// The mount point.
    pub dir: PathBuf,
    /// Whether the server has finished, so that the image may be used.
    pub finished: bool,
    /// The server had died before; the journal will be recovered at the next mount.
    pub was_dead: bool,
    /// `Some` if the volume is mounted elsewhere too, so that its server goes on: inside is where,
    /// if that can be seen from here.
    pub still: Option<Option<PathBuf>>,
    /// Why the volume had stopped before, so that nothing written since then is on it; `None` if it
    /// had not.
    pub stopped: Option<String>,
}

/// How long to wait for a program that only looks (df, a file manager).
const LOOK: Duration = Duration::from_secs(2);
/// How long to wait for the end of a server that has lost its last mount, before asking whether
/// there is another mount.
const USUAL: Duration = Duration::from_millis(500);

/// Unmounts the volume on `dir` and waits until its server has finished, at most `timeout`. With
/// `lazy` the volume is detached even while files are open; then it waits only if none is.
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
    // Ask a server that is stopped or hangs nothing more.
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

/// Unmounts. Programs that only look at it for a moment do not prevent this.
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

/// Returns another place where the file system is mounted; `None` if there is none, `Some(None)` if
/// it cannot be seen from here.
fn other_place(device: &str) -> Option<Option<PathBuf>> {
    let left = mountinfo::mounts_of(device).ok()?;
    Some(Some(left.into_iter().next()?.dir))
}

/// Returns whether the kernel still has the connection to the server: the mount is in a namespace
/// that cannot be seen from here, or files are open. False if the kernel's control file system is
/// not mounted.
fn is_connected(device: &str) -> bool {
    let name = mountinfo::connection(device).unwrap_or_default();
    !name.is_empty() && Path::new(mountinfo::CONTROL_DIR).join(name).is_dir()
}

/// How long to wait for a release before saying so.
const SILENCE: Duration = Duration::from_millis(300);

/// Waits until a server that has been unmounted but still commits has released the image, at most
/// `timeout`. Meant for a new mount right after `umount`. Calls `say` with the process that it
/// waits for, unless that takes only a moment. Returns at once if the image is free, cannot be
/// looked at, or is in use by something that will not release it soon: a mount that stands or was
/// only detached (`umount --lazy`, with files open), or another program. Opening the image then
/// gives the error.
pub fn wait_for_release(image: &Path, timeout: Duration, say: impl FnOnce(&LockHolder)) {
    let is_storage = |m: &std::fs::Metadata| m.is_file() || m.file_type().is_block_device();
    if !image.metadata().is_ok_and(|m| is_storage(&m)) {
        // Anything else is left alone: opening a pipe would wait for its other end.
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

/// The names under which a server may run.
const SERVERS: [&str; 2] = ["stetfs", "fuse2fs"];

/// Returns whether a process can be a server of ours, as far as can be seen: it has the name of
/// this one, or one of ours.
fn is_server(holder: &LockHolder) -> bool {
    let own = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let is_ours = |name: &String| name == own.trim() || SERVERS.contains(&name.as_str());
    holder.name.as_ref().is_none_or(is_ours)
}

/// Returns whether a process still serves a FUSE mount. The kernel says so for each descriptor of a
/// connection (`fuse_connection`, since Linux 6.16). The descriptors are open until the volume is
/// closed; the mount's page cache is gone by then.
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

/// What a server's counters say of itself.
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

/// Waits for the end of the process. Returns whether it ends within the time.
fn wait_for_end(pid: u32, timeout: Duration) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return true;
    };
    let Ok(fd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        // It is gone already.
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
