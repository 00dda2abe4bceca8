//! Serving a mount, from the moment it stands until the image is clean again.
//!
//! Order at the start: companion, mount, INIT (the kernel's capabilities are agreed on), `ready`,
//! workers. Order at the end: dirty pages of the kernel written to us, unmounted, workers gone,
//! volume committed and marked clean, companion dismissed. SIGTERM, SIGINT and SIGHUP end a mount
//! in the same order as `umount` does; when files are still open by then, the mount is detached and
//! the volume is closed under them, which is what a shutdown of the machine needs.
//!
//! Threads: the workers (`wire/serve.rs`), one that waits for signals, and the caller's, which
//! waits for the end.

pub(crate) mod end;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::backend::Backend;
use crate::background::Waiting;
use crate::companion::Companion;
use crate::mount;
use crate::mount::error::MountError;
use crate::mount::{Mounted, New};
use crate::options::{FuseOptions, Transport};
use crate::server::{Closing, FsServer};
use crate::system_log::{self, Severity};
use crate::wire::{Server, Session, ring};
use end::{Ended, Event, SessionError, spawn};

/// How long workers may take to notice that the mount is gone.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The protocol's version of Linux 6.18, which passes syncs of mounts on block devices on. Nothing
/// else tells, and trying it would be waiting for ourselves.
const MINOR_WITH_SYNCS: u32 = 45;

/// From this bound of the caches on huge pages are worth what they cost, in bytes.
const HUGE_PAGES_MIN: u64 = 128 << 20;

/// Makes the process fit to serve; to be called before the volume is mounted, so that every thread
/// is concerned.
///
/// - A panic anywhere ends the process at once. It is a bug of ours, and what the thread leaves
///   half done must not be committed; ending is a crash like any other, and the journal is made for
///   crashes.
/// - As root, memory for the server's own writes is never taken by writing to the mount that it
///   serves, and the server is not slowed down for the dirty pages that it is there to clean
///   (`PR_SET_IO_FLUSHER`).
/// - With a small `memory`, the bound of its caches in bytes, no huge pages are taken: of each a
///   small allocation uses a part, and the rest is not in that bound.
pub fn prepare_process(memory: Option<u64>) {
    if memory.is_some_and(|memory| memory < HUGE_PAGES_MIN)
        && let Err(e) = rustix::thread::disable_transparent_huge_pages(true)
    {
        tracing::debug!("PR_SET_THP_DISABLE: {e}");
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        system_log::write(Severity::Error, &format!("a bug ends the server: {info}"));
        std::process::abort();
    }));
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("PR_SET_IO_FLUSHER: {e}");
    }
}

/// What can be said of a mount once it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// sync(2), syncfs(2) and a remount to read-only make everything durable. Otherwise the kernel
    /// does not pass them on, and only fsync(2) does; everything is committed once a second then,
    /// unless the user has said how often.
    pub hears_syncs: bool,
}

/// Mounts `fs`, a volume or another [`Backend`], which came from `image`, on `dir` (from
/// [`mount::check_dir`]) and serves it until it is unmounted or a signal ends it; then closes it.
/// `ready` is called when the mount stands, and says who waits for it.
///
/// # Errors
/// See [`SessionError`]. The volume is closed in any case.
pub fn serve<B: Backend>(
    fs: &B,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    ready: impl FnOnce(Standing) -> io::Result<Waiting>,
) -> Result<Ended, SessionError> {
    let closing = Arc::new(Closing::new(fs.clone()));
    let options = &FuseOptions {
        transport: match choose(options.transport) {
            Ok(transport) => transport,
            Err(e) => {
                closing.close().map_err(SessionError::Close)?;
                return Err(e);
            }
        },
        ..options.clone()
    };
    let mut companion = start_companion(image, dir);
    if let Some(companion) = companion.as_mut().filter(|_| !options.auto_unmount) {
        companion.leave();
    }
    let server = FsServer::new(
        fs.clone(),
        image.to_owned(),
        dir.to_owned(),
        options.clone(),
        closing.clone(),
    );
    let ended = run(server, image, dir, options, &mut companion, ready);
    let closed = closing.close().map_err(SessionError::Close);
    if let Some(companion) = companion {
        companion.dismiss();
    }
    let ended = ended?;
    closed?;
    Ok(ended)
}

/// What `auto` comes to here.
fn choose(wanted: Transport) -> Result<Transport, SessionError> {
    if wanted == Transport::Device {
        return Ok(wanted);
    }
    match ring::is_available() {
        Ok(()) => Ok(Transport::Uring),
        Err(why) if wanted == Transport::Uring => Err(SessionError::Transport(why)),
        Err(why) => {
            tracing::info!("requests come by /dev/fuse: {why}");
            Ok(Transport::Device)
        }
    }
}

/// The companion, if there can be one.
pub(crate) fn start_companion(image: &Path, dir: &Path) -> Option<Companion> {
    let started = Companion::start(image, dir);
    started
        .inspect_err(|e| {
            tracing::warn!(
                "no companion process ({e}): a crash of the server will leave the mount point \
                    behind"
            );
        })
        .ok()
}

/// Unmounts, by the companion if there is one.
pub(crate) fn unmount(
    companion: &mut Option<Companion>,
    mounted: &Mounted,
    lazy: bool,
) -> Result<(), MountError> {
    match companion {
        Some(companion) => companion.unmount(mounted, lazy),
        None => mounted.unmount(lazy),
    }
}

