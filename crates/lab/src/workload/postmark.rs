//! PostMark: many files of a mail or web server (Katcher, NetApp TR3022, 1997; version 1.5).
//!
//! As the original:
//! 1. `files` files are made, of sizes drawn between `size_low` and `size_high` (all alike where
//!    the two are equal), spread at random over the subdirectories if there are at least two;
//! 2. `transactions` transactions, each of two halves. In the first, a file is read whole (with a
//!    chance of `bias_read` in 10), or something is appended to it; the append is up to `size_high`
//!    long as a whole, and a file that is already that long stays as it is. In the second, a file
//!    is made (with a chance of `bias_create` in 10), or one is deleted. A bias of -1 leaves its
//!    half out. The transactions end early when no file is left;
//! 3. the remaining files are deleted.
//!
//! Unbuffered, each block of `read_block` or `write_block` bytes is a system call. Buffered, the C
//! library's buffer is in between: system calls are of its size (st_blksize, 4096), or of whole
//! multiples where blocks are larger.
//!
//! Files are drawn from a table of twice as many slots as there are files in the beginning, and
//! when it is full nothing is made, both as in the original. The random numbers are ours.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use stetfs_format::InodeNo;

use super::content::Content;
use super::contract::Workload;
use super::session::Session;
use stetfs_testkit::rng::Rng;

/// The original's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Postmark {
    /// `set number`: files in the beginning.
    pub files: u32,
    /// `set size`: bytes of a file at least.
    pub size_low: u64,
    /// Bytes of a file at most.
    pub size_high: u64,
    /// `set transactions`.
    pub transactions: u32,
    /// `set subdirectories`; with less than two, files are in one directory.
    pub subdirectories: u32,
    /// `set read`: bytes of a block.
    pub read_block: u32,
    /// `set write`: bytes of a block.
    pub write_block: u32,
    /// `set bias read`: reads in 10, the others are appends; -1 for neither.
    pub bias_read: i8,
    /// `set bias create`: creations in 10, the others are deletions; -1 for neither.
    pub bias_create: i8,
    /// `set buffering`.
    pub buffered: bool,
    /// `set seed`.
    pub seed: u64,
}

impl Default for Postmark {
    /// The original's defaults.
    fn default() -> Self {
        Self {
            files: 500,
            size_low: 500,
            size_high: 10_000,
            transactions: 500,
            subdirectories: 0,
            read_block: 512,
            write_block: 512,
            bias_read: 5,
            bias_create: 5,
            buffered: true,
            seed: 42,
        }
    }
}

/// Bytes of the C library's buffer.
const BUFFER: u32 = 4096;

/// What the original prints at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Files made before the transactions, and in them.
    pub created: [u64; 2],
    /// Files read.
    pub read: u64,
    /// Files appended to.
    pub appended: u64,
    /// Files deleted in the transactions, and after them.
    pub deleted: [u64; 2],
    /// Transactions done.
    pub transactions: u64,
    /// Bytes written until the files were made, and until the transactions were done.
    pub written_bytes: [u64; 2],
    /// How long it took to make the files, to do the transactions and to delete, in the session's
    /// time.
    pub phases: [Duration; 3],
}

struct File {
    dir: InodeNo,
    name: String,
    size: u64,
}

/// A run in progress.
struct Running<'p, 's, 'f> {
    set: &'p Postmark,
    session: &'s mut Session<'f>,
    rng: Rng,
    content: Content,
    dirs: Vec<InodeNo>,
    table: Vec<Option<File>>,
    /// Files in the table.
    in_use: usize,
    /// The name of the newest file.
    named: u64,
    buffer: Vec<u8>,
}

impl Postmark {
    /// Runs it and returns what the original would print.
    ///
    /// # Errors
    /// Those of the volume; parameters that make no sense.
    pub fn play(&self, session: &mut Session<'_>) -> Result<Outcome> {
        ensure!(
            self.size_low > 0 && self.size_low <= self.size_high,
            "files between {} and {} bytes",
            self.size_low,
            self.size_high
        );
        ensure!(
            self.files > 0 && self.read_block > 0 && self.write_block > 0,
            "files and blocks"
        );
        let mut dirs = vec![session.root()];
        if self.subdirectories > 1 {
            let names = (0..self.subdirectories).map(|n| format!("s{n}"));
            let made: Result<_> = names.map(|n| session.mkdir(session.root(), &n)).collect();
            dirs = made?;
        }
        let block = self.call_bytes(self.write_block);
        let read = self.call_bytes(self.read_block);
        let mut running = Running {
            set: self,
            rng: Rng::new(self.seed),
            content: Content::new(self.seed, block as usize),
            dirs,
            table: (0..2 * self.files).map(|_| None).collect(),
            in_use: 0,
            named: 0,
            buffer: vec![0; read as usize],
            session,
        };
        let outcome = running.run()?;
        if self.subdirectories > 1 {
            for n in 0..self.subdirectories {
                session.rmdir(session.root(), &format!("s{n}"))?;
            }
        }
        session.sync()?;
        Ok(outcome)
    }

