//! The logs of schemes that the kernel does not know: who owns a log, and the records of a
//! byte-addressable one.
//!
//! A volume in use by such a scheme has the incompatible feature
//! [`PRIVATE_LOG`](crate::FeatureIncompat::PRIVATE_LOG), which neither the kernel nor e2fsck knows:
//! both refuse it. Its journal area is that of JBD2; block 0, JBD2's superblock, stays as it is,
//! block 1 begins with the [`LogHeader`], the rest is the scheme's.
//!
//! A log of bytes holds transactions one behind the other, each at a multiple of a unit from the
//! log's start and around its end: a [`Transaction`] header of 64 bytes, then chunks, then zeros up
//! to the next multiple of the unit. The unit is a cache line of 64 bytes in byte-addressable
//! memory, and a sector on a block device. A transaction is valid if and only if:
//! 1. its state word has the state [`COMMIT`] or [`CHECKPOINT`] and the expected sequence number;
//! 2. its epoch is the log's, and its length a multiple of the unit that the log can hold;
//! 3. its checksum is that of everything behind the state word, begun with the volume's UUID and
//!    the transaction's position;
//! 4. if it is the last in the log, each block that it says was written in place has the checksum
//!    that it gives.
//!
//! On a block device, `t_mask` is XORed into the first 4 bytes of each block of the ring that
//! begins inside the transaction, behind its header. This happens after the checksum was computed.
//! The writer chooses a mask with which none of these blocks begins with JBD2's magic: so JBD2's
//! recovery finds nothing in a log that is left over, and nobody need wipe it.
//!
//! All integers are little-endian.

use std::ops::RangeInclusive;

use crate::checksum::{crc32c, crc64};
use crate::error::Corrupt;
use crate::layout::{Bytes, Le16, Le32, Le64, U8, record};
use crate::num::{BlockNo, Tid};
use crate::width::{high32, low32, must_fit, u32_as_usize};

/// Bytes of a transaction's header: one cache line.
pub const TRANSACTION_SIZE: usize = 64;

/// Bytes of a chunk's header.
pub const CHUNK_SIZE: usize = 16;

/// Where the ring begins in a region of memory beside the volume: at a page, behind the records
/// that say whose the region is ([`crate::nvm_pair`]). It goes to the region's end, in whole cache
/// lines.
pub const REGION_RING: u64 = 4096;

/// Offset in the log header of the word that says whether the log is open. It changes alone, in one
/// store.
pub const LOG_STATE_OFFSET: usize = STATE.0;
/// Offset in the log header of the word that says where the log begins. It, too, changes alone.
pub const TAIL_OFFSET: usize = TAIL.0;

/// State of a transaction that is being written.
pub const PENDING: u32 = 0x444e_4550; // "PEND"
/// State of a committed transaction.
pub const COMMIT: u32 = 0x5449_4d43; // "CMIT"
/// State of a transaction whose changes are home.
pub const CHECKPOINT: u32 = 0x5450_4b43; // "CKPT"

const MAGIC_VALUE: [u8; 8] = *b"stetLOG\0";
const VERSION_VALUE: u16 = 2;
/// Binary logarithms of the possible units.
const LOG_UNITS: RangeInclusive<u8> = 6..=16;
const OPEN: u64 = 0x4e45_504f; // "OPEN"
const SHUT: u64 = 0x5455_4853; // "SHUT"

/// Bytes of the header that its checksum covers: those that change only when the log is made anew.
const HEADER_COVERED: usize = STATE.0;

record! {
    /// Who owns the log.
    pub LOG_HEADER_LAYOUT = "Private log header", 72, {
        0x00 Bytes<8>, MAGIC = "l_magic";
        0x08 Le16, VERSION = "l_version";
        0x0a U8, LOG_UNIT = "l_log_unit";
        0x0c Le32, CHECKSUM = "l_checksum";
        0x10 Bytes<16>, SCHEME = "l_scheme";
        0x38 Le64, STATE = "l_state";
        0x40 Le64, TAIL = "l_tail";
    }

