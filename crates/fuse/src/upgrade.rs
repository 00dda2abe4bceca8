//! Handing a mount over to another program, in the same process: files stay open, and programs see
//! a pause.
//!
//! Somebody sets `system.stetfs.control` to `upgrade PROGRAM`. Then, in this order:
//! 1. The [gate](crate::wire::Gate) closes, as soon as nothing is under way. Requests that come
//!    from then on are kept.
//! 2. Everything is committed. From here on the volume is what a crash at this moment would leave.
//! 3. The process becomes the program (execve(2)). It inherits the connection to the kernel, and a
//!    file in memory that says what the kernel believes to be open, and what was asked meanwhile.
//! 4. The program mounts the volume, which recovers it, and opens again what was open. It answers
//!    what was kept, and whoever has asked for the upgrade.
//!
//! If anything fails before 3, the gate opens again, and the mount goes on as it was. If the
//! program fails in 4, the mount ends as by a crash, with everything committed.
//!
//! *What is refused*, because it is in this process alone: requests by io_uring, whose rings end
//! with the process; an open group or layer.
//!
//! *Who may ask*: the server's user, or root; and only somebody who could do to this machine what
//! the server can (`might.rs`).
//!
//! *What begins anew*: counters, and what programs have written (`writers.rs`).
//!
//! The file: one line of JSON, [`State`], whose version is [`VERSION`]; then the kept requests, one
//! behind the other.

mod hand_over;
mod might;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use stetfs::InUse;
use stetfs_sys::inherited;

use crate::mount::{Mounted, Place};
use crate::opens::Open;
use crate::survive::{Before, Guard, Uses};
use crate::wire::{Agreed, Channel, Gate, Kept, Link};

/// The version of what is handed over. A program takes over from one of the same version only.
pub const VERSION: u32 = 3;

/// The arguments of the program that comes next, its name first, by the number of a descriptor for
/// [`Handed::read`].
pub type Next = Box<dyn Fn(u32) -> Vec<OsString> + Send + Sync>;

/// The programs before and after this one.
#[derive(Default)]
pub struct Succession {
    /// What the program before this one has handed over.
    pub before: Option<Handed>,
    /// `None`: this mount cannot be handed over.
    pub next: Option<Next>,
}

/// What is handed over, beside the requests.
#[derive(Default, Serialize, Deserialize)]
struct State {
    version: u32,
    /// When the gate began to close: nanoseconds of the clock that runs since the system started.
    since_ns: u64,
    /// How often this mount was handed over, this time included.
    upgrades: u32,
    /// The mount point.
    dir: Vec<u8>,
    device: String,
    is_block: bool,
    one_request: u32,
    agreed: Agreed,
    /// For each worker the number of its descriptor of /dev/fuse.
    channels: Vec<u32>,
    companion: Option<Companion>,
    /// Who has asked: the index of the channel, and the number of the request. `None`: the server
    /// before has died.
    asked: Option<(usize, u64)>,
    /// What says which companion looks after the mount, if it survives its server.
    guard: Option<u32>,
    /// The log of a server that has died, which tells everything that the rest of this list does
    /// after an upgrade.
    log: Option<u32>,
    /// What is in use, for the log of the next server.
    uses: Uses,
    /// The number of the next open file.
    next_handle: u64,
    opens: Vec<(u32, Open)>,
    /// What the volume has in use.
    in_use: Vec<InUse>,
    /// Closed files of which the kernel may have wrong times and a wrong size.
    stale: Vec<u32>,
    /// For each kept request its channel and its length in bytes.
    kept: Vec<(usize, usize)>,
}

/// The companion process: the number of the descriptor by which it is dismissed, and its own.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Companion {
    to: u32,
    pid: i32,
}

/// What a program needs to go on with a mount.
pub struct Handed {
    state: State,
    link: Link,
    companion: Option<(File, Pid)>,
    guard: Option<Guard>,
    /// What a server that has died has left.
    before: Option<Before>,
}

/// A server's part in the succession.
#[derive(Default)]
pub(crate) struct Upgrade {
    next: Option<Next>,
    /// How often the mount was handed over before, and how long the last time took.
    count: u32,
    pause: OnceLock<Duration>,
    facts: OnceLock<Facts>,
}

