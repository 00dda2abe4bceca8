//! Serving a mount, from the moment it stands until the image is clean again.
//!
//! The start, in this order: companion, mount, INIT (agreement with the kernel on capabilities),
//! `ready`, workers. The end, in this order: the kernel writes its dirty pages to us, unmount, the
//! workers end, the volume is committed and marked clean, the companion is dismissed. SIGTERM,
//! SIGINT and SIGHUP end a mount in the same order as `umount` does. If files are still open by
//! then, the mount is detached and the volume is closed under them, as a shutdown of the machine
//! needs.
//!
//! Threads: the workers (`wire/serve.rs`), one that waits for signals, and the caller's, which
//! waits for the end.

pub(crate) mod end;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::attr::node;
use crate::backend::Backend;
use crate::background::Waiting;
use crate::companion::Companion;
use crate::mount;
use crate::mount::error::MountError;
use crate::mount::{Mounted, Place};
use crate::opens::Opens;
use crate::options::{FuseOptions, Transport};
use crate::server::{Closing, FsServer};
use crate::survive::Heir;
use crate::system_log::{self, Severity};
use crate::upgrade::{Handed, Succession, Upgrade};
use crate::wire::{Link, Notifier, Server, Session, ring};
use end::{Ended, Event, SessionError, spawn};

/// How long workers may take to notice that the mount is gone.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The protocol's minor version in Linux 6.18, which passes on syncs of mounts on block devices.
/// Nothing else tells whether a kernel does, and trying it would mean waiting for ourselves.
const MINOR_WITH_SYNCS: u32 = 45;

/// Bound of the caches, in bytes, from which on huge pages are worth their cost.
const HUGE_PAGES_MIN: u64 = 128 << 20;

/// Prepares the process for serving. Call it before the volume is mounted, so that it applies to
/// every thread.
///
/// - A panic anywhere ends the process at once. A panic is a bug of ours, and what the thread
///   leaves half done must not be committed. The end is a crash like any other, and the journal is
///   made for crashes.
/// - As root, the kernel never gets memory for the server's own writes by writing to the mount that
///   it serves, and never slows the server down for the dirty pages that it is there to clean
///   (`PR_SET_IO_FLUSHER`).
/// - With a small `memory`, the bound of the caches in bytes, the process takes no huge pages: a
///   small allocation uses a part of one, and the rest is not in that bound.
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

/// What is known of a mount once it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// True: sync(2), syncfs(2) and a remount to read-only make everything durable. False: the
    /// kernel does not pass them on, and only fsync(2) does; then everything is committed once a
    /// second, unless the user has said how often.
    pub hears_syncs: bool,
}

/// Mounts `fs`, a volume or another [`Backend`], which came from `image`, on `dir` (from
/// [`mount::check_dir`]). Serves it until it is unmounted or a signal ends it, and closes it. Calls
/// `ready` when the mount stands; its result says who waits for that.
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
    serve_in_succession(fs, image, dir, options, Succession::default(), ready)
}

/// As [`serve`], for a mount that another program has begun, or can go on with: `dir` is then that
/// of the program before.
///
/// # Errors
/// See [`SessionError`]. The volume is closed in any case.
pub fn serve_in_succession<B: Backend>(
    fs: &B,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    succession: Succession,
    ready: impl FnOnce(Standing) -> io::Result<Waiting>,
) -> Result<Ended, SessionError> {
    let Succession { before, next } = succession;
    let closing = Arc::new(Closing::new(fs.clone()));
    let wanted = match before {
        // Rings end with the program that has made them.
        Some(_) => Transport::Device,
        None if options.survive > 0 && options.transport == Transport::Auto => Transport::Device,
        None => options.transport,
    };
    if options.survive > 0 && (wanted == Transport::Uring || options.session.is_some()) {
        closing.close().map_err(SessionError::Close)?;
        return Err(SessionError::Survive(
            "rings of io_uring, and a mount that somebody else has made, end with their server"
                .to_owned(),
        ));
    }
    let options = &FuseOptions {
        transport: match choose(wanted) {
            Ok(transport) => transport,
            Err(e) => {
                closing.close().map_err(SessionError::Close)?;
                return Err(e);
            }
        },
        ..options.clone()
    };
    // Whoever has made the mount also looks after the mount point.
    let mut companion = match options.session {
        Some(_) => None,
        // That of the server before looks after the mount until this one has its own.
        None if options.survive > 0 && before.as_ref().is_some_and(Handed::has_guard) => None,
        None => start_companion(image, dir),
    };
    if let Some(companion) = companion.as_mut().filter(|_| !options.auto_unmount) {
        companion.leave();
    }
    let server = FsServer::new(
        fs.clone(),
        image.to_owned(),
        dir.to_owned(),
        options.clone(),
        closing.clone(),
        Upgrade::new(next, before.as_ref()),
    );
    let ended = run(server, image, dir, options, &mut companion, before, ready);
    let closed = closing.close().map_err(SessionError::Close);
    if let Some(companion) = companion {
        companion.dismiss();
    }
    let ended = ended?;
    closed?;
    Ok(ended)
}

