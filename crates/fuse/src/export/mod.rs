//! A block device as one file in a directory, for loop devices, QEMU and other users of a file.
//!
//! The file, [`FILE_NAME`], has the device's size, which does not change. `fsync` is a flush,
//! `PUNCH_HOLE` a discard. Requests go to the device as they come: the kernel keeps no pages of the
//! file. A device behind one lock gains nothing from more than one worker.
//!
//! # When memory is short
//!
//! A file system on a loop device on this file writes its dirty pages through this process. When
//! the machine has no memory left, the kernel waits for such writes to get some. If the server
//! needed memory for them, both would wait for ever, and with them every global sync(). So the
//! server needs none: it takes its buffers at the start and locks all of its memory
//! ([`prepare_memory`]), the kernel never waits for our own device to give us memory, and the
//! out-of-memory killer passes us by. The page cache of the device's own file can be locked in
//! memory as well. The kernel's own memory for our requests is left. The [`watchdog`] looks after
//! that: when a request makes no progress for too long, it aborts the connection, and the users of
//! the file get errors instead of waiting for ever.
//!
//! # The end
//!
//! `umount` ends the export when nobody has the file open. A signal does the same. While the file
//! is open, it takes the directory's mount away and lets the server go on until the last user has
//! closed the file. A second signal cuts users off.

mod file;
mod memory;
mod watchdog;

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use stetfs_export::ByteDev;

pub use file::FILE_NAME;
pub use memory::{Resident, prepare_memory};

use crate::background::Waiting;
use crate::companion::Companion;
use crate::connection::Connection;
use crate::mount;
use crate::mount::error::MountError;
use crate::mount::{Mounted, Place};
use crate::options::{FuseOptions, OnBlock};
use crate::session::end::{Ended, Event, SessionError};
use crate::session::{From, GRACE, catch_signals, let_go, start, start_companion, unmount};
use file::ExportFs;
use watchdog::Pulse;

/// How many times the watchdog's limit the kernel waits for an answer (Linux 6.14).
const PATIENCE: u32 = 10;

/// How a device is exported.
pub struct ExportOptions {
    /// After how long without progress the connection is aborted; `None`: never.
    pub watchdog: Option<Duration>,
    /// Further facts for `system.stetfs.stats`, as JSON.
    pub stats: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// Threads that answer requests: more than one where the device takes several at once.
    pub threads: usize,
    /// The export ends when the last user of the file has closed it.
    pub until_closed: bool,
    /// Called when a signal asks for the end, so that our own user of the file lets it go.
    pub let_go: Option<Box<dyn Fn() + Send>>,
}

