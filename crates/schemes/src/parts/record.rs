//! The records of a byte log: making one from the changes of a transaction, and taking it apart.

use stetfs_format::checksum::crc64;
use stetfs_format::jbd2::JBD2_MAGIC;
use stetfs_format::private_log::{
    CHUNK_SIZE, Chunk, ChunkKind, TRANSACTION_SIZE, Transaction, state_word,
};
use stetfs_format::width::{must_fit_u16, must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, BlockSize, Corrupt, Tid};
use stetfs_media::Class;

use stetfs_scheme::{Ranges, Result};

/// A record that is being made. Its buffer is reused for the next one.
#[derive(Default)]
pub(crate) struct Record {
    bytes: Vec<u8>,
    chunks: u32,
}

/// The place of a record, and the seed of its checksum.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The position in the ring.
    pub(crate) at: u64,
    /// The number of the transaction.
    pub(crate) sequence: Tid,
    /// The log's epoch.
    pub(crate) epoch: u64,
    /// [`Ring::seed`](crate::parts::ring::Ring::seed) of these.
    pub(crate) seed: u64,
    /// The record's length is a multiple of this, in bytes.
    pub(crate) unit: u64,
    /// JBD2 would look for records at multiples of this many bytes; 0: nowhere.
    pub(crate) masked: usize,
}

impl Record {
    /// Returns the most bytes of a record with `blocks` blocks and `revoked` freed blocks.
    pub(crate) fn bound(blocks: usize, revoked: usize, block_size: BlockSize) -> u64 {
        // A block in sixteen ranges costs no more than a whole one; the pairs come on top.
        let block = block_size.bytes() + CHUNK_SIZE + 64 + 8;
        usize_as_u64(TRANSACTION_SIZE + blocks * block + revoked * 8 + CHUNK_SIZE + 64)
    }

