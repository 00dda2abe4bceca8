//! Calls of one's own: a list as text ([`text`]), what strace saw a program do ([`strace`]), what
//! blktrace saw a device do ([`blkparse`]), and what `stetfs crash --keep` recorded
//! ([`Recorded`]).
//!
//! Paths are relative to the volume's root. A file is opened when it is first named, once, and
//! closed where the list says so, or at the end.

pub mod blkparse;
mod noted;
mod recorded;
pub mod strace;
pub mod text;

pub use noted::Noted;
pub use recorded::Recorded;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs::{Caller, FallocateMode, SetAttr};
use stetfs_format::InodeNo;
use stetfs_testkit::rng::Rng;

use super::{Content, Session, Workload};

/// Bytes of a write or read at most: what is longer is made in pieces.
const PIECE: u64 = 1 << 20;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The line that it was read from, for messages.
    pub line: usize,
    /// When it was made, counted from any moment; unknown where the source has no times.
    pub at: Option<Duration>,
    /// What it is.
    pub what: What,
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this byte.
    At(u64),
    /// Behind its last byte.
    End,
    /// At a multiple of the call's length, drawn by the seed from all that lie in the file.
    Random,
}

/// What a write writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// So many, drawn by the seed.
    Random(u64),
    /// These.
    Given(Vec<u8>),
}

impl Bytes {
    /// How many.
    pub fn len(&self) -> u64 {
        match self {
            Self::Random(len) => *len,
            Self::Given(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a call is. Names are paths from the root of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// mkdir(2).
    Mkdir(String),
    /// rmdir(2).
    Rmdir(String),
    /// open(2) with O_CREAT and O_EXCL.
    Create(String),
    /// pwrite(2), or write(2) with O_APPEND.
    Write(String, Place, Bytes),
    /// pread(2) of so many bytes.
    Read(String, Place, u64),
    /// truncate(2).
    Truncate(String, u64),
    /// fallocate(2): these bytes get room.
    Allocate(String, Range<u64>),
    /// fallocate(2) with FALLOC_FL_PUNCH_HOLE: these bytes become zeros without room.
    Punch(String, Range<u64>),
    /// fsync(2).
    Fsync(String),
    /// fdatasync(2).
    Fdatasync(String),
    /// close(2).
    Close(String),
    /// rename(2).
    Rename(String, String),
    /// link(2).
    Link(String, String),
    /// symlink(2): what it says, and its name.
    Symlink(String, String),
    /// unlink(2).
    Unlink(String),
    /// stat(2).
    Stat(String),
    /// getdents(2), all of a directory.
    List(String),
    /// sync(2).
    Sync,
    /// No call: the program does something else for so long.
    Wait(Duration),
}

/// How soon a call follows the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// At once.
    Full,
    /// Not before it was made when it was recorded: what the program did in between takes its time
    /// here too, so that commits by the clock have as much in them.
    Recorded,
}

/// Calls as a workload.
pub struct Calls {
    /// What was read.
    pub name: String,
    /// What must be there before; not measured.
    pub before: Vec<Call>,
    /// What is measured.
    pub calls: Vec<Call>,
    /// Between them.
    pub pace: Pace,
    /// What places and bytes are drawn from.
    pub seed: u64,
}

impl Workload for Calls {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        self.play(&self.before, Pace::Full, session)
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        self.play(&self.calls, self.pace, session)
    }
}

impl Calls {
    fn play(&self, calls: &[Call], pace: Pace, session: &mut Session<'_>) -> Result<()> {
        let given = |call: &Call| match &call.what {
            What::Write(_, _, bytes) => bytes.len().min(PIECE) as usize,
            _ => 0,
        };
        let longest = calls.iter().map(given).max().unwrap_or(0);
        let mut player = Player {
            rng: Rng::new(self.seed),
            content: Content::new(self.seed, longest),
            open: HashMap::new(),
            gone: HashMap::new(),
            passes: 0,
            buffer: Vec::new(),
        };
        let clock = Waits::new(pace, calls.first().and_then(|call| call.at), session);
        for (n, call) in calls.iter().enumerate() {
            clock.wait(call.at, session)?;
            let done = player.call(&call.what, session);
            done.with_context(|| format!("{}, line {}", self.name, call.line))?;
            session.tell(n as u64 + 1, calls.len() as u64);
        }
        for (_, ino) in player.open.drain().chain(player.gone.drain()) {
            session.close(ino)?;
        }
        Ok(())
    }
}

/// When calls are made that were recorded with their times.
struct Waits {
    /// The first one's time, and the session's then.
    began: Option<(Duration, u64)>,
}

impl Waits {
    fn new(pace: Pace, first: Option<Duration>, session: &Session<'_>) -> Self {
        let first = first.filter(|_| pace == Pace::Recorded);
        Self {
            began: first.map(|first| (first, session.now_ns())),
        }
    }