    /// What the log's header says.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogHeader from (raw) {
        /// The volume's UUID.
        0x20 Bytes<16>, uuid: [u8; 16] = "l_uuid";
        /// Another number each time the log is made anew.
        0x30 Le64, epoch: u64 = "l_epoch";
    } {
        /// The scheme's name, at most 16 bytes.
        pub scheme: String = scheme_of(SCHEME.get(raw));
        /// The unit of the medium that the log was made on, in bytes: a power of two from 64 to
        /// 65,536. For a log of blocks, the size of a block.
        pub unit: u32 = 0;
        /// Everything is home: there is nothing to recover.
        pub is_closed: bool = false;
        /// Where the log begins.
        pub tail: Tail = Tail::from_word(TAIL.get(raw));
    }
}

/// Where a log begins: position and sequence number of the first transaction to be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// In units of 64 bytes from the log's start.
    pub line: u32,
    /// The sequence number.
    pub sequence: Tid,
}

impl Tail {
    /// The word, which is stored in one piece.
    pub fn to_word(self) -> u64 {
        u64::from(self.line) | u64::from(self.sequence.0) << 32
    }

    /// Reads that word.
    pub fn from_word(word: u64) -> Self {
        Self {
            line: low32(word),
            sequence: Tid(high32(word)),
        }
    }
}

impl LogHeader {
    /// Bytes of the header.
    pub const SIZE: usize = LOG_HEADER_LAYOUT.size;

    /// Whether a block begins with the header's magic; nothing else is checked.
    pub fn is_one(block: &[u8]) -> bool {
        block.starts_with(&MAGIC_VALUE)
    }

    /// The word at [`LOG_STATE_OFFSET`].
    pub fn state_word(is_closed: bool) -> u64 {
        if is_closed { SHUT } else { OPEN }
    }

    /// Reads and checks the header.
    ///
    /// # Errors
    /// [`Corrupt::TooShort`], [`Corrupt::PrivateLogMagic`], [`Corrupt::PrivateLogChecksum`],
    /// [`Corrupt::PrivateLogVersion`], [`Corrupt::PrivateLogUnit`], [`Corrupt::PrivateLogState`].
    pub fn decode(block: &[u8]) -> Result<Self, Corrupt> {
        if block.len() < Self::SIZE {
            return Err(Corrupt::TooShort {
                record: LOG_HEADER_LAYOUT.name,
                needed: Self::SIZE,
                found: block.len(),
            });
        }
        if !Self::is_one(block) {
            return Err(Corrupt::PrivateLogMagic(MAGIC.get(block)));
        }
        let (stored, computed) = (CHECKSUM.get(block), header_crc(block));
        if stored != computed {
            return Err(Corrupt::PrivateLogChecksum { stored, computed });
        }
        let log_unit = match VERSION.get(block) {
            // In version 1, all logs were in memory.
            1 => *LOG_UNITS.start(),
            VERSION_VALUE => LOG_UNIT.get(block),
            other => return Err(Corrupt::PrivateLogVersion(other)),
        };
        if !LOG_UNITS.contains(&log_unit) {
            return Err(Corrupt::PrivateLogUnit(log_unit));
        }
        Ok(Self {
            unit: 1 << log_unit,
            is_closed: match STATE.get(block) {
                SHUT => true,
                OPEN => false,
                state => return Err(Corrupt::PrivateLogState(state)),
            },
            ..Self::read_fields(block)
        })
    }

