//! A simulated part as a [`Nand`]: it adds power, planned errors, checks of the caller, time and
//! counting to the cells.
//!
//! - It is on the supply of its [`Rig`]. A cut at one of its changes leaves that change in flight.
//! - Requests fail as planned ([`Fault`](crate::sim::Fault)): a read ([`Op::Read`]) cannot be
//!   corrected, that one time; a program ([`Op::Write`]) or an erase ([`Op::Erase`]) finds that the
//!   block has gone bad. A fault's bytes are those of the data, counted from the first page. The
//!   kind of failure ([`Failure`](crate::sim::Failure)) makes no difference.
//! - A caller that was told of a failed block must not use it again. If the power goes off before
//!   the block is marked, nobody knows of it any more, and the block fails again.
//! - Time: a page takes its time in the cells plus the time of its bytes on the bus. An erase does
//!   not use the bus.
//! - With one caller, the same requests give the same tape, the same answers and the same time.

use hashbrown::HashSet;
use parking_lot::{Mutex, MutexGuard};
use stetfs_format::nand::{BlockCondition, NandBlock, NandEcc, NandGeometry, NandPart};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{u32_as_usize, usize_as_u64};

use super::cells::{Cells, Seen, Store};
use super::contract::{Corrected, Nand};
use super::entry::NandEntry;
use super::error::NandError;
use crate::error::Op;
use crate::meter::Meter;
use crate::pmem::contract::Survives;
use crate::sim::{FaultPlan, NextChange, Rig, Supply, plans_errors};
use crate::tag::{Cause, Tag};

/// A simulated part, kept in a store: [`NandSim`](super::NandSim) in memory,
/// [`NandFile`](super::NandFile) in a file.
pub struct NandDev<S> {
    name: String,
    part: NandPart,
    meter: Meter,
    rig: Rig,
    state: Mutex<State<S>>,
}

pub(super) struct State<S> {
    pub(super) cells: Cells<S>,
    /// The content at the beginning of the tape; `None` if there is no tape.
    pub(super) start: Option<Cells<S>>,
    /// The tape: changes with their numbers in the order of the supply.
    pub(super) entries: Vec<(u64, NandEntry)>,
    /// Number of changes carried out.
    pub(super) changes: u64,
    /// The change under way when the power went off.
    pub(super) in_flight: Option<NandEntry>,
    /// Blocks whose failure was reported to the caller.
    told: HashSet<BlockAddr>,
    faults: FaultPlan,
}

impl<S: Store> NandDev<S> {
    pub(super) fn from_cells(
        name: String,
        rig: &Rig,
        cells: Cells<S>,
        start: Option<Cells<S>>,
    ) -> Self {
        Self {
            name,
            part: cells.header().part,
            meter: Meter::new(),
            rig: rig.clone(),
            state: Mutex::new(State {
                cells,
                start,
                entries: Vec::new(),
                changes: 0,
                in_flight: None,
                told: HashSet::new(),
                faults: FaultPlan::default(),
            }),
        }
    }

    /// The part.
    pub fn part(&self) -> &NandPart {
        &self.part
    }

    /// The machine to which it belongs, where its power can be cut.
    pub fn rig(&self) -> &Rig {
        &self.rig
    }

    /// How many programs, erases and bad block marks were carried out so far, failed ones included:
    /// the length of the tape, if there is one.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    plans_errors!();

    /// Returns the state of a block, which no real part would tell: for reports on wear and for
    /// tests. It works without power.
    pub fn block(&self, block: BlockAddr) -> Result<NandBlock, NandError> {
        self.assert_block(block);
        self.state.lock().cells.block(block)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock()
    }

    fn assert_block(&self, block: BlockAddr) {
        let blocks = self.part.geometry.blocks;
        assert!(
            block.0 < blocks,
            "misuse of the NAND part: erase block {block} of {blocks}"
        );
    }

    fn assert_page(&self, page: PageNo, data: Option<usize>, spare: usize) {
        let geometry = &self.part.geometry;
        assert!(
            page.0 < geometry.pages(),
            "misuse of the NAND part: page {page} of {}",
            geometry.pages()
        );
        let data = data.unwrap_or(geometry.page_len());
        assert!(
            (data, spare) == (geometry.page_len(), geometry.spare_len()),
            "misuse of the NAND part: {data} + {spare} bytes for a page of {} + {}",
            geometry.page_bytes,
            geometry.spare_bytes
        );
    }

