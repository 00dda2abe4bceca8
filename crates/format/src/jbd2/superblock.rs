//! The journal superblock: 1,024 bytes at the start of the journal's first block.

use bitflags::bitflags;

use super::header::{BlockType, ChecksumVersion, JBD2_MAGIC, LogFormat};
use crate::block_size::BlockSize;
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::layout::{Be32, Bytes, U8, flag_words, record};
use crate::num::Tid;
use crate::width::u32_as_usize;

/// Bytes of the journal superblock.
pub const JOURNAL_SUPERBLOCK_SIZE: usize = 1024;
/// The kernel mounts no shorter journal (`JBD2_MIN_JOURNAL_BLOCKS`). The records here work in
/// shorter ones too, for tests.
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;
/// Below this not even the smallest transaction fits.
const MIN_LOG_BLOCKS: u32 = 8;
/// `s_checksum_type` of CRC-32C.
const CHECKSUM_CRC32C: u8 = 4;
/// Size of the fast-commit area when `s_num_fc_blks` is 0.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

bitflags! {
    /// `s_feature_compat` of the journal.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct JournalCompat: u32 {
        /// Checksums v1.
        const CHECKSUM = 0x1;
    }
}

bitflags! {
    /// `s_feature_incompat` of the journal.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct JournalIncompat: u32 {
        /// There are revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const IS_64BIT = 0x2;
        /// The commit block may be written before the blocks that it commits.
        const ASYNC_COMMIT = 0x4;
        /// Checksums v2.
        const CSUM_V2 = 0x8;
        /// Checksums v3.
        const CSUM_V3 = 0x10;
        /// The end of the journal is an area for fast commits.
        const FAST_COMMIT = 0x20;
    }
}

flag_words!(JournalCompat: u32, JournalIncompat: u32);

record! {
    /// The journal superblock; version 1 ends before `s_feature_compat`.
    pub JOURNAL_SUPERBLOCK_LAYOUT = "Journal superblock", JOURNAL_SUPERBLOCK_SIZE, {
        0x000 Be32, HEADER_MAGIC = "h_magic";
        0x004 Be32, BLOCKTYPE = "h_blocktype";
        0x008 Be32, HEADER_SEQUENCE = "h_sequence";
        0x044 Be32, DYNSUPER = "s_dynsuper";
        0x0fc Be32, CHECKSUM = "s_checksum";
        0x100 Bytes<768>, USERS = "s_users";
    }

    /// The journal superblock. Fields carry the kernel's names without `s_`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct JournalSuperblock from (raw, is_v2: bool) {
        /// Bytes of a block.
        0x00c Be32, blocksize: u32 = "s_blocksize";
        /// Blocks of the journal, this one included.
        0x010 Be32, maxlen: u32 = "s_maxlen";
        /// The first block of the log.
        0x014 Be32, first: u32 = "s_first";
        /// The transaction that recovery expects first.
        0x018 Be32, sequence: Tid = "s_sequence";
        /// Where that transaction begins; 0 when the log is empty.
        0x01c Be32, start: u32 = "s_start";
        /// The error for which the journal was aborted, as a negative errno; 0 for none.
        0x020 Be32, errno: i32 = "s_errno";
        /// Compatible features.
        0x024 Be32 where is_v2, feature_compat: JournalCompat = "s_feature_compat";
        /// Incompatible features.
        0x028 Be32 where is_v2, feature_incompat: JournalIncompat = "s_feature_incompat";
        /// Read-only-compatible features: none exist.
        0x02c Be32 where is_v2, feature_ro_compat: u32 = "s_feature_ro_compat";
        /// The journal's UUID; a journal inside the volume mostly has the volume's.
        0x030 Bytes<16> where is_v2, uuid: [u8; 16] = "s_uuid";
        /// File systems that use the journal.
        0x040 Be32 where is_v2, nr_users: u32 = "s_nr_users";
        /// The largest transaction in blocks; not used by the kernel.
        0x048 Be32 where is_v2, max_transaction: u32 = "s_max_transaction";
        /// The most data blocks of a transaction; not used by the kernel.
        0x04c Be32 where is_v2, max_trans_data: u32 = "s_max_trans_data";
        /// 4: CRC-32C; 0 without checksums v2 or v3.
        0x050 U8 where is_v2, checksum_type: u8 = "s_checksum_type";
        /// Blocks of the fast-commit area; 0 means 256.
        0x054 Be32 where is_v2, num_fc_blks: u32 = "s_num_fc_blks";
        /// The first free block of an empty log: where to go on after a clean unmount.
        0x058 Be32 where is_v2, head: u32 = "s_head";
    } {
        /// Version 2, with everything from the features on.
        pub is_v2: bool = is_v2;
    }
}

