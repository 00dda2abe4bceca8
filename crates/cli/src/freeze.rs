//! `stetfs freeze`: a command runs while a mounted volume stands still.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::args::Freeze;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::{answer, mounts, upgrade};

/// Exit codes, as of env(1): the volume was not frozen; the command cannot be run; there is none.
const EXIT_FAILED: u8 = 125;
const EXIT_NOT_RUN: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
/// Exit code after a signal: the signal's number is added.
const EXIT_SIGNAL: i32 = 128;

pub(crate) fn run(args: &Freeze) -> Result<ExitCode> {
    let mut peer = freeze(args).map_err(|failure| failure.exit(EXIT_FAILED))?;
    let ran = Command::new(&args.words[0]).args(&args.words[1..]).status();
    let is_frozen = has_not_ended(&mut peer);
    drop(peer);
    let status = ran.map_err(|e| {
        let code = match e.kind() {
            ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_NOT_RUN,
        };
        Failure::new(format!("{}: {e}", args.words[0].display())).exit(code)
    })?;
    if !is_frozen {
        return Err(Failure::new(format!(
            "{}: the volume went on after {} s, before the command had ended: its copy may be of \
                no use",
            args.dir.display(),
            args.timeout
        ))
        .advise("give it more time: --timeout SECONDS; the command must not use the mount")
        .exit(EXIT_FAILED));
    }
    let code = status
        .code()
        .unwrap_or_else(|| EXIT_SIGNAL + status.signal().unwrap_or_default());
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(EXIT_FAILED)))
}

/// Freezes the volume. It is frozen as long as the returned connection is there.
fn freeze(args: &Freeze) -> Result<UnixStream> {
    let shown = || args.dir.display().to_string();
    let dir = mounts::resolved(&args.dir);
    if front::exported_below(&dir).is_some() {
        return Err(
            Failure::new(format!("{}: the kernel serves its files", shown()))
                .advise("fsfreeze(8) freezes it: fsfreeze --freeze DIR, and later --unfreeze"),
        );
    }
    answer::wait(&args.dir, answer::PATIENCE)?;
    // The kernel gives its dirty pages to the server.
    let root = File::open(&args.dir).during(shown)?;
    rustix::fs::syncfs(&root).during(shown)?;
    drop(root);
    let mut name = [0; 8];
    rustix::rand::getrandom(&mut name, GetRandomFlags::empty())?;
    let name = format!("stetfs-freeze-{:016x}", u64::from_ne_bytes(name));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    stetfs_fuse::freeze(&args.dir, args.timeout, &name).map_err(|e| refused(args, e))?;
    // The server has connected before it answered.
    listener.set_nonblocking(true)?;
    let (peer, _) = listener.accept()?;
    Ok(peer)
}

/// Returns whether the other end of the connection is still there.
fn has_not_ended(peer: &mut UnixStream) -> bool {
    let ended = peer
        .set_nonblocking(true)
        .and_then(|()| peer.read(&mut [0]));
    matches!(ended, Err(e) if e.kind() == ErrorKind::WouldBlock)
}

fn refused(args: &Freeze, e: io::Error) -> Failure {
    let shown = args.dir.display();
    match Errno::from_io_error(&e) {
        Some(Errno::RANGE) => Failure::new(format!(
            "{shown}: the mount gives its server up (abort_hung=) before {} s are over",
            args.timeout
        ))
        .advise("freeze it for a shorter time: --timeout SECONDS"),
        Some(Errno::OPNOTSUPP | Errno::BUSY | Errno::ALREADY) => {
            let why = upgrade::refusal(&args.dir).unwrap_or_else(|| e.to_string());
            Failure::new(format!("{shown}: not frozen: {why}"))
        }
        _ => Failure::new(format!("{shown}: not frozen: {e}")),
    }
}
