//! iozone: one file, written in records of one size (Norcott and Capps, iozone.org).
//!
//! Each test does what iozone does with one process: with `-i 0` for the first two, with `-i 2` and
//! `-i 9` for the others.
//!
//! - *write* makes a new file and writes it from the beginning to the end: space and mapping are
//!   new;
//! - *rewrite* writes the same file once more, in the same order;
//! - *random write* writes each record of the file once, in a shuffled order: at random places,
//!   some records would come twice;
//! - *pwrite* writes the file that is there by pwrite(2), from the beginning to the end. Every
//!   write of the library names its offset, so it makes the calls of rewrite; it is there because
//!   the papers show it.
//!
//! The flush at the end is timed (`-e`). A record may stand at the start of a larger room. iozone
//! itself packs records, and then records of 3 KiB cross blocks of 4 KiB; the arithmetic of papers
//! on blocks supposes one record per block.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs_format::InodeNo;

use super::content::Content;
use super::contract::Workload;
use super::session::Session;
use stetfs_testkit::rng::Rng;

/// A test of iozone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// A new file.
    Write,
    /// The same file again.
    Rewrite,
    /// Each record of it, shuffled.
    RandomWrite,
    /// As rewrite, by pwrite(2).
    Pwrite,
}

impl Test {
    /// Every test, in iozone's order.
    pub const ALL: [Self; 4] = [Self::Write, Self::Rewrite, Self::RandomWrite, Self::Pwrite];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::RandomWrite => "random write",
            Self::Pwrite => "pwrite",
        }
    }
}

/// A test with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Iozone {
    /// The test.
    pub test: Test,
    /// Bytes of the file (`-s`); a partial room at its end is left out.
    pub file_bytes: u64,
    /// Bytes of a record (`-r`).
    pub record_bytes: u32,
    /// Bytes from the start of one record to that of the next: at least a record, and exactly one
    /// when records are packed.
    pub room_bytes: u32,
    /// Seed of contents and the shuffle.
    pub seed: u64,
}

const NAME: &str = "iozone.tmp";
/// Bytes of a write that prepares the file.
const PREPARING: usize = 128 << 10;
/// Bytes of a read that warms the cache.
const PAGE: usize = 4096;

impl Iozone {
    /// Takes packed records, as iozone has them.
    pub fn packed(test: Test, file_bytes: u64, record_bytes: u32, seed: u64) -> Self {
        Self {
            test,
            file_bytes,
            record_bytes,
            room_bytes: record_bytes,
            seed,
        }
    }

    /// Records of the file.
    pub fn records(&self) -> u64 {
        self.file_bytes / u64::from(self.room_bytes)
    }

    /// The records in the order in which they are written.
    pub fn order(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.records()).collect();
        if self.test == Test::RandomWrite {
            let mut rng = Rng::new(self.seed);
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i as u64 + 1) as usize);
            }
        }
        order
    }

    fn fill(&self, session: &mut Session<'_>, ino: InodeNo) -> Result<()> {
        let mut content = Content::new(self.seed, PREPARING);
        let end = self.records() * u64::from(self.room_bytes);
        for at in (0..end).step_by(PREPARING) {
            let len = PREPARING.min((end - at) as usize);
            session.write(ino, at, content.piece(0, len))?;
            session.tell(at + len as u64, end);
        }
        Ok(())
    }
}

impl Workload for Iozone {
    fn name(&self) -> String {
        let (test, kib) = (self.test.name(), self.record_bytes as f64 / 1024.0);
        let room = if self.room_bytes == self.record_bytes {
            String::new()
        } else {
            format!(" in rooms of {} KiB", self.room_bytes as f64 / 1024.0)
        };
        format!("iozone {test}, {kib} KiB{room}")
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        ensure!(
            self.record_bytes > 0 && self.room_bytes >= self.record_bytes,
            "records of {} bytes in rooms of {}",
            self.record_bytes,
            self.room_bytes
        );
        if self.test != Test::Write {
            let ino = session.create(session.root(), NAME)?;
            self.fill(session, ino)?;
            session.close(ino)?;
        }
        session.sync()
    }

    /// iozone's tests follow each other, so the file is in the page cache.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        if self.test == Test::Write {
            return Ok(());
        }
        let ino = session.open(session.root(), NAME)?;
        let mut page = [0; PAGE];
        let mut at = 0;
        loop {
            match session.read(ino, at, &mut page)? {
                0 => return session.close(ino),
                n => at += n as u64,
            }
        }
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = match self.test {
            Test::Write => session.create(session.root(), NAME)?,
            _ => session.open(session.root(), NAME)?,
        };
        let len = self.record_bytes as usize;
        let mut content = Content::new(self.seed ^ 1, len);
        let order = self.order();
        for (done, record) in order.iter().enumerate() {
            let at = record * u64::from(self.room_bytes);
            session.write(ino, at, content.piece(1, len))?;
            if done.is_multiple_of(256) {
                session.tell(done as u64, order.len() as u64);
            }
        }
        session.sync()?;
        session.close(ino)
    }
}