impl JournalSuperblock {
    /// Decodes the first 1,024 bytes of `raw`.
    ///
    /// A journal superblock is valid if and only if: 1. it has the magic and is of
    /// version 1 or 2; 2. all its incompatible features are known, at most one checksum
    /// version is set; 3. with v2 or v3, its checksum fits; 4. its block size is the
    /// volume's; 5. the log lies inside the journal and its start inside the log.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Journal`, for the first check that failed.
    pub fn decode(raw: &[u8], volume_block_size: BlockSize) -> Result<Self, Corrupt> {
        let raw = raw
            .get(..JOURNAL_SUPERBLOCK_SIZE)
            .ok_or(Corrupt::TooShort {
                record: "journal superblock",
                needed: JOURNAL_SUPERBLOCK_SIZE,
                found: raw.len(),
            })?;
        if HEADER_MAGIC.get(raw) != JBD2_MAGIC {
            return Err(Corrupt::JournalMagic(HEADER_MAGIC.get(raw)));
        }
        let is_v2 = match BlockType::of_number(BLOCKTYPE.get(raw)) {
            Some(BlockType::SuperblockV1) => false,
            Some(BlockType::SuperblockV2) => true,
            _ => return Err(Corrupt::JournalSuperType(BLOCKTYPE.get(raw))),
        };
        let superblock = Self::read_fields(raw, is_v2);
        superblock.check_features()?;
        if superblock.checksum_version().has_tails() {
            superblock.check_checksum(raw)?;
        }
        superblock.check_extent(volume_block_size)?;
        Ok(superblock)
    }

    fn check_features(&self) -> Result<(), Corrupt> {
        let unknown = self.feature_incompat.bits() & !JournalIncompat::all().bits();
        if unknown != 0 {
            return Err(Corrupt::JournalIncompat(unknown));
        }
        if self.feature_ro_compat != 0 {
            return Err(Corrupt::JournalRoCompat(self.feature_ro_compat));
        }
        let v1 = self.feature_compat.contains(JournalCompat::CHECKSUM);
        let v2 = self.feature_incompat.contains(JournalIncompat::CSUM_V2);
        let v3 = self.feature_incompat.contains(JournalIncompat::CSUM_V3);
        if u8::from(v1) + u8::from(v2) + u8::from(v3) > 1 {
            return Err(Corrupt::JournalChecksumVersions);
        }
        Ok(())
    }

