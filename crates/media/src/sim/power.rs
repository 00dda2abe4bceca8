//! What simulated media of one machine share: the clock, and the supply, which gives all their
//! changes one order and cuts the power for all at one moment.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Clock;

/// One machine. A clone is the same machine; `Rig::default()` is a new one with its power on.
#[derive(Clone, Debug, Default)]
pub struct Rig {
    /// The supply of its media.
    pub power: Power,
    /// The time on it.
    pub clock: Clock,
}

/// The power supply of simulated media. Every change on any of them (a write, store, program,
/// erase, flush, fence, discard) takes the next number of one order. When the supply goes off, it
/// goes off for all. A clone is the same supply.
#[derive(Clone, Debug, Default)]
pub struct Power(Arc<Mutex<Supply>>);

/// The state of a supply. A medium locks it before its own state and keeps the lock for a whole
/// request, so a change is both numbered and done, or neither.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    changes: u64,
    cut_at: Option<u64>,
    off: bool,
}

/// The fate of the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextChange {
    /// It can be carried out.
    CarryOut,
    /// The power goes off while it is under way.
    InFlight,
    /// The power is off.
    Refused,
}

impl Power {
    /// How many changes were carried out on all media so far. Whatever is confirmed now must
    /// survive every power cut from now on.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Goes off when `changes` changes were carried out since the supply was made. The next change,
    /// on any medium, is in flight and fails; so does everything after it on all media.
    pub fn cut_at(&self, changes: u64) {
        self.0.lock().cut_at = Some(changes);
    }

    /// Goes off now, with nothing in flight.
    pub fn cut(&self) {
        self.0.lock().off = true;
    }

    /// Whether the power is off.
    pub fn is_cut(&self) -> bool {
        self.0.lock().off
    }

    /// Locks the supply for a request of a medium.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Supply> {
        self.0.lock()
    }
}

impl Supply {
    /// Returns the fate of the next change, before anything else about it is known.
    pub(crate) fn next_change(&mut self) -> NextChange {
        if self.off {
            return NextChange::Refused;
        }
        if self.cut_at.is_some_and(|n| self.changes >= n) {
            self.off = true;
            return NextChange::InFlight;
        }
        NextChange::CarryOut
    }

    /// Whether the power is off.
    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    /// Counts a change that is being carried out; returns its number in the order.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.changes;
        self.changes += 1;
        number
    }

    /// Changes carried out so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}
