//! The content of a byte-addressable log, by the lab's own reading of the format (FORMAT.md,
//! "Private log transaction"). The meter counts a record as one thing; the paper's arithmetic
//! counts the data in it.

use anyhow::{Context, Result, ensure};
use stetfs_format::private_log::{
    CHUNK_SIZE, Chunk, ChunkKind, LogHeader, TRANSACTION_SIZE, Transaction, state_of,
};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{Class, Image, SimDev};

/// Bytes in the transactions of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogContents {
    /// Transactions that would be replayed.
    pub(super) transactions: u64,
    /// File data: changed bytes and whole blocks.
    pub(super) data_bytes: u64,
    /// Metadata: changed bytes and whole blocks.
    pub(super) metadata_bytes: u64,
    /// Everything else: headers, places of changed bytes, checksums of blocks elsewhere, freed
    /// blocks, padding.
    pub(super) header_bytes: u64,
}

/// Reads the log of a volume that is mounted by scheme `shortcut`, or was when it crashed.
///
/// # Errors
/// There is no such log; no writer makes such a log; the log is longer than one lap.
pub(super) fn read(image: &Image) -> Result<LogContents> {
    let mut contents = LogContents::default();
    each(image, |transaction, record, block| {
        contents.add(transaction, record, block)
    })?;
    Ok(contents)
}

/// Calls `found` with each transaction of a log, its bytes and the size of the volume's blocks.
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

/// Calls back with each chunk of a transaction, and how much content of its block it has.
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
            if chunk.class == Class::Data as u8 {
                self.data_bytes += bytes;
            } else {
                self.metadata_bytes += bytes;
            }
            content += bytes;
        })?;
        self.header_bytes += record.len() as u64 - content;
        Ok(())
    }
}
