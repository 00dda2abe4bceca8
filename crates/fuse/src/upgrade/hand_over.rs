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
use stetfs_format::InodeNo;
use stetfs_sys::inherited;

use super::{Companion, Facts, Handed, State, VERSION, might};
use crate::backend::Backend;
use crate::errno::Outcome;
use crate::mount::Place;
use crate::opens::Open;
use crate::server::FsServer;
use crate::still::{Asked, Refused};
use crate::survive::{Guard, Heir, now_ns};
use crate::wire::abi::InHeader;
use crate::wire::{Answered, Channel, Kept, Link, Ticket};

fn failed(during: &str) -> impl Fn(io::Error) -> Refused {
    move |e| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        Refused(errno, format!("{during}: {e}"))
    }
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
        let companion = match &facts.companion {
            Some((to, pid)) => Some(Companion {
                to: left.leave(to)?,
                pid: pid.as_raw_nonzero().get(),
            }),
            None => None,
        };
        let state = State {
            since_ns,
            upgrades: self.upgrade.count + 1,
            companion,
            asked: Some((channel, asked.unique)),
            guard: self.survive.leave_guard(|guard| left.leave(guard))?,
            uses: self.survive.uses(),
            next_handle: self.groups.next_handle(),
            opens: numbers(self.opens.all()),
            in_use: self.fs.in_use(),
            stale: self.opens.take_stale().iter().map(|ino| ino.0).collect(),
            kept,
            ..State::of(link, &facts.place, left)?
        };
        state.write(&requests)
    }

    /// Returns how the companion starts a server that goes on with this mount when this process
    /// dies; `None` if none can.
    pub(crate) fn heir(
        &self,
        (link, place): (&Link, &Place),
        guard: &Guard,
        log: &File,
    ) -> io::Result<Option<Heir>> {
        let Some(next) = &self.upgrade.next else {
            return Ok(None);
        };
        let mut left = Left::default();
        let guard_number = left.leave(guard.file())?;
        let state = State {
            upgrades: self.upgrade.count,
            guard: Some(guard_number),
            log: Some(left.leave(log)?),
            ..State::of(link, place, &mut left)?
        };
        let number = left.leave(&state.write(&[])?)?;
        Ok(Some(Heir {
            words: next(number),
            guard: guard_number,
            number: guard.number(),
            _left: left.0,
        }))
    }

    /// Has open what was open. The kernel knows nothing of the program before.
    ///
    /// # Errors
    /// The program before has died, and what the volume has lost of its work cannot be done once
    /// more: in words.
    pub(crate) fn restore(&self, handed: &Handed) -> Result<(), String> {
        let state = &handed.state;
        if let Some(before) = &handed.before {
            self.follow(state.agreed.over_io_uring);
            return self.go_on(before);
        }
        self.survive.goes_on_with(state.uses.clone());
        self.groups.begin_with(state.next_handle);
        self.follow(state.agreed.over_io_uring);
        for (ino, open) in &state.opens {
            self.opens.restore(InodeNo(*ino), *open);
        }
        self.opens
            .note_stale(state.stale.iter().copied().map(InodeNo));
        Ok(())
    }

    /// Ends the succession that this program is the second of: whoever has asked gets an answer,
    /// and the companion of the program before ends.
    pub(crate) fn has_taken_over(&self, handed: Handed) {
        if let Some((channel, unique)) = handed.state.asked
            && let Some(channel) = handed.link.channels.get(channel)
        {
            channel.succeed(unique);
        }
        let since_ns = match self
            .survive
            .last_death_ns()
            .filter(|_| handed.is_after_death())
        {
            Some(died) => died,
            None => handed.state.since_ns,
        };
        let pause = Duration::from_nanos(now_ns().saturating_sub(since_ns));
        let _ = self.upgrade.pause.set(pause);
        if let Some((mut to, pid)) = handed.companion {
            let _ = to.write_all(crate::companion::DONE.as_bytes());
            drop(to);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

impl State {
    /// Returns what does not change while the mount stands.
    fn of(link: &Link, place: &Place, left: &mut Left) -> io::Result<Self> {
        let mut channels = Vec::new();
        for channel in &link.channels {
            channels.push(left.leave(channel)?);
        }
        let dir = &place.mounted.dir;
        Ok(Self {
            version: VERSION,
            dir: dir.as_os_str().as_bytes().to_vec(),
            device: place.mounted.device.clone(),
            is_block: place.is_block,
            one_request: place.one_request,
            agreed: link.agreed,
            channels,
            ..Self::default()
        })
    }

    /// Writes it to a file in memory, before the kept requests.
    fn write(&self, requests: &[u8]) -> io::Result<File> {
        let mut file = File::from(rustix::fs::memfd_create("stetfs", MemfdFlags::CLOEXEC)?);
        serde_json::to_writer(&mut file, self)?;
        file.write_all(b"\n")?;
        file.write_all(requests)?;
        file.rewind()?;
        Ok(file)
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