    /// Writes the header over the first [`SIZE`](Self::SIZE) bytes.
    ///
    /// # Panics
    /// When `block` is shorter or the scheme's name longer than 16 bytes.
    pub fn encode(&self, block: &mut [u8]) {
        block[..Self::SIZE].fill(0);
        MAGIC.put(block, MAGIC_VALUE);
        VERSION.put(block, VERSION_VALUE);
        LOG_UNIT.put(block, must_fit(self.unit.ilog2()));
        SCHEME.put(block, put_scheme(&self.scheme));
        self.write_fields(block);
        STATE.put(block, Self::state_word(self.is_closed));
        TAIL.put(block, self.tail.to_word());
        let crc = header_crc(block);
        CHECKSUM.put(block, crc);
    }
}

/// A scheme's name in its field; panics when it is longer.
pub(crate) fn put_scheme(scheme: &str) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..scheme.len()].copy_from_slice(scheme.as_bytes());
    raw
}

/// A scheme's name, out of its field.
pub(crate) fn scheme_of(raw: [u8; 16]) -> String {
    let len = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
    String::from_utf8_lossy(&raw[..len]).into_owned()
}

fn header_crc(block: &[u8]) -> u32 {
    let mut covered = [0; HEADER_COVERED];
    covered.copy_from_slice(&block[..HEADER_COVERED]);
    CHECKSUM.put(&mut covered, 0);
    crc32c(!0, &covered)
}

record! {
    /// A transaction in a byte-addressable log.
    pub LOG_TRANSACTION_LAYOUT = "Private log transaction", 64, {
        0x00 Le64, T_STATE = "t_state";
        0x18 Le64, T_CHECKSUM = "t_checksum";
        0x28 Le64, T_SEC = "t_sec";
        0x30 Le32, T_NSEC = "t_nsec";
    }

    /// What a transaction's header says behind its state.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Transaction from (raw) {
        /// Bytes of all of it, a multiple of 64.
        0x08 Le64, length: u64 = "t_length";
        /// The log's epoch.
        0x10 Le64, epoch: u64 = "t_epoch";
        /// Chunks in it.
        0x20 Le32, chunks: u32 = "t_chunks";
        /// The word that is XORed into the beginnings of the ring's blocks; 0 in memory.
        0x34 Le32, mask: u32 = "t_mask";
    } {
        /// When it was closed: seconds and nanoseconds since 1970, for people.
        pub time: (u64, u32) = (T_SEC.get(raw), T_NSEC.get(raw));
    }
}

/// The state word, which is stored in one piece.
pub fn state_word(state: u32, sequence: Tid) -> u64 {
    u64::from(state) | u64::from(sequence.0) << 32
}

/// State and sequence number in a state word.
pub fn state_of(word: u64) -> (u32, Tid) {
    (low32(word), Tid(high32(word)))
}

impl Transaction {
    /// Reads the header of a transaction: its state word, and the rest.
    /// [`is_intact`](Self::is_intact) tells whether the transaction is valid.
    pub fn decode(header: &[u8; TRANSACTION_SIZE]) -> (u64, Self) {
        (T_STATE.get(header), Self::read_fields(header))
    }

    /// Writes the header, with the state word `state`, at the start of a transaction whose chunks
    /// are there already, and seals it. `seed` is that of its position ([`seed`]).
    pub fn encode(&self, state: u64, seed: u64, record: &mut [u8]) {
        record[..TRANSACTION_SIZE].fill(0);
        T_STATE.put(record, state);
        self.write_fields(record);
        T_SEC.put(record, self.time.0);
        T_NSEC.put(record, self.time.1);
        let crc = transaction_crc(seed, record);
        T_CHECKSUM.put(record, crc);
    }

    /// Whether a whole transaction has the checksum that belongs to it.
    pub fn is_intact(seed: u64, record: &[u8]) -> bool {
        T_CHECKSUM.get(record) == transaction_crc(seed, record)
    }
}

