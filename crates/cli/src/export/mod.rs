//! A block device for other programs: one file in a directory, a loop device on it, a device of the
//! kernel's driver ublk, or a server at a socket for NBD clients or a virtual machine.

pub(crate) mod loops;
mod serving;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stetfs_export::{ByteDev, Watch, Watched, nbd, ublk, vhost_user};
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::{Ended, ExportOptions};
use stetfs_media::BlockDev;

use crate::args::{ExportArgs, Way};
use crate::failure::{EXIT_USAGE, Explain, Failure, Result};
use crate::logging::Log;
use crate::part;
use crate::start::{check, launch, open_log, wait_for_release};
use serving::Listener;

/// A device that is offered to other programs.
pub(crate) struct Exported {
    /// The device.
    pub(crate) dev: Arc<dyn BlockDev>,
    /// Bytes of heap that it takes and frees again while in use.
    pub(crate) heap: usize,
    /// Threads that answer requests.
    pub(crate) threads: usize,
    /// Facts for `stetfs stats`, as JSON.
    pub(crate) stats: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// Called when the last user has gone.
    pub(crate) close: Box<dyn FnOnce() -> Result<()>>,
}

/// Setting of the allocator. It takes addresses in large pieces; if it made them usable at once,
/// all of them would be locked in memory. It reads this when the process starts.
const ARENA: (&str, &str) = ("MIMALLOC_ARENA_EAGER_COMMIT", "0");

/// Offers the device that `open` returns for `file`: in this process, or in a server process whose
/// command line begins with `words`.
///
/// # Errors
/// Of the file or the directory, of the device, of the mount or the socket.
pub(crate) fn run(
    file: &Path,
    args: &ExportArgs,
    words: Vec<OsString>,
    verbose: u8,
    open: impl FnOnce(&Path) -> Result<Exported>,
) -> Result<()> {
    let way = args.way();
    let is_file = matches!(way, Way::File(_) | Way::Loop);
    if is_file && args.stats.is_some() {
        return Err(
            Failure::new("--stats is for ublk, nbd:ADDRESS and vhost-user:SOCKET")
                .advise("with file:DIR, ask the server: stetfs stats DIR")
                .exit(EXIT_USAGE),
        );
    }
    if way == Way::Loop && (args.server || args.foreground) {
        return Err(Failure::new("--foreground is not for --as loop").exit(EXIT_USAGE));
    }
    if args.server || args.foreground {
        return serve(file, args, verbose, open);
    }
    match &way {
        Way::File(dir) => check(file, dir)?,
        _ => part::file_of(file)
            .metadata()
            .map(drop)
            .during(|| file.display().to_string())?,
    }
    let start = |word, until_closed: bool| {
        let mut server = this_program()?;
        server
            .args(words)
            .arg("--server")
            .args((0..verbose).map(|_| "-v"))
            .args(["--watchdog", &args.watchdog.to_string()])
            .args(args.resident.then_some("--resident"))
            .args(until_closed.then_some("--until-closed"))
            .args(args.listen_anywhere.then_some("--listen-anywhere"));
        for (name, file) in [("--log", &args.log), ("--stats", &args.stats)] {
            if let Some(file) = file {
                server.arg(name).arg(file);
            }
        }
        server.arg("--as").arg(word).arg("--").arg(file);
        launch(server)
    };
    match way {
        Way::Loop => loops::offer(|word| start(word, true)),
        way => start(way.word(), args.until_closed),
    }
}

fn this_program() -> Result<Command> {
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    Ok(Command::new(program))
}

/// Where a server offers its device.
enum Place {
    Dir(PathBuf),
    Listener(Listener),
}

impl Place {
    fn of(args: &ExportArgs) -> Result<Self> {
        Ok(match args.way() {
            Way::File(dir) => Self::Dir(stetfs_fuse::check_dir(&dir)?),
            Way::Nbd(address) => {
                let bound = nbd::Listener::bind(&address, args.listen_anywhere);
                Self::Listener(Listener::Nbd(bound.map_err(refused)?))
            }
            Way::VhostUser(socket) => {
                let bound = vhost_user::Listener::bind(&socket)?;
                Self::Listener(Listener::VhostUser(bound))
            }
            Way::Ublk => Self::Listener(Listener::Ublk(ublk::Listener::bind()?)),
            Way::Loop => {
                return Err(Failure::new(
                    "--as loop starts a server of its own, with --as \
                file:DIR",
                )
                .exit(EXIT_USAGE));
            }
        })
    }
}

