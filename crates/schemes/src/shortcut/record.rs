//! Transactions as records: made from what changed, and taken apart again.

use stetfs_format::checksum::crc64;
use stetfs_format::private_log::{
    CHUNK_SIZE, Chunk, ChunkKind, TRANSACTION_SIZE, Transaction, state_word,
};
use stetfs_format::width::{must_fit_u16, must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::Class;

use stetfs_scheme::{Ranges, Result};

/// A record being made. The memory is used again for the next one.
#[derive(Default)]
pub(super) struct Record {
    bytes: Vec<u8>,
    chunks: u32,
}

impl Record {
    /// Bytes at most of a record with so many blocks and freed blocks in it, for a log of blocks of
    /// `block_size`.
    pub(super) fn bound(blocks: usize, revoked: usize, block_size: usize) -> u64 {
        // A block in sixteen ranges costs no more than a whole one; the pairs come on top.
        let block = block_size + CHUNK_SIZE + 64 + 8;
        usize_as_u64(TRANSACTION_SIZE + blocks * block + revoked * 8 + CHUNK_SIZE + 64)
    }

    pub(super) fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(TRANSACTION_SIZE, 0);
        self.chunks = 0;
    }

    fn chunk(
        &mut self,
        kind: ChunkKind,
        block: BlockNo,
        class: Class,
        count: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let at = self.bytes.len();
        self.bytes.resize(at + CHUNK_SIZE, 0);
        fill(&mut self.bytes);
        let end = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(end, 0);
        let chunk = Chunk {
            block,
            kind,
            class: code_of(class),
            count: must_fit_u16(count),
            length: must_fit_u32(end - at),
        };
        chunk.encode(&mut self.bytes[at..]);
        self.chunks += 1;
    }

    /// Bytes of a block.
    pub(super) fn ranges(
        &mut self,
        kind: ChunkKind,
        block: BlockNo,
        class: Class,
        content: &[u8],
        ranges: &Ranges,
    ) {
        self.chunk(kind, block, class, ranges.count(), |bytes| {
            for r in ranges.iter() {
                bytes.extend_from_slice(&must_fit_u16(r.start).to_le_bytes());
                bytes.extend_from_slice(&must_fit_u16(r.len()).to_le_bytes());
            }
            for r in ranges.iter() {
                bytes.extend_from_slice(&content[r]);
            }
        });
    }

    /// A whole block.
    pub(super) fn block(&mut self, block: BlockNo, class: Class, content: &[u8]) {
        self.chunk(ChunkKind::Block, block, class, 0, |bytes| {
            bytes.extend_from_slice(content);
        });
    }

    /// A block that is written where it stays.
    pub(super) fn in_place(&mut self, block: BlockNo, class: Class, content: &[u8]) {
        let crc = crc64(0, content);
        self.chunk(ChunkKind::InPlace, block, class, 0, |bytes| {
            bytes.extend_from_slice(&crc.to_le_bytes());
        });
    }

    /// Freed blocks.
    pub(super) fn revoke(&mut self, blocks: &[BlockNo]) {
        for blocks in blocks.chunks(usize::from(u16::MAX)) {
            self.chunk(
                ChunkKind::Revoke,
                BlockNo(0),
                Class::Journal,
                blocks.len(),
                |bytes| {
                    for block in blocks {
                        bytes.extend_from_slice(&block.0.to_le_bytes());
                    }
                },
            );
        }
    }

    /// Nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Bytes that the record will take in the log.
    pub(super) fn len(&self) -> u64 {
        usize_as_u64(self.bytes.len().next_multiple_of(64))
    }

    /// Seals it as transaction `sequence` of this epoch, with this state. `seed` is what its
    /// checksum begins with. Returns what is to be written.
    pub(super) fn seal(
        &mut self,
        (epoch, sequence): (u64, Tid),
        seed: u64,
        state: u32,
        time: (u64, u32),
    ) -> &[u8] {
        let length = self.len();
        self.bytes.resize(u64_as_usize(length), 0);
        let transaction = Transaction {
            length,
            epoch,
            chunks: self.chunks,
            time,
        };
        transaction.encode(state_word(state, sequence), seed, &mut self.bytes);
        &self.bytes
    }
}

/// The class of a chunk, in the log.
#[expect(
    clippy::as_conversions,
    reason = "the discriminant is the code in the log"
)]
const fn code_of(class: Class) -> u8 {
    class as u8
}

