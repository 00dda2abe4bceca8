//! One durable operation at a time: what a commit costs when nothing else is in it.
//!
//! Each is a call, or a write into a new file, and the fsync that makes it durable. Blocks are
//! drawn at random from a file that is home, was written in one piece and is in memory. Names come
//! one after the other, in one directory.

use anyhow::Result;
use stetfs_format::InodeNo;

use super::content::Content;
use super::contract::Workload;
use super::session::Session;
use super::tpcc::random::shuffle;
use stetfs_testkit::rng::Rng;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Gives this many bytes of a file new values, at a multiple of that many; no place twice.
    Overwrite(usize),
    /// Overwrites 4 KiB of a file of which half of the blocks were overwritten before, each with a
    /// commit of its own. Where blocks move, that file is in pieces.
    Scattered,
    /// Writes 100 bytes into a page, at a random place; eight times into the same page, and then
    /// into another one.
    Change,
    /// Makes the same change by a write of the whole page, as a database and a kernel's page cache
    /// do.
    ChangePage,
    /// Makes a file of 4 KiB.
    Create,
    /// Appends 4 KiB to a file.
    Append,
    /// Removes a file of 4 KiB.
    Unlink,
    /// Makes a directory.
    Mkdir,
    /// Gives a file another name in its directory.
    Rename,
}

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of it that change.
const CHANGE: usize = 100;
/// Changes of each page.
pub const CHANGES: u64 = 8;
/// Bytes of the file that is written to.
const FILE: usize = 8 << 20;
/// Bytes of a call that prepares or warms: larger reads are not kept in the cache.
const AT_ONCE: usize = 64 << 10;
/// The longest write.
const LONGEST: usize = 64 << 10;
/// Operations that come first, while the volume is still cold.
pub const FIRST: u64 = 8;
/// Overwrites that leave a file in pieces.
const SCATTERING: u64 = 1024;

impl Operation {
    /// Every kind that is compared.
    pub const ALL: [Self; 11] = [
        Self::Overwrite(PAGE),
        Self::Scattered,
        Self::Overwrite(1024),
        Self::Change,
        Self::ChangePage,
        Self::Overwrite(LONGEST),
        Self::Create,
        Self::Append,
        Self::Unlink,
        Self::Mkdir,
        Self::Rename,
    ];

    /// How many come first.
    pub fn first(self) -> u64 {
        match self {
            Self::Scattered => SCATTERING,
            _ => FIRST,
        }
    }

    /// The name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Scattered => format!("overwrite 4 KiB, after {SCATTERING}"),
            Self::Overwrite(len) => format!("overwrite {} KiB", len >> 10),
            Self::Change => format!("write {CHANGE} B, a page {CHANGES} times"),
            Self::ChangePage => format!("change {CHANGE} B, write the page, {CHANGES} times"),
            Self::Create => "create a file of 4 KiB".to_owned(),
            Self::Append => "append 4 KiB".to_owned(),
            Self::Unlink => "unlink a file of 4 KiB".to_owned(),
            Self::Mkdir => "mkdir".to_owned(),
            Self::Rename => "rename".to_owned(),
        }
    }
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// The kind.
    pub operation: Operation,
    /// How many operations, besides the [first](Operation::first).
    pub times: u64,
    /// Seed of contents and places.
    pub seed: u64,
}

/// The file that is written to.
const NAME: &str = "file";
/// The directory that gets files, and the one that already has some.
const DIR: &str = "dir";
const FULL: &str = "full";

