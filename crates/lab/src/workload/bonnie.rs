//! Bonnie: one large file, a byte at a time and a block at a time (Bray, "Bonnie",
//! textuality.com/bonnie; 1.x, not Bonnie++).
//!
//! Its three tests that write, in its order and with its contents:
//!
//! - *character write* makes the file and puts one byte after the other, 0 to 127 and again,
//!   through the buffer of the C library, which calls write(2) when it is full: with st_blksize
//!   bytes;
//! - *rewrite* reads a block, changes one word of it, goes back and writes the block, to the end of
//!   the file;
//! - *block write* makes the file anew (the old one is unlinked first) and writes it block by
//!   block. Each block differs in one word from the block before: the first block in the first
//!   word, and so on.
//!
//! The original's blocks have 16 KiB; the JFTL paper says 4 KiB. The flush at the end is timed.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs_format::InodeNo;

use super::contract::Workload;
use super::session::Session;

/// A test of Bonnie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// A new file, byte by byte.
    CharacterWrite,
    /// A word in each block of it.
    Rewrite,
    /// A new file, block by block.
    BlockWrite,
}

impl Test {
    /// Every test, in the original's order.
    pub const ALL: [Self; 3] = [Self::CharacterWrite, Self::Rewrite, Self::BlockWrite];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CharacterWrite => "character write",
            Self::Rewrite => "rewrite",
            Self::BlockWrite => "block write",
        }
    }
}

/// A test with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Bonnie {
    /// The test.
    pub test: Test,
    /// Bytes of the file (`-s`), in whole blocks.
    pub file_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

const NAME: &str = "Bonnie.1";
/// Bytes of the C library's buffer (st_blksize).
const BUFFER: usize = 4096;
/// Bytes of a word: an int.
const WORD: usize = 4;
/// Calls between two reports of progress.
const A_LOOK: u64 = 256;

/// A stream of the C library, with its buffer.
struct Stream<'s, 'f> {
    session: &'s mut Session<'f>,
    ino: InodeNo,
    at: u64,
    buffer: Vec<u8>,
}

impl Stream<'_, '_> {
    fn put(&mut self, byte: u8) -> Result<()> {
        if self.buffer.len() == BUFFER {
            self.flush()?;
        }
        self.buffer.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.session.write(self.ino, self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl Bonnie {
    fn blocks(&self) -> u64 {
        self.file_bytes / u64::from(self.block_bytes)
    }

    fn put_characters(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.create(session.root(), NAME)?;
        let bytes = self.blocks() * u64::from(self.block_bytes);
        let mut stream = Stream {
            session,
            ino,
            at: 0,
            buffer: Vec::with_capacity(BUFFER),
        };
        for n in 0..bytes {
            stream.put((n & 0x7f) as u8)?;
            if n.is_multiple_of(A_LOOK * BUFFER as u64) {
                stream.session.tell(n, bytes);
            }
        }
        stream.flush()?;
        session.close(ino)
    }

    fn write_blocks(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.create(session.root(), NAME)?;
        let mut block = vec![0; self.block_bytes as usize];
        for n in 0..self.blocks() {
            change_word(&mut block, n);
            session.write(ino, n * u64::from(self.block_bytes), &block)?;
            if n.is_multiple_of(A_LOOK) {
                session.tell(n, self.blocks());
            }
        }
        session.close(ino)
    }

    fn rewrite(&self, session: &mut Session<'_>) -> Result<()> {
        let ino = session.open(session.root(), NAME)?;
        let mut block = vec![0; self.block_bytes as usize];
        let mut n = 0;
        loop {
            let at = n * u64::from(self.block_bytes);
            if session.read(ino, at, &mut block)? < block.len() {
                return session.close(ino);
            }
            change_word(&mut block, n);
            session.write(ino, at, &block)?;
            if n.is_multiple_of(A_LOOK) {
                session.tell(n, self.blocks());
            }
            n += 1;
        }
    }
}

/// Adds one to the word whose turn it is.
fn change_word(block: &mut [u8], turn: u64) {
    let words = block.as_chunks_mut::<WORD>().0;
    let at = (turn % words.len() as u64) as usize;
    words[at] = (i32::from_le_bytes(words[at]).wrapping_add(1)).to_le_bytes();
}

impl Workload for Bonnie {
    fn name(&self) -> String {
        format!(
            "bonnie {}, a file of {} MiB",
            self.test.name(),
            self.file_bytes as f64 / f64::from(1 << 20)
        )
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        ensure!(
            self.block_bytes as usize >= WORD && self.blocks() > 0,
            "a file of {} bytes in blocks of {}",
            self.file_bytes,
            self.block_bytes
        );
        if self.test != Test::CharacterWrite {
            self.put_characters(session)?;
        }
        if self.test == Test::BlockWrite {
            session.sync()?;
            session.remove(session.root(), NAME)?;
        }
        session.sync()
    }

    /// The file was written just before, so it is in the page cache.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        if self.test != Test::Rewrite {
            return Ok(());
        }
        let ino = session.open(session.root(), NAME)?;
        let mut block = vec![0; self.block_bytes as usize];
        for n in 0..self.blocks() {
            session.read(ino, n * u64::from(self.block_bytes), &mut block)?;
        }
        session.close(ino)
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        match self.test {
            Test::CharacterWrite => self.put_characters(session)?,
            Test::Rewrite => self.rewrite(session)?,
            Test::BlockWrite => self.write_blocks(session)?,
        }
        session.sync()
    }
}