/// What a chunk of a record that was read does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// These bytes of the block, from this offset on.
    Bytes(BlockNo, Vec<(usize, &'a [u8])>),
    /// The block has the content with this checksum.
    InPlace(BlockNo, u64),
    /// These were freed.
    Revoked(Vec<BlockNo>),
}

/// The changes in an intact record.
///
/// # Errors
/// A chunk that no writer makes.
pub(super) fn changes(
    record: &[u8],
    chunks: u32,
    block_size: usize,
) -> Result<Vec<Change<'_>>, Corrupt> {
    let mut rest = &record[TRANSACTION_SIZE..];
    let mut changes = Vec::new();
    for _ in 0..chunks {
        let chunk = Chunk::decode(rest)?;
        let (this, later) = rest.split_at(u32_as_usize(chunk.length));
        changes.push(change(&chunk, &this[CHUNK_SIZE..], block_size)?);
        rest = later;
    }
    Ok(changes)
}

fn change<'a>(chunk: &Chunk, body: &'a [u8], block_size: usize) -> Result<Change<'a>, Corrupt> {
    const SHORT: Corrupt = Corrupt::PrivateLogChunk("shorter than what it holds");
    let count = usize::from(chunk.count);
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([body[at], body[at + 1]]));
    let u64_at = |at: usize| {
        let bytes: [u8; 8] = body[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    match chunk.kind {
        ChunkKind::Ranges | ChunkKind::Inodes => {
            let mut at = count * 4;
            if body.len() < at {
                return Err(SHORT);
            }
            let mut pieces = Vec::with_capacity(count);
            for i in 0..count {
                let (offset, len) = (u16_at(i * 4), u16_at(i * 4 + 2));
                if offset + len > block_size {
                    return Err(Corrupt::PrivateLogChunk("with bytes beyond its block"));
                }
                pieces.push((offset, body.get(at..at + len).ok_or(SHORT)?));
                at += len;
            }
            Ok(Change::Bytes(chunk.block, pieces))
        }
        ChunkKind::Block => {
            let content = body.get(..block_size).ok_or(SHORT)?;
            Ok(Change::Bytes(chunk.block, vec![(0, content)]))
        }
        ChunkKind::InPlace if body.len() < 8 => Err(SHORT),
        ChunkKind::InPlace => Ok(Change::InPlace(chunk.block, u64_at(0))),
        ChunkKind::Revoke if body.len() < count * 8 => Err(SHORT),
        ChunkKind::Revoke => Ok(Change::Revoked(
            (0..count).map(|i| BlockNo(u64_at(i * 8))).collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use stetfs_format::private_log::COMMIT;

    use super::*;

    #[test]
    fn what_is_put_in_comes_out() {
        let content: Vec<u8> = (0..1024u32).map(|i| (i % 253) as u8).collect();
        let mut ranges = Ranges::new();
        ranges.add(3, 9);
        ranges.add(1000, 24);
        let mut record = Record::default();
        for _ in 0..2 {
            record.begin();
            record.ranges(
                ChunkKind::Ranges,
                BlockNo(7),
                Class::Directory,
                &content,
                &ranges,
            );
            record.block(BlockNo(8), Class::Data, &content);
            record.in_place(BlockNo(9), Class::Data, &content);
            record.revoke(&[BlockNo(1), BlockNo(u64::MAX)]);
        }
        assert!(record.len() <= Record::bound(3, 2, 1024));
        let bytes = record.seal((1, Tid(3)), 2, COMMIT, (5, 6)).to_vec();
        assert!(bytes.len().is_multiple_of(64) && Transaction::is_intact(2, &bytes));
        let found = changes(&bytes, 4, 1024).expect("four chunks");
        assert_eq!(
            found,
            [
                Change::Bytes(
                    BlockNo(7),
                    vec![(3, &content[3..12]), (1000, &content[1000..])]
                ),
                Change::Bytes(BlockNo(8), vec![(0, &content[..])]),
                Change::InPlace(BlockNo(9), crc64(0, &content)),
                Change::Revoked(vec![BlockNo(1), BlockNo(u64::MAX)]),
            ]
        );
        // A smaller block has no such bytes, and there is no fifth chunk.
        assert!(changes(&bytes, 4, 512).is_err());
        assert!(changes(&bytes, 400, 1024).is_err());
    }
}