/// What is known once the mount stands.
struct Facts {
    place: Place,
    /// The descriptor by which the companion is dismissed, and its process.
    companion: Option<(OwnedFd, Pid)>,
}

/// What `system.stetfs.stats` says of it.
#[derive(Serialize)]
pub(crate) struct Told {
    /// The version of what can be handed over; `None` if nothing can.
    version: Option<u32>,
    count: u32,
    pause_ms: Option<u128>,
}

impl Upgrade {
    pub(crate) fn new(next: Option<Next>, before: Option<&Handed>) -> Self {
        Self {
            next,
            count: before.map_or(0, |handed| handed.state.upgrades),
            ..Self::default()
        }
    }

    /// Notes the mount, with the descriptor by which its companion is dismissed.
    pub(crate) fn note(&self, place: &Place, companion: Option<(OwnedFd, Pid)>) {
        let place = place.clone();
        let _ = self.facts.set(Facts { place, companion });
    }

    /// Returns what is needed to hand the mount over, if it can be.
    fn known(&self) -> Option<(&Next, &Facts)> {
        self.next.as_ref().zip(self.facts.get())
    }

    pub(crate) fn told(&self) -> Told {
        Told {
            version: self.next.is_some().then_some(VERSION),
            count: self.count,
            pause_ms: self.pause.get().map(Duration::as_millis),
        }
    }
}

impl Handed {
    /// Reads what another program has left behind this descriptor. No program that this process
    /// starts gets anything of it.
    ///
    /// # Errors
    /// There is no such thing, or it is of another version.
    pub fn read(number: u32) -> io::Result<Self> {
        let mut file = File::from(inherited::take(number)?);
        // One that was started for the same death, and killed, may have read it.
        file.rewind()?;
        let mut file = BufReader::new(file);
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line)?;
        let state: State = serde_json::from_slice(&line)?;
        if state.version != VERSION {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the program before hands over version {}, not {VERSION}",
                    state.version
                ),
            ));
        }
        let gate = Arc::<Gate>::default();
        for (channel, len) in &state.kept {
            let mut bytes = vec![0; *len];
            file.read_exact(&mut bytes)?;
            gate.keep(Kept {
                channel: *channel,
                bytes,
            });
        }
        // The descriptor itself stays open, and would keep the memory. A companion may read it
        // again.
        if state.log.is_none() {
            file.get_ref().set_len(0)?;
        }
        let mut channels = Vec::new();
        for number in &state.channels {
            channels.push(Arc::new(Channel::new(inherited::take(*number)?)));
        }
        let companion = match state.companion {
            Some(Companion { to, pid }) => {
                let to = File::from(inherited::take(to)?);
                Pid::from_raw(pid).map(|pid| (to, pid))
            }
            None => None,
        };
        let guard = state.guard.map(Guard::inherited).transpose()?;
        let before = match state.log {
            Some(number) => Some(Before::read(&File::from(inherited::take(number)?))?),
            None => None,
        };
        let agreed = state.agreed;
        let link = Link {
            channels,
            agreed,
            gate,
        };
        Ok(Self {
            state,
            link,
            companion,
            guard,
            before,
        })
    }

    /// Returns whether something says which companion looks after the mount.
    pub(crate) fn has_guard(&self) -> bool {
        self.guard.is_some()
    }

    /// Takes what says which companion looks after the mount.
    pub(crate) fn take_guard(&mut self) -> Option<Guard> {
        self.guard.take()
    }

    /// Returns whether the server before has died.
    pub fn is_after_death(&self) -> bool {
        self.state.log.is_some()
    }

    /// Returns the mount point.
    pub fn dir(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.state.dir.clone()))
    }

    /// Returns what the volume must have in use when it is mounted.
    pub fn in_use(&self) -> Vec<InUse> {
        match &self.before {
            Some(before) => before.in_use(),
            None => self.state.in_use.clone(),
        }
    }

    pub(crate) fn link(&self) -> Link {
        self.link.clone()
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            mounted: Mounted {
                dir: self.dir(),
                device: self.state.device.clone(),
            },
            is_block: self.state.is_block,
            one_request: self.state.one_request,
        }
    }
}
