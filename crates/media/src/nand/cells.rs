//! The cells of a part and what happens in them, whatever store holds them.
//!
//! The store has the layout of `stetfs_format::nand`: a header, a record for each block, the cells.
//! Every request reads the record that it needs and writes it back. So a clone of a store in memory
//! is a part of its own, and the file of a part is up to date whenever its process dies:
//!
//! | request | writes, in this order | if nothing more is written |
//! |---|---|---|
//! | program | record: the page is torn | the page is torn |
//! | | cells | the page is torn |
//! | | record: the page is programmed | done |
//! | erase | record: half erased, all pages torn | the block has to be erased again |
//! | | record: erased | done |
//! | mark bad | record: bad | done |
//!
//! A record is written in one piece or not at all. Cells of a page that is not programmed mean
//! nothing, so an erase does not write any. Reads of a block are counted in memory only: a part
//! forgets them when it loses power.

use hashbrown::HashMap;
use stetfs_format::nand::{
    BlockCondition, NandBlock, NandCorrupt, NandGeometry, NandHeader, NandPart, PageState,
};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{must_fit, u32_as_usize, usize_as_u64};

use super::contract::Corrected;
use super::error::NandError;
use super::wear::{Aged, Draw, draw, erase_fails, is_factory_bad, program_fails};
use crate::error::MediaError;
use crate::image::Image;
use crate::pmem::contract::Survives;

/// The storage of a part's bytes. Ranges lie within
/// [`NandGeometry::file_bytes`](super::NandGeometry::file_bytes).
pub trait Store: Send {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Reads into `out`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError>;

    /// Writes `bytes`. Those within one multiple of 4096 are all written or none, even if the
    /// process dies.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError>;

    /// What written bytes survive; `None` for a store in memory.
    fn survives(&self) -> Option<Survives> {
        None
    }
}

impl Store for Image {
    fn size(&self) -> u64 {
        Self::size(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        Self::read(self, offset, out);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        Self::write(self, offset, bytes);
        Ok(())
    }
}

/// Decodes the record of a block of a file with this identity.
type Decode<T> = fn(&[u8], BlockAddr, &[u8; 16], &NandGeometry) -> Result<T, NandCorrupt>;

/// The result of a read.
pub(super) enum Seen {
    /// The page, or its spare area.
    Right(Corrected),
    /// The page for the last time: [`Cells::fade`] has to follow.
    Marginal(Corrected),
    /// Bytes that cannot be corrected.
    Uncorrectable,
}

/// Header, records and cells of a part.
#[derive(Clone)]
pub(super) struct Cells<S> {
    pub(super) store: S,
    header: NandHeader,
    /// Reads of a block since its last erase or since the power came on.
    reads: HashMap<BlockAddr, u32>,
}

/// Bytes of records that are read and written together when all of them are.
const RECORDS_AT_ONCE: usize = 256 << 10;

impl<S: Store> Cells<S> {
    /// Makes a part in an empty store: nothing programmed, blocks erased `erases` times, some of
    /// them bad. Panics if the header describes an impossible part.
    pub(super) fn format(mut store: S, header: NandHeader, erases: u32) -> Result<Self, NandError> {
        if let Err(mistake) = header.part.check() {
            panic!("{mistake}");
        }
        let geometry = header.part.geometry;
        let mut records = Vec::with_capacity(RECORDS_AT_ONCE);
        let mut offset = geometry.record_offset(BlockAddr(0));
        for block in (0..geometry.blocks).map(BlockAddr) {
            let mut state = NandBlock::erased(&geometry);
            if is_factory_bad(&header.part, block) {
                state.condition = BlockCondition::FactoryBad;
            } else {
                state.erases = erases;
            }
            state.encode(block, &header.uuid, &geometry, &mut records);
            if records.len() >= RECORDS_AT_ONCE || block.0 + 1 == geometry.blocks {
                store.write(offset, &records)?;
                offset += usize_as_u64(records.len());
                records.clear();
            }
        }
        // Written last, so that an unfinished store is no part.
        store.write(0, &header.encode())?;
        Ok(Self::new(store, header))
    }