/// Returns the transport to use: for `auto`, the best one that works here.
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

/// Starts the companion; `None` if that fails.
pub(crate) fn start_companion(image: &Path, dir: &Path) -> Option<Companion> {
    let started = Companion::start(image, dir, None);
    started
        .inspect_err(|e| {
            tracing::warn!(
                "no companion process ({e}): a crash of the server will leave the mount point \
                    behind"
            );
        })
        .ok()
}

/// Unmounts, through the companion if there is one.
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

/// Sends an event for each signal that ends a mount, until the handle is closed.
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
    before: Option<Handed>,
    ready: impl FnOnce(Standing) -> io::Result<Waiting>,
) -> Result<Ended, SessionError> {
    let (tell, events) = mpsc::channel();
    let signals = options.signals.then(|| catch_signals(&tell)).transpose()?;
    let (connection, place) = connect(&serving, image, dir, options, before.as_ref())?;
    let serving = Arc::new(serving);
    let Place {
        mounted, is_block, ..
    } = place.clone();
    if let Some(companion) = companion {
        companion.mounted(&mounted, options.abort_hung);
    }
    let keeper = serving.keeper();
    let bell = keeper.bell.clone();
    let pages = Written {
        opens: keeper.opens.clone(),
        notifier: keeper.notifier.clone(),
    };
    let pages = options.session.map(|_| pages);
    let commits = keeper.commits.clone();
    let mut hears_syncs = false;
    let mut before = before;
    let started = start(&serving, options, connection, tell, |session| {
        serving.stopping.note(session.link());
        let _ = keeper.notifier.set(session.notifier());
        if options.survive > 0 {
            let ours = (session, &place, before.as_mut());
            survive(&serving, ours, (image, options), companion)?;
        }
        let dismissal = companion.as_ref().and_then(Companion::dismissal);
        serving.upgrade.note(&place, dismissal);
        hears_syncs = is_block && session.minor() >= MINOR_WITH_SYNCS;
        mount::tune_page_cache(&mounted, options);
        if options.writeback {
            keeper.room.take_knobs(mounted.backing_device());
        }
        Ok(())
    })
    .and_then(|()| keeper.start())
    .and_then(|()| {
        if let Some(handed) = before {
            serving.has_taken_over(handed);
        }
        commits.store(!hears_syncs && !options.commit_given, Ordering::Relaxed);
        let waiting = ready(Standing { hears_syncs }).map_err(SessionError::Ready)?;
        let_go(waiting, companion.as_mut())
    });
    if let Err(e) = started {
        let _ = mounted.abort();
        return Err(e);
    }
    let ended = wait(&events, &mounted, companion, pages.as_ref());
    if matches!(ended, Err(SessionError::Session(_))) {
        // Abort, so that nobody waits for workers that are gone.
        let _ = mounted.abort();
    }
    bell.dismiss();
    serving.survive.end();
    if let Some(signals) = signals {
        signals.close();
    }
    ended
}

/// Sees to it that another server goes on with the mount when this one dies.
fn survive<B: Backend>(
    serving: &Arc<FsServer<B>>,
    (session, place, before): (&Session<FsServer<B>>, &Place, Option<&mut Handed>),
    (image, options): (&Path, &FuseOptions),
    companion: &mut Option<Companion>,
) -> Result<(), SessionError> {
    if !session.link().agreed.can_resend {
        let why = "this kernel's FUSE cannot send requests once more (Linux 6.9 can)";
        return Err(SessionError::Survive(why.to_owned()));
    }
    let is_after_death = before
        .as_ref()
        .is_some_and(|before| before.is_after_death());
    let guard = before.and_then(Handed::take_guard);
    let start = |heir: &Heir| {
        let mut new = Companion::start(image, &place.mounted.dir, Some(heir))?;
        if !options.auto_unmount {
            new.leave();
        }
        new.mounted(&place.mounted, options.abort_hung);
        new.log_as_we_do();
        Ok(new)
    };
    let new = serving.survives((session.link(), place), guard, start);
    let new = new.map_err(|e| SessionError::Survive(e.to_string()))?;
    let new = new.ok_or_else(|| {
        let why = "nobody can go on with what this server has (docs/OPERATE.md)";
        SessionError::Survive(why.to_owned())
    })?;
    if let Some(old) = companion.replace(new) {
        old.dismiss();
    }
    if is_after_death {
        let again = session.notifier().send_again();
        again.map_err(SessionError::Session)?;
    }
    Ok(())
}