/// Serves `dev`, which came from `source`, as a file in `dir` (from [`mount::check_dir`]) until it
/// is unmounted or signals end it. Then flushes the device. Calls `ready` when the file is there;
/// its result says who waits for that.
///
/// # Errors
/// See [`SessionError`].
pub fn export(
    dev: Arc<ByteDev>,
    source: &Path,
    dir: &Path,
    options: ExportOptions,
    ready: impl FnOnce() -> io::Result<Waiting>,
) -> Result<Ended, SessionError> {
    let fuse = FuseOptions {
        threads: options.threads,
        clone_fd: false,
        writeback: false,
        on_block: OnBlock::Never,
        read_only: dev.dev().read_only(),
        ..FuseOptions::default()
    };
    let mut companion = start_companion(source, dir);
    let pulse = Arc::new(Pulse::default());
    let (tell, events) = mpsc::channel();
    let closed = options.until_closed.then(|| tell.clone());
    let facts = (options.stats, pulse.clone());
    // Much longer than the watchdog's limit, which counts only while nothing is answered. This one
    // is for a kernel that waits for a server of which nobody is left.
    let patience = options.watchdog.map(|limit| PATIENCE * limit);
    let server = ExportFs::new(dev.clone(), source, dir, facts, closed, patience);
    let signals = catch_signals(&tell)?;
    let (fd, Place { mounted, .. }) = mount::mount(source, dir, &fuse, file::MAX_REQUEST)?;
    if let Some(companion) = &mut companion {
        companion.mounted(&mounted, None);
    }
    let connection = Arc::new(Connection::open(&mounted));
    let mut watch = None;
    let started = start(&server.into(), &fuse, From::Mount(fd), tell.clone(), |_| {
        Ok(())
    })
    .and_then(|()| {
        let start = |limit| watchdog::start(limit, pulse, connection.clone(), tell);
        watch = options.watchdog.map(start).transpose()?;
        Ok(())
    })
    .and_then(|()| ready().map_err(SessionError::Ready))
    .and_then(|waiting| let_go(waiting, companion.as_mut()));
    let ended = match started {
        Ok(()) => wait(
            &events,
            &mounted,
            &connection,
            &mut companion,
            options.let_go.as_deref(),
        ),
        Err(e) => {
            let _ = mounted.abort();
            Err(e)
        }
    };
    drop(watch);
    signals.close();
    if matches!(ended, Err(SessionError::Stuck(_))) {
        // The worker may hold the device for ever, so it cannot be flushed. If unmounting fails,
        // the companion does it.
        let _ = unmount(&mut companion, &mounted, true);
        return ended;
    }
    if let Some(companion) = companion {
        companion.dismiss();
    }
    let flushed = dev.flush().map_err(SessionError::Flush);
    ended.and_then(|ended| flushed.map(|()| ended))
}

/// How long after its last user has closed the file the mount is tried to be taken away again.
const CLOSING: Duration = Duration::from_millis(20);

fn wait(
    events: &mpsc::Receiver<Event>,
    mounted: &Mounted,
    connection: &Connection,
    companion: &mut Option<Companion>,
    let_go: Option<&(dyn Fn() + Send)>,
) -> Result<Ended, SessionError> {
    let mut signalled = None;
    let mut stuck = None;
    let mut cut = false;
    // The file is closed, and the kernel lets go of it in a moment.
    let mut closing = false;
    loop {
        let event = if closing {
            match events.recv_timeout(CLOSING) {
                Err(mpsc::RecvTimeoutError::Timeout) => Some(Event::Closed),
                event => event.ok(),
            }
        } else if cut || stuck.is_some() {
            events.recv_timeout(GRACE).ok()
        } else {
            events.recv().ok()
        };
        match event {
            Some(Event::Stuck(after)) => stuck = Some(after),
            Some(Event::Signal(signal)) if signalled.is_none() => {
                signalled = Some(signal);
                release(mounted, companion, let_go)?;
            }
            Some(Event::Signal(_)) => {
                cut = true;
                connection.abort();
            }
            Some(Event::Closed) => match unmount(companion, mounted, false) {
                // Or somebody has opened it again, and will close it.
                Err(MountError::Busy(_)) => closing = true,
                done => {
                    done?;
                    closing = false;
                }
            },
            over => {
                if let Some(after) = stuck {
                    return Err(SessionError::Stuck(after));
                }
                if let Some(Event::Over(over)) = over {
                    over.map_err(SessionError::Session)?;
                }
                return Ok(match signalled {
                    None => Ended::Unmounted,
                    Some(signal) if cut => Ended::Cut(signal),
                    Some(signal) => Ended::Signal(signal),
                });
            }
        }
    }
}

/// Takes the mount away. Programs that have the file open keep it.
fn release(
    mounted: &Mounted,
    companion: &mut Option<Companion>,
    let_go: Option<&(dyn Fn() + Send)>,
) -> Result<(), MountError> {
    if let Some(let_go) = let_go {
        let_go();
        return unmount(companion, mounted, true);
    }
    match unmount(companion, mounted, false) {
        Err(MountError::Busy(dir)) => {
            tracing::warn!(
                "{} is in use (losetup -a); the mount point is released now, and the server ends \
                    with its last user; another signal cuts the users off",
                dir.display()
            );
            unmount(companion, mounted, true)
        }
        done => done,
    }
}
