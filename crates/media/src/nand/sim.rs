//! A part in memory, with a tape.

use stetfs_format::nand::{NandHeader, NandPart};
use stetfs_format::width::u64_as_usize;

use super::cells::Cells;
use super::device::NandDev;
use super::error::NandError;
use super::outcome::Outcome;
use super::tape::{NandCrashPoint, NandTape};
use crate::image::Image;
use crate::sim::{Rig, scramble};

/// A part in memory. It takes memory only for programmed pages, and a copy takes none.
pub type NandSim = NandDev<Image>;

/// The kind of part to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandOptions {
    /// The part.
    pub part: NandPart,
    /// How often each block has been erased already.
    pub erases: u32,
    /// Whether to keep the tape.
    pub record: bool,
}

impl NandOptions {
    /// A new part, with a tape.
    pub const fn new(part: NandPart) -> Self {
        Self {
            part,
            erases: 0,
            record: true,
        }
    }

    /// Builds the part, on a machine of its own. Panics if such a part is impossible
    /// ([`NandPart::check`]).
    pub fn build(self) -> NandSim {
        self.build_on(&Rig::default())
    }

    /// Builds the part on the machine `rig`, whose supply and clock it shares with the other media
    /// there.
    pub fn build_on(self, rig: &Rig) -> NandSim {
        let low = scramble(self.part.seed);
        let uuid = u128::from(low) | u128::from(scramble(low)) << 64;
        let header = NandHeader {
            uuid: uuid.to_le_bytes(),
            boot: [0; 16],
            part: self.part,
        };
        let store = Image::new(self.part.geometry.file_bytes());
        let cells = Cells::format(store, header, self.erases);
        self.continue_on(rig, cells.expect("memory can be written"))
    }

    /// Builds a part with the content of an image, as [`NandSim::from_image`] does; the image says
    /// which kind of part it is.
    pub fn open_on(self, rig: &Rig, image: Image) -> Result<NandSim, NandError> {
        let cells = Cells::open(image)?;
        Ok(self.continue_on(rig, cells))
    }

    /// Builds a part from cells in any state.
    pub(super) fn continue_on(self, rig: &Rig, cells: Cells<Image>) -> NandSim {
        let name = format!("NAND, {} MiB", self.part.geometry.data_bytes() >> 20);
        let start = self.record.then(|| cells.clone());
        NandDev::from_cells(name, rig, cells, start)
    }
}

impl NandSim {
    /// A new part with a tape, on a machine of its own. Panics if such a part is impossible
    /// ([`NandPart::check`]).
    pub fn new(part: NandPart) -> Self {
        NandOptions::new(part).build()
    }

    /// Builds a part with the content of an image, or of a part's file
    /// ([`NandFile`](super::NandFile)) that was read into one, on the machine `rig`. Checks every
    /// record.
    pub fn from_image(rig: &Rig, image: Image) -> Result<Self, NandError> {
        let cells = Cells::open(image)?;
        let options = NandOptions::new(cells.header().part);
        Ok(options.continue_on(rig, cells))
    }

    /// Returns the content. [`from_image`](Self::from_image) takes it;
    /// [`NandFileOptions::open`](super::NandFileOptions::open) takes it as a file.
    pub fn image(&self) -> Image {
        self.state().cells.store.clone()
    }

    /// The moment of a power cut now, or of the cut that already happened.
    pub fn crash_point(&self) -> NandCrashPoint {
        let moment = self.rig().power.changes();
        let state = self.state();
        NandCrashPoint::new(
            u64_as_usize(state.changes),
            moment,
            state.cells.clone(),
            state.in_flight.clone(),
        )
    }

    /// The record so far. Panics when the part was made without one.
    pub fn tape(&self) -> NandTape {
        let state = self.state();
        let start = state.start.clone();
        NandTape::new(
            start.expect("the part was told not to record"),
            &state.entries,
        )
    }
}

impl NandCrashPoint {
    /// Returns the part in the state that `outcome` leaves, with its power on again, on a machine
    /// of its own. It shares unwritten content with the tape. Panics if the change in flight has no
    /// such outcome.
    pub fn crash(&self, outcome: Outcome) -> NandSim {
        self.crash_on(&Rig::default(), outcome)
    }

    /// Returns that part on the machine `rig`, together with other media.
    pub fn crash_on(&self, rig: &Rig, outcome: Outcome) -> NandSim {
        let mut cells = self.cells.clone();
        if let Some(change) = &self.in_flight {
            let left = cells.cut_short(change, outcome);
            left.expect("memory can be written");
        } else {
            let is_certain = matches!(outcome, Outcome::NotStarted | Outcome::Complete);
            assert!(is_certain, "{outcome} with nothing in flight");
        }
        NandOptions::new(cells.header().part).continue_on(rig, cells)
    }
}