    pub(crate) fn begin(&mut self) {
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

    /// Adds bytes of a block.
    pub(crate) fn ranges(
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

    /// Adds a whole block.
    pub(crate) fn block(&mut self, block: BlockNo, class: Class, content: &[u8]) {
        self.chunk(ChunkKind::Block, block, class, 0, |bytes| {
            bytes.extend_from_slice(content);
        });
    }

    /// Adds the checksum of a block that is written where it stays.
    pub(crate) fn in_place(&mut self, block: BlockNo, class: Class, content: &[u8]) {
        let crc = crc64(0, content);
        self.chunk(ChunkKind::InPlace, block, class, 0, |bytes| {
            bytes.extend_from_slice(&crc.to_le_bytes());
        });
    }

    /// Adds a new block, of which only the bytes in `set` are not zero.
    pub(crate) fn zeroed(&mut self, block: BlockNo, class: Class, content: &[u8], set: &Ranges) {
        self.ranges(ChunkKind::Zeroed, block, class, content, set);
    }

    /// Adds the checksums of consecutive blocks from `start` on that are written where they stay.
    pub(crate) fn run<'a>(
        &mut self,
        start: BlockNo,
        class: Class,
        contents: impl ExactSizeIterator<Item = &'a [u8]>,
    ) {
        self.chunk(ChunkKind::Run, start, class, contents.len(), |bytes| {
            for content in contents {
                bytes.extend_from_slice(&crc64(0, content).to_le_bytes());
            }
        });
    }

    /// Adds freed blocks.
    pub(crate) fn revoke(&mut self, blocks: &[BlockNo]) {
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

    /// True when nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Returns its present length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes that the record takes in a log of this unit.
    pub(crate) fn len(&self, unit: u64) -> u64 {
        usize_as_u64(self.bytes.len()).next_multiple_of(unit)
    }

    /// Seals it as the transaction at `place`, with this state. Returns the bytes to write.
    pub(crate) fn seal(&mut self, place: &Place, state: u32, time: (u64, u32)) -> &[u8] {
        let length = self.len(place.unit);
        self.bytes.resize(u64_as_usize(length), 0);
        let mask = unused_mask(&self.bytes, place);
        let transaction = Transaction {
            length,
            epoch: place.epoch,
            chunks: self.chunks,
            time,
            mask,
        };
        let word = state_word(state, place.sequence);
        transaction.encode(word, place.seed, &mut self.bytes);
        apply_mask(&mut self.bytes, place.at, place.masked, mask);
        &self.bytes
    }
}

/// Yields the offsets in a record at which blocks of the ring begin, except for its own start.
fn beginnings(len: usize, at: u64, masked: usize) -> impl Iterator<Item = usize> {
    let first = match masked {
        0 => len,
        _ => masked - u64_as_usize(at % usize_as_u64(masked)),
    };
    (first..len).step_by(masked.max(1))
}

/// Returns a mask with which no block of the ring begins like a record of JBD2.
fn unused_mask(record: &[u8], place: &Place) -> u32 {
    let would_be = |at: usize| {
        let word: [u8; 4] = record[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(word) ^ u32::from_le_bytes(JBD2_MAGIC.to_be_bytes())
    };
    let mut bad: Vec<u32> = beginnings(record.len(), place.at, place.masked)
        .map(would_be)
        .collect();
    bad.sort_unstable();
    bad.dedup();
    // The smallest number that is not in `bad`.
    let runs = (0..).zip(&bad).take_while(|(i, bad)| i == *bad);
    must_fit_u32(runs.count())
}

/// Applies a record's mask, or removes it.
pub(crate) fn apply_mask(record: &mut [u8], at: u64, masked: usize, mask: u32) {
    if mask == 0 {
        return;
    }
    for begin in beginnings(record.len(), at, masked) {
        for (byte, of_mask) in record[begin..].iter_mut().zip(mask.to_le_bytes()) {
            *byte ^= of_mask;
        }
    }
}

/// Returns the code of a class in the log.
#[expect(
    clippy::as_conversions,
    reason = "the discriminant is the code in the log"
)]
const fn code_of(class: Class) -> u8 {
    class as u8
}

fn class_of(code: u8) -> Result<Class, Corrupt> {
    let found = Class::ALL.into_iter().find(|class| code_of(*class) == code);
    found.ok_or(Corrupt::PrivateLogChunk("of an unknown class of blocks"))
}

/// A change in a record that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// The block gets these bytes, each piece at its offset.
    Bytes {
        block: BlockNo,
        class: Class,
        /// All other bytes are zeros.
        is_all: bool,
        pieces: Vec<(usize, &'a [u8])>,
    },
    /// The block was written where it stays, with this checksum.
    InPlace(BlockNo, u64),
    /// These blocks were freed.
    Revoked(Vec<BlockNo>),
}

/// Returns the changes in an intact record, each with the offset of its chunk.
///
/// # Errors
/// A chunk that no writer makes.
pub(crate) fn changes(
    record: &[u8],
    chunks: u32,
    block_size: BlockSize,
) -> Result<Vec<(usize, Change<'_>)>, Corrupt> {
    let mut rest = &record[TRANSACTION_SIZE..];
    let mut changes = Vec::new();
    for _ in 0..chunks {
        let at = record.len() - rest.len();
        let chunk = Chunk::decode(rest)?;
        let (this, later) = rest.split_at(u32_as_usize(chunk.length));
        let body = &this[CHUNK_SIZE..];
        match chunk.kind {
            ChunkKind::Run => {
                let sums = body.get(..usize::from(chunk.count) * 8).ok_or(SHORT)?;
                let sums = sums
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|sum| u64::from_le_bytes(*sum));
                let last = chunk.block.0.checked_add(chunk.count.into());
                last.ok_or(Corrupt::PrivateLogChunk("of blocks beyond all volumes"))?;
                let blocks = (0..).map(|i| chunk.block.plus(i));
                changes.extend(
                    blocks
                        .zip(sums)
                        .map(|(b, sum)| (at, Change::InPlace(b, sum))),
                );
            }
            _ => changes.push((at, change(&chunk, body, block_size)?)),
        }
        rest = later;
    }
    Ok(changes)
}

/// Returns the most bytes of a chunk that has all of a block.
pub(crate) fn longest_chunk(block_size: BlockSize) -> usize {
    CHUNK_SIZE + block_size.bytes()
}

