//! Where timestamps come from: the system, or a counter that tests control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use stetfs_format::Time;

/// A source of timestamps. Cheap to clone; clones of a manual clock tick together.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's wall clock.
    System,
    /// Nanoseconds since 1970, moved on by [`Clock::TICK_NS`] at each reading, so that runs repeat exactly.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// By how much each reading moves a manual clock, in nanoseconds.
    pub const TICK_NS: u64 = 1_000;

    /// A clock of its own that starts at `seconds` since 1970.
    pub fn manual(seconds: u64) -> Self {
        Self::Manual(Arc::new(AtomicU64::new(seconds * 1_000_000_000)))
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Self::System => match SystemTime::now().duration_since(UNIX_EPOCH) {
                Ok(d) => Time {
                    sec: d.as_secs() as i64,
                    nsec: d.subsec_nanos(),
                },
                Err(_) => Time::default(),
            },
            Self::Manual(ns) => {
                let ns = ns.fetch_add(Self::TICK_NS, Ordering::Relaxed);
                Time {
                    sec: (ns / 1_000_000_000) as i64,
                    nsec: (ns % 1_000_000_000) as u32,
                }
            }
        }
    }

    /// Whole seconds since 1970 as superblock fields keep them.
    pub fn seconds(&self) -> u64 {
        self.now().sec.max(0) as u64
    }
}
