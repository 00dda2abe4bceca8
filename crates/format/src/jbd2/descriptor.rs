//! Descriptor blocks: the tags that say where the logged blocks behind them belong.

use super::header::{BlockType, ChecksumVersion, HEADER_SIZE, Header, LogFormat, write_header};
use crate::error::Corrupt;
use crate::layout::{Be16, Be32, layout};
use crate::num::{BlockNo, Tid};
use crate::width::{high32, low16, low32};

layout! {
    /// A tag without checksums or with v1 or v2. Without 64-bit numbers it ends after
    /// `t_flags`; with v2 two unused bytes follow.
    pub TAG_LAYOUT = "Descriptor tag", 14, {
        0x0 Be32, BLOCKNR = "t_blocknr";
        0x4 Be16, CHECKSUM = "t_checksum";
        0x6 Be16, FLAGS = "t_flags";
        0x8 Be32, BLOCKNR_HIGH = "t_blocknr_high";
    }
}

mod tag3 {
    use super::{Be32, layout};

    layout! {
        /// A tag with checksums v3.
        pub TAG3_LAYOUT = "Descriptor tag v3", 16, {
            0x0 Be32, BLOCKNR = "t_blocknr";
            0x4 Be32, FLAGS = "t_flags";
            0x8 Be32, BLOCKNR_HIGH = "t_blocknr_high";
            0xc Be32, CHECKSUM = "t_checksum";
        }
    }

    pub(super) const FLAGS_FIELD: Be32 = FLAGS;
    pub(super) const BLOCKNR_HIGH_FIELD: Be32 = BLOCKNR_HIGH;
    pub(super) const CHECKSUM_FIELD: Be32 = CHECKSUM;
}

pub use tag3::TAG3_LAYOUT;

const FLAG_ESCAPE: u32 = 1;
const FLAG_SAME_UUID: u32 = 2;
const FLAG_DELETED: u32 = 4;
const FLAG_LAST_TAG: u32 = 8;
const UUID_SIZE: usize = 16;

/// One tag: where the next logged block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The block's home.
    pub block: BlockNo,
    /// Its first four bytes were JBD2's magic and are zero in the log.
    pub escaped: bool,
    /// The block was deleted by this transaction; never written by the kernel.
    pub deleted: bool,
    /// Checksum of the block as logged: see [`LogFormat::data_checksum`]. 0 without v2 or v3.
    pub checksum: u32,
}

/// A descriptor block whose checksum fits.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorBlock<'a> {
    block: &'a [u8],
    format: &'a LogFormat,
    /// The transaction.
    pub tid: Tid,
}

impl<'a> DescriptorBlock<'a> {
    /// Checks header and checksum.
    ///
    /// # Errors
    /// [`Corrupt::JournalMagic`], [`Corrupt::JournalBlockType`], [`Corrupt::JournalTail`],
    /// [`Corrupt::TooShort`] when `block` is not of the journal's block size.
    pub fn decode(block: &'a [u8], format: &'a LogFormat) -> Result<Self, Corrupt> {
        format.check_length(block)?;
        let header = Header::expect(block, BlockType::Descriptor)?;
        format.check_tail(block)?;
        Ok(Self {
            block,
            format,
            tid: header.sequence,
        })
    }

    /// The tags, in the order of the logged blocks behind the descriptor.
    pub fn tags(&self) -> Tags<'a> {
        Tags {
            block: self.block,
            format: self.format,
            offset: HEADER_SIZE,
            ended: false,
        }
    }
}

/// Iterator over the tags of a descriptor block. It ends after the tag that is marked as the last,
/// or where the block is full (e2fsprogs marks none there). Zeros behind a tag that is not the last
/// are [`Corrupt::JournalTagsUnended`].
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    block: &'a [u8],
    format: &'a LogFormat,
    offset: usize,
    ended: bool,
}