    /// Until a call may be made.
    fn wait(&self, at: Option<Duration>, session: &mut Session<'_>) -> Result<()> {
        let (Some((first, began_ns)), Some(at)) = (self.began, at) else {
            return Ok(());
        };
        let since = u64::try_from(at.saturating_sub(first).as_nanos())?;
        let due_ns = began_ns.saturating_add(since);
        session.pause(Duration::from_nanos(
            due_ns.saturating_sub(session.now_ns()),
        ))
    }
}

struct Player {
    rng: Rng,
    content: Content,
    /// Open files by their path.
    open: HashMap<String, InodeNo>,
    /// Open files by the path that they had before it was removed or given to another.
    gone: HashMap<String, InodeNo>,
    /// Passes over what is written: no word is written twice in a row.
    passes: u64,
    buffer: Vec<u8>,
}

impl Player {
    /// The directory of a path, and the name in it.
    fn split<'p>(path: &'p str, session: &mut Session<'_>) -> Result<(InodeNo, &'p str)> {
        let path = path.trim_matches('/');
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        ensure!(
            !name.is_empty(),
            "the volume's root is no name in a directory"
        );
        Ok((Self::walk(dirs, session)?, name))
    }

    /// What a path names.
    fn walk(path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(session.root(), |dir, name| session.find(dir, name))
    }

    /// A file, opened when it is not open yet.
    fn file(&mut self, path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        if let Some(ino) = self.open.get(path).or_else(|| self.gone.get(path)) {
            return Ok(*ino);
        }
        let (dir, name) = Self::split(path, session)?;
        let ino = session.open(dir, name)?;
        self.open.insert(path.to_owned(), ino);
        Ok(ino)
    }

    /// Something that is made durable: a directory is not opened.
    fn object(&mut self, path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        match self.open.get(path).or_else(|| self.gone.get(path)) {
            Some(ino) => Ok(*ino),
            None => Self::walk(path, session),
        }
    }

    /// A name goes: a file that is open under it stays open.
    fn goes(&mut self, path: &str, session: &mut Session<'_>) -> Result<()> {
        if let Some(ino) = self.open.remove(path)
            && let Some(older) = self.gone.insert(path.to_owned(), ino)
        {
            session.close(older)?;
        }
        Ok(())
    }

    /// The byte that a place is at.
    fn at(
        &mut self,
        place: Place,
        len: u64,
        ino: InodeNo,
        session: &Session<'_>,
    ) -> Result<Option<u64>> {
        Ok(match place {
            Place::At(at) => Some(at),
            Place::End => None,
            Place::Random => {
                let slots = session.fs().getattr(ino)?.size / len.max(1);
                ensure!(
                    slots > 0,
                    "a random place for {len} bytes: the file is shorter"
                );
                Some(self.rng.below(slots) * len)
            }
        })
    }

    fn write(
        &mut self,
        path: &str,
        place: Place,
        bytes: &Bytes,
        session: &mut Session<'_>,
    ) -> Result<()> {
        let ino = self.file(path, session)?;
        let at = self.at(place, bytes.len(), ino, session)?;
        self.passes += 1;
        let mut done = 0;
        while done < bytes.len() {
            let len = (bytes.len() - done).min(PIECE) as usize;
            let piece = match bytes {
                Bytes::Random(_) => self.content.piece(self.passes, len),
                Bytes::Given(all) => &all[done as usize..][..len],
            };
            match at {
                Some(at) => session.write(ino, at + done, piece)?,
                None => session.append(ino, piece)?,
            }
            done += len as u64;
        }
        Ok(())
    }

