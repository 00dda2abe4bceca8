//! `stetfs freeze`: a command runs while a mounted volume stands still.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::args::Freeze;
use crate::below::front;
use crate::failure::{Explain, Failure, Result};
use crate::{answer, mounts, ran};

pub(crate) fn run(args: &Freeze) -> Result<ExitCode> {
    let mut peer = freeze(args).map_err(|failure| failure.exit(ran::EXIT_FAILED))?;
    let ended = Command::new(&args.words[0]).args(&args.words[1..]).status();
    let is_frozen = has_not_ended(&mut peer);
    drop(peer);
    let status = ended.map_err(|e| ran::not_run(&args.words, &e))?;
    if !is_frozen {
        return Err(ran::failed(format!(
            "{}: the volume went on after {} s, before the command had ended: its copy may be of \
                no use",
            args.dir.display(),
            args.timeout
        ))
        .advise("give it more time: --timeout SECONDS; the command must not use the mount"));
    }
    Ok(ExitCode::from(ran::code(status)))
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
            let why = answer::refusal(&args.dir).unwrap_or_else(|| e.to_string());
            Failure::new(format!("{shown}: not frozen: {why}"))
        }
        _ => Failure::new(format!("{shown}: not frozen: {e}")),
    }
}
