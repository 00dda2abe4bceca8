//! What a NAND part is: the numbers that a datasheet gives, and those of the model of its errors.

use crate::nand::error::NandCorrupt;
use crate::num::{BlockAddr, PageNo};
use crate::width::{must_fit_u32, u32_as_u64, u32_as_usize, u64_as_usize, usize_as_u64};

/// Bytes of the host's page, which header and records do not cross.
pub(super) const HOST_PAGE: u64 = 4096;
/// Bytes of a block record before the states of its pages.
pub(super) const RECORD_HEAD: usize = 0x10;
/// The most pages of a block, so that its record fits a page of the host.
const PAGES_PER_BLOCK_MAX: u32 = must_fit_u32(u64_as_usize(HOST_PAGE) - RECORD_HEAD);
/// Error rates count wrong bits in this many bits.
const PBIT: u64 = 1_000_000_000_000_000;

/// A part, as the simulation is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandPart {
    /// Pages and blocks.
    pub geometry: NandGeometry,
    /// How long its operations take.
    pub timing: NandTiming,
    /// What its error correction can correct.
    pub ecc: NandEcc,
    /// How it ages and errs.
    pub wear: NandWear,
    /// Seed of what is random: which blocks are bad, and which bits are wrong.
    pub seed: u64,
}

/// Pages, blocks and planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandGeometry {
    /// Bytes of data in a page: a power of two from 512 to 65,536.
    pub page_bytes: u32,
    /// Bytes of the spare area of a page: from 1 to those of the page.
    pub spare_bytes: u32,
    /// Pages of an erase block: from 1 to 4,080.
    pub pages_per_block: u32,
    /// Erase blocks.
    pub blocks: u32,
    /// Planes, among which the blocks are dealt out in turn; 1 for a part without.
    pub planes: u32,
    /// Where in the spare area of a block's first page the bad block mark lies: any byte but 0xff
    /// there says that the block is bad.
    pub bad_mark: u32,
}

/// Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandTiming {
    /// From the cells to the part's register (tR).
    pub read_ns: u32,
    /// From the register to the cells (tPROG).
    pub program_ns: u32,
    /// Erasing a block (tBERS).
    pub erase_ns: u32,
    /// Bytes in a microsecond (MB/s) between the register and the host; 0 when that time is not
    /// counted.
    pub bus_bytes_per_us: u32,
}

/// Error correction: a code over pieces of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandEcc {
    /// Bytes of data that are corrected together; they divide the page. The spare area is a
    /// codeword of its own.
    pub codeword_bytes: u32,
    /// Wrong bits of a codeword that can be corrected.
    pub strength_bits: u32,
}

/// Ageing and errors. Rates are wrong bits in 10^15 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandWear {
    /// Erases of a block that the maker promises.
    pub endurance_erases: u32,
    /// Blocks in a million that are bad from the factory; never the first one.
    pub factory_bad_ppm: u32,
    /// Blocks in a million that go bad before their endurance is reached.
    pub early_bad_ppm: u32,
    /// Wrong bits in a block that was never erased.
    pub fresh_errors_per_pbit: u64,
    /// Wrong bits in a block at the end of its endurance.
    pub worn_errors_per_pbit: u64,
    /// Wrong bits that each read of a page adds in all pages of its block until it is erased, at
    /// the end of the endurance.
    pub disturb_errors_per_pbit: u64,
}

impl NandPart {
    /// The same part without bad blocks, wrong bits and wear, for comparisons that count
    /// operations alone.
    pub const fn flawless(self) -> Self {
        Self {
            wear: NandWear {
                endurance_erases: u32::MAX,
                factory_bad_ppm: 0,
                early_bad_ppm: 0,
                fresh_errors_per_pbit: 0,
                worn_errors_per_pbit: 0,
                disturb_errors_per_pbit: 0,
            },
            ..self
        }
    }

    /// The same part with `blocks` blocks.
    pub const fn with_blocks(self, blocks: u32) -> Self {
        Self {
            geometry: NandGeometry {
                blocks,
                ..self.geometry
            },
            ..self
        }
    }