/// The seed of a transaction's checksum, made of the volume, the epoch, the place in the log and
/// the sequence number.
pub fn seed(uuid: &[u8; 16], epoch: u64, line: u32, sequence: Tid) -> u64 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(uuid);
    bytes[16..24].copy_from_slice(&epoch.to_le_bytes());
    bytes[24..28].copy_from_slice(&line.to_le_bytes());
    bytes[28..].copy_from_slice(&sequence.0.to_le_bytes());
    crc64(0, &bytes)
}

fn transaction_crc(seed: u64, record: &[u8]) -> u64 {
    let at = T_CHECKSUM.0;
    let crc = crc64(seed, &record[T_STATE.end()..at]);
    crc64(crc, &record[at + 8..])
}

/// What a chunk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ChunkKind {
    /// Bytes of a block: `c_count` pairs of offset and length, then the bytes.
    Ranges = 1,
    /// A whole block.
    Block = 2,
    /// Whole inodes, encoded as [`Ranges`](Self::Ranges).
    Inodes = 3,
    /// A block that was written in place: the CRC-64 of its content.
    InPlace = 4,
    /// `c_count` block numbers, freed: what this or an earlier transaction logged of them must not
    /// be replayed.
    Revoke = 5,
    /// A block of zeros except for these bytes, encoded as [`Ranges`](Self::Ranges).
    Zeroed = 6,
    /// `c_count` blocks from `c_block` on that were written in place: the CRC-64 of each.
    Run = 7,
}

impl ChunkKind {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the codes on disk"
    )]
    const fn code(self) -> u8 {
        self as u8
    }

    const ALL: [Self; 7] = [
        Self::Ranges,
        Self::Block,
        Self::Inodes,
        Self::InPlace,
        Self::Revoke,
        Self::Zeroed,
        Self::Run,
    ];
}

record! {
    /// A piece of a transaction: what happened to one block.
    pub LOG_CHUNK_LAYOUT = "Private log chunk", 16, {
        0x08 U8, C_KIND = "c_kind";
    }

    /// A chunk's header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Chunk from (raw) {
        /// The block; 0 with [`ChunkKind::Revoke`].
        0x00 Le64, block: BlockNo = "c_block";
        /// The block's class, as a number of the writer's choice; for accounts.
        0x09 U8, class: u8 = "c_class";
        /// Pairs or numbers that follow.
        0x0a Le16, count: u16 = "c_count";
        /// Bytes of the whole chunk, a multiple of 8: where the next one begins.
        0x0c Le32, length: u32 = "c_length";
    } {
        /// What it does.
        pub kind: ChunkKind = ChunkKind::Block;
    }
}

