//! What can be wrong with the file of a NAND part: one variant for each check.

use crate::nand::page::PageState;
use crate::num::{BlockAddr, PageNo};

/// A check that the file failed, or the numbers of a part that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NandCorrupt {
    // --- header ---
    /// Fewer bytes than the record has.
    #[error("{record}: {found} bytes where {needed} are needed")]
    TooShort {
        /// The record.
        record: &'static str,
        /// Bytes that it has.
        needed: u64,
        /// Bytes that there were.
        found: u64,
    },
    /// The file does not begin with the magic.
    #[error("not the file of a NAND part: magic {0:02x?}")]
    Magic([u8; 8]),
    /// A version that is not known.
    #[error("NAND file: version {0} is not known")]
    Version(u32),
    /// The header's checksum does not fit its content.
    #[error("NAND file header: checksum {stored:#010x}, computed {computed:#010x}")]
    HeaderChecksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The page size is no power of two from 512 to 65,536.
    #[error("NAND part: pages of {0} bytes are impossible")]
    PageBytes(u32),
    /// The spare area is empty or larger than the page.
    #[error("NAND part: {spare} spare bytes with pages of {page} bytes are impossible")]
    SpareBytes {
        /// Bytes of the spare area.
        spare: u32,
        /// Bytes of a page.
        page: u32,
    },
    /// A block has no pages or more than 4,080.
    #[error("NAND part: {0} pages a block are impossible")]
    PagesPerBlock(u32),
    /// There are no blocks, or more pages than 2^32 - 1.
    #[error("NAND part: {blocks} blocks of {pages} pages are impossible")]
    Blocks {
        /// Blocks.
        blocks: u32,
        /// Pages of a block.
        pages: u32,
    },
    /// The planes do not share the blocks evenly.
    #[error("NAND part: {blocks} blocks on {planes} planes are impossible")]
    Planes {
        /// Planes.
        planes: u32,
        /// Blocks.
        blocks: u32,
    },
    /// The bad block mark lies outside the spare area.
    #[error("NAND part: a bad block mark at {mark} of {spare} spare bytes is impossible")]
    BadMark {
        /// Where it lies.
        mark: u32,
        /// Bytes of the spare area.
        spare: u32,
    },
    /// The codeword does not divide the page, or corrects more than its bits.
    #[error("NAND part: {strength} bits corrected in {codeword} of {page} bytes are impossible")]
    Ecc {
        /// Bytes of a codeword.
        codeword: u32,
        /// Bits that it corrects.
        strength: u32,
        /// Bytes of a page.
        page: u32,
    },
    /// The endurance is 0.
    #[error("NAND part: an endurance of no erases is impossible")]
    Endurance,
    /// More bad blocks than blocks.
    #[error("NAND part: {factory} + {early} bad blocks in a million are impossible")]
    BadShare {
        /// Bad from the start, in a million.
        factory: u32,
        /// Bad before their endurance, in a million.
        early: u32,
    },
    /// A rate of bit errors above one in two bits.
    #[error("NAND part: {0} errors in 10^15 bits are impossible")]
    ErrorRate(u64),

    // --- block records ---
    /// The record's checksum does not fit its content.
    #[error("record of erase block {block}: checksum {stored:#010x}, computed {computed:#010x}")]
    BlockChecksum {
        /// The block.
        block: BlockAddr,
        /// The checksum in the record.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// A condition that does not exist.
    #[error("record of erase block {block}: condition {condition} is not known")]
    Condition {
        /// The block.
        block: BlockAddr,
        /// The condition.
        condition: u8,
    },
    /// The next page to program lies beyond the block.
    #[error("record of erase block {block}: next page {next} of {pages}")]
    NextPage {
        /// The block.
        block: BlockAddr,
        /// The next page to program.
        next: u32,
        /// Pages of the block.
        pages: u32,
    },
    /// A page state that does not exist.
    #[error("record of erase block {block}: page {page} in state {state}, which is not known")]
    PageState {
        /// The block.
        block: BlockAddr,
        /// The page.
        page: PageNo,
        /// The state.
        state: u8,
    },
    /// A page behind the next one to program that is not erased, or one before it in a good block
    /// that is.
    #[error("record of erase block {block}: page {page} is {state:?}, the next page is {next}")]
    PageOrder {
        /// The block.
        block: BlockAddr,
        /// The page.
        page: PageNo,
        /// Its state.
        state: PageState,
        /// The next page to program, counted in the block.
        next: u32,
    },
}