    fn read(
        &mut self,
        path: &str,
        place: Place,
        len: u64,
        session: &mut Session<'_>,
    ) -> Result<()> {
        let ino = self.file(path, session)?;
        let at = self.at(place, len, ino, session)?.unwrap_or(0);
        self.buffer.resize(len.min(PIECE) as usize, 0);
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE) as usize;
            let got = session.read(ino, at + done, &mut self.buffer[..piece])?;
            done += got as u64;
            if got < piece {
                break;
            }
        }
        Ok(())
    }

    fn call(&mut self, what: &What, session: &mut Session<'_>) -> Result<()> {
        let caller = Caller::root();
        match what {
            What::Mkdir(path) => {
                let (dir, name) = Self::split(path, session)?;
                session.mkdir(dir, name)?;
            }
            What::Rmdir(path) => {
                let (dir, name) = Self::split(path, session)?;
                session.rmdir(dir, name)?;
            }
            What::Create(path) => {
                let (dir, name) = Self::split(path, session)?;
                let ino = session.create(dir, name)?;
                self.open.insert(path.clone(), ino);
            }
            What::Write(path, place, bytes) => self.write(path, *place, bytes, session)?,
            What::Read(path, place, len) => self.read(path, *place, *len, session)?,
            What::Truncate(path, size) => {
                let ino = self.file(path, session)?;
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                session.fs().setattr(&caller, ino, &set)?;
                session.has_made(Some(what))?;
            }
            What::Allocate(path, range) => {
                let ino = self.file(path, session)?;
                let (at, len) = (range.start, range.end - range.start);
                session
                    .fs()
                    .fallocate(&caller, ino, FallocateMode::empty(), at, len)?;
                session.has_made(Some(what))?;
            }
            What::Punch(path, range) => {
                let ino = self.file(path, session)?;
                let how = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                let (at, len) = (range.start, range.end - range.start);
                session.fs().fallocate(&caller, ino, how, at, len)?;
                session.has_made(Some(what))?;
            }
            What::Fsync(path) => {
                let ino = self.object(path, session)?;
                session.fsync(ino)?;
            }
            What::Fdatasync(path) => {
                let ino = self.object(path, session)?;
                session.fs().fsync(ino, true)?;
                session.has_made(Some(what))?;
            }
            What::Close(path) => {
                let found = self.gone.remove(path).or_else(|| self.open.remove(path));
                if let Some(ino) = found {
                    session.close(ino)?;
                }
            }
            What::Rename(from, to) => self.rename(from, to, session)?,
            What::Link(from, to) => {
                let ino = Self::walk(from, session)?;
                let (dir, name) = Self::split(to, session)?;
                session.fs().link(&caller, ino, dir, name.as_bytes())?;
                session.has_made(Some(what))?;
            }
            What::Symlink(target, path) => {
                let (dir, name) = Self::split(path, session)?;
                let (name, target) = (name.as_bytes(), target.as_bytes());
                session.fs().symlink(&caller, dir, name, target)?;
                session.has_made(Some(what))?;
            }
            What::Unlink(path) => {
                let (dir, name) = Self::split(path, session)?;
                session.remove(dir, name)?;
                self.goes(path, session)?;
            }
            What::Stat(path) => {
                let ino = Self::walk(path, session)?;
                session.fs().getattr(ino)?;
                session.has_made(None)?;
            }
            What::List(path) => {
                let ino = Self::walk(path, session)?;
                session.fs().readdir(ino, 0, &mut |_| true)?;
                session.has_made(None)?;
            }
            What::Sync => {
                session.sync()?;
                session.has_made(None)?;
            }
            What::Wait(time) => session.pause(*time)?,
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, session: &mut Session<'_>) -> Result<()> {
        let (dir, name) = Self::split(from, session)?;
        let (new_dir, new_name) = Self::split(to, session)?;
        let (old, new) = (name.as_bytes(), new_name.as_bytes());
        let none = stetfs::RenameFlags::empty();
        let fs = session.fs();
        fs.rename(&Caller::root(), dir, old, new_dir, new, none)
            .with_context(|| format!("rename {from} {to}"))?;
        session.has_made(Some(&What::Rename(from.to_owned(), to.to_owned())))?;
        self.goes(to, session)?;
        // What is open below it has another path now.
        let open = std::mem::take(&mut self.open).into_iter();
        self.open = open
            .map(|(path, ino)| (renamed(&path, from, to).unwrap_or(path), ino))
            .collect();
        Ok(())
    }
}

/// What a path is called when `from` has become `to`; none if that leaves it as it is.
pub(crate) fn renamed(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

/// What a file of text holds.
fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
