//! A block device for other programs: one file in a directory, or a socket for NBD clients.
//!
//! With `--nbd` the file is in a directory of our own, and nbdkit's file plugin serves it: see
//! `nbd.rs`.

mod nbd;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stetfs_export::ByteDev;
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::{Ended, ExportOptions};
use stetfs_media::BlockDev;

use crate::args::ExportArgs;
use crate::failure::{Explain, Failure, Result};
use crate::logging::Log;
use crate::start::{check, launch, open_log, wait_for_release};
use nbd::Nbd;

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
/// Of the file or the directory, of the device, of the mount.
pub(crate) fn run(
    file: &Path,
    args: &ExportArgs,
    words: Vec<OsString>,
    verbose: u8,
    open: impl FnOnce(&Path) -> Result<Exported>,
) -> Result<()> {
    if args.server || args.foreground {
        return serve(file, args, verbose, open);
    }
    match &args.dir {
        Some(dir) => check(file, dir)?,
        None => file
            .metadata()
            .map(drop)
            .during(|| file.display().to_string())?,
    }
    let mut server = this_program()?;
    server
        .args(words)
        .arg("--server")
        .args((0..verbose).map(|_| "-v"))
        .args(["--watchdog", &args.watchdog.to_string()])
        .args(args.resident.then_some("--resident"))
        .args(args.until_closed.then_some("--until-closed"));
    if let Some(log) = &args.log {
        server.arg("--log").arg(log);
    }
    if let Some(socket) = &args.nbd {
        server.arg("--nbd").arg(socket);
    }
    server.arg("--").arg(file).args(&args.dir);
    launch(server)
}

fn this_program() -> Result<Command> {
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    Ok(Command::new(program))
}

fn serve(
    file: &Path,
    args: &ExportArgs,
    verbose: u8,
    open: impl FnOnce(&Path) -> Result<Exported>,
) -> Result<()> {
    if std::env::var_os(ARENA.0).is_none() {
        let again = std::env::args_os().skip(1);
        return Err(this_program()?
            .args(again)
            .env(ARENA.0, ARENA.1)
            .exec()
            .into());
    }
    let log_file = args.log.as_deref().map(open_log).transpose()?;
    let log = Log::start(verbose);
    let file = file.canonicalize().during(|| file.display().to_string())?;
    let nbd = args.nbd.as_deref().map(Nbd::new).transpose()?;
    let dir = match (&nbd, &args.dir) {
        (Some(nbd), _) => nbd.dir(),
        (None, Some(dir)) => dir,
        (None, None) => return Err(Failure::new("no directory was given").exit(2)),
    };
    let dir = stetfs_fuse::check_dir(dir)?;
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
    let options = ExportOptions {
        watchdog: (args.watchdog > 0).then(|| Duration::from_secs(args.watchdog.into())),
        stats,
        threads,
        until_closed: args.until_closed,
        let_go: nbd.as_ref().map(Nbd::stopper),
    };
    let mut held = None;
    let ready = || {
        held = Some(stetfs_fuse::prepare_memory(
            args.resident.then_some(file.as_path()),
            heap,
        )?);
        if let Some(nbd) = &nbd {
            nbd.start()?;
        }
        if let (true, Some(socket)) = (args.server, &args.nbd) {
            let pid = std::process::id();
            eprintln!(
                "stetfs: serving {}; end it with: kill {pid}",
                socket.display()
            );
        }
        if !args.server {
            return Ok(Waiting::nobody());
        }
        let waiting = background::detach(log_file)?;
        log.detach(args.log.is_some());
        Ok(waiting)
    };
    let ended = stetfs_fuse::export(Arc::new(ByteDev::new(dev)), &file, &dir, options, ready)?;
    close()?;
    drop(held);
    say_ended(&file, ended);
    Ok(())
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