    fn check_checksum(&self, raw: &[u8]) -> Result<(), Corrupt> {
        if self.checksum_type != CHECKSUM_CRC32C {
            return Err(Corrupt::JournalChecksumType(self.checksum_type));
        }
        let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw));
        if stored == computed {
            return Ok(());
        }
        Err(Corrupt::JournalSuperChecksum { stored, computed })
    }

    fn check_extent(&self, volume_block_size: BlockSize) -> Result<(), Corrupt> {
        if self.blocksize != volume_block_size.bytes_u32() {
            let (journal, volume) = (self.blocksize, volume_block_size.bytes_u32());
            return Err(Corrupt::JournalBlockSize { journal, volume });
        }
        let (first, length) = (self.first, self.maxlen);
        if first == 0 || first >= length {
            return Err(Corrupt::JournalFirst { first, length });
        }
        if self.fast_commit_blocks() >= length {
            return Err(Corrupt::JournalFastCommit {
                fast: self.fast_commit_blocks(),
                length,
            });
        }
        if self.log_end() < first || self.log_end() - first < MIN_LOG_BLOCKS {
            return Err(Corrupt::JournalLength(length));
        }
        if self.start != 0 && !(first..self.log_end()).contains(&self.start) {
            return Err(Corrupt::JournalStart {
                start: self.start,
                first,
                length,
            });
        }
        Ok(())
    }

    /// Writes every field into the first 1,024 bytes of `raw`, an older version of
    /// this superblock, and makes its checksum anew where it has one.
    ///
    /// # Panics
    /// When `raw` is shorter than 1,024 bytes.
    pub fn encode_into(&self, raw: &mut [u8]) {
        let raw = &mut raw[..JOURNAL_SUPERBLOCK_SIZE];
        let block_type = if self.is_v2 {
            BlockType::SuperblockV2
        } else {
            BlockType::SuperblockV1
        };
        HEADER_MAGIC.put(raw, JBD2_MAGIC);
        BLOCKTYPE.put(raw, block_type.number());
        self.write_fields(raw, self.is_v2);
        if self.is_v2 && self.checksum_version().has_tails() {
            CHECKSUM.put(raw, checksum_of(raw));
        }
    }

    /// Sets the features of one checksum version and clears those of the others.
    /// Only while the log is empty: its records would become unreadable.
    pub fn set_checksum_version(&mut self, version: ChecksumVersion) {
        self.feature_compat
            .set(JournalCompat::CHECKSUM, version == ChecksumVersion::V1);
        self.feature_incompat
            .set(JournalIncompat::CSUM_V2, version == ChecksumVersion::V2);
        self.feature_incompat
            .set(JournalIncompat::CSUM_V3, version == ChecksumVersion::V3);
        self.checksum_type = if version.has_tails() {
            CHECKSUM_CRC32C
        } else {
            0
        };
    }

    /// The version of the checksums that its features name.
    pub fn checksum_version(&self) -> ChecksumVersion {
        if self.feature_incompat.contains(JournalIncompat::CSUM_V3) {
            ChecksumVersion::V3
        } else if self.feature_incompat.contains(JournalIncompat::CSUM_V2) {
            ChecksumVersion::V2
        } else if self.feature_compat.contains(JournalCompat::CHECKSUM) {
            ChecksumVersion::V1
        } else {
            ChecksumVersion::None
        }
    }

    /// How the records of this journal look.
    ///
    /// # Panics
    /// When its block size is no power of two, which [`JournalSuperblock::decode`] lets never pass.
    pub fn log_format(&self) -> LogFormat {
        LogFormat {
            block_size: BlockSize::of(u32_as_usize(self.blocksize)),
            checksum: self.checksum_version(),
            is_64bit: self.feature_incompat.contains(JournalIncompat::IS_64BIT),
            uuid: self.uuid,
            seed: crc32c(!0, &self.uuid),
        }
    }

    /// The block behind the last of the log: the journal's end, or where the
    /// fast-commit area begins.
    pub fn log_end(&self) -> u32 {
        self.maxlen - self.fast_commit_blocks().min(self.maxlen)
    }

    fn fast_commit_blocks(&self) -> u32 {
        if !self.feature_incompat.contains(JournalIncompat::FAST_COMMIT) {
            return 0;
        }
        if self.num_fc_blks == 0 {
            DEFAULT_FAST_COMMIT_BLOCKS
        } else {
            self.num_fc_blks
        }
    }
}

fn checksum_of(raw: &[u8]) -> u32 {
    let mut crc = crc32c(!0, &raw[..CHECKSUM.0]);
    crc = crc32c(crc, &[0; 4]);
    crc32c(crc, &raw[CHECKSUM.end()..])
}
