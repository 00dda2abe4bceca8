//! Commit blocks: a transaction is committed when its commit block is in the log.

use super::header::{BlockType, ChecksumVersion, Header, LogFormat, write_header};
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::inode::Time;
use crate::layout::{Be32, Be64, Bytes, U8, layout};
use crate::num::Tid;

layout! {
    /// A commit block.
    pub COMMIT_LAYOUT = "Commit block", 60, {
        0x00 Bytes<12>, HEADER = "h_header";
        0x0c U8, CHKSUM_TYPE = "h_chksum_type";
        0x0d U8, CHKSUM_SIZE = "h_chksum_size";
        0x10 Be32, CHKSUM = "h_chksum";
        0x30 Be64, COMMIT_SEC = "h_commit_sec";
        0x38 Be32, COMMIT_NSEC = "h_commit_nsec";
    }
}

/// `h_chksum_type` and `h_chksum_size` of checksums v1.
const CHKSUM_TYPE_CRC32: u8 = 1;
const CHKSUM_SIZE_CRC32: u8 = 4;

/// A commit block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBlock {
    /// The transaction that is committed.
    pub tid: Tid,
    /// When it was committed. For people: recovery does not use it.
    pub time: Time,
    /// With checksums v1: [`crc32_be`](crate::checksum::crc32_be), begun with `!0`, of all
    /// descriptor blocks and logged blocks of the transaction in the order of the log (revoke
    /// blocks are not in it). `None` without checksums v1, or when the writer did not know them.
    pub transaction_crc: Option<u32>,
}

impl CommitBlock {
    /// Checks header and, with v2 or v3, the checksum.
    ///
    /// A power cut may tear a block. All that a commit block says is in its first sector, and the
    /// rest is zeros, so the block counts if its checksum is right with zeros there. The kernel
    /// does the same (`jbd2_commit_block_csum_verify_partial`, fs/jbd2/recovery.c).
    ///
    /// # Errors
    /// [`Corrupt::JournalMagic`], [`Corrupt::JournalBlockType`],
    /// [`Corrupt::JournalCommitChecksum`], [`Corrupt::TooShort`].
    pub fn decode(block: &[u8], format: &LogFormat) -> Result<Self, Corrupt> {
        format.check_length(block)?;
        let header = Header::expect(block, BlockType::Commit)?;
        if format.has_tails() {
            let (stored, computed) = (CHKSUM.get(block), block_crc(block, format));
            if stored != computed && stored != torn_crc(block, format) {
                return Err(Corrupt::JournalCommitChecksum { stored, computed });
            }
        }
        // A kernel that does not know v1 leaves type and size zero.
        let has_v1 = format.checksum == ChecksumVersion::V1
            && (
                CHKSUM_TYPE.get(block),
                CHKSUM_SIZE.get(block),
                CHKSUM.get(block),
            ) != (0, 0, 0);
        Ok(Self {
            tid: header.sequence,
            time: Time {
                sec: COMMIT_SEC.get(block).cast_signed(),
                nsec: COMMIT_NSEC.get(block),
            },
            transaction_crc: has_v1.then(|| CHKSUM.get(block)),
        })
    }

    /// Compares the stored CRC with `computed`, that of the transaction's blocks in the log.
    ///
    /// # Errors
    /// [`Corrupt::JournalCommitChecksum`].
    pub fn check_transaction(&self, computed: u32) -> Result<(), Corrupt> {
        match self.transaction_crc {
            Some(stored) if stored != computed => {
                Err(Corrupt::JournalCommitChecksum { stored, computed })
            }
            _ => Ok(()),
        }
    }

    /// Fills the whole block, whatever it held.
    ///
    /// # Panics
    /// When `block` is not of the journal's block size.
    pub fn encode(&self, block: &mut [u8], format: &LogFormat) {
        assert_eq!(block.len(), format.block_size.bytes());
        block.fill(0);
        write_header(block, BlockType::Commit, self.tid);
        COMMIT_SEC.put(block, self.time.sec.cast_unsigned());
        COMMIT_NSEC.put(block, self.time.nsec);
        match format.checksum {
            ChecksumVersion::None => {}
            ChecksumVersion::V1 => {
                if let Some(crc) = self.transaction_crc {
                    CHKSUM_TYPE.put(block, CHKSUM_TYPE_CRC32);
                    CHKSUM_SIZE.put(block, CHKSUM_SIZE_CRC32);
                    CHKSUM.put(block, crc);
                }
            }
            ChecksumVersion::V2 | ChecksumVersion::V3 => {
                CHKSUM.put(block, block_crc(block, format));
            }
        }
    }
}

fn block_crc(block: &[u8], format: &LogFormat) -> u32 {
    crc32c(head_crc(block, format), &block[COMMIT_LAYOUT.size..])
}

/// The checksum of the block with zeros behind what is said in it.
fn torn_crc(block: &[u8], format: &LogFormat) -> u32 {
    const ZEROS: [u8; 512] = [0; 512];
    let rest = block.len() - COMMIT_LAYOUT.size;
    let mut crc = head_crc(block, format);
    for _ in 0..rest / ZEROS.len() {
        crc = crc32c(crc, &ZEROS);
    }
    crc32c(crc, &ZEROS[..rest % ZEROS.len()])
}

/// The checksum of what is said, without the checksum itself.
fn head_crc(block: &[u8], format: &LogFormat) -> u32 {
    let crc = crc32c(format.seed, &block[..CHKSUM.0]);
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, &block[CHKSUM.end()..COMMIT_LAYOUT.size])
}
