//! The header of every journal record, and what the journal's features say about all records.

use crate::block_size::BlockSize;
use crate::bytes::{read_u32be, write_u32be};
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::layout::{Be32, layout};
use crate::num::Tid;

/// First four bytes of every journal record (`JBD2_MAGIC_NUMBER`).
pub const JBD2_MAGIC: u32 = 0xc03b_3998;
/// Bytes of the header that every journal record begins with.
pub const HEADER_SIZE: usize = 12;
/// Bytes of the checksum at the end of descriptor and revoke blocks (v2, v3).
const TAIL_SIZE: usize = 4;

layout! {
    /// The header of every journal record.
    pub HEADER_LAYOUT = "Journal block header", HEADER_SIZE, {
        0x0 Be32, MAGIC = "h_magic";
        0x4 Be32, BLOCKTYPE = "h_blocktype";
        0x8 Be32, SEQUENCE = "h_sequence";
    }
}

/// `h_blocktype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BlockType {
    /// Names the blocks that follow it.
    Descriptor = 1,
    /// Ends a transaction.
    Commit = 2,
    /// The journal superblock of version 1.
    SuperblockV1 = 3,
    /// The journal superblock of version 2.
    SuperblockV2 = 4,
    /// Names blocks that older transactions must not restore.
    Revoke = 5,
}

impl BlockType {
    /// `h_blocktype` on disk.
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the numbers on disk"
    )]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The type with this number.
    pub const fn of_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }
}

/// What every journal record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `h_blocktype`, which need not be a type that exists: see [`BlockType::of_number`].
    pub block_type: u32,
    /// The transaction that the record belongs to.
    pub sequence: Tid,
}

impl Header {
    /// The header at the start of `block`; `None` when the magic is not there, which
    /// is how the log ends.
    #[inline]
    pub fn decode(block: &[u8]) -> Option<Self> {
        if block.len() < HEADER_SIZE || MAGIC.get(block) != JBD2_MAGIC {
            return None;
        }
        Some(Self {
            block_type: BLOCKTYPE.get(block),
            sequence: Tid(SEQUENCE.get(block)),
        })
    }

    /// The type, when it exists.
    pub fn known_type(&self) -> Option<BlockType> {
        BlockType::of_number(self.block_type)
    }

    pub(super) fn expect(block: &[u8], expected: BlockType) -> Result<Self, Corrupt> {
        if block.len() < HEADER_SIZE {
            return Err(Corrupt::TooShort {
                record: "journal block",
                needed: HEADER_SIZE,
                found: block.len(),
            });
        }
        let header = Self::decode(block).ok_or(Corrupt::JournalMagic(MAGIC.get(block)))?;
        if header.block_type != expected.number() {
            let (expected, found) = (expected.number(), header.block_type);
            return Err(Corrupt::JournalBlockType { expected, found });
        }
        Ok(header)
    }
}

pub(super) fn write_header(block: &mut [u8], block_type: BlockType, tid: Tid) {
    MAGIC.put(block, JBD2_MAGIC);
    BLOCKTYPE.put(block, block_type.number());
    SEQUENCE.put(block, tid.0);
}

/// Whether a block of this content must be escaped when it is logged.
#[inline]
pub fn needs_escape(content: &[u8]) -> bool {
    read_u32be(content, 0) == JBD2_MAGIC
}

/// Makes the logged form of a block that [needs it](needs_escape): the magic becomes zero.
pub fn escape(content: &mut [u8]) {
    write_u32be(content, 0, 0);
}

/// Restores a block whose tag says that it was escaped.
pub fn unescape(content: &mut [u8]) {
    write_u32be(content, 0, JBD2_MAGIC);
}

/// The generation of a journal's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumVersion {
    /// None.
    None,
    /// One CRC-32 of all blocks of a transaction, in its commit block.
    V1,
    /// CRC-32C on each record; a logged block's tag holds the lower 16 bits of the block's CRC-32C.
    V2,
    /// CRC-32C on each record; a logged block's tag holds the block's whole CRC-32C.
    V3,
}

impl ChecksumVersion {
    /// Whether records end in a checksum: those of v2 and v3 do.
    pub const fn has_tails(self) -> bool {
        matches!(self, Self::V2 | Self::V3)
    }
}

/// How the records of one journal look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// The size of a block.
    pub block_size: BlockSize,
    /// Checksums.
    pub checksum: ChecksumVersion,
    /// Block numbers have 64 bits.
    pub is_64bit: bool,
    /// Stands behind the first tag of a descriptor block.
    pub uuid: [u8; 16],
    /// Seed of checksums v2 and v3: CRC-32C of the UUID.
    pub seed: u32,
}

impl LogFormat {
    /// Whether records end in a checksum: those of v2 and v3 do.
    pub const fn has_tails(&self) -> bool {
        self.checksum.has_tails()
    }

    /// Bytes at the end of descriptor and revoke blocks that hold their checksum.
    pub const fn tail_size(&self) -> usize {
        if self.has_tails() { TAIL_SIZE } else { 0 }
    }

    /// Bytes of a tag (the kernel's `journal_tag_bytes`, with its oddity: v2 tags
    /// carry two bytes that nothing uses).
    pub const fn tag_size(&self) -> usize {
        match (self.checksum, self.is_64bit) {
            (ChecksumVersion::V3, _) => 16,
            (ChecksumVersion::V2, true) => 14,
            (ChecksumVersion::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Tags that one descriptor block holds.
    pub const fn tags_per_block(&self) -> usize {
        (self.block_size.bytes() - HEADER_SIZE - self.tail_size() - 16) / self.tag_size()
    }

    /// Bytes of a record in a revoke block.
    pub const fn revoke_size(&self) -> usize {
        if self.is_64bit { 8 } else { 4 }
    }

    /// The checksum that a tag holds of a logged block: over the content *as logged* (escaped). 0
    /// without checksums v2 or v3.
    pub fn data_checksum(&self, tid: Tid, logged: &[u8]) -> u32 {
        match self.checksum {
            ChecksumVersion::None | ChecksumVersion::V1 => 0,
            ChecksumVersion::V2 => self.data_crc(tid, logged) & 0xffff,
            ChecksumVersion::V3 => self.data_crc(tid, logged),
        }
    }

    fn data_crc(&self, tid: Tid, logged: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &tid.0.to_be_bytes()), logged)
    }

    pub(super) fn check_tail(&self, block: &[u8]) -> Result<(), Corrupt> {
        if !self.has_tails() {
            return Ok(());
        }
        let stored = read_u32be(block, block.len() - TAIL_SIZE);
        let computed = self.tail_crc(block);
        if stored == computed {
            Ok(())
        } else {
            Err(Corrupt::JournalTail { stored, computed })
        }
    }

    pub(super) fn write_tail(&self, block: &mut [u8]) {
        if self.has_tails() {
            let computed = self.tail_crc(block);
            write_u32be(block, block.len() - TAIL_SIZE, computed);
        }
    }

    fn tail_crc(&self, block: &[u8]) -> u32 {
        let crc = crc32c(self.seed, &block[..block.len() - TAIL_SIZE]);
        crc32c(crc, &[0; TAIL_SIZE])
    }

    pub(super) fn check_length(&self, block: &[u8]) -> Result<(), Corrupt> {
        if block.len() == self.block_size.bytes() {
            return Ok(());
        }
        Err(Corrupt::TooShort {
            record: "journal block",
            needed: self.block_size.bytes(),
            found: block.len(),
        })
    }
}