    /// Returns first byte and length of a page's data, as faults count them.
    fn page_range(&self, page: PageNo) -> (u64, u64) {
        let len = u64::from(self.part.geometry.page_bytes);
        (u64::from(page.0) * len, len)
    }

    fn bus_ns(&self, bytes: usize) -> u64 {
        match self.part.timing.bus_bytes_per_us {
            0 => 0,
            speed => usize_as_u64(bytes) * 1000 / u64::from(speed),
        }
    }

    fn read_page(
        &self,
        page: PageNo,
        mut data: Option<&mut [u8]>,
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        let bytes = data.as_ref().map_or(0, |data| data.len()) + spare.len();
        let counted = data.as_ref().map_or(spare.len(), |data| data.len());
        self.assert_page(page, data.as_ref().map(|data| data.len()), spare.len());
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        if supply.is_off() {
            return Err(NandError::PowerLost { op: Op::Read });
        }
        let (offset, len) = self.page_range(page);
        let struck = state.faults.strike(Op::Read, offset, len).is_some();
        let seen = state.cells.read(page, data.as_deref_mut(), spare)?;
        if struck {
            state.cells.spoil(page, data, spare);
            return Err(NandError::Uncorrectable { page });
        }
        let corrected = match seen {
            Seen::Uncorrectable => return Err(NandError::Uncorrectable { page }),
            Seen::Right(corrected) => corrected,
            Seen::Marginal(corrected) => {
                let change = NandEntry::Fade { page };
                state.change(&mut supply, Op::Read, None, change)?;
                corrected
            }
        };
        let busy_ns = u64::from(self.part.timing.read_ns) + self.bus_ns(bytes);
        self.rig.clock.advance(busy_ns);
        self.meter.count_read(tag, usize_as_u64(counted));
        self.meter.count_busy(tag, busy_ns);
        Ok(corrected)
    }
}

impl<S: Store> State<S> {
    /// Carries out a change, unless the power is off or goes off. Returns whether the change
    /// failed, by chance or by a planned fault in `bytes` (first and count).
    fn change(
        &mut self,
        supply: &mut Supply,
        op: Op,
        bytes: Option<(u64, u64)>,
        mut change: NandEntry,
    ) -> Result<bool, NandError> {
        match supply.next_change() {
            NextChange::CarryOut => {}
            NextChange::InFlight => {
                self.in_flight = Some(change);
                return Err(NandError::PowerLost { op });
            }
            NextChange::Refused => return Err(NandError::PowerLost { op }),
        }
        let mut has_failed = false;
        if let NandEntry::Program { failed, .. } | NandEntry::Erase { failed, .. } = &mut change {
            let struck = bytes.and_then(|(at, len)| self.faults.strike(op, at, len));
            *failed |= struck.is_some();
            has_failed = *failed;
        }
        self.cells.carry_out(&change)?;
        if has_failed {
            self.told.insert(match &change {
                NandEntry::Program { page, .. } => {
                    self.cells.header().part.geometry.block_of(*page)
                }
                NandEntry::Erase { block, .. } | NandEntry::MarkBad { block, .. } => *block,
                NandEntry::Fade { .. } => unreachable!("reading does not fail a block"),
            });
        }
        let number = supply.number();
        self.changes += 1;
        if self.start.is_some() {
            self.entries.push((number, change));
        }
        Ok(has_failed)
    }

    /// Returns the state of a block that is about to change. Panics if the caller must not change
    /// it.
    fn usable(&self, block: BlockAddr, what: &str) -> Result<NandBlock, NandError> {
        let state = self.cells.block(block)?;
        let usable = match state.condition {
            BlockCondition::Good | BlockCondition::HalfErased => true,
            BlockCondition::Failed => !self.told.contains(&block),
            BlockCondition::Bad | BlockCondition::FactoryBad => false,
        };
        assert!(
            usable,
            "misuse of the NAND part: {what} in erase block {block}, which is {:?}",
            state.condition
        );
        Ok(state)
    }

