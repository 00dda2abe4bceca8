//! What simulated media have in common: two contents, the tape, and the power.

use crate::error::MediaError;
use crate::image::Image;
use crate::sim::SimOptions;
use crate::sim::crash::CrashPoint;
use crate::sim::lines::Lines;
use crate::sim::pending::{Layer, Pending, layers, put};
use crate::sim::power::{NextChange, Supply};
use crate::sim::tape::{Entry, Tape};
use stetfs_format::width::u64_as_usize;

/// By which rule a medium keeps and loses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A block device.
    Device(SimOptions),
    /// Persistent memory.
    Pmem,
}

impl Kind {
    /// Bytes that a power cut keeps or loses as a whole.
    pub(crate) fn atomic_unit(&self) -> u64 {
        match self {
            Self::Device(options) => u64::from(options.atomic_unit),
            Self::Pmem => crate::pmem::WORD,
        }
    }

    /// The smallest range that is written alone, and divides the atomic unit.
    pub(crate) fn grain(&self) -> u64 {
        match self {
            Self::Device(options) => u64::from(options.sector),
            Self::Pmem => crate::pmem::WORD,
        }
    }

    pub(crate) fn discard_fill(&self) -> u8 {
        match self {
            Self::Device(options) => options.discard_fill,
            Self::Pmem => 0,
        }
    }
}

/// What is stable, and what waits above it by the rule of the medium.
pub(crate) enum Volatile {
    Device(Pending),
    Pmem(Lines),
}

impl Volatile {
    pub(crate) fn new(stable: Image, kind: Kind) -> Self {
        match kind {
            Kind::Device(options) => Self::Device(Pending::new(stable, options)),
            Kind::Pmem => Self::Pmem(Lines::new(stable)),
        }
    }

    pub(crate) fn stable(&self) -> &Image {
        match self {
            Self::Device(pending) => pending.stable(),
            Self::Pmem(lines) => lines.stable(),
        }
    }

    /// Carries out the entry at `position`.
    pub(crate) fn apply(&mut self, position: usize, entry: &Entry) {
        match self {
            Self::Device(pending) => pending.apply(position, entry),
            Self::Pmem(lines) => lines.apply(position, entry),
        }
    }

    /// What waits, piece by piece, in the order in which it was done.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        match self {
            Self::Device(pending) => pending.layers(),
            Self::Pmem(lines) => lines.layers(),
        }
    }
}

/// The state of a simulated medium.
pub(crate) struct Medium {
    kind: Kind,
    start: Image,
    newest: Image,
    volatile: Volatile,
    /// Changes that were carried out.
    changes: u64,
    /// What was being done when the power went off.
    in_flight: Option<Entry>,
    record: bool,
    entries: Vec<Entry>,
    /// For each entry its number in the order of the supply.
    numbers: Vec<u64>,
}

impl Medium {
    pub(crate) fn new(image: Image, kind: Kind, record: bool) -> Self {
        Self {
            kind,
            start: image.clone(),
            newest: image.clone(),
            volatile: Volatile::new(image, kind),
            changes: 0,
            in_flight: None,
            record,
            entries: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Refuses the change when the power is off, or goes off now.
    pub(crate) fn admit(&mut self, supply: &mut Supply, change: &Entry) -> Result<(), MediaError> {
        let next = supply.next_change();
        if next == NextChange::CarryOut {
            return Ok(());
        }
        if next == NextChange::InFlight {
            self.in_flight = Some(change.clone());
        }
        let (op, offset, len) = change.range();
        Err(MediaError::PowerLost { op, offset, len })
    }

    /// Carries out a change that was admitted under the same lock of the supply.
    pub(crate) fn carry_out(&mut self, supply: &mut Supply, change: Entry) {
        let number = supply.number();
        for layer in layers(
            &change,
            u64_as_usize(self.changes),
            u64::MAX,
            self.kind.discard_fill(),
        ) {
            put(&mut self.newest, &layer);
        }
        self.volatile.apply(u64_as_usize(self.changes), &change);
        if self.record {
            self.entries.push(change);
            self.numbers.push(number);
        }
        self.changes += 1;
    }

    /// The newest content of a range.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.newest.read(offset, out);
    }

    pub(crate) fn newest(&self) -> Image {
        self.newest.clone()
    }

    pub(crate) fn stable(&self) -> Image {
        self.volatile.stable().clone()
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn crash_point(&self, supply: &Supply) -> CrashPoint {
        CrashPoint::new(
            u64_as_usize(self.changes),
            supply.changes(),
            self.kind,
            &self.volatile,
            self.in_flight.as_ref(),
        )
    }

    /// Panics when there is none.
    pub(crate) fn tape(&self) -> Tape {
        assert!(self.record, "the medium was told not to record");
        Tape::new(
            self.start.clone(),
            self.kind,
            self.entries.clone(),
            self.numbers.clone(),
        )
    }
}
