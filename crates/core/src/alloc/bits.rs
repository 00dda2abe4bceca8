//! Searching and changing a bitmap, 64 bits at a time.
//!
//! An ext4 bitmap is little endian: bit `n` is bit `n % 8` of byte `n / 8`; 1 means in use. A
//! [`View`] lays the bits that may not be handed out yet (freed by a transaction that is not
//! durable, or being discarded) over the bitmap of the medium, so that a search sees only free
//! blocks that it may take.

use std::ops::Range;

use stetfs_format::width::u32_as_usize;

/// Returns the number of 64-bit words that cover `bits` bits.
pub(crate) const fn words_for(bits: u32) -> usize {
    u32_as_usize(bits).div_ceil(64)
}

/// A bitmap with overlays: a bit is busy when it is set in the bitmap or in any overlay.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    bytes: &'a [u8],
    overlays: [&'a [u64]; 3],
    len: u32,
}

impl<'a> View<'a> {
    /// Returns a view of the first `len` bits of `bytes`, or of fewer if `bytes` is shorter. Each
    /// overlay is empty or covers all bits.
    pub(crate) fn new(bytes: &'a [u8], len: u32, overlays: [&'a [u64]; 3]) -> Self {
        let len = len.min(u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX));
        Self {
            bytes,
            overlays,
            len,
        }
    }

    /// Returns a view without overlays.
    pub(crate) fn plain(bytes: &'a [u8], len: u32) -> Self {
        Self::new(bytes, len, [&[], &[], &[]])
    }

    /// Returns word `w`, in which busy bits are 1.
    #[inline]
    fn word(&self, w: usize) -> u64 {
        let at = w * 8;
        let mut word = match self.bytes.get(at..at + 8) {
            Some(full) => u64::from_le_bytes(full.try_into().expect("eight bytes")),
            None => {
                let mut last = [0xFF; 8];
                let rest = self.bytes.get(at..).unwrap_or(&[]);
                last[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(last)
            }
        };
        // Overlays add nothing to a full word, and most words of a full bitmap are full.
        if word != u64::MAX {
            for overlay in self.overlays {
                word |= overlay.get(w).copied().unwrap_or(0);
            }
        }
        word
    }

    /// Whether bit `n` is busy; bits past the end count as busy.
    #[inline]
    pub(crate) fn is_busy(&self, n: u32) -> bool {
        n >= self.len || self.word(u32_as_usize(n) / 64) >> (n % 64) & 1 == 1
    }

    /// Returns the first free bit in `range`, or `None`.
    pub(crate) fn next_free(&self, range: Range<u32>) -> Option<u32> {
        self.find(range, |word| !word)
    }

    /// Returns the first busy bit in `range`, or the end of the range (cut to the bitmap's).
    pub(crate) fn next_busy(&self, range: Range<u32>) -> u32 {
        let end = range.end.min(self.len);
        self.find(range, |word| word).unwrap_or(end)
    }

    #[inline]
    fn find(&self, range: Range<u32>, wanted: impl Fn(u64) -> u64) -> Option<u32> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return None;
        }
        let mut w = range.start / 64;
        let mut hits = wanted(self.word(u32_as_usize(w))) & (u64::MAX << (range.start % 64));
        loop {
            if hits != 0 {
                let n = w * 64 + hits.trailing_zeros();
                return (n < end).then_some(n);
            }
            w += 1;
            if w * 64 >= end {
                return None;
            }
            hits = wanted(self.word(u32_as_usize(w)));
        }
    }

    /// Returns the first run of at least `want` free bits in `range`, cut to `want` bits, or else
    /// the longest run there. The second value is true when the whole range was searched, so that
    /// this run is known to be the longest.
    pub(crate) fn find_run(&self, range: Range<u32>, want: u32) -> (Option<Range<u32>>, bool) {
        let mut best: Option<Range<u32>> = None;
        let mut from = range.start;
        while let Some(start) = self.next_free(from..range.end) {
            let limit = range.end.min(start.saturating_add(want));
            let end = self.next_busy(start..limit);
            if end - start >= want {
                return (Some(start..end), false);
            }
            if best
                .as_ref()
                .is_none_or(|b| b.len() < u32_as_usize(end - start))
            {
                best = Some(start..end);
            }
            from = end;
        }
        (best, true)
    }

    /// Returns the number of free bits.
    pub(crate) fn count_free(&self) -> u32 {
        (0..self.len.div_ceil(64))
            .map(|w| {
                let left = self.len - w * 64;
                let mask = if left >= 64 {
                    u64::MAX
                } else {
                    (1 << left) - 1
                };
                (!self.word(u32_as_usize(w)) & mask).count_ones()
            })
            .sum()
    }
}

