//! Where timestamps come from: the system, or a counter that tests control.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use stetfs_format::Time;
use stetfs_format::width::low32;

/// A source of timestamps. Cheap to clone; clones of a manual clock tick together.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's wall clock as of its last tick, which the kernel's file systems use too.
    /// Through FUSE it also saves requests: the kernel sees that a new file has the time that it
    /// would give the file, and need not send it.
    System,
    /// Nanoseconds since 1970, advanced by [`Clock::TICK_NS`] at each reading, so that runs repeat
    /// exactly.
    Manual(Arc<AtomicU64>),
    /// Nanoseconds since 1970, advanced by [`Clock::set`] alone, so that a test knows the time that
    /// each operation saw.
    Still(Arc<AtomicU64>),
}

/// Equal when both always give the same time.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::System, Self::System) => true,
            (Self::Manual(a), Self::Manual(b)) | (Self::Still(a), Self::Still(b)) => {
                Arc::ptr_eq(a, b)
            }
            _ => false,
        }
    }
}

impl Clock {
    /// How far each reading advances a manual clock, in nanoseconds.
    pub const TICK_NS: u64 = 1_000;

    /// Returns a new manual clock that starts at `seconds` since 1970.
    pub fn manual(seconds: u64) -> Self {
        Self::Manual(Arc::new(AtomicU64::new(seconds * 1_000_000_000)))
    }

    /// Returns a new clock that stands still at `seconds` since 1970.
    pub fn still(seconds: u64) -> Self {
        Self::Still(Arc::new(AtomicU64::new(seconds * 1_000_000_000)))
    }

    /// Sets a clock that stands still, in nanoseconds since 1970; does nothing to others.
    pub fn set(&self, nanoseconds: u64) {
        if let Self::Still(ns) = self {
            ns.store(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Returns the time now.
    pub fn now(&self) -> Time {
        match self {
            Self::System => {
                let (now, newest) = (last_tick(), NEWEST.load(Ordering::Relaxed));
                time_of(if is_in_tick(newest, now) { newest } else { now })
            }
            Self::Manual(ns) => time_of(ns.fetch_add(Self::TICK_NS, Ordering::Relaxed)),
            Self::Still(ns) => time_of(ns.load(Ordering::Relaxed)),
        }
    }

    /// Notes a time that another clock gave, perhaps a finer one. If it lies in the current tick,
    /// this clock gives no earlier time from now on. (From Linux 6.13 on, the kernel's file systems
    /// read a finer clock after somebody has asked for a time, and its FUSE keeps times itself:
    /// without this call the next change would seem older.)
    pub fn seen(&self, time: Time) {
        if let (Self::System, Some(ns)) = (self, ns_of(time))
            && is_in_tick(ns, last_tick())
        {
            NEWEST.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Returns whole seconds since 1970, as superblock fields keep them.
    pub fn seconds(&self) -> u64 {
        self.now().sec.max(0).cast_unsigned()
    }
}

/// The longest tick of the kernel (CONFIG_HZ=100), in nanoseconds.
const LONGEST_TICK_NS: u64 = 10_000_000;

/// The newest time that was [`seen`](Clock::seen), in nanoseconds since 1970. One for the process,
/// as the machine has one clock.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// Returns the time of the machine's last tick, in nanoseconds since 1970.
fn last_tick() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let now = Time {
        sec: now.tv_sec,
        nsec: low32(now.tv_nsec.cast_unsigned()),
    };
    ns_of(now).unwrap_or(0)
}

/// Whether a time lies between a tick and the next.
fn is_in_tick(time: u64, tick: u64) -> bool {
    (tick..tick + LONGEST_TICK_NS).contains(&time)
}

/// Returns a timestamp as nanoseconds since 1970; `None` before that, and from 2554 on.
fn ns_of(time: Time) -> Option<u64> {
    let sec = u64::try_from(time.sec).ok()?;
    sec.checked_mul(1_000_000_000)?
        .checked_add(time.nsec.into())
}

/// Returns nanoseconds since 1970 as a timestamp.
fn time_of(ns: u64) -> Time {
    Time {
        sec: (ns / 1_000_000_000).cast_signed(),
        nsec: low32(ns % 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finer_clock_is_followed_within_a_tick() {
        let clock = Clock::System;
        let far = |ns: u64| time_of(last_tick() + ns);
        clock.seen(far(3_600_000_000_000));
        assert!(clock.now() < far(1_000_000_000), "an hour ahead");
        let finer = far(LONGEST_TICK_NS / 2);
        clock.seen(finer);
        let now = clock.now();
        assert!(now >= finer, "{now:?} is before {finer:?}");
        assert!(now < far(2 * LONGEST_TICK_NS), "{now:?}");
    }
}