    /// Panics unless the page is the next to be programmed in its block. Returns whether its block
    /// has failed already.
    fn check_programmable(&self, page: PageNo, spare: &[u8]) -> Result<bool, NandError> {
        let geometry = self.cells.header().part.geometry;
        let (home, index) = (geometry.block_of(page), geometry.index_of(page));
        let block = self.usable(home, "a program")?;
        assert!(
            block.condition != BlockCondition::HalfErased,
            "misuse of the NAND part: page {page} is programmed in erase block {home}, whose erase \
                was interrupted"
        );
        assert!(
            index >= block.next_page,
            "misuse of the NAND part: page {page} is programmed twice since the last erase"
        );
        assert!(
            index == block.next_page,
            "misuse of the NAND part: page {page} is programmed before page {}",
            geometry.page_at(home, block.next_page)
        );
        let mark = spare[u32_as_usize(geometry.bad_mark)];
        assert!(
            index != 0 || mark == 0xff,
            "misuse of the NAND part: page {page} is programmed with {mark:#04x} for the bad block \
                mark"
        );
        Ok(block.condition == BlockCondition::Failed)
    }
}

impl<S: Store> Nand for NandDev<S> {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn geometry(&self) -> NandGeometry {
        self.part.geometry
    }

    fn ecc(&self) -> NandEcc {
        self.part.ecc
    }

    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        self.read_page(page, Some(data), spare, tag)
    }

    fn read_spare(&self, page: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError> {
        self.read_page(page, None, spare, tag)
    }

    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], tag: Tag) -> Result<(), NandError> {
        self.assert_page(page, Some(data.len()), spare.len());
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        let has_failed = state.check_programmable(page, spare)?;
        let change = NandEntry::Program {
            page,
            data: data.into(),
            spare: spare.into(),
            tag,
            failed: has_failed || state.cells.program_fails(page)?,
        };
        let bytes = self.page_range(page);
        if state.change(&mut supply, Op::Write, Some(bytes), change)? {
            return Err(NandError::ProgramFailed { page });
        }
        let busy_ns =
            u64::from(self.part.timing.program_ns) + self.bus_ns(data.len() + spare.len());
        self.rig.clock.advance(busy_ns);
        self.meter.count_write(tag, bytes.1);
        self.meter.count_busy(tag, busy_ns);
        Ok(())
    }

    fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.assert_block(block);
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        let has_failed = state.usable(block, "an erase")?.condition == BlockCondition::Failed;
        let change = NandEntry::Erase {
            block,
            cause,
            failed: has_failed || state.cells.erase_fails(block)?,
        };
        let (offset, page_len) = self.page_range(self.part.geometry.page_at(block, 0));
        let len = page_len * u64::from(self.part.geometry.pages_per_block);
        if state.change(&mut supply, Op::Erase, Some((offset, len)), change)? {
            return Err(NandError::EraseFailed { block });
        }
        let busy_ns = u64::from(self.part.timing.erase_ns);
        self.rig.clock.advance(busy_ns);
        self.meter.count_erase(cause);
        self.meter.count_cause_busy(cause, busy_ns);
        Ok(())
    }

    fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError> {
        self.assert_block(block);
        let supply = self.rig.power.lock();
        if supply.is_off() {
            return Err(NandError::PowerLost { op: Op::Read });
        }
        let condition = self.state.lock().cells.condition(block)?;
        Ok(matches!(
            condition,
            BlockCondition::Bad | BlockCondition::FactoryBad
        ))
    }

    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.assert_block(block);
        let mut supply = self.rig.power.lock();
        let mut state = self.state.lock();
        let change = NandEntry::MarkBad { block, cause };
        state.change(&mut supply, Op::Write, None, change)?;
        let busy_ns =
            u64::from(self.part.timing.program_ns) + self.bus_ns(self.part.geometry.spare_len());
        self.rig.clock.advance(busy_ns);
        self.meter.count_cause_busy(cause, busy_ns);
        Ok(())
    }

    fn survives(&self) -> Option<Survives> {
        self.state.lock().cells.store.survives()
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