/// Sets the bits `range` to `value` in `bytes`, a copy of the bitmap from bit `first` on (a
/// multiple of 8).
pub(crate) fn fill(bytes: &mut [u8], first: u32, range: Range<u32>, value: bool) {
    let (start, end) = (
        u32_as_usize(range.start - first),
        u32_as_usize(range.end - first),
    );
    if start >= end {
        return;
    }
    let (head, tail) = (start / 8, (end - 1) / 8);
    let head_mask = 0xFFu8 << (start % 8);
    let tail_mask = 0xFFu8 >> (7 - (end - 1) % 8);
    let mut put = |at: usize, mask: u8| {
        if value {
            bytes[at] |= mask;
        } else {
            bytes[at] &= !mask;
        }
    };
    if head == tail {
        put(head, head_mask & tail_mask);
        return;
    }
    put(head, head_mask);
    put(tail, tail_mask);
    bytes[head + 1..tail].fill(if value { 0xFF } else { 0 });
}

/// Sets the bits `range` in 64-bit words; returns how many were clear before.
pub(crate) fn set_words(words: &mut [u64], range: Range<u32>) -> u32 {
    let mut changed = 0;
    for_words(range, |w, mask| {
        changed += (mask & !words[w]).count_ones();
        words[w] |= mask;
    });
    changed
}

/// Clears the bits `range` in 64-bit words; returns how many were set before.
pub(crate) fn clear_words(words: &mut [u64], range: Range<u32>) -> u32 {
    let mut changed = 0;
    for_words(range, |w, mask| {
        changed += (mask & words[w]).count_ones();
        words[w] &= !mask;
    });
    changed
}

fn for_words(range: Range<u32>, mut each: impl FnMut(usize, u64)) {
    let mut at = range.start;
    while at < range.end {
        let w = at / 64;
        let end = range.end.min((w + 1) * 64);
        let count = end - at;
        let mask = if count == 64 {
            u64::MAX
        } else {
            ((1 << count) - 1) << (at % 64)
        };
        each(u32_as_usize(w), mask);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(bytes: &[u8], overlay: &[u64], len: u32) -> Vec<bool> {
        (0..len as usize)
            .map(|n| bytes[n / 8] >> (n % 8) & 1 == 1 || overlay[n / 64] >> (n % 64) & 1 == 1)
            .collect()
    }

    fn sparse_byte() -> impl Strategy<Value = u8> {
        prop_oneof![Just(0u8), Just(0xFF), any::<u8>()]
    }

    proptest! {
        #[test]
        fn searches_agree_with_a_plain_walk(
            bytes in prop::collection::vec(sparse_byte(), 1..64),
            pinned in prop::collection::vec(any::<u64>(), 8),
            sparse in any::<bool>(),
            short in 0u32..8,
            a in 0u32..512, b in 0u32..512, want in 1u32..80,
        ) {
            let len = (bytes.len() as u32 * 8).saturating_sub(short);
            let thinned = |w: &u64| if sparse { w & (w >> 7) & (w >> 13) } else { 0 };
            let pinned: Vec<u64> = pinned.iter().map(thinned).collect();
            let map = View::new(&bytes, len, [&[], &pinned, &[]]);
            let busy = model(&bytes, &pinned, len);
            let range = a.min(b)..a.max(b);
            let inside = || range.clone().filter(|n| *n < len);
            prop_assert_eq!(map.next_free(range.clone()), inside().find(|n| !busy[*n as usize]));
            if range.start < range.end.min(len) {
                prop_assert_eq!(
                    map.next_busy(range.clone()),
                    inside().find(|n| busy[*n as usize]).unwrap_or(range.end.min(len))
                );
            }
            prop_assert_eq!(map.count_free() as usize, busy.iter().filter(|b| !**b).count());

            let mut runs = Vec::new();
            for n in inside().filter(|n| !busy[*n as usize]) {
                match runs.last_mut() {
                    Some((_, end)) if *end == n => *end = n + 1,
                    _ => runs.push((n, n + 1)),
                }
            }
            let (found, whole) = map.find_run(range.clone(), want);
            let expected = runs.iter().find(|(s, e)| e - s >= want).map(|(s, _)| (*s, *s + want));
            match expected {
                Some((s, e)) => prop_assert_eq!((found, whole), (Some(s..e), false)),
                None => {
                    prop_assert!(whole);
                    prop_assert_eq!(
                        found.map_or(0, |r| r.end - r.start),
                        runs.iter().map(|(s, e)| e - s).max().unwrap_or(0)
                    );
                }
            }
        }

        #[test]
        fn ranges_are_set_and_cleared(
            start in 0u32..200,
            len in 0u32..200,
            value in any::<bool>(),
        ) {
            let range = start..start + len;
            let mut bytes = vec![if value { 0 } else { 0xFF }; 64];
            fill(&mut bytes, 0, range.clone(), value);
            let mut words = vec![0u64; 8];
            prop_assert_eq!(set_words(&mut words, range.clone()), len);
            for n in 0..512 {
                prop_assert_eq!(
                    bytes[n / 8] >> (n % 8) & 1 == 1,
                    range.contains(&(n as u32)) == value
                );
                prop_assert_eq!(words[n / 64] >> (n % 64) & 1 == 1, range.contains(&(n as u32)));
            }
            prop_assert_eq!(clear_words(&mut words, range), len);
            prop_assert!(words.iter().all(|w| *w == 0));
        }
    }
}
