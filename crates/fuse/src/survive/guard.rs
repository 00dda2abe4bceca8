//! Who goes on with a mount when its server dies: what the companion needs for that, and does.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::time::{ClockId, clock_gettime};
use stetfs_format::width::u64_as_usize;
use stetfs_sys::inherited;

/// Within this, only so many servers may die. If one more does, the next one would die as well.
const WITHIN: Duration = Duration::from_secs(60);
/// Where in the guard the number of deaths is.
const DEATHS: u64 = 8;
/// Where in the guard the times of the last deaths are.
const TIMES: u64 = 16;
/// How often to look whether the next server goes on.
const LOOK: Duration = Duration::from_millis(5);

/// Returns the nanoseconds since the system started.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Says which of the companions of a mount looks after it: the one of the server that goes on. A
/// file in memory that all servers and companions of the mount share: the number of that companion,
/// how many servers have died, and when the last of them did, in the order of their deaths.
#[derive(Debug)]
pub(crate) struct Guard {
    file: File,
    /// The number of this process's companion.
    number: u64,
}

impl Guard {
    /// Makes one for the first server of a mount of which so many may die.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn first(deaths: u32) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create(
            "stetfs-guard",
            MemfdFlags::CLOEXEC,
        )?);
        file.set_len(TIMES + 8 * u64::from(deaths))?;
        Ok(Self { file, number: 1 })
    }

    /// Takes what the server before has left by this number.
    ///
    /// # Errors
    /// There is no such thing.
    pub(crate) fn inherited(descriptor: u32) -> io::Result<Self> {
        let file = File::from(inherited::take(descriptor)?);
        let mut guard = Self { file, number: 0 };
        guard.number = guard.whose()? + 1;
        Ok(guard)
    }

    fn of_companion(descriptor: u32, number: u64) -> io::Result<Self> {
        let file = File::from(inherited::take(descriptor)?);
        Ok(Self { file, number })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn number_at(&self, offset: u64) -> io::Result<u64> {
        let mut number = [0; 8];
        self.file.read_exact_at(&mut number, offset)?;
        Ok(u64::from_ne_bytes(number))
    }

    fn whose(&self) -> io::Result<u64> {
        self.number_at(0)
    }

    /// From now on the companion of this number looks after the mount, and no other.
    pub(super) fn take(&self) -> io::Result<()> {
        self.file.write_all_at(&self.number.to_ne_bytes(), 0)
    }

    fn is_mine(&self) -> bool {
        self.whose().is_ok_and(|number| number == self.number)
    }

    /// Notes that a server has died. Returns whether that was one too many.
    fn note_death(&self) -> io::Result<bool> {
        let deaths = self.number_at(DEATHS)? + 1;
        self.file.write_all_at(&deaths.to_ne_bytes(), DEATHS)?;
        let mut times = vec![0; u64_as_usize(self.file.metadata()?.len() - TIMES)];
        self.file.read_exact_at(&mut times, TIMES)?;
        let (now, last) = (now_ns(), times.len() - 8);
        let first = u64::from_ne_bytes(std::array::from_fn(|at| times[at]));
        times.copy_within(8.., 0);
        times[last..].copy_from_slice(&now.to_ne_bytes());
        self.file.write_all_at(&times, TIMES)?;
        let since = Duration::from_nanos(now.saturating_sub(first));
        Ok(first != 0 && since < WITHIN)
    }

    /// Returns when the last server died, in nanoseconds since the system started.
    pub(crate) fn last_death_ns(&self) -> u64 {
        let len = self.file.metadata().map(|meta| meta.len());
        let last = len.and_then(|len| self.number_at(len.saturating_sub(8)));
        last.unwrap_or(0)
    }

    /// Returns how many servers of the mount have died.
    pub(super) fn deaths(&self) -> u64 {
        self.number_at(DEATHS).unwrap_or(0)
    }

    /// Returns the number of this process's companion.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// How the companion starts the next server.
pub(crate) struct Heir {
    /// The command line, the program's name first.
    pub(crate) words: Vec<OsString>,
    /// The guard's descriptor.
    pub(crate) guard: u32,
    pub(crate) number: u64,
    /// What both inherit, until they are started.
    pub(crate) _left: Vec<OwnedFd>,
}

impl Heir {
    /// Returns the arguments by which the companion is told.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = OsString> {
        let numbers = [self.guard.to_string(), self.number.to_string()];
        let numbers = numbers.map(OsString::from).into_iter();
        numbers.chain(self.words.iter().cloned())
    }
}

/// The companion's side.
pub(crate) struct Succession {
    guard: Guard,
    words: Vec<OsString>,
}

/// What has become of a mount whose server has died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Succeeded {
    /// Another server goes on with it, after so many deaths since the mount was made.
    GoesOn { deaths: u64 },
    /// Another companion looks after it.
    NotOurs,
    /// None does: why.
    Over(String),
}

impl Succession {
    /// Reads the companion's arguments; `None`: there are none of these.
    pub(crate) fn read(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let number = |word: Option<OsString>| word?.to_str()?.parse::<u64>().ok();
        let descriptor = u32::try_from(number(arguments.next())?).ok()?;
        let number = number(arguments.next())?;
        let guard = Guard::of_companion(descriptor, number).ok()?;
        // The next server inherits the guard by its number.
        inherited::leave_again(descriptor).ok()?;
        Some(Self {
            guard,
            words: arguments.collect(),
        })
    }

    /// Has another server go on. `prepare` says where its messages go.
    pub(crate) fn begin(&self, prepare: impl Fn(&mut Command)) -> Succeeded {
        loop {
            // The server before may have been followed already.
            if !self.guard.is_mine() {
                return Succeeded::NotOurs;
            }
            match self.guard.note_death() {
                Ok(false) => {}
                Ok(true) => {
                    let within = WITHIN.as_secs();
                    return Succeeded::Over(format!("too many of them died within {within} s"));
                }
                Err(e) => return Succeeded::Over(e.to_string()),
            }
            match self.start(&prepare) {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(e) => return Succeeded::Over(format!("starting another server: {e}")),
            }
        }
    }

    /// Starts a server. Returns what has become of it; `None`: it was killed.
    fn start(&self, prepare: &impl Fn(&mut Command)) -> io::Result<Option<Succeeded>> {
        let Some((name, words)) = self.words.split_first() else {
            return Ok(Some(Succeeded::Over("nobody knows how".to_owned())));
        };
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        prepare(&mut command);
        let mut server = command.spawn()?;
        loop {
            let ended = server.try_wait()?;
            if !self.guard.is_mine() {
                let deaths = self.guard.deaths();
                return Ok(Some(Succeeded::GoesOn { deaths }));
            }
            match ended.map(|status| status.code()) {
                None => thread::sleep(LOOK),
                Some(None) => return Ok(None),
                Some(Some(code)) => {
                    let why = format!("the next server ended with code {code}");
                    return Ok(Some(Succeeded::Over(why)));
                }
            }
        }
    }
}
