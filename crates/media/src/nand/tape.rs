//! The record of everything that changed a part in memory, in order, and the states that a power
//! cut can leave.

use std::fmt;
use std::sync::Arc;

use super::cells::Cells;
use super::entry::NandEntry;
use super::outcome::Outcome;
use crate::image::Image;

/// The state that a part began with and everything that changed it since.
#[derive(Clone)]
pub struct NandTape {
    start: Cells<Image>,
    entries: Arc<[NandEntry]>,
    /// For each entry, its number in the order of the supply, ascending.
    numbers: Arc<[u64]>,
}

impl NandTape {
    pub(super) fn new(start: Cells<Image>, entries: &[(u64, NandEntry)]) -> Self {
        Self {
            start,
            entries: entries.iter().map(|(_, entry)| entry.clone()).collect(),
            numbers: entries.iter().map(|(number, _)| *number).collect(),
        }
    }

    /// The changes, in order.
    pub fn entries(&self) -> &[NandEntry] {
        &self.entries
    }

    /// For each entry, its number in the order of all changes on the supply
    /// ([`Power`](crate::sim::Power)).
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns every moment at which the power can go off, in order: `len() + 1` of them. At moment
    /// `n` the first `n` entries were carried out, and the next one, if any, is in flight.
    pub fn crash_points(&self) -> NandCrashPoints {
        NandCrashPoints {
            tape: self.clone(),
            cells: self.start.clone(),
            next: 0,
        }
    }

    /// Returns the moment at which the first `n` entries were carried out. The time is proportional
    /// to `n`. Panics if the tape is shorter.
    pub fn crash_point(&self, n: usize) -> NandCrashPoint {
        assert!(
            n <= self.len(),
            "moment {n} of a tape of {} entries",
            self.len()
        );
        let mut points = self.crash_points();
        points.skip_to(n);
        points.next().expect("the tape is long enough")
    }
}

impl fmt::Debug for NandTape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NandTape({} entries)", self.len())
    }
}

/// The moments of a tape; see [`NandTape::crash_points`].
pub struct NandCrashPoints {
    tape: NandTape,
    cells: Cells<Image>,
    next: usize,
}

impl NandCrashPoints {
    /// Advances to moment `n` without building the ones before it.
    fn skip_to(&mut self, n: usize) {
        while self.next < n {
            self.advance();
        }
    }

    fn advance(&mut self) {
        if let Some(entry) = self.tape.entries.get(self.next) {
            let done = self.cells.carry_out(entry);
            done.expect("it has been carried out before");
        }
        self.next += 1;
    }

    /// Returns the crash point at which `moment` changes were carried out on all media of the
    /// supply. The next change is in flight if it belongs to this part. Calls must go forward:
    /// panics if a change that comes after `moment` was already applied.
    pub fn at_moment(&mut self, moment: u64) -> NandCrashPoint {
        let numbers = Arc::clone(&self.tape.numbers);
        let position = numbers.partition_point(|n| *n < moment);
        assert!(self.next <= position, "moment {moment} lies behind");
        self.skip_to(position);
        self.point(moment, numbers.get(position) == Some(&moment))
    }

    fn point(&self, moment: u64, is_in_flight: bool) -> NandCrashPoint {
        let in_flight = self.tape.entries.get(self.next).filter(|_| is_in_flight);
        NandCrashPoint::new(self.next, moment, self.cells.clone(), in_flight.cloned())
    }
}

impl Iterator for NandCrashPoints {
    type Item = NandCrashPoint;

    fn next(&mut self) -> Option<NandCrashPoint> {
        if self.next > self.tape.len() {
            return None;
        }
        let numbers = &self.tape.numbers;
        let end = numbers.last().map_or(0, |last| last + 1);
        let moment = numbers.get(self.next).copied().unwrap_or(end);
        let point = self.point(moment, true);
        self.advance();
        Some(point)
    }

    fn nth(&mut self, n: usize) -> Option<NandCrashPoint> {
        let to = self.next.saturating_add(n).min(self.tape.len() + 1);
        self.skip_to(to);
        self.next()
    }
}

/// A moment at which the power goes off. Everything before is done, for a part has no cache; only
/// the change in flight has several outcomes.
#[derive(Clone)]
pub struct NandCrashPoint {
    position: usize,
    moment: u64,
    pub(super) cells: Cells<Image>,
    pub(super) in_flight: Option<NandEntry>,
}

impl NandCrashPoint {
    pub(super) fn new(
        position: usize,
        moment: u64,
        cells: Cells<Image>,
        in_flight: Option<NandEntry>,
    ) -> Self {
        Self {
            position,
            moment,
            cells: cells.without_power(),
            in_flight,
        }
    }

    /// How many entries of the tape were carried out.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many changes were carried out on all media of the supply.
    pub fn moment(&self) -> u64 {
        self.moment
    }

    /// The change that was under way.
    pub fn in_flight(&self) -> Option<&NandEntry> {
        self.in_flight.as_ref()
    }

    /// The possible outcomes: each is a state that the cut may leave. With nothing in flight there
    /// is one.
    pub fn outcomes(&self) -> &'static [Outcome] {
        self.in_flight
            .as_ref()
            .map_or(&[Outcome::NotStarted], Outcome::all_of)
    }
}

impl fmt::Debug for NandCrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NandCrashPoint")
            .field("position", &self.position)
            .field("in_flight", &self.in_flight.as_ref().map(|e| e.to_string()))
            .finish_non_exhaustive()
    }
}