/// Tells of each signal that ends a mount, until the handle is closed.
pub(crate) fn catch_signals(tell: &mpsc::Sender<Event>) -> Result<Handle, SessionError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(SessionError::Signals)?;
    let handle = signals.handle();
    let tell = tell.clone();
    spawn("signals", move || {
        for signal in signals.forever() {
            let _ = tell.send(Event::Signal(signal));
        }
    })?;
    Ok(handle)
}

fn run<B: Backend>(
    serving: FsServer<B>,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    companion: &mut Option<Companion>,
    ready: impl FnOnce(Standing) -> io::Result<Waiting>,
) -> Result<Ended, SessionError> {
    let (tell, events) = mpsc::channel();
    let signals = options.signals.then(|| catch_signals(&tell)).transpose()?;
    let New {
        fd,
        mounted,
        is_block,
        one_request,
    } = mount::mount(image, dir, options, serving.max_request())?;
    serving.note_one_request(one_request);
    if let Some(companion) = companion {
        companion.mounted(&mounted, options.abort_hung);
    }
    let keeper = serving.keeper();
    let bell = keeper.bell.clone();
    let commits = keeper.commits.clone();
    let mut hears_syncs = false;
    let started = start(serving, options, fd, tell, |session| {
        let _ = keeper.notifier.set(session.notifier());
        hears_syncs = is_block && session.minor() >= MINOR_WITH_SYNCS;
        mount::tune_page_cache(&mounted, options);
        if options.writeback {
            keeper.room.take_knobs(mounted.backing_device());
        }
    })
    .and_then(|()| keeper.start())
    .and_then(|()| {
        commits.store(!hears_syncs && !options.commit_given, Ordering::Relaxed);
        let waiting = ready(Standing { hears_syncs }).map_err(SessionError::Ready)?;
        let_go(waiting, companion.as_mut())
    });
    if let Err(e) = started {
        let _ = mounted.abort();
        return Err(e);
    }
    let ended = wait(&events, &mounted, companion);
    if matches!(ended, Err(SessionError::Session(_))) {
        // Nobody is to wait for workers that are gone.
        let _ = mounted.abort();
    }
    bell.dismiss();
    if let Some(signals) = signals {
        signals.close();
    }
    ended
}

/// Lets who waits for the mount go. From then on the server may be killed: the companion must know
/// by then where to say so.
pub(crate) fn let_go(
    waiting: Waiting,
    companion: Option<&mut Companion>,
) -> Result<(), SessionError> {
    if let Some(companion) = companion {
        companion.log_as_we_do();
    }
    waiting.release().map_err(SessionError::Ready)
}

/// Agrees with the kernel and starts the workers; `agreed` is called in between.
pub(crate) fn start<S: Server>(
    server: S,
    options: &FuseOptions,
    fd: OwnedFd,
    tell: mpsc::Sender<Event>,
    agreed: impl FnOnce(&Session<S>),
) -> Result<(), SessionError> {
    let clone = options.clone_fd && options.threads > 1 && mount::can_clone();
    let session =
        Session::agree(server, fd, options.threads, clone).map_err(SessionError::Session)?;
    agreed(&session);
    spawn("session", move || {
        let over = session.run();
        let _ = tell.send(Event::Over(over));
    })
}

/// Waits for the end and brings it about when a signal asks for it.
fn wait(
    events: &mpsc::Receiver<Event>,
    mounted: &Mounted,
    companion: &mut Option<Companion>,
) -> Result<Ended, SessionError> {
    let signal = match events.recv() {
        Ok(Event::Signal(signal)) => signal,
        Ok(Event::Over(over)) => {
            return over
                .map(|()| Ended::Unmounted)
                .map_err(SessionError::Session);
        }
        Ok(Event::Stuck(after)) => return Err(SessionError::Stuck(after)),
        Err(mpsc::RecvError) => return Ok(Ended::Unmounted),
    };
    tracing::info!("signal {signal}: unmounting {}", mounted.dir.display());
    // So that nothing written before the signal is lost when the mount has to be cut off.
    if let Some(Err(e)) = companion.as_mut().map(|c| c.sync(mounted)) {
        tracing::warn!("writing back {}: {e}", mounted.dir.display());
    }
    let mut cut = false;
    match unmount(companion, mounted, false) {
        Ok(()) => {}
        Err(MountError::Busy(dir)) => {
            tracing::warn!(
                "{} is in use; it is detached, and files still open there are cut off",
                dir.display()
            );
            cut = true;
            let _ = unmount(companion, mounted, true);
            // Between the first write-back and the detachment more may have been written.
            if let Err(e) = mounted.abort() {
                tracing::warn!("{e}");
            }
        }
        Err(e) => tracing::error!("{e}"),
    }
    loop {
        match events.recv_timeout(GRACE) {
            Ok(Event::Signal(_)) => tracing::info!("already unmounting"),
            Ok(Event::Over(over)) => {
                over.map_err(SessionError::Session)?;
                break;
            }
            Ok(Event::Stuck(_)) | Err(_) => {
                cut = true;
                break;
            }
        }
    }
    Ok(if cut {
        Ended::Cut(signal)
    } else {
        Ended::Signal(signal)
    })
}
