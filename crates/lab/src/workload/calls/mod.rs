//! Calls of the user's own: a list as text ([`text`]), a trace of a program by strace ([`strace`]),
//! a trace of a device by blktrace ([`blkparse`]), and a recording of `stetfs crash --keep`
//! ([`Recorded`]).
//!
//! Paths are relative to the volume's root. A file is opened when it is first named, once, and
//! closed where the list says so, or at the end.

pub mod blkparse;
pub(super) mod call;
pub(super) mod noted;
mod pace;
mod recorded;
pub mod strace;
pub mod text;

pub(crate) use call::renamed;
pub use call::{Bytes, Call, Place, What};
pub use noted::Noted;
pub use pace::Pace;
pub use recorded::Recorded;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use stetfs::{Caller, FallocateMode, SetAttr};
use stetfs_format::InodeNo;
use stetfs_testkit::rng::Rng;

use super::content::Content;
use super::contract::Workload;
use super::session::Session;
use pace::Waits;

/// The most bytes of a write or read: a longer one is made in pieces.
const PIECE: u64 = 1 << 20;

/// Calls as a workload.
pub struct Calls {
    /// Name of the source.
    pub name: String,
    /// Calls that make what must be there before; not measured.
    pub before: Vec<Call>,
    /// Calls that are measured.
    pub calls: Vec<Call>,
    /// The time between calls.
    pub pace: Pace,
    /// Seed of places and bytes.
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

struct Player {
    rng: Rng,
    content: Content,
    /// Open files by their path.
    open: HashMap<String, InodeNo>,
    /// Open files by the path that they had before it was removed or given to another.
    gone: HashMap<String, InodeNo>,
    /// Passes over the content: no word is written twice in a row.
    passes: u64,
    buffer: Vec<u8>,
}

impl Player {
    /// Returns the directory of a path, and the name in it.
    fn split<'p>(path: &'p str, session: &mut Session<'_>) -> Result<(InodeNo, &'p str)> {
        let path = path.trim_matches('/');
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        ensure!(
            !name.is_empty(),
            "the volume's root is no name in a directory"
        );
        Ok((Self::walk(dirs, session)?, name))
    }

    /// Finds the inode of a path.
    fn walk(path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(session.root(), |dir, name| session.find(dir, name))
    }

    /// Returns a file, and opens it first when it is not open.
    fn file(&mut self, path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        if let Some(ino) = self.open.get(path).or_else(|| self.gone.get(path)) {
            return Ok(*ino);
        }
        let (dir, name) = Self::split(path, session)?;
        let ino = session.open(dir, name)?;
        self.open.insert(path.to_owned(), ino);
        Ok(ino)
    }

    /// Returns the object of an fsync; a directory is not opened.
    fn object(&mut self, path: &str, session: &mut Session<'_>) -> Result<InodeNo> {
        match self.open.get(path).or_else(|| self.gone.get(path)) {
            Some(ino) => Ok(*ino),
            None => Self::walk(path, session),
        }
    }

    /// Notes that a name is removed: a file that is open under it stays open.
    fn goes(&mut self, path: &str, session: &mut Session<'_>) -> Result<()> {
        if let Some(ino) = self.open.remove(path)
            && let Some(older) = self.gone.insert(path.to_owned(), ino)
        {
            session.close(older)?;
        }
        Ok(())
    }

    /// Returns the offset of a place.
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
            What::Truncate(path, size) => self.truncate(path, *size, session)?,
            What::Allocate(path, range) => {
                self.allocate(path, range, FallocateMode::empty(), session)?;
            }
            What::Punch(path, range) => {
                let how = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                self.allocate(path, range, how, session)?;
            }
            What::Fsync(path) => {
                let ino = self.object(path, session)?;
                session.fsync(ino)?;
            }
            What::Fdatasync(path) => {
                let ino = self.object(path, session)?;
                session.fs().fsync(ino, true)?;
            }
            What::Close(path) => {
                let found = self.gone.remove(path).or_else(|| self.open.remove(path));
                if let Some(ino) = found {
                    session.close(ino)?;
                }
            }
            What::Rename(from, to) => self.rename(from, to, session)?,
            What::Link(from, to) => Self::link(from, to, session)?,
            What::Symlink(target, path) => Self::symlink(target, path, session)?,
            What::Unlink(path) => {
                let (dir, name) = Self::split(path, session)?;
                session.remove(dir, name)?;
                self.goes(path, session)?;
            }
            What::Stat(path) => {
                let ino = Self::walk(path, session)?;
                session.fs().getattr(ino)?;
            }
            What::List(path) => {
                let ino = Self::walk(path, session)?;
                session.fs().readdir(ino, 0, &mut |_| true)?;
            }
            What::Sync => session.sync()?,
            What::Wait(time) => session.pause(*time)?,
        }
        Self::count(what, session)
    }

    /// Counts a call that the session has not counted itself.
    fn count(what: &What, session: &mut Session<'_>) -> Result<()> {
        match what {
            What::Truncate(..)
            | What::Allocate(..)
            | What::Punch(..)
            | What::Fdatasync(_)
            | What::Link(..)
            | What::Symlink(..) => session.has_made(Some(what)),
            What::Stat(_) | What::List(_) | What::Sync => session.has_made(None),
            _ => Ok(()),
        }
    }

    fn truncate(&mut self, path: &str, size: u64, session: &mut Session<'_>) -> Result<()> {
        let ino = self.file(path, session)?;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        session.fs().setattr(&Caller::root(), ino, &set)?;
        Ok(())
    }

    fn allocate(
        &mut self,
        path: &str,
        range: &Range<u64>,
        how: FallocateMode,
        session: &mut Session<'_>,
    ) -> Result<()> {
        let ino = self.file(path, session)?;
        let (at, len) = (range.start, range.end - range.start);
        let fs = session.fs();
        Ok(fs.fallocate(&Caller::root(), ino, how, at, len)?)
    }

    fn link(from: &str, to: &str, session: &mut Session<'_>) -> Result<()> {
        let ino = Self::walk(from, session)?;
        let (dir, name) = Self::split(to, session)?;
        let fs = session.fs();
        fs.link(&Caller::root(), ino, dir, name.as_bytes())?;
        Ok(())
    }

    fn symlink(target: &str, path: &str, session: &mut Session<'_>) -> Result<()> {
        let (dir, name) = Self::split(path, session)?;
        let (name, target) = (name.as_bytes(), target.as_bytes());
        let fs = session.fs();
        fs.symlink(&Caller::root(), dir, name, target)?;
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
        // Files that are open below it have another path now.
        let open = std::mem::take(&mut self.open).into_iter();
        self.open = open
            .map(|(path, ino)| (renamed(&path, from, to).unwrap_or(path), ino))
            .collect();
        Ok(())
    }
}

/// Reads a text file.
fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
