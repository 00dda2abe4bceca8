//! The spare area of a page: what the page is, which one, when, and the checksum of all.

use crate::checksum::crc32c;
use crate::ftl::error::FtlCorrupt;
use crate::layout::{Bytes, Le32, U8, layout};
use crate::num::PageNo;
use crate::width::{must_fit_u32, u32_as_usize};

const SIZE: usize = 15;

layout! {
    /// The record in the spare area of a page.
    pub FTL_SPARE_LAYOUT = "FTL spare area", SIZE, {
        0x00 U8, KIND = "f_kind";
        0x01 Le32, INDEX = "f_index";
        0x05 Bytes<6>, SEQ = "f_seq";
        0x0b Le32, CHECKSUM = "f_checksum";
    }
}

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// The content of a logical page.
    Data = 1,
    /// Stands for content that could not be read any more: reading the logical page is an error.
    Lost = 2,
    /// A part of the map.
    Map = 3,
    /// A part of the list of map pages.
    Directory = 4,
    /// Changes of the map that no spare area records.
    Log = 5,
    /// Blocks that are going to be programmed.
    Pool = 6,
    /// A checkpoint.
    Anchor = 7,
    /// The content of a logical page that is written atomically with others. It counts only when
    /// the last page of that write ([`Last`](Self::Last)) is there.
    Staged = 8,
    /// The content of the last page of such a write.
    Last = 9,
}

impl PageKind {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the codes on disk"
    )]
    const fn code(self) -> u8 {
        self as u8
    }

    /// Whether the page holds what was written to a logical page.
    pub const fn is_content(self) -> bool {
        matches!(self, Self::Data | Self::Staged | Self::Last)
    }

    fn from_raw(raw: u8) -> Option<Self> {
        const ALL: [PageKind; 9] = [
            PageKind::Data,
            PageKind::Lost,
            PageKind::Map,
            PageKind::Directory,
            PageKind::Log,
            PageKind::Pool,
            PageKind::Anchor,
            PageKind::Staged,
            PageKind::Last,
        ];
        ALL.get(usize::from(raw).wrapping_sub(1)).copied()
    }
}

/// The record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FtlSpare {
    /// What the page is.
    pub kind: PageKind,
    /// For content: the logical page that it was written for. For a map or directory page: its
    /// number. Otherwise 0.
    pub index: u32,
    /// Sequence number of the layer's programs, below 2^48.
    pub seq: u64,
}

/// Puts records into spare areas of a layer and takes them out.
#[derive(Clone, Copy, Debug)]
pub struct SpareCodec {
    seed: u32,
    bad_mark: usize,
}

impl SpareCodec {
    /// Bytes that a spare area needs: the record and the bad block mark.
    pub const SPARE_BYTES: u32 = must_fit_u32(SIZE) + 1;

    /// Makes the codec of layer `uuid` on a part with the bad block mark at `bad_mark`: the record
    /// lies around that byte.
    pub fn new(uuid: &[u8; 16], bad_mark: u32) -> Self {
        Self {
            seed: crc32c(!0, uuid),
            bad_mark: u32_as_usize(bad_mark),
        }
    }

    fn checksum(&self, page: PageNo, record: &[u8], data: &[u8]) -> u32 {
        let seed = crc32c(self.seed, &page.0.to_le_bytes());
        crc32c(crc32c(seed, &record[..CHECKSUM.0]), data)
    }

    /// Fills the spare area of `page` with data `data`.
    pub fn encode(&self, record: &FtlSpare, page: PageNo, data: &[u8], spare: &mut [u8]) {
        let mut raw = [0; SIZE];
        KIND.put(&mut raw, record.kind.code());
        INDEX.put(&mut raw, record.index);
        let seq = record.seq.to_le_bytes();
        SEQ.put(&mut raw, *seq.first_chunk().expect("8 bytes"));
        let checksum = self.checksum(page, &raw, data);
        CHECKSUM.put(&mut raw, checksum);
        spare.fill(0xff);
        let before = self.bad_mark.min(SIZE);
        spare[..before].copy_from_slice(&raw[..before]);
        spare[before + 1..=SIZE].copy_from_slice(&raw[before..]);
    }

    /// Takes the record out of the spare area of `page`; `None` when the page is erased. The record
    /// is valid if and only if
    /// 1. `f_checksum` fits,
    /// 2. `f_kind` is known.
    ///
    /// # Errors
    /// The variant of [`FtlCorrupt`] that belongs to the check.
    pub fn decode(
        &self,
        page: PageNo,
        data: &[u8],
        spare: &[u8],
    ) -> Result<Option<FtlSpare>, FtlCorrupt> {
        let mut raw = [0; SIZE];
        let before = self.bad_mark.min(SIZE);
        raw[..before].copy_from_slice(&spare[..before]);
        raw[before..].copy_from_slice(&spare[before + 1..=SIZE]);
        if raw == [0xff; SIZE] {
            return Ok(None);
        }
        let (stored, computed) = (CHECKSUM.get(&raw), self.checksum(page, &raw, data));
        if stored != computed {
            return Err(FtlCorrupt::PageChecksum {
                page,
                stored,
                computed,
            });
        }
        let kind = KIND.get(&raw);
        let Some(kind) = PageKind::from_raw(kind) else {
            return Err(FtlCorrupt::PageKind { page, kind });
        };
        let mut seq = [0; 8];
        seq[..6].copy_from_slice(&SEQ.get(&raw));
        Ok(Some(FtlSpare {
            kind,
            index: INDEX.get(&raw),
            seq: u64::from_le_bytes(seq),
        }))
    }
}
