//! What a byte-addressable log holds, told apart by the lab's own reading of the format (FORMAT.md,
//! "Private log transaction"): the meter counts a record as one thing, the paper's arithmetic
//! counts the data in it.

use anyhow::{Context, Result, ensure};
use stetfs_format::private_log::{
    CHUNK_SIZE, Chunk, ChunkKind, LogHeader, TRANSACTION_SIZE, Transaction, state_of,
};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{Class, Image, SimDev};

/// Bytes in the transactions of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogContents {
    /// Transactions that would be replayed.
    pub transactions: u64,
    /// File data: changed bytes and whole blocks.
    pub data_bytes: u64,
    /// The same of metadata.
    pub metadata_bytes: u64,
    /// Everything else: headers, places of changed bytes, checksums of blocks elsewhere, freed
    /// blocks, padding.
    pub header_bytes: u64,
}

/// What a record of such a log consists of, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Content of blocks by class, in the order of [`Class::ALL`].
    content: [u64; Class::ALL.len()],
    /// Places and lengths of that content.
    pub ranges: u64,
    /// Heads of chunks, and the bytes that make them whole words.
    pub chunks: u64,
    /// Checksums of what was written elsewhere, and freed blocks.
    pub others: u64,
    /// Behind the last chunk.
    pub padding: u64,
}

impl Record {
    /// Bytes without the padding.
    pub fn used(&self) -> u64 {
        let heads = TRANSACTION_SIZE as u64 + self.chunks;
        heads + self.others + self.ranges + self.contents()
    }

    /// Content of blocks.
    pub fn contents(&self) -> u64 {
        self.content.iter().sum()
    }

    /// The same of blocks of a class.
    pub fn content_of(&self, class: Class) -> u64 {
        self.content[class as usize]
    }
}

/// Bytes of the checksum of a block, and of the number of one.
const WORD: u64 = 8;
/// Bytes of a range's place and length.
const PAIR: u64 = 4;

/// The records that would be replayed of the log of a volume that is mounted by a scheme with a log
/// of bytes, or was when it crashed.
///
/// # Errors
/// As [`read`].
pub fn records(image: &Image) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    each(image, |transaction, bytes, block| {
        let mut record = Record::default();
        chunks(transaction, bytes, block, |chunk, content| {
            let count = u64::from(chunk.count);
            let class = usize::from(chunk.class);
            let others = match chunk.kind {
                ChunkKind::Ranges | ChunkKind::Inodes | ChunkKind::Zeroed => {
                    record.ranges += PAIR * count;
                    record.content[class] += content;
                    PAIR * count + content
                }
                ChunkKind::Block => {
                    record.content[class] += content;
                    content
                }
                ChunkKind::InPlace => {
                    record.others += WORD;
                    WORD
                }
                ChunkKind::Run | ChunkKind::Revoke => {
                    record.others += WORD * count;
                    WORD * count
                }
            };
            record.chunks += u64::from(chunk.length) - others;
        })?;
        record.padding = bytes.len() as u64 - record.used();
        records.push(record);
        Ok(())
    })?;
    Ok(records)
}

/// Reads the log of a volume that is mounted by scheme `shortcut`, or was when it crashed.
///
/// # Errors
/// There is no such log, or it is none that a writer makes; it is longer than once around.
pub fn read(image: &Image) -> Result<LogContents> {
    let mut contents = LogContents::default();
    each(image, |transaction, record, block| {
        contents.add(transaction, record, block)
    })?;
    Ok(contents)
}

/// Hands out the transactions of a log, each with its bytes and the size of the volume's blocks.
fn each(
    image: &Image,
    mut found: impl FnMut(&Transaction, &[u8], usize) -> Result<()>,
) -> Result<()> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    image.read(SUPERBLOCK_OFFSET, &mut raw);
    let sb = Superblock::decode(&raw)?;
    let block = sb.block_size();
    let mut log = Vec::new();
    for extent in stetfs::journal_extents(&SimDev::new(image.clone()), &sb)? {
        let mut bytes = vec![0; extent.len as usize * block];
        image.read(extent.start.0 * block as u64, &mut bytes);
        log.append(&mut bytes);
    }
    ensure!(log.len() > 2 * block, "a log of {} bytes", log.len());
    let header = LogHeader::decode(&log[block..])?;
    let ring = &log[2 * block..];
    let mut at = header.tail.line as usize * 64;
    let mut sequence = header.tail.sequence;
    while let Some(first) = ring
        .get(at..)
        .and_then(|r| r.first_chunk::<TRANSACTION_SIZE>())
    {
        let (word, transaction) = Transaction::decode(first);
        if state_of(word).1 != sequence || transaction.epoch != header.epoch {
            return Ok(());
        }
        let end = at + transaction.length as usize;
        let record = ring
            .get(at..end)
            .context("the log is longer than once around")?;
        found(&transaction, record, block)?;
        at = end;
        sequence = sequence.next();
    }
    Ok(())
}

/// Hands out the chunks of a transaction, each with how much content of its block it has.
fn chunks(
    transaction: &Transaction,
    record: &[u8],
    block: usize,
    mut found: impl FnMut(&Chunk, u64),
) -> Result<()> {
    let mut rest = &record[TRANSACTION_SIZE..];
    for _ in 0..transaction.chunks {
        let chunk = Chunk::decode(rest)?;
        let (body, later) = rest.split_at(chunk.length as usize);
        let pairs = body[CHUNK_SIZE..].chunks_exact(4).take(chunk.count.into());
        let content = match chunk.kind {
            ChunkKind::Ranges | ChunkKind::Inodes | ChunkKind::Zeroed => pairs
                .map(|pair| u64::from(u16::from_le_bytes([pair[2], pair[3]])))
                .sum(),
            ChunkKind::Block => block as u64,
            ChunkKind::InPlace | ChunkKind::Run | ChunkKind::Revoke => 0,
        };
        found(&chunk, content);
        rest = later;
    }
    Ok(())
}

impl LogContents {
    fn add(&mut self, transaction: &Transaction, record: &[u8], block: usize) -> Result<()> {
        self.transactions += 1;
        let mut content = 0;
        chunks(transaction, record, block, |chunk, bytes| {
            match chunk.class == Class::Data as u8 {
                true => self.data_bytes += bytes,
                false => self.metadata_bytes += bytes,
            }
            content += bytes;
        })?;
        self.header_bytes += record.len() as u64 - content;
        Ok(())
    }
}
