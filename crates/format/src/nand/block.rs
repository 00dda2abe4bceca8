//! The record of an erase block: how often it was erased, whether it can be used, and what each of
//! its pages is.

use crate::checksum::crc32c;
use crate::layout::{Le32, U8, layout};
use crate::nand::error::NandCorrupt;
use crate::nand::page::PageState;
use crate::nand::part::{NandGeometry, RECORD_HEAD};
use crate::num::BlockAddr;
use crate::width::{u32_as_usize, usize_as_u64};

layout! {
    /// The record of an erase block, before the states of its pages.
    pub BLOCK_RECORD_LAYOUT = "NAND block record", RECORD_HEAD, {
        0x00 Le32, CHECKSUM = "b_checksum";
        0x04 Le32, ERASES = "b_erases";
        0x08 Le32, NEXT_PAGE = "b_next_page";
        0x0c U8, CONDITION = "b_condition";
    }
}

/// What can be done with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlockCondition {
    /// It can be programmed, from the next page on, and erased.
    Good = 0,
    /// An erase of it was interrupted: it has to be erased before anything is programmed.
    HalfErased = 1,
    /// A program or erase of it has failed: it has to be marked bad.
    Failed = 2,
    /// It was marked bad.
    Bad = 3,
    /// It was bad from the beginning.
    FactoryBad = 4,
}

impl BlockCondition {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminants are the codes on disk"
    )]
    const fn code(self) -> u8 {
        self as u8
    }

    fn from_raw(raw: u8) -> Option<Self> {
        const ALL: [BlockCondition; 5] = [
            BlockCondition::Good,
            BlockCondition::HalfErased,
            BlockCondition::Failed,
            BlockCondition::Bad,
            BlockCondition::FactoryBad,
        ];
        ALL.get(usize::from(raw)).copied()
    }
}

/// The state of an erase block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NandBlock {
    /// How often an erase of it was begun.
    pub erases: u32,
    /// What can be done with it.
    pub condition: BlockCondition,
    /// The next page to program, counted in the block; the number of its pages when it is full.
    pub next_page: u32,
    /// Each page.
    pub pages: Vec<PageState>,
}

impl NandBlock {
    /// A block that was never used.
    pub fn erased(geometry: &NandGeometry) -> Self {
        Self {
            erases: 0,
            condition: BlockCondition::Good,
            next_page: 0,
            pages: vec![PageState::Erased; u32_as_usize(geometry.pages_per_block)],
        }
    }

    /// Reads the record of `block` in the file with `uuid`, which is valid if and only if
    /// 1. `b_checksum` fits,
    /// 2. `b_condition` is known,
    /// 3. `b_next_page` lies in the block or is its end,
    /// 4. the state of each page is known,
    /// 5. pages from the next one on are erased, and in a good block those before it are not.
    ///
    /// # Errors
    /// The variant of [`NandCorrupt`] that belongs to the check.
    pub fn decode(
        raw: &[u8],
        block: BlockAddr,
        uuid: &[u8; 16],
        geometry: &NandGeometry,
    ) -> Result<Self, NandCorrupt> {
        let (raw, condition) = Self::decode_condition(raw, block, uuid, geometry)?;
        let (next, pages) = (NEXT_PAGE.get(raw), geometry.pages_per_block);
        if next > pages {
            return Err(NandCorrupt::NextPage { block, next, pages });
        }
        let mut states = Vec::with_capacity(u32_as_usize(pages));
        for (index, &raw) in (0u32..).zip(&raw[RECORD_HEAD..]) {
            let page = geometry.page_at(block, index);
            let Some(state) = PageState::from_raw(raw) else {
                return Err(NandCorrupt::PageState {
                    block,
                    page,
                    state: raw,
                });
            };
            let erased = state == PageState::Erased;
            let in_order = if index >= next {
                erased
            } else {
                !erased || condition != BlockCondition::Good
            };
            if !in_order {
                return Err(NandCorrupt::PageOrder {
                    block,
                    page,
                    state,
                    next,
                });
            }
            states.push(state);
        }
        Ok(Self {
            erases: ERASES.get(raw),
            condition,
            next_page: next,
            pages: states,
        })
    }

    /// Reads the condition alone: checks 1 and 2 of [`decode`](Self::decode).
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn condition(
        raw: &[u8],
        block: BlockAddr,
        uuid: &[u8; 16],
        geometry: &NandGeometry,
    ) -> Result<BlockCondition, NandCorrupt> {
        Ok(Self::decode_condition(raw, block, uuid, geometry)?.1)
    }

    /// Reads the condition, and returns the bytes of the record too.
    fn decode_condition<'a>(
        raw: &'a [u8],
        block: BlockAddr,
        uuid: &[u8; 16],
        geometry: &NandGeometry,
    ) -> Result<(&'a [u8], BlockCondition), NandCorrupt> {
        let size = geometry.record_bytes();
        let Some(raw) = raw.get(..size) else {
            return Err(NandCorrupt::TooShort {
                record: "NAND block record",
                needed: usize_as_u64(size),
                found: usize_as_u64(raw.len()),
            });
        };
        let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw, block, uuid));
        if stored != computed {
            return Err(NandCorrupt::BlockChecksum {
                block,
                stored,
                computed,
            });
        }
        let condition = CONDITION.get(raw);
        match BlockCondition::from_raw(condition) {
            Some(condition) => Ok((raw, condition)),
            None => Err(NandCorrupt::Condition { block, condition }),
        }
    }

    /// Appends the record to `into`: the bytes that [`decode`](Self::decode) takes, filled with
    /// zeros up to [`NandGeometry::record_stride`].
    pub fn encode(
        &self,
        block: BlockAddr,
        uuid: &[u8; 16],
        geometry: &NandGeometry,
        into: &mut Vec<u8>,
    ) {
        let start = into.len();
        into.resize(start + RECORD_HEAD, 0);
        let head = &mut into[start..];
        ERASES.put(head, self.erases);
        NEXT_PAGE.put(head, self.next_page);
        CONDITION.put(head, self.condition.code());
        into.extend(self.pages.iter().map(|state| state.code()));
        let checksum = checksum_of(&into[start..], block, uuid);
        CHECKSUM.put(&mut into[start..], checksum);
        into.resize(start + geometry.record_stride(), 0);
    }
}

/// CRC-32C of the file's UUID, the block's number and the record behind the checksum.
fn checksum_of(raw: &[u8], block: BlockAddr, uuid: &[u8; 16]) -> u32 {
    let seed = crc32c(crc32c(!0, uuid), &block.0.to_le_bytes());
    crc32c(seed, &raw[CHECKSUM.end()..])
}