impl Iterator for Tags<'_> {
    type Item = Result<Tag, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let size = self.format.tag_size();
        let end = self.block.len() - self.format.tail_size();
        if self.offset + size > end {
            return None;
        }
        let raw = &self.block[self.offset..self.offset + size];
        if self.offset > HEADER_SIZE && raw.iter().all(|&byte| byte == 0) {
            self.ended = true;
            return Some(Err(Corrupt::JournalTagsUnended(self.offset)));
        }
        let (flags, high, checksum) = match self.format.checksum {
            ChecksumVersion::V3 => (
                tag3::FLAGS_FIELD.get(raw),
                tag3::BLOCKNR_HIGH_FIELD.get(raw),
                tag3::CHECKSUM_FIELD.get(raw),
            ),
            version => {
                let high = if self.format.is_64bit {
                    BLOCKNR_HIGH.get(raw)
                } else {
                    0
                };
                let has_checksum = version == ChecksumVersion::V2;
                let checksum = if has_checksum { CHECKSUM.get(raw) } else { 0 };
                (u32::from(FLAGS.get(raw)), high, u32::from(checksum))
            }
        };
        let high = if self.format.is_64bit { high } else { 0 };
        self.offset += size;
        if flags & FLAG_SAME_UUID == 0 {
            self.offset += UUID_SIZE;
        }
        self.ended = flags & FLAG_LAST_TAG != 0;
        Some(Ok(Tag {
            block: BlockNo(u64::from(high) << 32 | u64::from(BLOCKNR.get(raw))),
            escaped: flags & FLAG_ESCAPE != 0,
            deleted: flags & FLAG_DELETED != 0,
            checksum,
        }))
    }
}

/// Fills a descriptor block tag by tag.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    block: &'a mut [u8],
    format: &'a LogFormat,
    /// Where the next tag goes.
    offset: usize,
    /// Where the latest tag is.
    latest: usize,
    tags: usize,
}

impl<'a> DescriptorWriter<'a> {
    /// Begins a descriptor block of transaction `tid` in `block`, whatever that held.
    ///
    /// # Panics
    /// When `block` is not of the journal's block size.
    pub fn new(block: &'a mut [u8], tid: Tid, format: &'a LogFormat) -> Self {
        assert_eq!(block.len(), format.block_size.bytes());
        block.fill(0);
        write_header(block, BlockType::Descriptor, tid);
        Self {
            block,
            format,
            offset: HEADER_SIZE,
            latest: HEADER_SIZE,
            tags: 0,
        }
    }

    /// Tags so far.
    pub fn tags(&self) -> usize {
        self.tags
    }

    /// Whether no further tag fits.
    pub fn is_full(&self) -> bool {
        self.tags == self.format.tags_per_block()
    }

    /// Adds a tag for a block that belongs at `home`. `checksum` is
    /// [`LogFormat::data_checksum`] of what is logged.
    ///
    /// # Panics
    /// When the block is full, or the number needs more bits than the journal has.
    pub fn push(&mut self, home: BlockNo, escaped: bool, checksum: u32) {
        assert!(!self.is_full(), "descriptor block is full");
        assert!(
            self.format.is_64bit || home.0 >> 32 == 0,
            "block number above 32 bits"
        );
        let mut flags = if escaped { FLAG_ESCAPE } else { 0 };
        if self.tags > 0 {
            flags |= FLAG_SAME_UUID;
        }
        let raw = &mut self.block[self.offset..self.offset + self.format.tag_size()];
        BLOCKNR.put(raw, low32(home.0));
        match self.format.checksum {
            ChecksumVersion::V3 => {
                tag3::FLAGS_FIELD.put(raw, flags);
                tag3::BLOCKNR_HIGH_FIELD.put(raw, high32(home.0));
                tag3::CHECKSUM_FIELD.put(raw, checksum);
            }
            _ => {
                CHECKSUM.put(raw, low16(checksum));
                FLAGS.put(raw, low16(flags));
                if self.format.is_64bit {
                    BLOCKNR_HIGH.put(raw, high32(home.0));
                }
            }
        }
        self.latest = self.offset;
        self.offset += self.format.tag_size();
        if self.tags == 0 {
            self.block[self.offset..self.offset + UUID_SIZE].copy_from_slice(&self.format.uuid);
            self.offset += UUID_SIZE;
        }
        self.tags += 1;
    }

    /// Marks the latest tag as the last and makes the block's checksum.
    ///
    /// # Panics
    /// When there is no tag: such a block has no meaning.
    pub fn finish(self) {
        assert!(self.tags > 0, "descriptor block without tags");
        let raw = &mut self.block[self.latest..];
        if self.format.checksum == ChecksumVersion::V3 {
            let flags = tag3::FLAGS_FIELD.get(raw);
            tag3::FLAGS_FIELD.put(raw, flags | FLAG_LAST_TAG);
        } else {
            let flags = FLAGS.get(raw);
            FLAGS.put(raw, flags | low16(FLAG_LAST_TAG));
        }
        self.format.write_tail(self.block);
    }
}

impl LogFormat {
    /// Whether a logged block is what its tag says. Always true without checksums v2 or v3.
    pub fn is_intact(&self, tag: &Tag, tid: Tid, logged: &[u8]) -> bool {
        !self.has_tails() || self.data_checksum(tid, logged) == tag.checksum
    }
}
