//! Where timestamps come from: the system, or a counter that tests control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use stetfs_format::Time;

/// A source of timestamps. Cheap to clone; clones of a manual clock tick together.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's wall clock as of its last tick, which is where the kernel's file systems take their timestamps from.
    /// Through FUSE it also saves requests: the kernel sees that a file just made has the time it would give it, and need not
    /// send it.
    System,
    /// Nanoseconds since 1970, moved on by [`Clock::TICK_NS`] at each reading, so that runs repeat exactly.
    Manual(Arc<AtomicU64>),
    /// Nanoseconds since 1970, moved by [`Clock::set`] alone, so that it is known what time each operation has seen.
    Still(Arc<AtomicU64>),
}

impl Clock {
    /// By how much each reading moves a manual clock, in nanoseconds.
    pub const TICK_NS: u64 = 1_000;

    /// A clock of its own that starts at `seconds` since 1970.
    pub fn manual(seconds: u64) -> Self {
        Self::Manual(Arc::new(AtomicU64::new(seconds * 1_000_000_000)))
    }

    /// A clock of its own that stands still at `seconds` since 1970.
    pub fn still(seconds: u64) -> Self {
        Self::Still(Arc::new(AtomicU64::new(seconds * 1_000_000_000)))
    }

    /// Moves a clock that stands still. Others go as they go.
    pub fn set(&self, nanoseconds: u64) {
        if let Self::Still(ns) = self {
            ns.store(nanoseconds, Ordering::Relaxed);
        }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Self::System => {
                let now = clock_gettime(ClockId::RealtimeCoarse);
                Time {
                    sec: now.tv_sec,
                    nsec: now.tv_nsec as u32,
                }
            }
            Self::Manual(ns) => time_of(ns.fetch_add(Self::TICK_NS, Ordering::Relaxed)),
            Self::Still(ns) => time_of(ns.load(Ordering::Relaxed)),
        }
    }

    /// Whole seconds since 1970 as superblock fields keep them.
    pub fn seconds(&self) -> u64 {
        self.now().sec.max(0) as u64
    }
}

/// Nanoseconds since 1970 as a timestamp.
fn time_of(ns: u64) -> Time {
    Time {
        sec: (ns / 1_000_000_000) as i64,
        nsec: (ns % 1_000_000_000) as u32,
    }
}