impl Chunk {
    /// Reads the header at the start of `bytes`, which end with the transaction.
    ///
    /// # Errors
    /// [`Corrupt::PrivateLogChunk`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        if bytes.len() < CHUNK_SIZE {
            return Err(Corrupt::PrivateLogChunk("beyond its transaction"));
        }
        let kind = C_KIND.get(bytes);
        let Some(&kind) = ChunkKind::ALL.iter().find(|k| k.code() == kind) else {
            return Err(Corrupt::PrivateLogChunk("of an unknown kind"));
        };
        let chunk = Self {
            kind,
            ..Self::read_fields(bytes)
        };
        let length = chunk.length;
        if u32_as_usize(length) < CHUNK_SIZE
            || u32_as_usize(length) > bytes.len()
            || !length.is_multiple_of(8)
        {
            return Err(Corrupt::PrivateLogChunk("of an impossible length"));
        }
        Ok(chunk)
    }

    /// Writes the header over the first bytes.
    pub fn encode(&self, bytes: &mut [u8]) {
        bytes[..CHUNK_SIZE].fill(0);
        C_KIND.put(bytes, self.kind.code());
        self.write_fields(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> LogHeader {
        LogHeader {
            scheme: "shortcut".to_owned(),
            uuid: *b"0123456789abcdef",
            unit: 512,
            epoch: 77,
            is_closed: false,
            tail: Tail {
                line: 9,
                sequence: Tid(3),
            },
        }
    }

    #[test]
    fn a_header_reads_back_and_its_tail_changes_alone() {
        let mut block = [0xEE; 128];
        header().encode(&mut block);
        assert_eq!(LogHeader::decode(&block), Ok(header()));
        let tail = Tail {
            line: 1 << 20,
            sequence: Tid(u32::MAX),
        };
        block[TAIL_OFFSET..TAIL_OFFSET + 8].copy_from_slice(&tail.to_word().to_le_bytes());
        assert_eq!(LogHeader::decode(&block).map(|h| h.tail), Ok(tail));
    }

    #[test]
    fn a_header_of_version_1_is_of_a_log_in_lines() {
        let mut block = [0; 128];
        let with = |block: &mut [u8; 128], version, log_unit| {
            header().encode(block);
            VERSION.put(block, version);
            LOG_UNIT.put(block, log_unit);
            let crc = header_crc(block);
            CHECKSUM.put(block, crc);
            LogHeader::decode(block).map(|header| header.unit)
        };
        assert_eq!(with(&mut block, 1, 0), Ok(64));
        assert_eq!(with(&mut block, 2, 16), Ok(65536));
        for wrong in [0, 5, 17, 64] {
            assert_eq!(
                with(&mut block, 2, wrong),
                Err(Corrupt::PrivateLogUnit(wrong))
            );
        }
        assert_eq!(with(&mut block, 3, 9), Err(Corrupt::PrivateLogVersion(3)));
    }

    #[test]
    fn every_damaged_byte_of_a_header_is_noticed() {
        let mut block = [0; 128];
        header().encode(&mut block);
        for i in 0..TAIL_OFFSET {
            let mut damaged = block;
            damaged[i] ^= 0x10;
            assert!(LogHeader::decode(&damaged).is_err(), "byte {i}");
        }
        assert!(LogHeader::decode(&block[..71]).is_err());
    }

    #[test]
    fn a_transaction_belongs_to_its_place_its_number_and_its_volume() {
        let transaction = Transaction {
            length: 128,
            epoch: 5,
            chunks: 1,
            time: (1, 2),
            mask: 0,
        };
        let mut record = [7; 128];
        let here = seed(&[1; 16], 5, 4, Tid(9));
        transaction.encode(state_word(COMMIT, Tid(9)), here, &mut record);
        let first: &[u8; 64] = record.first_chunk().expect("a header");
        let (word, read) = Transaction::decode(first);
        assert_eq!((state_of(word), read), ((COMMIT, Tid(9)), transaction));
        assert!(Transaction::is_intact(here, &record));
        for other in [
            seed(&[2; 16], 5, 4, Tid(9)),
            seed(&[1; 16], 6, 4, Tid(9)),
            seed(&[1; 16], 5, 3, Tid(9)),
            seed(&[1; 16], 5, 4, Tid(8)),
        ] {
            assert!(!Transaction::is_intact(other, &record));
        }
        for i in 8..128 {
            let mut damaged = record;
            damaged[i] ^= 1;
            assert!(!Transaction::is_intact(here, &damaged), "byte {i}");
        }
    }

    #[test]
    fn chunks_end_with_their_transaction() {
        let chunk = Chunk {
            block: BlockNo(12),
            kind: ChunkKind::Inodes,
            class: 4,
            count: 2,
            length: 48,
        };
        let mut bytes = [0; 48];
        chunk.encode(&mut bytes);
        assert_eq!(Chunk::decode(&bytes), Ok(chunk));
        for length in [0, 8, 15, 17, 56] {
            Chunk { length, ..chunk }.encode(&mut bytes);
            assert!(Chunk::decode(&bytes).is_err(), "{length}");
        }
        chunk.encode(&mut bytes);
        C_KIND.put(&mut bytes, 9);
        assert!(Chunk::decode(&bytes).is_err());
        assert!(Chunk::decode(&bytes[..15]).is_err());
    }
}