    /// Reads and checks the header.
    pub(super) fn read_header(store: &S) -> Result<NandHeader, NandError> {
        let mut raw = [0; NandHeader::SIZE];
        let found = store.size();
        let too_short = |needed| NandCorrupt::TooShort {
            record: "NAND file",
            needed,
            found,
        };
        if found < usize_as_u64(raw.len()) {
            return Err(too_short(usize_as_u64(raw.len())).into());
        }
        store.read(0, &mut raw)?;
        let header = NandHeader::decode(&raw)?;
        let needed = header.part.geometry.file_bytes();
        if found < needed {
            return Err(too_short(needed).into());
        }
        Ok(header)
    }

    /// Opens a part: checks the header and every record.
    pub(super) fn open(store: S) -> Result<Self, NandError> {
        let header = Self::read_header(&store)?;
        let geometry = header.part.geometry;
        let stride = geometry.record_stride();
        let mut records = vec![0; RECORDS_AT_ONCE / stride * stride];
        let mut block = BlockAddr(0);
        while block.0 < geometry.blocks {
            let left = u32_as_usize(geometry.blocks - block.0) * stride;
            let piece = &mut records[..left.min(RECORDS_AT_ONCE / stride * stride)];
            store.read(geometry.record_offset(block), piece)?;
            for raw in piece.chunks_exact(stride) {
                NandBlock::decode(raw, block, &header.uuid, &geometry)?;
                block.0 += 1;
            }
        }
        Ok(Self::new(store, header))
    }

    fn new(store: S, header: NandHeader) -> Self {
        Self {
            store,
            header,
            reads: HashMap::new(),
        }
    }

    /// Returns the part after its power was off.
    pub(super) fn without_power(mut self) -> Self {
        self.reads.clear();
        self
    }

    pub(super) fn header(&self) -> &NandHeader {
        &self.header
    }

    fn part(&self) -> &NandPart {
        &self.header.part
    }

    /// Returns the state of a block.
    pub(super) fn block(&self, block: BlockAddr) -> Result<NandBlock, NandError> {
        self.record(block, NandBlock::decode)
    }

    /// Returns the condition of a block.
    pub(super) fn condition(&self, block: BlockAddr) -> Result<BlockCondition, NandError> {
        self.record(block, NandBlock::condition)
    }

    /// Reads and decodes a block's record.
    fn record<T>(&self, block: BlockAddr, decode: Decode<T>) -> Result<T, NandError> {
        let geometry = self.part().geometry;
        let mut raw = vec![0; geometry.record_bytes()];
        self.store.read(geometry.record_offset(block), &mut raw)?;
        Ok(decode(&raw, block, &self.header.uuid, &geometry)?)
    }

    fn put_block(&mut self, block: BlockAddr, state: &NandBlock) -> Result<(), NandError> {
        let geometry = self.part().geometry;
        let mut raw = Vec::with_capacity(geometry.record_stride());
        state.encode(block, &self.header.uuid, &geometry, &mut raw);
        self.store.write(geometry.record_offset(block), &raw)?;
        Ok(())
    }

    /// Reads a page, or only its spare area if `data` is `None`.
    pub(super) fn read(
        &mut self,
        page: PageNo,
        mut data: Option<&mut [u8]>,
        spare: &mut [u8],
    ) -> Result<Seen, NandError> {
        let geometry = self.part().geometry;
        let (home, index) = (geometry.block_of(page), geometry.index_of(page));
        let block = self.block(home)?;
        let reads = self.reads.entry(home).or_default();
        let aged = Aged {
            page,
            erases: block.erases,
            reads: *reads,
        };
        *reads = reads.saturating_add(1);
        let state = block.pages[u32_as_usize(index)];
        if matches!(state, PageState::Erased | PageState::Faint) {
            if let Some(data) = &mut data {
                data.fill(0xff);
            }
            spare.fill(0xff);
        } else {
            self.read_cells(page, data.as_deref_mut(), spare)?;
        }
        let strength = Corrected {
            bits: self.part().ecc.strength_bits,
        };
        let seen = match state {
            PageState::Erased | PageState::Faint => Seen::Right(Corrected::default()),
            PageState::Programmed => self.correct(aged, data, spare),
            PageState::Marginal => Seen::Marginal(strength),
            PageState::Miscorrected => {
                self.deceive(aged, data, spare);
                Seen::Right(strength)
            }
            PageState::Torn => {
                self.tear(aged, data, spare);
                Seen::Uncorrectable
            }
        };
        let is_bad = matches!(
            block.condition,
            BlockCondition::Bad | BlockCondition::FactoryBad
        );
        if index == 0 && is_bad {
            spare[u32_as_usize(geometry.bad_mark)] = 0;
        }
        Ok(seen)
    }

