//! A part whose pages are larger than its user wants to map: several *units* share a page. The page
//! is programmed once, when all its units are there.
//!
//! Modern parts have pages of 16 KiB, file systems blocks of 4 KiB. A controller maps units of a
//! block's size. It keeps written units until a page is full, because a page cannot be programmed
//! in parts. Here a unit looks like a page, with its share of the spare area; its last unit
//! programs the real page.
//!
//! - A unit that waits for its page counts as durable, as [`Nand`] promises: it waits in the memory
//!   of a controller with capacitors, which program the rest when the power goes off
//!   ([`settle`](UnitNand::settle)). At most one page waits in each block that is being programmed.
//! - Reads of waiting units come from memory. The page that was read last stays in the part's
//!   register; reading its other units takes no time.
//! - If programming a page fails, its units stay readable from memory, so that the part's manager
//!   can copy them elsewhere.
//! - The meter counts pages of the part, and the bytes of each unit under the unit's label.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stetfs_format::nand::{NandEcc, NandGeometry};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::u32_as_usize;

use super::contract::{Corrected, Nand};
use super::error::NandError;
use crate::meter::Meter;
use crate::tag::{Cause, Tag};

/// A part in units. Units are what [`Nand`] calls pages.
pub struct UnitNand {
    below: Arc<dyn Nand>,
    /// Units in a page.
    count: u32,
    geometry: NandGeometry,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The page that waits in each block.
    waiting: BTreeMap<BlockAddr, Waiting>,
    register: Option<Register>,
}

struct Waiting {
    page: PageNo,
    units: Vec<Unit>,
}

struct Unit {
    data: Vec<u8>,
    spare: Vec<u8>,
    tag: Tag,
}

/// The page that was read last.
struct Register {
    page: PageNo,
    data: Vec<u8>,
    spare: Vec<u8>,
    corrected: Corrected,
}

impl UnitNand {
    /// A part that divides each page into `count` units.
    ///
    /// # Panics
    /// If a page cannot be divided so, or the bad block mark is not in the first unit's spare area.
    pub fn new(below: Arc<dyn Nand>, count: u32) -> Self {
        let page = below.geometry();
        let geometry = NandGeometry {
            page_bytes: page.page_bytes / count,
            spare_bytes: page.spare_bytes / count,
            pages_per_block: page.pages_per_block * count,
            ..page
        };
        assert!(
            geometry.page_bytes * count == page.page_bytes && page.bad_mark < geometry.spare_bytes,
            "{count} units in a page of {} + {} bytes",
            page.page_bytes,
            page.spare_bytes
        );
        Self {
            below,
            count,
            geometry,
            state: Mutex::default(),
        }
    }

    /// Programs the waiting pages and leaves the rest of each as erased, as a controller does when
    /// it is switched off, or with its last energy. That rest cannot be programmed before the next
    /// erase.
    pub fn settle(&self) -> Result<(), NandError> {
        let mut state = self.state.lock();
        while let Some((block, waiting)) = state.waiting.pop_first() {
            // The caller has already copied the units of a failed block elsewhere.
            if !self.below.is_bad(block)? {
                self.program_page(&mut state, &waiting)?;
            }
        }
        Ok(())
    }

    /// Returns the page of a unit, and the unit's index in it.
    fn place(&self, unit: PageNo) -> (PageNo, usize) {
        (
            PageNo(unit.0 / self.count),
            u32_as_usize(unit.0 % self.count),
        )
    }

    fn program_page(&self, state: &mut State, waiting: &Waiting) -> Result<(), NandError> {
        let page = self.below.geometry();
        let (mut data, mut spare) = (Vec::new(), Vec::new());
        for unit in &waiting.units {
            data.extend_from_slice(&unit.data);
            spare.extend_from_slice(&unit.spare);
        }
        data.resize(page.page_len(), 0xff);
        spare.resize(page.spare_len(), 0xff);
        state.register = None;
        let tag = waiting.units[0].tag;
        self.below.program(waiting.page, &data, &spare, tag)?;
        let parts = waiting.units.iter().map(|unit| (unit.tag, &unit.data[..]));
        let parts: Vec<_> = parts.collect();
        self.below.meter().reclassify(tag, &parts);
        Ok(())
    }