    /// Bytes of a system call for blocks of `block` bytes.
    fn call_bytes(&self, block: u32) -> u32 {
        if self.buffered {
            block.max(BUFFER) / BUFFER * BUFFER
        } else {
            block
        }
    }
}

impl Running<'_, '_, '_> {
    fn run(&mut self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let started_ns = self.session.now_ns();
        let (files, transactions) = (self.set.files, self.set.transactions);
        let steps = u64::from(files) * 2 + u64::from(transactions);
        for i in 0..files {
            outcome.created[0] += u64::from(self.create()?);
            self.session.tell(u64::from(i), steps);
        }
        let made_ns = self.session.now_ns();
        outcome.written_bytes[0] = self.session.counts().written_bytes;
        for i in 0..transactions {
            if self.in_use == 0 {
                break;
            }
            self.transaction(&mut outcome)?;
            self.session.tell(u64::from(files + i), steps);
        }
        let worked_ns = self.session.now_ns();
        outcome.written_bytes[1] = self.session.counts().written_bytes;
        for slot in 0..self.table.len() {
            if self.table[slot].is_some() {
                self.delete(slot)?;
                outcome.deleted[1] += 1;
            }
        }
        let deleted_ns = self.session.now_ns();
        let phase = |from, to| Duration::from_nanos(u64::saturating_sub(to, from));
        outcome.phases = [
            phase(started_ns, made_ns),
            phase(made_ns, worked_ns),
            phase(worked_ns, deleted_ns),
        ];
        Ok(outcome)
    }

    fn transaction(&mut self, outcome: &mut Outcome) -> Result<()> {
        if let Ok(bias) = u64::try_from(self.set.bias_read) {
            if self.rng.below(10) < bias {
                let slot = self.used();
                self.read(slot)?;
                outcome.read += 1;
            } else {
                let slot = self.used();
                outcome.appended += u64::from(self.append(slot)?);
            }
        }
        if let Ok(bias) = u64::try_from(self.set.bias_create) {
            if self.rng.below(10) < bias {
                outcome.created[1] += u64::from(self.create()?);
            } else {
                let slot = self.used();
                self.delete(slot)?;
                outcome.deleted[0] += 1;
            }
        }
        outcome.transactions += 1;
        Ok(())
    }

    /// Returns a random file. There must be one.
    fn used(&mut self) -> usize {
        loop {
            let slot = self.rng.below(self.table.len() as u64) as usize;
            if self.table[slot].is_some() {
                return slot;
            }
        }
    }

    /// Makes a file; false when there was no slot for it.
    fn create(&mut self) -> Result<bool> {
        let Some(slot) = self.table.iter().position(Option::is_none) else {
            return Ok(false);
        };
        let dir = self.dirs[self.rng.below(self.dirs.len() as u64) as usize];
        self.named += 1;
        let name = self.named.to_string();
        let Postmark {
            size_low,
            size_high,
            ..
        } = *self.set;
        let size = size_low + self.rng.below(size_high - size_low);
        let ino = self.session.create(dir, &name)?;
        self.write_blocks(ino, size)?;
        self.session.close(ino)?;
        self.table[slot] = Some(File { dir, name, size });
        self.in_use += 1;
        Ok(true)
    }

    fn write_blocks(&mut self, ino: InodeNo, size: u64) -> Result<()> {
        let block = u64::from(self.set.call_bytes(self.set.write_block));
        let mut left = size;
        while left > 0 {
            let len = left.min(block);
            self.session
                .append(ino, self.content.piece(0, len as usize))?;
            left -= len;
        }
        Ok(())
    }

    fn read(&mut self, slot: usize) -> Result<()> {
        let file = self.table[slot].as_ref().expect("a slot in use");
        let ino = self.session.open(file.dir, &file.name)?;
        let mut at = 0;
        while at < file.size {
            let n = self.session.read(ino, at, &mut self.buffer)?;
            ensure!(n > 0, "{} ends at {at} of {} bytes", file.name, file.size);
            at += n as u64;
        }
        self.session.close(ino)
    }

    /// Appends to a file; false when it was already full.
    fn append(&mut self, slot: usize) -> Result<bool> {
        let file = self.table[slot].as_ref().expect("a slot in use");
        let (dir, name, size) = (file.dir, file.name.clone(), file.size);
        if size >= self.set.size_high {
            return Ok(false);
        }
        let more = self.rng.below(self.set.size_high - size) + 1;
        let ino = self.session.open(dir, &name)?;
        self.write_blocks(ino, more)?;
        self.session.close(ino)?;
        self.table[slot] = Some(File {
            dir,
            name,
            size: size + more,
        });
        Ok(true)
    }

    fn delete(&mut self, slot: usize) -> Result<()> {
        let file = self.table[slot].take().expect("a slot in use");
        self.in_use -= 1;
        self.session.remove(file.dir, &file.name)
    }
}

impl Workload for Postmark {
    fn name(&self) -> String {
        format!(
            "postmark, {} transactions on {} files of {} to {} bytes in blocks of {}",
            self.transactions, self.files, self.size_low, self.size_high, self.write_block
        )
    }

    fn prepare(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        self.play(session).map(drop)
    }
}
