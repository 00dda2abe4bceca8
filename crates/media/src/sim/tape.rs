//! The record of everything that changed a simulated medium, in order.

use std::sync::Arc;

use crate::image::Image;
use crate::sim::crash::CrashPoint;
use crate::sim::entry::Entry;
use crate::sim::volatile::{Kind, Volatile};
use stetfs_format::width::usize_as_u64;

/// The content that a medium began with and everything that changed it since.
#[derive(Clone, Debug)]
pub struct Tape {
    start: Image,
    kind: Kind,
    entries: Arc<[Entry]>,
    /// For each entry, its number in the order of the supply, ascending.
    numbers: Arc<[u64]>,
}

impl Tape {
    pub(crate) fn new(start: Image, kind: Kind, entries: Vec<Entry>, numbers: Vec<u64>) -> Self {
        assert_eq!(entries.len(), numbers.len(), "each entry has its number");
        Self {
            start,
            kind,
            entries: entries.into(),
            numbers: numbers.into(),
        }
    }

    /// The content before the first entry.
    pub fn start(&self) -> &Image {
        &self.start
    }

    /// The changes, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// For each entry, its number in the order of all changes on the supply. On a medium with its
    /// own supply this is its position.
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
    pub fn crash_points(&self) -> CrashPoints {
        let volatile = Volatile::new(self.start.clone(), self.kind);
        CrashPoints {
            tape: self.clone(),
            volatile,
            next: 0,
        }
    }

    /// Returns the moment at which the first `n` entries were carried out. The time is proportional
    /// to `n`; use [`crash_points`](Self::crash_points) to get all of them. Panics if the tape is
    /// shorter.
    pub fn crash_point(&self, n: usize) -> CrashPoint {
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

/// The moments of a tape; see [`Tape::crash_points`].
pub struct CrashPoints {
    tape: Tape,
    volatile: Volatile,
    next: usize,
}

impl CrashPoints {
    /// Advances to moment `n` without building the ones before it.
    fn skip_to(&mut self, n: usize) {
        while self.next < n {
            self.advance();
        }
    }

    fn advance(&mut self) {
        if let Some(entry) = self.tape.entries.get(self.next) {
            self.volatile.apply(self.next, entry);
        }
        self.next += 1;
    }

    /// Returns the crash point at which `moment` changes were carried out on all media of the
    /// supply. The next change is in flight if it belongs to this medium. Calls must go forward:
    /// panics if a change that comes after `moment` was already applied.
    pub fn at_moment(&mut self, moment: u64) -> CrashPoint {
        let numbers = Arc::clone(&self.tape.numbers);
        let position = numbers.partition_point(|n| *n < moment);
        assert!(self.next <= position, "moment {moment} lies behind");
        self.skip_to(position);
        let is_in_flight = numbers.get(position) == Some(&moment);
        self.point(moment, is_in_flight)
    }

    fn point(&self, moment: u64, is_in_flight: bool) -> CrashPoint {
        let in_flight = self.tape.entries.get(self.next).filter(|_| is_in_flight);
        CrashPoint::new(self.next, moment, self.tape.kind, &self.volatile, in_flight)
    }
}

impl Iterator for CrashPoints {
    type Item = CrashPoint;

    fn next(&mut self) -> Option<CrashPoint> {
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

    fn nth(&mut self, n: usize) -> Option<CrashPoint> {
        let to = self.next.saturating_add(n).min(self.tape.len() + 1);
        self.skip_to(to);
        self.next()
    }
}

/// Returns every moment at which the power of several media on one supply can go off, in order,
/// from none of their changes to all. Each item holds one crash point per tape, in the order of the
/// tapes. Media lose pieces independently, so every combination of their states is possible.
pub fn joint_crash_points(tapes: &[Tape]) -> JointCrashPoints {
    let ends = tapes.iter().filter_map(|tape| tape.numbers.last());
    JointCrashPoints {
        media: tapes.iter().map(Tape::crash_points).collect(),
        next: 0,
        end: ends.max().map_or(0, |last| last + 1),
    }
}

/// The moments of several tapes; see [`joint_crash_points`].
pub struct JointCrashPoints {
    media: Vec<CrashPoints>,
    next: u64,
    end: u64,
}

impl Iterator for JointCrashPoints {
    type Item = Vec<CrashPoint>;

    fn next(&mut self) -> Option<Vec<CrashPoint>> {
        if self.next > self.end {
            return None;
        }
        let moment = self.next;
        self.next += 1;
        let media = self.media.iter_mut();
        Some(media.map(|points| points.at_moment(moment)).collect())
    }

    /// Advances by `n` without building the moments in between.
    fn nth(&mut self, n: usize) -> Option<Vec<CrashPoint>> {
        self.next = self.next.saturating_add(usize_as_u64(n));
        self.next()
    }
}