    /// Reads a unit of a waiting page: fills `data`, if given, and `spare`. A unit that was not
    /// written yet reads as erased. Returns false if the unit's page is not waiting.
    fn read_waiting(
        &self,
        state: &State,
        unit: PageNo,
        data: Option<&mut [u8]>,
        spare: &mut [u8],
    ) -> bool {
        let (page, index) = self.place(unit);
        let waiting = state.waiting.get(&self.geometry.block_of(unit));
        let Some(waiting) = waiting.filter(|waiting| waiting.page == page) else {
            return false;
        };
        match waiting.units.get(index) {
            Some(found) => {
                spare.copy_from_slice(&found.spare);
                if let Some(data) = data {
                    data.copy_from_slice(&found.data);
                }
            }
            None => {
                spare.fill(0xff);
                if let Some(data) = data {
                    data.fill(0xff);
                }
            }
        }
        true
    }
}

impl Nand for UnitNand {
    fn describe(&self) -> String {
        format!(
            "{} in units of {} bytes",
            self.below.describe(),
            self.geometry.page_bytes
        )
    }

    fn geometry(&self) -> NandGeometry {
        self.geometry
    }

    fn ecc(&self) -> NandEcc {
        self.below.ecc()
    }

    fn read(
        &self,
        unit: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        let mut state = self.state.lock();
        if self.read_waiting(&state, unit, Some(data), spare) {
            return Ok(Corrected::default());
        }
        let (page, index) = self.place(unit);
        let held = state.register.take().filter(|held| held.page == page);
        let held = match held {
            Some(held) => held,
            None => {
                let whole = self.below.geometry();
                let mut page_data = vec![0; whole.page_len()];
                let mut page_spare = vec![0; whole.spare_len()];
                let read = self.below.read(page, &mut page_data, &mut page_spare, tag);
                let corrected = match read {
                    Ok(corrected) => corrected,
                    Err(NandError::Uncorrectable { .. }) => {
                        return Err(NandError::Uncorrectable { page: unit });
                    }
                    Err(e) => return Err(e),
                };
                Register {
                    page,
                    data: page_data,
                    spare: page_spare,
                    corrected,
                }
            }
        };
        data.copy_from_slice(&held.data[index * data.len()..][..data.len()]);
        spare.copy_from_slice(&held.spare[index * spare.len()..][..spare.len()]);
        let corrected = held.corrected;
        state.register = Some(held);
        Ok(corrected)
    }

    fn read_spare(&self, unit: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError> {
        let mut state = self.state.lock();
        if self.read_waiting(&state, unit, None, spare) {
            return Ok(Corrected::default());
        }
        state.register = None;
        let (page, index) = self.place(unit);
        let mut whole = vec![0; self.below.geometry().spare_len()];
        let corrected = match self.below.read_spare(page, &mut whole, tag) {
            Err(NandError::Uncorrectable { .. }) => {
                return Err(NandError::Uncorrectable { page: unit });
            }
            read => read?,
        };
        spare.copy_from_slice(&whole[index * spare.len()..][..spare.len()]);
        Ok(corrected)
    }

    fn program(&self, unit: PageNo, data: &[u8], spare: &[u8], tag: Tag) -> Result<(), NandError> {
        let (page, index) = self.place(unit);
        let block = self.geometry.block_of(unit);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut waiting = match index {
            0 => Waiting {
                page,
                units: Vec::new(),
            },
            _ => match state.waiting.remove(&block) {
                Some(waiting) if waiting.page == page && waiting.units.len() == index => waiting,
                _ => panic!("misuse of the NAND part: unit {unit} is programmed out of order"),
            },
        };
        waiting.units.push(Unit {
            data: data.to_vec(),
            spare: spare.to_vec(),
            tag,
        });
        let is_full = waiting.units.len() == u32_as_usize(self.count);
        let done = if is_full {
            self.program_page(state, &waiting)
        } else {
            Ok(())
        };
        match done {
            Ok(()) if is_full => Ok(()),
            Ok(()) => {
                state.waiting.insert(block, waiting);
                Ok(())
            }
            Err(e) => {
                waiting.units.pop();
                state.waiting.insert(block, waiting);
                Err(match e {
                    NandError::ProgramFailed { .. } => NandError::ProgramFailed { page: unit },
                    e => e,
                })
            }
        }
    }

    fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        let mut state = self.state.lock();
        state.register = None;
        state.waiting.remove(&block);
        self.below.erase(block, cause)
    }

    fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError> {
        self.below.is_bad(block)
    }

    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.state.lock().register = None;
        self.below.mark_bad(block, cause)
    }

    fn meter(&self) -> &Meter {
        self.below.meter()
    }
}
