//! The time of simulated media.
//!
//! Time passes only when a simulated medium reports how long a request kept it busy
//! ([`Clock::advance`]), so the same requests take the same time on every machine. All media of one
//! rig share a clock: while one works, the others stand still, as with a single caller. Real media
//! have real time and no clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Virtual time in nanoseconds. A clone is the same clock; `Clock::default()` is a new one at zero.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Nanoseconds since the clock was made.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Lets `busy_ns` pass and returns the new time. Workloads use it too, for the time in which
    /// they compute. The clock wraps after 2^64 ns, which are 584 years.
    pub fn advance(&self, busy_ns: u64) -> u64 {
        self.0.fetch_add(busy_ns, Relaxed).wrapping_add(busy_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_tell_one_time() {
        let clock = Clock::default();
        let other = clock.clone();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| _ = other.advance(3)));
            }
        });
        assert_eq!(clock.now_ns(), 12_000);
        assert_eq!(clock.advance(5), 12_005);
        assert_eq!(Clock::default().now_ns(), 0);
    }
}