    fn read_cells(
        &self,
        page: PageNo,
        data: Option<&mut [u8]>,
        spare: &mut [u8],
    ) -> Result<(), NandError> {
        let geometry = self.part().geometry;
        let offset = geometry.cell_offset(page);
        if let Some(data) = data {
            self.store.read(offset, data)?;
        }
        let spare_offset = offset + u64::from(geometry.page_bytes);
        Ok(self.store.read(spare_offset, spare)?)
    }

    /// Draws the wrong bits of each codeword; those stay wrong that are more than the code
    /// corrects.
    fn correct(&self, aged: Aged, data: Option<&mut [u8]>, spare: &mut [u8]) -> Seen {
        let part = self.part();
        let mut worst = 0;
        let mut codeword = |index: u32, bytes: &mut [u8]| {
            let wrong = aged.wrong_bits(part, index, must_fit(bytes.len() * 8));
            if wrong > part.ecc.strength_bits {
                aged.flip(part, index, wrong, bytes);
            }
            worst = worst.max(wrong);
        };
        codeword(0, spare);
        if let Some(data) = data {
            let codewords = data.chunks_exact_mut(u32_as_usize(part.ecc.codeword_bytes));
            (1..)
                .zip(codewords)
                .for_each(|(index, bytes)| codeword(index, bytes));
        }
        if worst > part.ecc.strength_bits {
            Seen::Uncorrectable
        } else {
            Seen::Right(Corrected { bits: worst })
        }
    }

    /// Makes the bytes uncorrectable.
    fn tear(&self, aged: Aged, data: Option<&mut [u8]>, spare: &mut [u8]) {
        aged.tear(self.part(), 0, spare);
        if let Some(data) = data {
            aged.tear(self.part(), 1, data);
        }
    }

    /// Makes data, spare area or both wrong, in a page whose code reports no error.
    fn deceive(&self, aged: Aged, data: Option<&mut [u8]>, spare: &mut [u8]) {
        let of = [aged.page.0.into(), aged.erases.into(), 0];
        let lot = draw(self.part().seed, Draw::Deceived, of) % 3;
        if lot != 0 {
            aged.tear(self.part(), 0, spare);
        }
        if let (true, Some(data)) = (lot != 1, data) {
            aged.tear(self.part(), 1, data);
        }
    }

    /// Returns what an unlucky read gives of a good page: bytes that cannot be corrected.
    pub(super) fn spoil(&self, page: PageNo, data: Option<&mut [u8]>, spare: &mut [u8]) {
        let aged = Aged {
            page,
            erases: 0,
            reads: 0,
        };
        self.tear(aged, data, spare);
    }

    /// Marks a marginal page as torn, after it was read.
    pub(super) fn fade(&mut self, page: PageNo) -> Result<(), NandError> {
        let geometry = self.part().geometry;
        let home = geometry.block_of(page);
        let mut block = self.block(home)?;
        block.pages[u32_as_usize(geometry.index_of(page))] = PageState::Torn;
        self.put_block(home, &block)
    }

    /// Whether the chance model makes this program fail.
    pub(super) fn program_fails(&self, page: PageNo) -> Result<bool, NandError> {
        let erases = self.block(self.part().geometry.block_of(page))?.erases;
        Ok(program_fails(self.part(), page, erases))
    }

