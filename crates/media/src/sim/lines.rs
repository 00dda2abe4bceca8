//! The rule of what survives a power cut in persistent memory: words, grouped by cache lines, wait
//! above the stable content.
//!
//! Each word of a store waits until its line is flushed and a fence follows; a store past the cache
//! waits for the fence only. Until then each word of each store is kept or lost independently,
//! later ones over earlier ones, because a processor may write back any line at any time, in any
//! order.
//!
//! This model allows a little more than a processor can do: a processor writes a line as it is at
//! one moment, with all stores before it and none after. Code that is right in this model is right
//! on a processor.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::image::Image;
use crate::pmem::contract::{LINE, WORD};
use crate::sim::entry::Entry;
use crate::sim::pending::{Content, Layer, put};
use crate::tag::Tag;
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};

/// Bytes whose stores are grouped.
const PAGE: u64 = 4096;

/// Stable content and what waits above it.
pub(crate) struct Lines {
    stable: Image,
    /// Waiting fragments, by page and in the order of their stores.
    waiting: HashMap<u64, Vec<Fragment>>,
    /// Pages in which the next fence will settle something; may contain duplicates.
    in_flight: Vec<u64>,
}

/// The part of a store that lies in one page.
struct Fragment {
    position: usize,
    tag: Tag,
    /// First byte of the whole store.
    offset: u64,
    data: Arc<[u8]>,
    /// Words that still wait.
    live: Words,
    /// Those of the waiting words that the next fence settles.
    settling: Words,
}

impl Lines {
    pub(crate) fn new(stable: Image) -> Self {
        Self {
            stable,
            waiting: HashMap::new(),
            in_flight: Vec::new(),
        }
    }

    pub(crate) fn stable(&self) -> &Image {
        &self.stable
    }

    /// Carries out the entry at `position`.
    pub(crate) fn apply(&mut self, position: usize, entry: &Entry) {
        match entry {
            Entry::Store {
                offset,
                data,
                tag,
                past_cache,
            } => {
                let len = usize_as_u64(data.len());
                for page in touched(*offset, len, PAGE) {
                    let live = Words::of(page, touched(*offset, len, WORD));
                    self.waiting.entry(page).or_default().push(Fragment {
                        position,
                        tag: *tag,
                        offset: *offset,
                        data: Arc::clone(data),
                        live,
                        settling: if *past_cache { live } else { Words::NONE },
                    });
                    if *past_cache {
                        self.in_flight.push(page);
                    }
                }
            }
            Entry::FlushLines { offset, len, .. } => {
                let lines = touched(*offset, *len, LINE);
                let words = lines.start * (LINE / WORD)..lines.end * (LINE / WORD);
                for page in touched(*offset, *len, PAGE) {
                    if let Some(fragments) = self.waiting.get_mut(&page) {
                        let flushed = Words::of(page, words.clone());
                        for fragment in fragments {
                            fragment.settling = fragment.settling.or(fragment.live.and(flushed));
                        }
                        self.in_flight.push(page);
                    }
                }
            }
            Entry::Fence { .. } => self.settle(),
            Entry::Write { .. } | Entry::Discard { .. } | Entry::Flush { .. } => {
                unreachable!("{entry} in persistent memory")
            }
        }
    }

    fn settle(&mut self) {
        for page in std::mem::take(&mut self.in_flight) {
            let Some(fragments) = self.waiting.get_mut(&page) else {
                continue;
            };
            // A word stored past the cache replaces what waits under it.
            let mut above = Words::NONE;
            for fragment in fragments.iter_mut().rev() {
                let is_under = fragment.live.and(above).without(fragment.settling);
                fragment.live = fragment.live.without(is_under);
                above = above.or(fragment.settling);
            }
            for fragment in fragments.iter_mut() {
                for run in fragment.settling.runs() {
                    put(&mut self.stable, &fragment.layer(page, run));
                }
                fragment.live = fragment.live.without(fragment.settling);
                fragment.settling = Words::NONE;
            }
            fragments.retain(|fragment| fragment.live != Words::NONE);
            if fragments.is_empty() {
                self.waiting.remove(&page);
            }
        }
    }

    /// Returns what waits, word by word.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        let mut all = Vec::new();
        for (page, fragments) in &self.waiting {
            for fragment in fragments {
                let words = fragment.live.runs().flatten();
                all.extend(words.map(|word| fragment.layer(*page, word..word + 1)));
            }
        }
        all.sort_by_key(|layer| (layer.position, layer.offset));
        all
    }
}

impl Fragment {
    /// Returns some words of the page as a layer, as far as the store reaches into them.
    fn layer(&self, page: u64, words: Range<usize>) -> Layer {
        let end = self.offset + usize_as_u64(self.data.len());
        let offset = (page * PAGE + usize_as_u64(words.start) * WORD).max(self.offset);
        Layer {
            position: self.position,
            offset,
            len: (page * PAGE + usize_as_u64(words.end) * WORD).min(end) - offset,
            tag: Some(self.tag),
            content: Content::Written(Arc::clone(&self.data), u64_as_usize(offset - self.offset)),
            is_certain: false,
        }
    }
}

/// Returns the units of `unit` bytes that a range touches; none if it is empty.
fn touched(offset: u64, len: u64, unit: u64) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / unit..(offset + len).div_ceil(unit)
}

/// A set of words of one page.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Words([u64; Words::COUNT / 64]);

impl Words {
    const COUNT: usize = u64_as_usize(PAGE / WORD);
    const NONE: Self = Self([0; Self::COUNT / 64]);

    /// Returns those of `words`, counted from the start of the memory, that lie in the page.
    fn of(page: u64, words: Range<u64>) -> Self {
        let first = page * usize_as_u64(Self::COUNT);
        let inside = |word: u64| word.clamp(first, first + usize_as_u64(Self::COUNT)) - first;
        let (start, end) = (inside(words.start), inside(words.end));
        let below = |bit: u64, i: usize| {
            let n = bit.saturating_sub(usize_as_u64(i) * 64);
            if n >= 64 { u64::MAX } else { (1 << n) - 1 }
        };
        Self(std::array::from_fn(|i| below(end, i) & !below(start, i)))
    }

    fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Returns the first word from `from` on that is in the set (`is_in`) or not in it.
    fn first(&self, from: usize, is_in: bool) -> Option<usize> {
        (from / 64..self.0.len()).find_map(|i| {
            let bits = if is_in { self.0[i] } else { !self.0[i] };
            let bits = bits & u64::MAX << from.saturating_sub(i * 64);
            (bits != 0).then(|| i * 64 + u32_as_usize(bits.trailing_zeros()))
        })
    }

    /// Iterates over the runs of consecutive words.
    fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.first(at, true)?;
            at = self.first(start, false).unwrap_or(Self::COUNT);
            Some(start..at)
        })
    }
}