/// Makes the mount, or takes over that of the program before.
fn connect<B: Backend>(
    serving: &FsServer<B>,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    before: Option<&Handed>,
) -> Result<(From, Place), SessionError> {
    let (connection, place) = match before {
        Some(handed) => {
            serving.restore(handed).map_err(SessionError::Survive)?;
            (From::Before(handed.link()), handed.place())
        }
        None => {
            let (fd, place) = mount::mount(image, dir, options, serving.max_request())?;
            (From::Mount(fd), place)
        }
    };
    serving.note_one_request(place.one_request);
    Ok((connection, place))
}

/// Lets the command that waits for the mount return. From then on the server may be killed, so
/// before that the companion learns where to report it.
pub(crate) fn let_go(
    waiting: Waiting,
    companion: Option<&mut Companion>,
) -> Result<(), SessionError> {
    if let Some(companion) = companion {
        companion.log_as_we_do();
    }
    waiting.release().map_err(SessionError::Ready)
}

/// Where a connection to the kernel comes from.
pub(crate) enum From {
    /// It was just made, and nothing is agreed.
    Mount(OwnedFd),
    /// The program before has left it.
    Before(Link),
}

/// Agrees with the kernel, calls `agreed`, and starts the workers.
pub(crate) fn start<S: Server>(
    server: &Arc<S>,
    options: &FuseOptions,
    connection: From,
    tell: mpsc::Sender<Event>,
    agreed: impl FnOnce(&Session<S>) -> Result<(), SessionError>,
) -> Result<(), SessionError> {
    let clone = options.clone_fd && options.threads > 1 && mount::can_clone();
    let (server, threads) = (server.clone(), options.threads);
    let session = match connection {
        From::Mount(fd) => Session::agree(server, fd, threads, clone),
        From::Before(link) => Ok(Session::resume(server, link, threads)),
    };
    let session = session.map_err(SessionError::Session)?;
    agreed(&session)?;
    spawn("session", move || {
        let over = session.run();
        let _ = tell.send(Event::Over(over));
    })
}

/// What the kernel may have in its page cache and not yet on the volume.
struct Written {
    opens: Arc<Opens>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Written {
    /// Makes the kernel send it. No path is needed for that: the mount may be in another namespace.
    fn fetch(&self) {
        if let Some(notifier) = self.notifier.get() {
            for ino in self.opens.watch_all() {
                notifier.content_changed(node(ino), 0, 0);
            }
        }
    }
}

/// Waits for the end. Brings it about when a signal asks for it; with `pages`, of a mount that is
/// not ours to undo.
fn wait(
    events: &mpsc::Receiver<Event>,
    mounted: &Mounted,
    companion: &mut Option<Companion>,
    pages: Option<&Written>,
) -> Result<Ended, SessionError> {
    let signal = match events.recv() {
        Ok(Event::Signal(signal)) => signal,
        Ok(Event::Over(over)) => {
            return over
                .map(|()| Ended::Unmounted)
                .map_err(SessionError::Session);
        }
        Ok(Event::Stuck(after)) => return Err(SessionError::Stuck(after)),
        // No file of ours is exported here.
        Ok(Event::Closed) | Err(mpsc::RecvError) => return Ok(Ended::Unmounted),
    };
    if let Some(pages) = pages {
        tracing::info!(
            "signal {signal}: leaving the mount of {}",
            mounted.dir.display()
        );
        pages.fetch();
        return Ok(Ended::Signal(signal));
    }
    tracing::info!("signal {signal}: unmounting {}", mounted.dir.display());
    // Nothing written before the signal is lost then, even if the mount has to be cut off.
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
            // More may have been written between the first write-back and the detachment.
            if let Err(e) = mounted.abort() {
                tracing::warn!("{e}");
            }
        }
        Err(e) => tracing::error!("{e}"),
    }
    loop {
        match events.recv_timeout(GRACE) {
            Ok(Event::Signal(_) | Event::Closed) => tracing::info!("already unmounting"),
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