impl Single {
    /// Returns the first content of the file.
    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; FILE];
        Rng::new(self.seed).fill(&mut content);
        content
    }

    fn name_of(n: u64) -> String {
        format!("file-{n:04}")
    }

    fn make(session: &mut Session<'_>, dir: InodeNo, n: u64, content: &[u8]) -> Result<InodeNo> {
        let ino = session.create(dir, &Self::name_of(n))?;
        session.write(ino, 0, content)?;
        Ok(ino)
    }

    /// Performs the operations of these numbers.
    fn perform(&self, session: &mut Session<'_>, numbers: std::ops::Range<u64>) -> Result<()> {
        let root = session.root();
        let ino = session.open(root, NAME)?;
        let dir = match self.operation {
            Operation::Unlink | Operation::Rename => session.find(root, FULL)?,
            _ => session.find(root, DIR)?,
        };
        let mut pages = self.content();
        let mut content = Content::new(self.seed ^ 1, LONGEST);
        let mut rng = Rng::new(self.seed ^ 2);
        let operation = match self.operation {
            Operation::Scattered => Operation::Overwrite(PAGE),
            other => other,
        };
        let unit = match operation {
            Operation::Overwrite(len) => len,
            _ => PAGE,
        };
        let mut places: Vec<usize> = (0..FILE / unit.max(PAGE)).collect();
        shuffle(&mut rng, &mut places);
        for n in numbers {
            let turn = n as usize;
            let synced = match operation {
                Operation::Scattered => unreachable!("it is an overwrite"),
                Operation::Overwrite(len) => {
                    let unit = len.max(PAGE);
                    let at = places[turn] * unit + rng.below((unit / len) as u64) as usize * len;
                    session.write(ino, at as u64, content.piece(1, len))?;
                    ino
                }
                Operation::Change | Operation::ChangePage => {
                    let page = places[turn / CHANGES as usize] * PAGE;
                    let at = page + rng.below((PAGE - CHANGE) as u64) as usize;
                    rng.fill(&mut pages[at..at + CHANGE]);
                    let span = match self.operation {
                        Operation::Change => at..at + CHANGE,
                        _ => page..page + PAGE,
                    };
                    session.write(ino, span.start as u64, &pages[span])?;
                    ino
                }
                Operation::Create => {
                    let made = Self::make(session, dir, n, content.piece(0, PAGE))?;
                    session.fsync(made)?;
                    session.close(made)?;
                    continue;
                }
                Operation::Append => {
                    session.append(ino, content.piece(0, PAGE))?;
                    ino
                }
                Operation::Unlink => {
                    session.remove(dir, &Self::name_of(n))?;
                    dir
                }
                Operation::Mkdir => {
                    session.mkdir(dir, &Self::name_of(n))?;
                    dir
                }
                Operation::Rename => {
                    session.rename(dir, &Self::name_of(n), &format!("renamed-{n:04}"))?;
                    dir
                }
            };
            session.fsync(synced)?;
        }
        session.close(ino)
    }
}

impl Workload for Single {
    fn name(&self) -> String {
        format!("{} times: {}", self.times, self.operation.name())
    }

    /// Prepares the volume, in the same way for all kinds. Makes nothing that is already there.
    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        let root = session.root();
        if session.has(NAME)? {
            return Ok(());
        }
        let ino = session.create(root, NAME)?;
        for (n, piece) in self.content().chunks(AT_ONCE).enumerate() {
            session.write(ino, (n * AT_ONCE) as u64, piece)?;
        }
        session.close(ino)?;
        session.mkdir(root, DIR)?;
        let full = session.mkdir(root, FULL)?;
        let mut content = Content::new(self.seed ^ 3, PAGE);
        for n in 0..FIRST + self.times {
            let ino = Self::make(session, full, n, content.piece(0, PAGE))?;
            session.close(ino)?;
        }
        Ok(())
    }

    /// Brings the file into the cache, and makes the first operations.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.open(session.root(), NAME)?;
        let mut buffer = vec![0; AT_ONCE];
        for at in (0..FILE).step_by(buffer.len()) {
            session.read(ino, at as u64, &mut buffer)?;
        }
        session.close(ino)?;
        self.perform(session, 0..self.operation.first())
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let first = self.operation.first();
        self.perform(session, first..first + self.times)
    }
}
