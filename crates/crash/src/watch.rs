//! Notes which units of its media a run reads and writes.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use stetfs_media::nand::{
    BlockAddr, Corrected, Nand, NandEcc, NandError, NandGeometry, NandSim, PageNo,
};
use stetfs_media::sim::SimPmem;
use stetfs_media::{BlockDev, Cause, Layer, MediaError, Meter, Pmem, PmemLayer, SimDev, Tag};

use crate::media::kind::{UNIT, Unit};

/// A set of units.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitSet(Box<[u64]>);

impl UnitSet {
    pub(super) fn new(units: usize) -> Self {
        Self(vec![0; units.div_ceil(64)].into())
    }

    /// True if the unit is in the set.
    pub fn contains(&self, unit: Unit) -> bool {
        self.0[unit as usize / 64] & 1 << (unit % 64) != 0
    }

    fn insert(&mut self, unit: Unit) {
        self.0[unit as usize / 64] |= 1 << (unit % 64);
    }
}

/// The units that a run has read and written.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Units that were read before they were written: exactly those that the run depended on.
    pub read: UnitSet,
    /// Units that were written.
    pub written: UnitSet,
}

/// Notes which units of a medium are read and written.
pub(super) struct Watch {
    /// The number of the medium's first unit.
    first: Unit,
    watched: Arc<Mutex<Watched>>,
}

impl Watch {
    /// A watch of the medium whose first unit is `first`.
    pub(super) fn new(first: Unit, watched: Arc<Mutex<Watched>>) -> Self {
        Self { first, watched }
    }

    fn units(&self, offset: u64, end: u64) -> Range<Unit> {
        self.first + (offset / UNIT) as Unit..self.first + end.div_ceil(UNIT) as Unit
    }

    fn note_read(&self, offset: u64, len: u64) {
        let mut watched = self.watched.lock();
        for unit in self.units(offset, offset + len) {
            if !watched.written.contains(unit) {
                watched.read.insert(unit);
            }
        }
    }

    /// Does not count units that are written in part: a later read may read the rest.
    fn note_write(&self, offset: u64, len: u64) {
        let whole = offset.next_multiple_of(UNIT)..(offset + len) / UNIT * UNIT;
        if whole.start < whole.end {
            let mut watched = self.watched.lock();
            self.units(whole.start, whole.end)
                .for_each(|unit| watched.written.insert(unit));
        }
    }
}

/// A block device that is watched.
pub(super) struct WatchedDev {
    dev: Arc<SimDev>,
    watch: Watch,
}

impl WatchedDev {
    pub(super) fn new(dev: Arc<SimDev>, watch: Watch) -> Self {
        Self { dev, watch }
    }

    fn note_parts(&self, offset: u64, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        self.watch.note_write(offset, len);
    }
}

impl Layer for WatchedDev {
    fn below(&self) -> &dyn BlockDev {
        &*self.dev
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_read(offset, out.len() as u64);
        self.dev.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.note_parts(offset, parts);
        self.dev.write_vectored_at(offset, parts, tag)
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.note_parts(offset, parts);
        self.dev.write_durable(offset, parts, tag)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.watch.note_write(offset, len);
        self.dev.discard(offset, len)
    }
}

/// Persistent memory that is watched.
pub(super) struct WatchedPmem {
    pmem: Arc<SimPmem>,
    watch: Watch,
}

impl WatchedPmem {
    pub(super) fn new(pmem: Arc<SimPmem>, watch: Watch) -> Self {
        Self { pmem, watch }
    }
}

impl PmemLayer for WatchedPmem {
    fn below(&self) -> &dyn Pmem {
        &*self.pmem
    }

    fn load(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_read(offset, out.len() as u64);
        self.pmem.load(offset, out, tag)
    }

    fn load_u64(&self, offset: u64, tag: Tag) -> Result<u64, MediaError> {
        self.watch.note_read(offset, 8);
        self.pmem.load_u64(offset, tag)
    }

    fn store(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_write(offset, data.len() as u64);
        self.pmem.store(offset, data, tag)
    }

    fn store_nt(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        self.watch.note_write(offset, data.len() as u64);
        self.pmem.store_nt(offset, data, tag)
    }
}

/// A watched NAND part. Its image has the layout of its file, in which each block has a record
/// beside the cells.
pub(super) struct WatchedNand {
    nand: Arc<NandSim>,
    watch: Watch,
}

impl WatchedNand {
    pub(super) fn new(nand: Arc<NandSim>, watch: Watch) -> Self {
        Self { nand, watch }
    }

    fn note_record(&self, block: BlockAddr) {
        let geometry = self.nand.geometry();
        let len = geometry.record_stride() as u64;
        self.watch.note_read(geometry.record_offset(block), len);
    }

    fn note_page(&self, page: PageNo) {
        let geometry = self.nand.geometry();
        self.note_record(geometry.block_of(page));
        let len = geometry.cell_bytes() as u64;
        self.watch.note_read(geometry.cell_offset(page), len);
    }
}

impl Nand for WatchedNand {
    fn describe(&self) -> String {
        self.nand.describe()
    }

    fn geometry(&self) -> NandGeometry {
        self.nand.geometry()
    }

    fn ecc(&self) -> NandEcc {
        self.nand.ecc()
    }

    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        self.note_page(page);
        self.nand.read(page, data, spare, tag)
    }

    fn read_spare(&self, page: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError> {
        self.note_page(page);
        self.nand.read_spare(page, spare, tag)
    }

    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], tag: Tag) -> Result<(), NandError> {
        // The block's record says where programming goes on, and whether it works.
        let geometry = self.nand.geometry();
        self.note_record(geometry.block_of(page));
        let len = geometry.cell_bytes() as u64;
        self.watch.note_write(geometry.cell_offset(page), len);
        self.nand.program(page, data, spare, tag)
    }

    fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.note_record(block);
        self.nand.erase(block, cause)
    }

    fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError> {
        self.note_record(block);
        self.nand.is_bad(block)
    }

    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.note_record(block);
        self.nand.mark_bad(block, cause)
    }

    fn meter(&self) -> &Meter {
        self.nand.meter()
    }
}
