//! `stetfs tx`: a command whose changes below a directory happen at once, when it has ended well,
//! or not at all.
//!
//! The command runs in a view of its own (a mount namespace), in which overlayfs stands over the
//! directory: what it changes goes to a layer beside it, on the same volume. When it has ended with
//! 0, the volume's server lays the layer over the directory in one transaction
//! (`stetfs_fuse::layer`).
//!
//! Two processes: this one, which stays outside, and a second of the same program, which makes the
//! view and runs the command in it (`inside.rs`). `place.rs` has what lies in the directory
//! meanwhile, `memory.rs` a layer that does not, `tree.rs` the list of `--dry-run`.

mod inside;
mod memory;
mod place;
mod tree;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use stetfs_format::width::must_fit;
use stetfs_fuse::layer::plan::{self, Plan, plan};
use stetfs_fuse::mountinfo;
use stetfs_sys::file_ioctl::{LayOver, lay_over};

use crate::args::{Layer, Tx};
use crate::failure::{Explain, Failure, Result};
use crate::shown::shown;
use place::Place;
use tree::Mounted;

/// The transaction did not happen, for a reason that is not the command's; as with env(1).
pub(crate) const EXIT_FAILED: u8 = 125;
/// The command cannot be run.
const EXIT_NOT_RUN: u8 = 126;
/// There is no such command.
const EXIT_NOT_FOUND: u8 = 127;
/// The command was ended by a signal, whose number is added.
const EXIT_SIGNAL: u8 = 128;

/// How often somebody looks whether there was a signal.
const LOOK: Duration = Duration::from_millis(50);

fn failed(what: impl Into<String>) -> Failure {
    Failure::new(what).exit(EXIT_FAILED)
}

pub(crate) fn run(args: &Tx) -> Result<ExitCode> {
    if let Some(name) = &args.inside {
        return inside::run(args, name);
    }
    transaction(args).map_err(|e| match e.code {
        crate::failure::EXIT_FAILED => e.exit(EXIT_FAILED),
        _ => e,
    })
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

/// Fails where there can be no transaction.
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
            "{} is mounted below {}, and cannot be part of a transaction",
            below.dir.display(),
            dir.display()
        ))
        .advise("name a directory that it is not below, or unmount it"));
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
        // Standard output is for the list.
        second.stdout(Stdio::from(rustix::io::dup(rustix::stdio::stderr())?));
    }
    second.arg(dir).arg("--").args(&args.words);
    let status = interrupt.wait(&mut second.spawn()?)?;
    let ended = match place.end()?.as_deref().and_then(|end| end.split_once(' ')) {
        Some(("exit", code)) => code.parse().ok(),
        Some(("signal", signal)) => signal.parse().ok().map(|n: u8| EXIT_SIGNAL + n),
        // It has said why.
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

/// The exit code that says of a process what it says itself.
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

fn too_deep(dir: &Path, path: &[u8]) -> Failure {
    let at = below(dir, path);
    failed(format!(
        "{at}: directories lie too deep for one transaction"
    ))
}

/// A file by its path from the directory, to be shown.
fn below(dir: &Path, path: &[u8]) -> String {
    let dir = shown(dir.as_os_str().as_bytes());
    match path {
        [] => dir.to_string(),
        path => format!("{dir}/{}", shown(path)),
    }
}

fn conflict(at: &str, path: &[u8]) -> Failure {
    if path == plan::PLACE.as_bytes() {
        return failed(format!("{at}: stetfs tx needs this name for itself"));
    }
    failed(format!(
        "{at} was changed by others since the command began; nothing was changed"
    ))
    .advise("run it again")
}

/// Has the server lay the layer over the directory.
fn apply(dir: &Path, place: &Place) -> Result<()> {
    let mut what = LayOver {
        name: place.name,
        path: [0; 1008],
    };
    lay_over(&place.opened, &mut what).map_err(|e| refused(dir, e, &what.path))
}

/// Why the server has not done what it was asked for, because of the file that has this path from
/// the directory, which a NUL ends.
fn refused(dir: &Path, e: Errno, path: &[u8]) -> Failure {
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    let at = below(dir, path);
    match e {
        Errno::BUSY => conflict(&at, path),
        Errno::NAMETOOLONG => too_deep(dir, path),
        Errno::FBIG => failed(format!(
            "{at}: the changes are more than one transaction of this volume holds; nothing was \
                changed"
        ))
        .advise(
            "do it in several steps, or give the volume a larger journal (stetfs info IMAGE shows \
                its size)",
        ),
        Errno::CANCELED => failed(format!(
            "{at}: the volume's server has lost the transaction; nothing was changed"
        )),
        e => failed(format!("{at}: {}; nothing was changed", words(e))),
    }
}

/// An errno in words.
fn words(e: Errno) -> String {
    let text = std::io::Error::from(e).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Signals that end the command, and the transaction with it.
struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    fn listen() -> Result<Self> {
        let signal = Arc::default();
        for number in [SIGINT, SIGTERM] {
            flag::register_usize(number, Arc::clone(&signal), must_fit(number))?;
        }
        Ok(Self(signal))
    }

    fn signal(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::SeqCst))
            .ok()
            .filter(|n| *n != 0)
    }

    /// Waits for the end of a process, to which the signals are passed on.
    fn wait(&self, child: &mut Child) -> Result<ExitStatus> {
        let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let look = Timespec::try_from(LOOK)?;
        let mut is_told = false;
        loop {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&look)) {
                Ok(1) => return Ok(child.wait()?),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let signal = match self.signal().map(i32::from) {
                Some(SIGINT) => Signal::INT,
                Some(_) => Signal::TERM,
                None => continue,
            };
            if !std::mem::replace(&mut is_told, true) {
                let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
            }
        }
    }
}
