//! Blocks of one group that are free in the bitmap but must not be handed out yet.
//!
//! A freed block is *pinned* until the transaction that freed it is durable: if it were reused
//! before, a crash would bring the old file back with another file's bytes. A transaction's frees
//! are one overlay bitmap. At most the running and the committing transaction have one, so a group
//! with recent frees costs two bitmaps, and any other group none. A third overlay keeps blocks from
//! allocation while they are discarded, so that no lock is held while the device works.

use std::ops::Range;

use stetfs_format::Tid;
use stetfs_planted::{Bug, is_planted};

use super::bits;

struct Generation {
    tid: Tid,
    count: u32,
    words: Box<[u64]>,
}

/// The overlays of one group.
pub(crate) struct Pins {
    bits: u32,
    frees: Vec<Generation>,
    discarding: Box<[u64]>,
}

impl Pins {
    /// Returns empty overlays for a group of `bits` blocks.
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits,
            frees: Vec::with_capacity(2),
            discarding: Box::default(),
        }
    }

    /// Returns the overlays for a [`bits::View`].
    pub(crate) fn overlays(&self) -> [&[u64]; 3] {
        let of = |n: usize| self.frees.get(n).map_or(&[][..], |g| &g.words[..]);
        [of(0), of(1), &self.discarding]
    }

    /// Pins `range` until `tid` is durable. Returns true if `tid` had no pins in this group before.
    pub(crate) fn pin(&mut self, tid: Tid, range: Range<u32>) -> bool {
        let known = self.frees.iter().position(|g| g.tid == tid);
        let at = known.unwrap_or_else(|| {
            if self.frees.len() == 2 {
                self.merge_older();
            }
            self.frees.push(Generation {
                tid,
                count: 0,
                words: vec![0; bits::words_for(self.bits)].into(),
            });
            self.frees.len() - 1
        });
        let generation = &mut self.frees[at];
        generation.count += bits::set_words(&mut generation.words, range);
        known.is_none()
    }

    /// Merges the two oldest overlays when a third transaction frees: the pins of the first then
    /// last as long as those of the second.
    fn merge_older(&mut self) {
        let older = self.frees.remove(0);
        let newer = &mut self.frees[0];
        for (into, from) in newer.words.iter_mut().zip(&older.words) {
            *into |= from;
        }
        newer.count += older.count;
        if older.tid.is_after(newer.tid) {
            newer.tid = older.tid;
        }
    }

    /// Releases what transactions up to `committed` freed; returns the number of blocks.
    pub(crate) fn release(&mut self, committed: Tid) -> u32 {
        let mut released = 0;
        self.frees.retain(|g| {
            let durable = committed.is_at_or_after(g.tid) || is_planted(Bug::EarlyReuse);
            released += if durable { g.count } else { 0 };
            !durable
        });
        released
    }

    /// Keeps `range` from allocation while it is discarded.
    pub(crate) fn discard_begin(&mut self, range: Range<u32>) {
        if self.discarding.is_empty() {
            self.discarding = vec![0; bits::words_for(self.bits)].into();
        }
        bits::set_words(&mut self.discarding, range);
    }

    /// Ends [`Pins::discard_begin`] for `range`.
    pub(crate) fn discard_end(&mut self, range: Range<u32>) {
        bits::clear_words(&mut self.discarding, range);
        if self.discarding.iter().all(|w| *w == 0) {
            self.discarding = Box::default();
        }
    }

    /// Whether nothing is pinned or being discarded.
    pub(crate) fn is_empty(&self) -> bool {
        self.frees.is_empty() && self.discarding.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::bits::View;

    fn busy(pins: &Pins, n: u32) -> bool {
        View::new(&[0; 16], 128, pins.overlays()).is_busy(n)
    }

    #[test]
    fn pins_last_until_their_transaction_is_durable() {
        let mut pins = Pins::new(128);
        assert!(pins.pin(Tid(u32::MAX), 3..70));
        assert!(!pins.pin(Tid(u32::MAX), 100..101));
        assert!(pins.pin(Tid(0), 80..82));
        assert!(busy(&pins, 69) && busy(&pins, 100) && busy(&pins, 81) && !busy(&pins, 70));
        assert_eq!(pins.release(Tid(u32::MAX - 1)), 0);
        assert_eq!(pins.release(Tid(u32::MAX)), 68);
        assert!(!busy(&pins, 69) && busy(&pins, 81));
        assert_eq!(pins.release(Tid(5)), 2);
        assert!(pins.is_empty());
    }

    #[test]
    fn a_third_transaction_keeps_the_first_ones_pins() {
        let mut pins = Pins::new(128);
        for (tid, at) in [(1, 10), (2, 20), (3, 30)] {
            assert!(pins.pin(Tid(tid), at..at + 1));
        }
        assert_eq!(pins.release(Tid(1)), 0);
        assert!(busy(&pins, 10) && busy(&pins, 20) && busy(&pins, 30));
        assert_eq!(pins.release(Tid(2)), 2);
        assert_eq!(pins.release(Tid(3)), 1);
    }

    #[test]
    fn discarding_is_apart() {
        let mut pins = Pins::new(128);
        pins.discard_begin(5..9);
        assert!(busy(&pins, 8) && !pins.is_empty());
        assert_eq!(pins.release(Tid(9)), 0);
        pins.discard_end(5..9);
        assert!(pins.is_empty());
    }
}
