//! Revoke blocks: the blocks that transactions up to this one must not restore.

use super::header::{BlockType, HEADER_SIZE, Header, LogFormat, write_header};
use crate::bytes::{read_u32be, read_u64be, write_u32be, write_u64be};
use crate::error::Corrupt;
use crate::layout::{Be32, Bytes, layout};
use crate::num::{BlockNo, Tid};
use crate::width::{must_fit, u32_as_usize};

layout! {
    /// The head of a revoke block; numbers of 4 or 8 bytes follow.
    pub REVOKE_LAYOUT = "Revoke block", RECORDS, {
        0x0 Bytes<12>, HEADER = "r_header";
        0xc Be32, COUNT = "r_count";
    }
}

/// Where the first record lies. `r_count` counts bytes from the block's start.
const RECORDS: usize = HEADER_SIZE + 4;

/// A revoke block whose checksum fits.
#[derive(Clone, Copy, Debug)]
pub struct RevokeBlock<'a> {
    records: &'a [u8],
    record_size: usize,
    /// The transaction that revokes.
    pub tid: Tid,
}

impl<'a> RevokeBlock<'a> {
    /// Checks header, checksum and count.
    ///
    /// # Errors
    /// [`Corrupt::JournalMagic`], [`Corrupt::JournalBlockType`], [`Corrupt::JournalTail`],
    /// [`Corrupt::JournalRevokeCount`], [`Corrupt::TooShort`].
    pub fn decode(block: &'a [u8], format: &LogFormat) -> Result<Self, Corrupt> {
        format.check_length(block)?;
        let header = Header::expect(block, BlockType::Revoke)?;
        format.check_tail(block)?;
        let used = COUNT.get(block);
        let records = block[..block.len() - format.tail_size()]
            .get(RECORDS..u32_as_usize(used))
            .ok_or(Corrupt::JournalRevokeCount(used))?;
        Ok(Self {
            records,
            record_size: format.revoke_size(),
            tid: header.sequence,
        })
    }

    /// The revoked blocks.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNo> + use<'a> {
        let size = self.record_size;
        self.records.chunks_exact(size).map(move |record| {
            BlockNo(if size == 8 {
                read_u64be(record, 0)
            } else {
                read_u32be(record, 0).into()
            })
        })
    }
}

/// Fills a revoke block.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    block: &'a mut [u8],
    format: &'a LogFormat,
    records: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Begins a revoke block of transaction `tid` in `block`, whatever that held.
    ///
    /// # Panics
    /// When `block` is not of the journal's block size.
    pub fn new(block: &'a mut [u8], tid: Tid, format: &'a LogFormat) -> Self {
        assert_eq!(block.len(), format.block_size.bytes());
        block.fill(0);
        write_header(block, BlockType::Revoke, tid);
        Self {
            block,
            format,
            records: 0,
        }
    }

    /// Records so far.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Whether no further record fits.
    pub fn is_full(&self) -> bool {
        self.records == self.format.revokes_per_block()
    }

    /// Adds a record.
    ///
    /// # Panics
    /// When the block is full, or the number needs more bits than the journal has.
    pub fn push(&mut self, revoked: BlockNo) {
        assert!(!self.is_full(), "revoke block is full");
        let offset = RECORDS + self.records * self.format.revoke_size();
        if self.format.is_64bit {
            write_u64be(self.block, offset, revoked.0);
        } else {
            let narrow = u32::try_from(revoked.0).expect("block number above 32 bits");
            write_u32be(self.block, offset, narrow);
        }
        self.records += 1;
    }

    /// Stores the count and makes the block's checksum.
    pub fn finish(self) {
        let used = RECORDS + self.records * self.format.revoke_size();
        COUNT.put(self.block, must_fit(used));
        self.format.write_tail(self.block);
    }
}

impl LogFormat {
    /// Records that one revoke block holds.
    pub const fn revokes_per_block(&self) -> usize {
        (self.block_size.bytes() - RECORDS - self.tail_size()) / self.revoke_size()
    }
}