    /// The same part with another seed, and so with other bad blocks and wrong bits.
    pub const fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Checks that such a part is possible.
    ///
    /// # Errors
    /// The variant of [`NandCorrupt`] for the number that is wrong.
    pub fn check(&self) -> Result<(), NandCorrupt> {
        self.geometry.check()?;
        let page = self.geometry.page_bytes;
        let NandEcc {
            codeword_bytes: codeword,
            strength_bits: strength,
        } = self.ecc;
        if codeword == 0
            || !page.is_multiple_of(codeword)
            || u64::from(strength) >= u64::from(codeword) * 8
        {
            return Err(NandCorrupt::Ecc {
                codeword,
                strength,
                page,
            });
        }
        let wear = &self.wear;
        if wear.endurance_erases == 0 {
            return Err(NandCorrupt::Endurance);
        }
        let (factory, early) = (wear.factory_bad_ppm, wear.early_bad_ppm);
        if u64::from(factory) + u64::from(early) > 1_000_000 {
            return Err(NandCorrupt::BadShare { factory, early });
        }
        let rates = [
            wear.fresh_errors_per_pbit,
            wear.worn_errors_per_pbit,
            wear.disturb_errors_per_pbit,
        ];
        match rates.into_iter().find(|rate| *rate > PBIT / 2) {
            Some(rate) => Err(NandCorrupt::ErrorRate(rate)),
            None => Ok(()),
        }
    }
}

impl NandGeometry {
    fn check(&self) -> Result<(), NandCorrupt> {
        let (page, spare) = (self.page_bytes, self.spare_bytes);
        let (blocks, pages, planes) = (self.blocks, self.pages_per_block, self.planes);
        if !page.is_power_of_two() || !(512..=65_536).contains(&page) {
            return Err(NandCorrupt::PageBytes(page));
        }
        if spare == 0 || spare > page {
            return Err(NandCorrupt::SpareBytes { spare, page });
        }
        if pages == 0 || pages > PAGES_PER_BLOCK_MAX {
            return Err(NandCorrupt::PagesPerBlock(pages));
        }
        if blocks == 0 || blocks.checked_mul(pages).is_none() {
            return Err(NandCorrupt::Blocks { blocks, pages });
        }
        if planes == 0 || !blocks.is_multiple_of(planes) {
            return Err(NandCorrupt::Planes { planes, blocks });
        }
        if self.bad_mark >= spare {
            return Err(NandCorrupt::BadMark {
                mark: self.bad_mark,
                spare,
            });
        }
        Ok(())
    }

    /// All pages.
    pub const fn pages(&self) -> u32 {
        self.blocks * self.pages_per_block
    }

    /// Bytes of data in all pages.
    pub const fn data_bytes(&self) -> u64 {
        u32_as_u64(self.pages()) * u32_as_u64(self.page_bytes)
    }

    /// The block of a page.
    pub const fn block_of(&self, page: PageNo) -> BlockAddr {
        BlockAddr(page.0 / self.pages_per_block)
    }

    /// The place of a page in its block.
    pub const fn index_of(&self, page: PageNo) -> u32 {
        page.0 % self.pages_per_block
    }

    /// Page `index` of a block.
    pub const fn page_at(&self, block: BlockAddr, index: u32) -> PageNo {
        PageNo(block.0 * self.pages_per_block + index)
    }

    /// Bytes of data in a page, as a length in memory.
    pub const fn page_len(&self) -> usize {
        u32_as_usize(self.page_bytes)
    }

    /// Bytes of the spare area of a page, as a length in memory.
    pub const fn spare_len(&self) -> usize {
        u32_as_usize(self.spare_bytes)
    }

    /// Bytes of data and spare area of a page.
    pub const fn cell_bytes(&self) -> usize {
        u32_as_usize(self.page_bytes + self.spare_bytes)
    }

    /// Bytes of a block record that mean something.
    pub const fn record_bytes(&self) -> usize {
        RECORD_HEAD + u32_as_usize(self.pages_per_block)
    }

    /// Bytes from one block record to the next.
    pub const fn record_stride(&self) -> usize {
        self.record_bytes().next_power_of_two()
    }

    /// Where the record of a block begins in the file.
    pub const fn record_offset(&self, block: BlockAddr) -> u64 {
        HOST_PAGE + u32_as_u64(block.0) * usize_as_u64(self.record_stride())
    }

    /// Where the cells of a page begin in the file: its data, then its spare area.
    pub const fn cell_offset(&self, page: PageNo) -> u64 {
        let records = self.record_offset(BlockAddr(self.blocks));
        records.next_multiple_of(HOST_PAGE) + u32_as_u64(page.0) * usize_as_u64(self.cell_bytes())
    }

    /// Bytes of the file.
    pub const fn file_bytes(&self) -> u64 {
        let end = self.cell_offset(PageNo(self.pages()));
        end.next_multiple_of(HOST_PAGE)
    }
}