    /// Whether the chance model makes the next erase fail.
    pub(super) fn erase_fails(&self, block: BlockAddr) -> Result<bool, NandError> {
        let erases = self.block(block)?.erases.saturating_add(1);
        Ok(erase_fails(self.part(), block, erases))
    }

    /// Programs the next page of its block.
    pub(super) fn program(
        &mut self,
        page: PageNo,
        data: &[u8],
        spare: &[u8],
        end: ProgramEnd,
    ) -> Result<(), NandError> {
        let geometry = self.part().geometry;
        let (home, index) = (geometry.block_of(page), geometry.index_of(page));
        let mut block = self.block(home)?;
        block.next_page = index + 1;
        block.pages[u32_as_usize(index)] = PageState::Torn;
        self.put_block(home, &block)?;
        let offset = geometry.cell_offset(page);
        self.store.write(offset, data)?;
        self.store
            .write(offset + u64::from(geometry.page_bytes), spare)?;
        match end {
            ProgramEnd::Failed => block.condition = BlockCondition::Failed,
            ProgramEnd::Left(state) => block.pages[u32_as_usize(index)] = state,
        }
        self.put_block(home, &block)
    }

    /// Erases a block.
    pub(super) fn erase(&mut self, home: BlockAddr, end: EraseEnd) -> Result<(), NandError> {
        let old = self.block(home)?;
        let mut block = old.clone();
        block.erases = old.erases.saturating_add(1);
        block.condition = BlockCondition::HalfErased;
        block.pages[..u32_as_usize(old.next_page)].fill(PageState::Torn);
        self.reads.remove(&home);
        match end {
            EraseEnd::Half(how) => {
                for (index, page) in block.pages[..u32_as_usize(old.next_page)]
                    .iter_mut()
                    .enumerate()
                {
                    let of = [home.0.into(), block.erases.into(), usize_as_u64(index)];
                    *page = how.page(old.pages[index], self.part().seed, of);
                }
            }
            EraseEnd::Failed => {
                self.put_block(home, &block)?;
                block.condition = BlockCondition::Failed;
            }
            EraseEnd::Done => {
                self.put_block(home, &block)?;
                block.condition = BlockCondition::Good;
                block.next_page = 0;
                block.pages.fill(PageState::Erased);
            }
        }
        self.put_block(home, &block)
    }

    /// Marks a block bad.
    pub(super) fn mark_bad(&mut self, home: BlockAddr) -> Result<(), NandError> {
        let mut block = self.block(home)?;
        if block.condition == BlockCondition::FactoryBad {
            return Ok(());
        }
        block.condition = BlockCondition::Bad;
        self.put_block(home, &block)
    }
}

/// How a program ends.
#[derive(Clone, Copy)]
pub(super) enum ProgramEnd {
    /// The page is lost and the block has gone bad.
    Failed,
    /// The page is in this state.
    Left(PageState),
}

/// How an erase ends.
#[derive(Clone, Copy)]
pub(super) enum EraseEnd {
    /// All pages are erased.
    Done,
    /// All pages are lost and the block has gone bad.
    Failed,
    /// The power went off.
    Half(HalfErase),
}

/// What an interrupted erase leaves in the pages.
#[derive(Clone, Copy)]
pub(super) enum HalfErase {
    /// Every page in this state; `None`: as it was before.
    All(Option<PageState>),
    /// Each page at random, by this seed.
    Mixed(u64),
}

impl HalfErase {
    fn page(self, old: PageState, seed: u64, of: [u64; 3]) -> PageState {
        match self {
            Self::All(state) => state.unwrap_or(old),
            Self::Mixed(salt) => match draw(seed ^ salt, Draw::HalfErased, of) % 4 {
                0 => old,
                1 => PageState::Erased,
                2 => PageState::Torn,
                _ if old == PageState::Programmed => PageState::Miscorrected,
                _ => PageState::Torn,
            },
        }
    }
}
