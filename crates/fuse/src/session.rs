//! Serving a mount, from the moment it stands until the image is clean again.
//!
//! Order at the start: companion, mount, INIT (the kernel's capabilities are agreed on), `ready`, workers. Order at the end:
//! dirty pages of the kernel written to us, unmounted, workers gone, volume committed and marked clean, companion
//! dismissed. SIGTERM, SIGINT and SIGHUP end a mount in the same order as `umount` does; when files are still open by
//! then, the mount is detached and the volume is closed under them, which is what a shutdown of the machine needs.
//!
//! Threads: the workers are fuser's, one more waits for signals, and the caller's waits for the end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use stetfs::Fs;

use crate::companion::Companion;
use crate::files::Opens;
use crate::fs::StetFs;
use crate::mount::{self, MountError, Mounted};
use crate::options::{Allow, FuseOptions};
use crate::system_log::{self, Severity};

/// How long workers may take to notice that the mount is gone.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// How a served mount ended. The volume is clean in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Somebody unmounted it.
    Unmounted,
    /// This signal ended it.
    Signal(i32),
    /// This signal ended it while files were open; their owners get errors now.
    Cut(i32),
}

/// Why a mount could not be made, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel and this server did not agree, or the device failed.
    #[error("the FUSE session failed: {0}")]
    Session(io::Error),
    /// Signals cannot be caught.
    #[error("catching signals: {0}")]
    Signals(io::Error),
    /// The caller's `ready` failed.
    #[error("going to the background: {0}")]
    Ready(io::Error),
    /// The volume could not be closed: what was not durable yet may be lost, the journal will be recovered at the next mount.
    #[error("closing the volume: {0}")]
    Close(stetfs::Error),
    /// The device that was exported could not be flushed at the end.
    #[error("flushing the device: {0}")]
    Flush(stetfs_media::MediaError),
    /// The watchdog of an export has aborted the connection.
    #[error("a request was stuck for {} s; the connection was aborted", .0.as_secs_f32())]
    Stuck(Duration),
}

/// Makes the process fit to serve; to be called before the volume is mounted, so that every thread is concerned.
///
/// - A panic anywhere ends the process at once. It is a bug of ours, and what the thread leaves half done must not
///   be committed; ending is a crash like any other, and the journal is made for crashes.
/// - As root, memory for the server's own writes is never taken by writing to the mount that it serves, and the server is
///   not slowed down for the dirty pages that it is there to clean (`PR_SET_IO_FLUSHER`).
pub fn prepare_process() {
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

/// Mounts `fs`, which came from `image`, on `dir` (from [`mount::check_dir`]) and serves it until it is unmounted or a
/// signal ends it; then closes the volume. `ready` is called when the mount stands.
///
/// # Errors
/// See [`SessionError`]. The volume is closed in any case.
pub fn serve(
    fs: &Fs,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<Ended, SessionError> {
    let mut companion = None;
    if options.auto_unmount {
        match Companion::start(image, dir) {
            Ok(started) => companion = Some(started),
            Err(e) => tracing::warn!(
                "no companion process ({e}): a crash of the server will leave the mount point behind"
            ),
        }
    }
    let opens = Arc::new(Opens::default());
    let server = StetFs::new(
        fs.clone(),
        image.to_owned(),
        dir.to_owned(),
        options.clone(),
        opens.clone(),
    );
    let ended = run(server, image, dir, options, &mut companion, ready);
    let left_open = opens.close_all(fs);
    if left_open > 0 {
        tracing::debug!("{left_open} files were still open");
    }
    let closed = fs.unmount().map_err(SessionError::Close);
    if let Some(companion) = companion {
        companion.dismiss();
    }
    let ended = ended?;
    closed?;
    Ok(ended)
}

/// What the waiting thread is told.
pub(crate) enum Event {
    Signal(i32),
    Over(io::Result<()>),
    /// A request has made no progress for so long, and the connection is aborted.
    Stuck(Duration),
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

fn run(
    server: StetFs,
    image: &Path,
    dir: &Path,
    options: &FuseOptions,
    companion: &mut Option<Companion>,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<Ended, SessionError> {
    let (tell, events) = mpsc::channel();
    let handle = catch_signals(&tell)?;
    let (fd, mounted) = mount::mount(image, dir, options)?;
    if let Some(companion) = companion {
        companion.mounted(&mounted);
    }
    let notifier = server.notifier_slot();
    let started = start(server, options, fd, tell, |session| {
        let _ = notifier.set(session.notifier());
        mount::tune_page_cache(&mounted, options);
    })
    .and_then(|()| ready().map_err(SessionError::Ready));
    if let Err(e) = started {
        let _ = mounted.abort();
        return Err(e);
    }
    if let Some(companion) = companion {
        companion.log_as_we_do();
    }
    let ended = wait(&events, &mounted);
    handle.close();
    ended
}

/// Agrees with the kernel and starts the workers; `agreed` is called in between.
pub(crate) fn start<F: fuser::Filesystem>(
    server: F,
    options: &FuseOptions,
    fd: OwnedFd,
    tell: mpsc::Sender<Event>,
    agreed: impl FnOnce(&fuser::Session<F>),
) -> Result<(), SessionError> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads);
    config.clone_fd = options.clone_fd && options.threads > 1 && mount::can_clone();
    // The kernel keeps strangers out unless `allow_other` is given; fuser's own check would also refuse the
    // kernel's write-back of attributes, which comes in root's name.
    let acl = match options.allow {
        Allow::Root => fuser::SessionACL::RootAndOwner,
        Allow::Owner | Allow::Everybody => fuser::SessionACL::All,
    };
    let session =
        fuser::Session::from_fd(server, fd, acl, config).map_err(SessionError::Session)?;
    agreed(&session);
    spawn("session", move || {
        let over = session.run();
        let _ = tell.send(Event::Over(over));
    })
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(SessionError::Session)
}

/// Waits for the end and brings it about when a signal asks for it.
fn wait(events: &mpsc::Receiver<Event>, mounted: &Mounted) -> Result<Ended, SessionError> {
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
    write_back(&mounted.dir);
    let mut cut = false;
    match mounted.unmount(false) {
        Ok(()) => {}
        Err(MountError::Busy(dir)) => {
            tracing::warn!(
                "{} is in use; it is detached, and files still open there are cut off",
                dir.display()
            );
            cut = true;
            let _ = mounted.unmount(true);
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

/// Makes the kernel send what it has cached, so that nothing written before the signal is lost.
fn write_back(dir: &Path) {
    let done = std::fs::File::open(dir).and_then(|open| Ok(rustix::fs::syncfs(&open)?));
    if let Err(e) = done {
        tracing::warn!("writing back {}: {e}", dir.display());
    }
}