/// Fills `content` from the chunk at the start of `chunk`, which has all of the block.
///
/// # Errors
/// A chunk that no writer makes, or one that does not have all of a block.
pub(crate) fn content_of(chunk: &[u8], content: &mut [u8]) -> Result<(), Corrupt> {
    let head = Chunk::decode(chunk)?;
    let Change::Bytes {
        is_all: true,
        pieces,
        ..
    } = change(&head, &chunk[CHUNK_SIZE..], BlockSize::of(content.len()))?
    else {
        return Err(Corrupt::PrivateLogChunk("that has not all of its block"));
    };
    content.fill(0);
    for (offset, bytes) in pieces {
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    Ok(())
}

const SHORT: Corrupt = Corrupt::PrivateLogChunk("shorter than what it holds");

/// Decodes a chunk of any kind except for [`ChunkKind::Run`].
fn change<'a>(chunk: &Chunk, body: &'a [u8], block_size: BlockSize) -> Result<Change<'a>, Corrupt> {
    let count = usize::from(chunk.count);
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([body[at], body[at + 1]]));
    let u64_at = |at: usize| {
        let bytes: [u8; 8] = body[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    match chunk.kind {
        ChunkKind::Ranges | ChunkKind::Inodes | ChunkKind::Zeroed => {
            let mut at = count * 4;
            if body.len() < at {
                return Err(SHORT);
            }
            let mut pieces = Vec::with_capacity(count);
            for i in 0..count {
                let (offset, len) = (u16_at(i * 4), u16_at(i * 4 + 2));
                if offset + len > block_size.bytes() {
                    return Err(Corrupt::PrivateLogChunk("with bytes beyond its block"));
                }
                pieces.push((offset, body.get(at..at + len).ok_or(SHORT)?));
                at += len;
            }
            Ok(Change::Bytes {
                block: chunk.block,
                class: class_of(chunk.class)?,
                is_all: chunk.kind == ChunkKind::Zeroed,
                pieces,
            })
        }
        ChunkKind::Block => {
            let content = body.get(..block_size.bytes()).ok_or(SHORT)?;
            Ok(Change::Bytes {
                block: chunk.block,
                class: class_of(chunk.class)?,
                is_all: true,
                pieces: vec![(0, content)],
            })
        }
        ChunkKind::InPlace | ChunkKind::Run if body.len() < 8 => Err(SHORT),
        ChunkKind::InPlace | ChunkKind::Run => Ok(Change::InPlace(chunk.block, u64_at(0))),
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

    const BLOCK: BlockSize = BlockSize::of(1024);

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
            record.zeroed(BlockNo(10), Class::Directory, &content, &ranges);
            record.run(
                BlockNo(11),
                Class::Data,
                [&content[..], &content[..512]].into_iter(),
            );
            record.revoke(&[BlockNo(1), BlockNo(u64::MAX)]);
        }
        assert!(record.len(64) <= Record::bound(3, 2, BLOCK));
        let place = Place {
            at: 64,
            sequence: Tid(3),
            epoch: 1,
            seed: 2,
            unit: 64,
            masked: 0,
        };
        let bytes = record.seal(&place, COMMIT, (5, 6)).to_vec();
        assert!(bytes.len().is_multiple_of(64) && Transaction::is_intact(2, &bytes));
        let found = changes(&bytes, 6, BLOCK).expect("six chunks");
        let found: Vec<_> = found.into_iter().map(|(_, change)| change).collect();
        let some = |block, is_all, pieces| Change::Bytes {
            block: BlockNo(block),
            class: Class::Directory,
            is_all,
            pieces,
        };
        assert_eq!(
            found,
            [
                some(
                    7,
                    false,
                    vec![(3, &content[3..12]), (1000, &content[1000..])]
                ),
                Change::Bytes {
                    block: BlockNo(8),
                    class: Class::Data,
                    is_all: true,
                    pieces: vec![(0, &content[..])]
                },
                Change::InPlace(BlockNo(9), crc64(0, &content)),
                some(
                    10,
                    true,
                    vec![(3, &content[3..12]), (1000, &content[1000..])]
                ),
                Change::InPlace(BlockNo(11), crc64(0, &content)),
                Change::InPlace(BlockNo(12), crc64(0, &content[..512])),
                Change::Revoked(vec![BlockNo(1), BlockNo(u64::MAX)]),
            ]
        );
        // The chunks have bytes beyond a smaller block, and there are fewer chunks.
        assert!(changes(&bytes, 6, BlockSize::of(512)).is_err());
        assert!(changes(&bytes, 400, BLOCK).is_err());
    }

    /// No logged content makes a block of the ring begin like a record of JBD2, and it is read back
    /// as it was.
    #[test]
    fn nothing_looks_like_a_record_of_jbd2() {
        let magic = JBD2_MAGIC.to_be_bytes();
        for (at, others) in [(0, 0), (512, 3), (2048, 9)] {
            let place = Place {
                at,
                sequence: Tid(3),
                epoch: 1,
                seed: 2,
                unit: 512,
                masked: 1024,
            };
            let mut record = Record::default();
            record.begin();
            // Every word is the magic number, some of them under one of the first masks.
            let word = |i: u32| u32::from_le_bytes(magic) ^ (i % (others + 1));
            let content: Vec<u8> = (0..256).flat_map(|i| word(i).to_le_bytes()).collect();
            for block in 1..9 {
                record.block(BlockNo(block), Class::Data, &content);
            }
            let mut bytes = record.seal(&place, COMMIT, (5, 6)).to_vec();
            let begins: Vec<_> = beginnings(bytes.len(), at, 1024).collect();
            assert!(begins.len() >= 8 && (begins[0] + at as usize).is_multiple_of(1024));
            assert!(begins.iter().all(|&begin| bytes[begin..][..4] != magic));
            let header = bytes[..TRANSACTION_SIZE].try_into().expect("a header");
            let (_, header) = Transaction::decode(header);
            assert_ne!(header.mask, 0);
            apply_mask(&mut bytes, at, 1024, header.mask);
            assert!(Transaction::is_intact(2, &bytes));
            let found = changes(&bytes, 8, BLOCK).expect("eight chunks");
            let (_, Change::Bytes { pieces, .. }) = &found[7] else {
                panic!("{:?}", found[7]);
            };
            assert_eq!(*pieces, [(0, &content[..])]);
        }
    }
}
