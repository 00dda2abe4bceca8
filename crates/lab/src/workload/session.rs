//! A session: a mounted volume on which a workload makes its calls, and the clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use stetfs::{Caller, Error, Fs, OpenFlags, RenameFlags, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_media::Clock;

use super::beside::{Background, Beside};
use super::calls::call::{Bytes, Call, Place, What};
use super::calls::noted::Noted;
use crate::system::processor::{Costs, Work};

/// When writes become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Each write is durable when it returns (O_SYNC): one transaction per request.
    EachWrite,
    /// The running transaction is committed when it is this old (ext3: 5 s), or full. In virtual
    /// time by the session, which looks after each call; in real time by the volume's own thread.
    Every(Duration),
}

impl Durable {
    /// ext3's default, and that of the papers.
    pub const EXT3: Self = Self::Every(Duration::from_secs(5));
}

/// The clock of a session.
#[derive(Clone, Debug)]
pub enum Time {
    /// The clock of simulated media.
    Virtual(Clock),
    /// The clock of this machine.
    Real(Instant),
}

impl Time {
    /// Nanoseconds since some moment.
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Virtual(clock) => clock.now_ns(),
            Self::Real(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Calls and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Calls of any kind.
    pub operations: u64,
    /// Bytes handed to writes and appends.
    pub written_bytes: u64,
    /// Bytes got from reads.
    pub read_bytes: u64,
    /// Writes and appends.
    pub writes: u64,
    /// Reads that got something.
    pub reads: u64,
}

impl Counts {
    /// Joins these with the work of the volume and the media.
    fn work(self, rest: Work) -> Work {
        Work {
            calls: self.operations,
            copied: self.written_bytes + self.read_bytes,
            ..rest
        }
    }
}

/// Called with how much of a phase is done, and of how much.
pub type Tell<'a> = &'a dyn Fn(u64, u64);

/// A volume on which a workload makes its calls.
pub struct Session<'a> {
    fs: &'a Fs,
    caller: Caller,
    time: Time,
    durable: Durable,
    committed_ns: u64,
    counts: Counts,
    tell: Tell<'a>,
    /// Each call's nanoseconds, where they are kept, and when the last one ended.
    calls: Option<(Vec<u64>, u64)>,
    charged: Option<Charged<'a>>,
    processor_ns: u64,
    beside: Option<Beside<'a>>,
    /// Times of the calls that committed, where they are kept.
    commits: Vec<u64>,
    noted: Option<Noted>,
}

/// A processor that is charged after each call, and what it has worked so far.
struct Charged<'a> {
    costs: Costs,
    work: &'a dyn Fn() -> Work,
    before: Work,
}

