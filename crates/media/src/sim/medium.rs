//! The common part of simulated media: two contents, the tape, and the power.

use crate::error::MediaError;
use crate::image::Image;
use crate::sim::crash::CrashPoint;
use crate::sim::entry::Entry;
use crate::sim::pending::{layers, put};
use crate::sim::power::{NextChange, Supply};
use crate::sim::tape::Tape;
use crate::sim::volatile::{Kind, Volatile};
use stetfs_format::width::u64_as_usize;

/// The state of a simulated medium.
pub(crate) struct Medium {
    kind: Kind,
    start: Image,
    newest: Image,
    volatile: Volatile,
    /// Number of changes carried out.
    changes: u64,
    /// The change under way when the power went off.
    in_flight: Option<Entry>,
    record: bool,
    entries: Vec<Entry>,
    /// For each entry, its number in the order of the supply.
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

    /// Refuses the change if the power is off, or if the cut happens at it.
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

    /// Reads the newest content of a range.
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

    /// Returns the tape. Panics if the medium does not record one.
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