fn refused(error: nbd::NbdError) -> Failure {
    let is_local = !matches!(error, nbd::NbdError::NotLocal { .. });
    let failure = Failure::from(error);
    if is_local {
        return failure;
    }
    failure
        .advise(
            "use localhost:PORT and a tunnel; or, if everybody who reaches this address may read \
                and write the device: --listen-anywhere",
        )
        .exit(EXIT_USAGE)
}

/// Begins the program anew with the allocator's setting, unless it has begun with it.
fn set_arena() -> Result<()> {
    if std::env::var_os(ARENA.0).is_some() {
        return Ok(());
    }
    let again = std::env::args_os().skip(1);
    let failed = this_program()?.args(again).env(ARENA.0, ARENA.1).exec();
    Err(failed.into())
}

fn serve(
    given: &Path,
    args: &ExportArgs,
    verbose: u8,
    open: impl FnOnce(&Path) -> Result<Exported>,
) -> Result<()> {
    set_arena()?;
    let log_file = args.log.as_deref().map(open_log).transpose()?;
    let log = Log::start(verbose);
    let file = part::with_file(given, Path::canonicalize);
    let file = file.during(|| given.display().to_string())?;
    let stats_file = args.stats.as_deref().map(std::path::absolute).transpose()?;
    let place = Place::of(args)?;
    stetfs_fuse::prepare_process(None);
    // An earlier server may still be finishing.
    wait_for_release(&file);
    let Exported {
        dev,
        heap,
        threads,
        stats,
        close,
    } = open(&file)?;
    let patience = (args.watchdog > 0).then(|| Duration::from_secs(args.watchdog.into()));
    let (dev, watch) = watched(dev, &place, patience)?;
    let dev = Arc::new(ByteDev::new(dev));
    let mut held = None;
    let ready = || {
        held = Some(stetfs_fuse::prepare_memory(
            args.resident.then_some(part::file_of(&file)),
            heap,
        )?);
        if !args.server {
            return Ok(Waiting::nobody());
        }
        let waiting = background::detach(log_file)?;
        log.detach(args.log.is_some());
        Ok(waiting)
    };
    let ended = match place {
        Place::Dir(dir) => {
            let options = ExportOptions {
                watchdog: patience,
                stats,
                threads,
                until_closed: args.until_closed,
                let_go: None,
            };
            let ended = stetfs_fuse::export(dev, &file, &dir, options, ready)?;
            if args.until_closed {
                // It was made for this server.
                let _ = std::fs::remove_dir(&dir);
            }
            ended
        }
        Place::Listener(listener) => {
            let stats = serving::Stats {
                facts: &*stats,
                file: stats_file,
                source: &file,
            };
            serving::serve(listener, dev, &stats, ready)?
        }
    };
    close()?;
    drop((held, watch));
    say_ended(&file, ended);
    Ok(())
}

/// Has the log tell when a device that is no file does not answer. Where a file is exported, its
/// server has a watchdog of its own, which gives the file up.
fn watched(
    dev: Arc<dyn BlockDev>,
    place: &Place,
    patience: Option<Duration>,
) -> Result<(Arc<dyn BlockDev>, Option<Watch>)> {
    match (place, patience) {
        (Place::Listener(_), Some(patience)) => {
            let (dev, watch) = Watched::new(dev, patience)?;
            Ok((Arc::new(dev), Some(watch)))
        }
        _ => Ok((dev, None)),
    }
}

fn say_ended(file: &Path, ended: Ended) {
    match ended {
        Ended::Unmounted => tracing::info!("{}: released", file.display()),
        Ended::Signal(signal) => {
            tracing::info!("{}: released after signal {signal}", file.display())
        }
        Ended::Cut(signal) => tracing::warn!(
            "{}: released after signal {signal} while its device was in use",
            file.display()
        ),
    }
}
