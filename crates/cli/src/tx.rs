//! `stetfs tx`: a command whose changes below a directory happen at once, when it has ended well,
//! or not at all.
//!
//! The command runs in a view of its own (a mount namespace), in which overlayfs stands over the
//! directory: what it changes goes to a layer beside it, on the same volume. When it has ended with
//! 0, the volume's server lays the layer over the directory in one transaction
//! (`stetfs_fuse::tx::layer`).
//!
//! Two processes: this one, which stays outside, and a second of the same program, which makes the
//! view and runs the command in it (`inside.rs`). `place.rs` has what lies in the directory
//! meanwhile, `memory.rs` a layer that does not, `tree.rs` the list of `--dry-run`.

mod ending;
mod inside;
mod memory;
mod place;
mod tree;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use stetfs_fuse::mountinfo;
use stetfs_fuse::tx::layer::plan::{self, Plan, plan};
use stetfs_sys::file_ioctl::{LayOver, lay_over};

use crate::args::{Layer, Tx};
use crate::failure::{Explain, Failure, Result};
use crate::ran::{self, EXIT_FAILED, EXIT_SIGNAL, failed};
use ending::{Interrupt, conflict, refused, too_deep};
use place::Place;
use tree::Mounted;

pub(crate) fn run(args: &Tx) -> Result<ExitCode> {
    if let Some(name) = &args.inside {
        return inside::run(args, name);
    }
    transaction(args).map_err(ran::around)
}

fn transaction(args: &Tx) -> Result<ExitCode> {
    let dir = args.dir.canonicalize();
    let dir = dir.during(|| args.dir.display().to_string())?;
    check(&dir)?;
    let interrupt = Interrupt::listen()?;
    let place = Place::take(&dir, args.wait, args.layer)?;
    let done = change(args, &dir, &place, &interrupt);
    let removed = place.remove();
    let code = done?;
    removed?;
    Ok(code)
}

/// Fails if there can be no transaction on this directory.
fn check(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        return Err(failed(format!("{}: not a directory", dir.display())));
    }
    let mount = mountinfo::mount_of(dir)?;
    if !mount.is_some_and(|mount| mount.is_stetfs()) {
        return Err(failed(format!(
            "{}: not on a mounted stetfs volume",
            dir.display()
        )));
    }
    let is_below = |other: &Path| other.starts_with(dir) && other != dir;
    let all = mountinfo::mounts()?;
    if let Some(below) = all.iter().find(|mount| is_below(&mount.dir)) {
        return Err(failed(format!(
            "{} is a mount below {}, and cannot be part of a transaction",
            below.dir.display(),
            dir.display()
        ))
        .advise("name a directory without that mount, or unmount it"));
    }
    let user = rustix::process::geteuid();
    let owner = std::os::unix::fs::MetadataExt::uid(&dir.metadata()?);
    if !user.is_root() && user.as_raw() != owner {
        return Err(failed(format!(
            "{} belongs to another user: only its owner and root can change it as a whole",
            dir.display()
        )));
    }
    Ok(())
}

/// Runs the command, and makes its changes.
fn change(args: &Tx, dir: &Path, place: &Place, interrupt: &Interrupt) -> Result<ExitCode> {
    let mut second = Command::new(std::env::current_exe()?);
    second.args(["tx", "--inside", &place::word(&place.name)]);
    if args.layer == Layer::Memory {
        second.args(["--layer", "memory"]);
        if let Some(size) = args.layer_size {
            second.args(["--layer-size", &size.0.to_string()]);
        }
    }
    if args.json {
        // Only the list may go to standard output.
        second.stdout(Stdio::from(rustix::io::dup(rustix::stdio::stderr())?));
    }
    second.arg(dir).arg("--").args(&args.words);
    let status = interrupt.wait(&mut second.spawn()?)?;
    let ended = match place.end()?.as_deref().and_then(|end| end.split_once(' ')) {
        Some(("exit", code)) => code.parse().ok(),
        Some(("signal", signal)) => signal.parse().ok().map(|n: u8| EXIT_SIGNAL + n),
        // The second process has said why.
        _ => return Err(Failure::said().exit(code(status))),
    };
    if let Some(signal) = interrupt.signal() {
        return Ok(ExitCode::from(EXIT_SIGNAL + signal));
    }
    match ended {
        Some(0) if args.dry_run => list(args, dir, place)?,
        Some(0) => apply(dir, place)?,
        _ => {}
    }
    Ok(ExitCode::from(ended.unwrap_or(EXIT_FAILED)))
}

/// Returns the exit code that passes on how a process failed.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.filter(|code| *code != 0).unwrap_or(EXIT_FAILED)
}

fn list(args: &Tx, dir: &Path, place: &Place) -> Result<()> {
    let at = |path: &[u8]| dir.join(OsStr::from_bytes(path)).display().to_string();
    let planned = plan(&Mounted, &place.upper(), &dir.to_path_buf());
    let planned: Plan<PathBuf> = planned.map_err(|e| match e {
        plan::Error::Tree(path, e) => Failure::from(e).context(at(&path)),
        plan::Error::TooDeep(path) => too_deep(dir, &path),
    })?;
    tree::list(&planned.changes, args.json)?;
    match planned.conflicts.first() {
        Some(path) => Err(conflict(&at(path), path)),
        None => Ok(()),
    }
}

/// Has the server lay the layer over the directory.
fn apply(dir: &Path, place: &Place) -> Result<()> {
    let mut what = LayOver {
        name: place.name,
        path: [0; 1008],
    };
    lay_over(&place.opened, &mut what).map_err(|e| refused(dir, e, &what.path))
}