/// The time that calls took.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// Nanoseconds of each call, in their order, without the commits that were due behind them.
    pub calls_ns: Vec<u64>,
    /// Those of the calls that committed, where there is a background.
    pub commits_ns: Vec<u64>,
    /// Device time that the background has begun and not done, in nanoseconds.
    pub owed_ns: u64,
    /// The processor's part of the run's time, in nanoseconds.
    pub processor_ns: u64,
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl<'a> Session<'a> {
    /// Begins a session on a mounted volume.
    pub fn new(fs: &'a Fs, time: Time, durable: Durable, tell: Tell<'a>) -> Self {
        Self {
            fs,
            caller: Caller::root(),
            committed_ns: time.now_ns(),
            time,
            durable,
            counts: Counts::default(),
            tell,
            calls: None,
            charged: None,
            processor_ns: 0,
            beside: None,
            commits: Vec::new(),
            noted: None,
        }
    }

    /// Makes the session note each call that changes something or makes it durable, with a length
    /// for its bytes.
    #[must_use]
    pub fn noting(mut self) -> Self {
        self.noted = Some(Noted::new(self.root()));
        self
    }

    /// Returns the noted calls; `None` where the workload made others without the session.
    pub fn noted(self) -> Option<Vec<Call>> {
        self.noted?.calls()
    }

    fn note(&mut self, what: impl FnOnce(&mut Noted) -> Option<What>) {
        if let Some(noted) = &mut self.noted
            && let Some(what) = what(noted)
        {
            noted.note(what);
        }
    }

    /// Makes the session note how long each call takes.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.calls = Some((Vec::new(), self.time.now_ns()));
        self
    }

    /// Lets virtual time pass for a processor too, by what `work` counts.
    #[must_use]
    pub fn charged(mut self, costs: Costs, work: &'a dyn Fn() -> Work) -> Self {
        self.charged = Some(Charged {
            costs,
            work,
            before: work(),
        });
        self
    }

    /// Adds a background, in virtual time. `late_ns` returns the time of checkpoints that the
    /// device's meter does not count.
    #[must_use]
    pub fn beside(mut self, how: Background, late_ns: &'a dyn Fn() -> u64) -> Self {
        if let Time::Virtual(clock) = &self.time
            && how != Background::NONE
        {
            self.beside = Some(Beside::new(self.fs, clock.clone(), how, late_ns));
        }
        self
    }

    /// Returns the time that calls took so far.
    pub fn spent(self) -> Spent {
        Spent {
            calls_ns: self.calls.map_or_else(Vec::new, |(calls, _)| calls),
            commits_ns: self.commits,
            owed_ns: self.beside.map_or(0, |beside| beside.owed_ns()),
            processor_ns: self.processor_ns,
        }
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Nanoseconds of the session's time.
    pub fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    /// The root directory.
    pub fn root(&self) -> InodeNo {
        self.fs.root()
    }

    /// The volume, for code that makes its calls itself and reports them afterwards
    /// ([`was_called`](Self::was_called)).
    pub fn fs(&self) -> &'a Fs {
        self.fs
    }

    /// Whether each write is to be durable when it returns.
    pub(crate) fn syncs_each_write(&self) -> bool {
        self.durable == Durable::EachWrite
    }

    /// Whether the root directory has such a file.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn has(&self, name: &str) -> Result<bool> {
        match self.fs.lookup(&self.caller, self.root(), name.as_bytes()) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Tells how far a phase is.
    pub fn tell(&self, done: u64, of: u64) {
        (self.tell)(done, of);
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of the volume, as for all calls here.
    pub fn mkdir(&mut self, parent: InodeNo, name: &str) -> Result<InodeNo> {
        let entry = self.fs.mkdir(&self.caller, parent, name.as_bytes(), 0o755);
        let ino = entry.with_context(|| format!("mkdir {name}"))?.ino;
        self.note(|noted| Some(What::Mkdir(noted.name(parent, name, ino)?)));
        self.called()?;
        Ok(ino)
    }

    /// Makes a file, which must not be there, and opens it.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn create(&mut self, parent: InodeNo, name: &str) -> Result<InodeNo> {
        let flags = READ_WRITE | OpenFlags::EXCLUSIVE;
        let entry = self
            .fs
            .create(&self.caller, parent, name.as_bytes(), 0o644, flags);
        let ino = entry.with_context(|| format!("create {name}"))?.ino;
        self.note(|noted| Some(What::Create(noted.name(parent, name, ino)?)));
        self.called()?;
        Ok(ino)
    }

    /// Opens a file by its name.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn open(&mut self, parent: InodeNo, name: &str) -> Result<InodeNo> {
        let entry = self.fs.lookup(&self.caller, parent, name.as_bytes());
        let ino = entry.with_context(|| format!("open {name}"))?.ino;
        self.fs.open(&self.caller, ino, READ_WRITE)?;
        self.note(|noted| noted.name(parent, name, ino).and(None));
        self.called()?;
        Ok(ino)
    }

    /// Returns the inode of a name.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn find(&mut self, parent: InodeNo, name: &str) -> Result<InodeNo> {
        let entry = self.fs.lookup(&self.caller, parent, name.as_bytes());
        let ino = entry.with_context(|| format!("lookup {name}"))?.ino;
        self.note(|noted| noted.name(parent, name, ino).and(None));
        Ok(ino)
    }

    /// Looks at a file's attributes.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn stat(&mut self, parent: InodeNo, name: &str) -> Result<()> {
        let ino = self.find(parent, name)?;
        self.fs.getattr(ino)?;
        self.called()
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn fsync(&mut self, ino: InodeNo) -> Result<()> {
        self.fs.fsync(ino, false)?;
        self.wait_for_commit();
        self.note(|noted| Some(What::Fsync(noted.path(ino)?)));
        self.called()
    }

    /// Ends an open or create.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn close(&mut self, ino: InodeNo) -> Result<()> {
        self.fs.release(ino)?;
        self.note(|noted| Some(What::Close(noted.path(ino)?)));
        self.called()
    }

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn remove(&mut self, parent: InodeNo, name: &str) -> Result<()> {
        let removed = self.fs.unlink(&self.caller, parent, name.as_bytes());
        removed.with_context(|| format!("remove {name}"))?;
        self.note(|noted| Some(What::Unlink(noted.below(parent, name)?)));
        self.called()
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn rmdir(&mut self, parent: InodeNo, name: &str) -> Result<()> {
        let removed = self.fs.rmdir(&self.caller, parent, name.as_bytes());
        removed.with_context(|| format!("rmdir {name}"))?;
        self.note(|noted| Some(What::Rmdir(noted.below(parent, name)?)));
        self.called()
    }

    /// Gives a file another name in its directory.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn rename(&mut self, parent: InodeNo, from: &str, to: &str) -> Result<()> {
        let (old, new) = (from.as_bytes(), to.as_bytes());
        let none = RenameFlags::empty();
        let renamed = self.fs.rename(&self.caller, parent, old, parent, new, none);
        renamed.with_context(|| format!("rename {from}"))?;
        self.note(|noted| {
            let (from, to) = (noted.below(parent, from)?, noted.below(parent, to)?);
            Some(What::Rename(from, to))
        });
        self.called()
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Those of the volume; a short write.
    pub fn write(&mut self, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_as(ino, offset, bytes, WriteFlags::empty())
    }

    /// Writes all of `bytes` at the end.
    ///
    /// # Errors
    /// Those of the volume; a short write.
    pub fn append(&mut self, ino: InodeNo, bytes: &[u8]) -> Result<()> {
        self.write_as(ino, 0, bytes, WriteFlags::APPEND)
    }

    fn write_as(&mut self, ino: InodeNo, at: u64, bytes: &[u8], how: WriteFlags) -> Result<()> {
        let how = match self.durable {
            Durable::EachWrite => how | WriteFlags::SYNC,
            Durable::Every(_) => how,
        };
        let (_, n) = self.fs.write_with(&self.caller, ino, at, bytes, how)?;
        ensure!(
            n == bytes.len(),
            "{n} of {} bytes were written",
            bytes.len()
        );
        self.counts.written_bytes += n as u64;
        self.counts.writes += 1;
        self.note(|noted| {
            let place = if how.contains(WriteFlags::APPEND) {
                Place::End
            } else {
                Place::At(at)
            };
            Some(What::Write(
                noted.path(ino)?,
                place,
                Bytes::Random(n as u64),
            ))
        });
        self.called()
    }

    /// Reads up to the end of `out`; returns how many bytes there were.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn read(&mut self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        let n = self.fs.read(ino, offset, out)?;
        self.counts.read_bytes += n as u64;
        self.counts.reads += u64::from(n > 0);
        self.called()?;
        Ok(n)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn sync(&mut self) -> Result<()> {
        self.fs.sync()?;
        self.note(|_| Some(What::Sync));
        self.charge();
        self.wait_for_commit();
        if let Some(beside) = &mut self.beside {
            beside.called();
        }
        self.committed_ns = self.time.now_ns();
        Ok(())
    }

    /// Lets the program do something else for this long; a commit may become due meanwhile.
    ///
    /// # Errors
    /// Those of the volume, as for the commit.
    pub fn pause(&mut self, time: Duration) -> Result<()> {
        match &self.time {
            Time::Virtual(clock) => {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                clock.advance(ns);
                self.beside.iter_mut().for_each(|beside| beside.idle(ns));
            }
            Time::Real(_) => std::thread::sleep(time),
        }
        self.commit_if_old()?;
        let now_ns = self.time.now_ns();
        if let Some((_, ended_ns)) = &mut self.calls {
            *ended_ns = now_ns;
        }
        Ok(())
    }

    /// Follows a call that was made on the volume itself; notes it where it changes anything.
    ///
    /// # Errors
    /// Those of the volume, when a commit was due.
    pub(crate) fn has_made(&mut self, what: Option<&What>) -> Result<()> {
        self.note(|_| what.cloned());
        self.called()
    }

    /// Follows calls that others have made on the volume.
    ///
    /// # Errors
    /// Those of the volume, when a commit was due.
    pub(crate) fn was_called(&mut self, more: Counts) -> Result<()> {
        self.note(Noted::miss);
        self.counts.operations += more.operations;
        self.counts.written_bytes += more.written_bytes;
        self.counts.read_bytes += more.read_bytes;
        self.counts.writes += more.writes;
        self.counts.reads += more.reads;
        self.commit_if_due()
    }

    /// Ends each call: counts it, and commits the transaction if it is due.
    fn called(&mut self) -> Result<()> {
        self.counts.operations += 1;
        self.commit_if_due()
    }

    fn commit_if_due(&mut self) -> Result<()> {
        self.charge();
        let has_committed = self.beside.as_mut().is_some_and(Beside::called);
        let now_ns = self.time.now_ns();
        if let Some((calls, ended_ns)) = &mut self.calls {
            calls.push(now_ns - *ended_ns);
            self.commits
                .extend(has_committed.then_some(now_ns - *ended_ns));
        }
        self.commit_if_old()?;
        let now_ns = self.time.now_ns();
        if let Some((_, ended_ns)) = &mut self.calls {
            *ended_ns = now_ns;
        }
        Ok(())
    }

    /// Charges the processor's time for what was done since it was charged last.
    fn charge(&mut self) {
        let (Time::Virtual(clock), Some(charged)) = (&self.time, &mut self.charged) else {
            return;
        };
        let work = self.counts.work((charged.work)());
        let ns = charged.costs.of(work.since(charged.before));
        charged.before = work;
        clock.advance(ns);
        self.processor_ns += ns;
        self.beside.iter_mut().for_each(|beside| beside.idle(ns));
    }

    fn wait_for_commit(&mut self) {
        self.beside.iter_mut().for_each(Beside::wait_for_commit);
    }

    fn commit_if_old(&mut self) -> Result<()> {
        if let Some(beside) = &mut self.beside {
            let period = match self.durable {
                Durable::Every(period) => Some(period),
                Durable::EachWrite => None,
            };
            let (is_done, overlaps) = (beside.look(period)?, beside.overlaps());
            match &mut self.charged {
                // Another processor has done this.
                Some(charged) if is_done && overlaps => {
                    charged.before = self.counts.work((charged.work)());
                }
                _ => self.charge(),
            }
            return Ok(());
        }
        if let (Time::Virtual(clock), Durable::Every(period)) = (&self.time, self.durable) {
            let age_ns = clock.now_ns().wrapping_sub(self.committed_ns);
            if u128::from(age_ns) >= period.as_nanos() {
                self.sync()?;
            }
        }
        Ok(())
    }
}
