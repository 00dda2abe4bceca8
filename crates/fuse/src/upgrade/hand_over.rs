//! The server's side of a hand-over: becoming the next program, and going on where the one before
//! has stopped.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::WaitOptions;
use rustix::time::{ClockId, clock_gettime};
use stetfs_format::InodeNo;
use stetfs_sys::inherited;

use super::{Companion, Facts, Handed, State, VERSION, might};
use crate::backend::Backend;
use crate::errno::Outcome;
use crate::opens::Open;
use crate::server::FsServer;
use crate::still::{Asked, Refused};
use crate::wire::abi::InHeader;
use crate::wire::{Answered, Channel, Kept, Link, Ticket};

fn failed(during: &str) -> impl Fn(io::Error) -> Refused {
    move |e| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Refused(errno, format!("{during}: {e}"))
    }
}

/// Nanoseconds since the system started.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

impl<B: Backend> FsServer<B> {
    /// Answers who asks that the mount be handed over to a program: after that, or if it is
    /// refused.
    pub(crate) fn upgrade(
        self: &Arc<Self>,
        from: &InHeader,
        program: &OsStr,
        ticket: &dyn Fn() -> Ticket,
    ) -> Outcome<Answered> {
        self.administrator(from)?;
        if !might::is_ours(from.pid) {
            tracing::warn!("process {} may not choose the server's program", from.pid);
            return Err(Errno::PERM);
        }
        let program = PathBuf::from(program);
        if !program.is_absolute() || !program.is_file() {
            return Err(Errno::NOENT);
        }
        self.stop_for(from, ticket, move |server, asked| {
            let Err(refused) = server.hand_over(&program, asked);
            Err(refused)
        })?;
        Ok(Answered::Later)
    }

    /// Hands the mount over. Returns only if that fails; then the mount goes on.
    fn hand_over(&self, program: &Path, asked: &Asked) -> Result<Infallible, Refused> {
        let cannot = || Refused::new(Errno::OPNOTSUPP, "this mount cannot be handed over");
        let (next, facts) = self.upgrade.known().ok_or_else(cannot)?;
        let since_ns = now_ns();
        let (_still, link) = self.still()?;
        self.check_nothing_is_lost()?;
        let mut left = Left::default();
        let number = self
            .write_down((link, facts), asked, since_ns, &mut left)
            .and_then(|file| left.leave(&file))
            .map_err(failed("writing down what is handed over"))?;
        tracing::info!("handing over to {}", program.display());
        let e = inherited::become_program(program, &next(number));
        Err(failed("starting it")(e.into()))
    }

    /// Fails if something is in this process alone.
    fn check_nothing_is_lost(&self) -> Result<(), Refused> {
        if self.groups.are_open() || self.layer.is_under_way() {
            return Err(Refused::new(Errno::BUSY, "a transaction is open"));
        }
        Ok(())
    }

    /// Writes down what the next program must know, and leaves it its descriptors.
    fn write_down(
        &self,
        (link, facts): (&Link, &Facts),
        asked: &Asked,
        since_ns: u64,
        left: &mut Left,
    ) -> io::Result<File> {
        let by = |one: &Arc<Channel>| Arc::ptr_eq(one, &asked.channel);
        let channel = link.channels.iter().position(by);
        let channel = channel.ok_or_else(|| io::Error::other("a channel that nobody has"))?;
        let mut kept = Vec::new();
        let mut requests = Vec::new();
        link.gate.each_kept(|one: &Kept| {
            kept.push((one.channel, one.bytes.len()));
            requests.extend_from_slice(&one.bytes);
        });
        let mut channels = Vec::new();
        for channel in &link.channels {
            channels.push(left.leave(channel)?);
        }
        let companion = match &facts.companion {
            Some((to, pid)) => Some(Companion {
                to: left.leave(to)?,
                pid: pid.as_raw_nonzero().get(),
            }),
            None => None,
        };
        let state = State {
            version: VERSION,
            since_ns,
            upgrades: self.upgrade.count + 1,
            dir: facts.place.mounted.dir.as_os_str().as_bytes().to_vec(),
            device: facts.place.mounted.device.clone(),
            is_block: facts.place.is_block,
            one_request: facts.place.one_request,
            agreed: link.agreed,
            channels,
            companion,
            asked: (channel, asked.unique),
            next_handle: self.groups.next_handle(),
            opens: numbers(self.opens.all()),
            in_use: self.fs.in_use(),
            stale: self.opens.take_stale().iter().map(|ino| ino.0).collect(),
            kept,
        };
        let mut file = File::from(rustix::fs::memfd_create("stetfs", MemfdFlags::CLOEXEC)?);
        serde_json::to_writer(&mut file, &state)?;
        file.write_all(b"\n")?;
        file.write_all(&requests)?;
        file.rewind()?;
        Ok(file)
    }

    /// Has open what was open. The kernel knows nothing of the program before.
    pub(crate) fn restore(&self, handed: &Handed) {
        let state = &handed.state;
        self.groups.begin_with(state.next_handle);
        self.follow(state.agreed.over_io_uring);
        for (ino, open) in &state.opens {
            self.opens.restore(InodeNo(*ino), *open);
        }
        self.opens
            .note_stale(state.stale.iter().copied().map(InodeNo));
    }

    /// Ends the succession that this program is the second of: whoever has asked gets an answer,
    /// and the companion of the program before ends.
    pub(crate) fn has_taken_over(&self, handed: Handed) {
        let (channel, unique) = handed.state.asked;
        if let Some(channel) = handed.link.channels.get(channel) {
            channel.succeed(unique);
        }
        let pause = Duration::from_nanos(now_ns().saturating_sub(handed.state.since_ns));
        let _ = self.upgrade.pause.set(pause);
        if let Some((mut to, pid)) = handed.companion {
            let _ = to.write_all(crate::companion::DONE.as_bytes());
            drop(to);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

fn numbers(opens: Vec<(InodeNo, Open)>) -> Vec<(u32, Open)> {
    opens.into_iter().map(|(ino, open)| (ino.0, open)).collect()
}

/// Copies of descriptors that the next program gets. Without one, they end here.
#[derive(Default)]
struct Left(Vec<OwnedFd>);

impl Left {
    /// Leaves it a descriptor.
    fn leave(&mut self, descriptor: &impl AsFd) -> io::Result<u32> {
        let copy = descriptor.as_fd().try_clone_to_owned()?;
        let number = inherited::leave(&copy, true)?;
        self.0.push(copy);
        Ok(number)
    }
}
