//! The journal area of a volume: its superblock and its blocks by number.

use serde::Serialize;
use stetfs_format::FeatureIncompat;
use stetfs_format::jbd2::{ChecksumVersion, JournalIncompat, JournalSuperblock, LogFormat};
use stetfs_media::{Block, Class, Tag};
use stetfs_scheme::LogExtent;

use crate::disk::Disk;
use crate::failure::{Failure, Result};

/// The content of the journal's superblock, or why it cannot be read.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum JournalInfo {
    Internal {
        inode: u32,
        size: u64,
        blocks: u32,
        /// The scheme whose format the journal has.
        scheme: String,
        /// True if only that scheme can read the log.
        is_private: bool,
        features: Vec<&'static str>,
        /// The number of the next transaction, or of the first to replay.
        sequence: u32,
        /// Where the first transaction to replay begins, in journal blocks; 0 when there is none.
        start: u32,
        /// The errno that the kernel noted when it stopped the journal; 0 if it did not.
        error: i32,
    },
    External {
        external_uuid: String,
    },
    Unreadable {
        unreadable: String,
    },
}

/// The journal inside a volume.
pub(crate) struct JournalArea<'a> {
    disk: &'a Disk,
    extents: Vec<LogExtent>,
    pub(crate) superblock: JournalSuperblock,
    pub(crate) format: LogFormat,
}

impl<'a> JournalArea<'a> {
    /// Finds the journal and reads its superblock.
    pub(crate) fn open(disk: &'a Disk) -> Result<Self> {
        let extents = stetfs::journal_extents(&*disk.dev, &disk.superblock)?;
        let block = read_block(disk, &extents, 0)?;
        let superblock = JournalSuperblock::decode(block.bytes(), disk.superblock.block)?;
        let blocks: u64 = extents.iter().map(|e| u64::from(e.len)).sum();
        if u64::from(superblock.maxlen) > blocks {
            let maxlen = superblock.maxlen;
            return Err(Failure::new(format!(
                "its superblock says {maxlen} blocks, its inode has {blocks}"
            )));
        }
        Ok(Self {
            disk,
            extents,
            format: superblock.log_format(),
            superblock,
        })
    }

    /// Reads block `index` of the journal.
    pub(crate) fn read(&self, index: u32) -> Result<Block> {
        read_block(self.disk, &self.extents, index)
    }

    /// Returns what `stetfs info` shows.
    pub(crate) fn info(&self, inode: u32) -> JournalInfo {
        let sb = &self.superblock;
        let incompat = self.disk.superblock.feature_incompat;
        let is_private = incompat.contains(FeatureIncompat::PRIVATE_LOG);
        let owner = self.disk.private_log_owner();
        JournalInfo::Internal {
            inode,
            size: self.disk.superblock.block.offset_of(sb.maxlen.into()),
            blocks: sb.maxlen,
            scheme: if is_private {
                owner.unwrap_or_else(|| "(unknown)".to_owned())
            } else {
                "jbd2".to_owned()
            },
            is_private,
            features: self.features(),
            sequence: sb.sequence.0,
            start: sb.start,
            error: sb.errno,
        }
    }

    /// Returns the features, by the names that dumpe2fs uses.
    pub(crate) fn features(&self) -> Vec<&'static str> {
        let has = |feature| self.superblock.feature_incompat.contains(feature);
        let all = [
            (
                self.format.checksum == ChecksumVersion::V1,
                "journal_checksum",
            ),
            (has(JournalIncompat::REVOKE), "journal_incompat_revoke"),
            (has(JournalIncompat::IS_64BIT), "journal_64bit"),
            (has(JournalIncompat::ASYNC_COMMIT), "journal_async_commit"),
            (has(JournalIncompat::CSUM_V2), "journal_checksum_v2"),
            (has(JournalIncompat::CSUM_V3), "journal_checksum_v3"),
            (has(JournalIncompat::FAST_COMMIT), "fast_commit"),
        ];
        all.into_iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| name)
            .collect()
    }
}

fn read_block(disk: &Disk, extents: &[LogExtent], index: u32) -> Result<Block> {
    let mut skipped = index;
    for extent in extents {
        if skipped < extent.len {
            let mut block = Block::zeroed(disk.superblock.block_size());
            let offset = disk
                .superblock
                .block
                .start_of(extent.start.plus(skipped.into()));
            disk.dev
                .read_at(offset, block.bytes_mut(), Tag::read(Class::Journal))?;
            return Ok(block);
        }
        skipped -= extent.len;
    }
    Err(Failure::new(format!(
        "journal block {index} is beyond the end of the journal"
    )))
}
