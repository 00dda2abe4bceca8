//! `stetfs nand export`: a part's logical device for other programs.
//!
//! With `--nbd` the file is in a directory of our own, and nbdkit's file plugin serves it: see
//! `nbd.rs`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stetfs_below::Snoop;
use stetfs_export::ByteDev;
use stetfs_ftl::{Ftl, MountOptions};
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::{Ended, ExportOptions};
use stetfs_media::BlockDev;
use stetfs_media::nand::NandFile;

use crate::args::NandExport;
use crate::failure::{Explain, Failure, Result};
use crate::flash::nbd::Nbd;
use crate::logging::Log;
use crate::mount::{check, launch, open_log};

/// The allocator takes addresses in large pieces, all of which would be locked in memory if they
/// could be used at once. It reads this when the process starts.
const ARENA: (&str, &str) = ("MIMALLOC_ARENA_EAGER_COMMIT", "0");

pub(crate) fn run(args: &NandExport, verbose: u8) -> Result<()> {
    if args.server || args.foreground {
        return serve(args, verbose);
    }
    match &args.dir {
        Some(dir) => check(&args.file, dir)?,
        None => args
            .file
            .metadata()
            .map(drop)
            .during(|| args.file.display().to_string())?,
    }
    let mut server = this_program()?;
    server
        .args(["nand", "export", "--server"])
        .args((0..verbose).map(|_| "-v"))
        .args(["--watchdog", &args.watchdog.to_string()])
        .args(["--snoop-table", &args.snoop_table.to_string()])
        .args(args.snoop.then_some("--snoop"))
        .args(args.synchronous.then_some("--synchronous"))
        .args(args.resident.then_some("--resident"));
    if let Some(log) = &args.log {
        server.arg("--log").arg(log);
    }
    if let Some(socket) = &args.nbd {
        server.arg("--nbd").arg(socket);
    }
    server.arg("--").arg(&args.file).args(&args.dir);
    launch(server)
}

fn this_program() -> Result<Command> {
    let program = std::env::current_exe().during(|| "this program's own file".to_owned())?;
    Ok(Command::new(program))
}

fn serve(args: &NandExport, verbose: u8) -> Result<()> {
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
    let shown = || args.file.display().to_string();
    let file = args.file.canonicalize().during(shown)?;
    let nbd = args.nbd.as_deref().map(Nbd::new).transpose()?;
    let dir = match (&nbd, &args.dir) {
        (Some(nbd), _) => nbd.dir(),
        (None, Some(dir)) => dir,
        (None, None) => return Err(Failure::new("no directory was given").exit(2)),
    };
    let dir = stetfs_fuse::check_dir(dir)?;
    stetfs_fuse::prepare_process(None);
    let ftl = open(&file, args.synchronous)?;
    let snoop = if args.snoop {
        Some(Arc::new(Snoop::new(ftl.clone(), args.snoop_table)?))
    } else {
        None
    };
    let dev: Arc<dyn BlockDev> = match &snoop {
        Some(snoop) => snoop.clone(),
        None => ftl.clone(),
    };
    let stats = {
        let ftl = ftl.clone();
        move || stats(&ftl, snoop.as_deref())
    };
    let options = ExportOptions {
        watchdog: (args.watchdog > 0).then(|| Duration::from_secs(args.watchdog.into())),
        stats: Box::new(stats),
        let_go: nbd.as_ref().map(Nbd::stopper),
    };
    let mut held = None;
    let ready = || {
        held = Some(stetfs_fuse::prepare_memory(
            args.resident.then_some(file.as_path()),
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
    ftl.close().during(shown)?;
    drop(held);
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
    Ok(())
}

/// Mounts the layer, once an earlier server has finished.
fn open(file: &Path, synchronous: bool) -> Result<Arc<Ftl>> {
    crate::mount::wait_for_release(file);
    let nand = NandFile::options().synchronous(synchronous).open(file)?;
    let options = MountOptions {
        checkpoint_at_end: true,
        ..MountOptions::default()
    };
    let ftl = Ftl::mount(Arc::new(nand), options);
    Ok(Arc::new(ftl.during(|| file.display().to_string())?))
}

fn stats(ftl: &Ftl, snoop: Option<&Snoop>) -> serde_json::Value {
    let layer = ftl.stats();
    json!({
        "layer": {
            "host_pages": layer.host_pages,
            "gc_pages": layer.gc_pages,
            "map_pages": layer.map_pages,
            "remapped_pages": layer.remapped_pages,
        },
        "snoop": snoop.map(Snoop::stats),
    })
}
