//! The rule of what survives a power cut in persistent memory: words that wait above the stable content, by cache lines.
//!
//! A store waits, word by word, until its line is flushed and a fence comes after that; a store past the cache waits
//! for the fence only. Until then each word of each store is kept or lost by itself, later ones over earlier ones: a
//! line may be written back at any time for no reason, and the lines in any order.
//!
//! That is a little more than a processor can do, which writes a line back as it is at one moment, with all stores to it
//! before and none after. What is right here is right there.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::image::Image;
use crate::pmem::{LINE, WORD};
use crate::sim::pending::{Content, Layer, put};
use crate::sim::tape::Entry;
use crate::tag::Tag;

/// Stable content and what waits above it.
pub(crate) struct Lines {
    stable: Image,
    waiting: HashMap<u64, SmallVec<[Fragment; 2]>>,
    /// Lines of which something will settle at the next fence; some may be here more than once.
    in_flight: Vec<u64>,
}

/// The part of a store that lies in one line. A bit of a mask stands for a word of the line.
struct Fragment {
    position: usize,
    tag: Tag,
    /// First byte of the whole store, and its bytes.
    offset: u64,
    data: Arc<[u8]>,
    /// Words that wait.
    live: u8,
    /// Those of them that the next fence settles.
    settling: u8,
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
                for line in touched(*offset, data.len() as u64, LINE) {
                    let live = words_of(line, *offset, data.len() as u64);
                    let settling = if *past_cache { live } else { 0 };
                    self.waiting.entry(line).or_default().push(Fragment {
                        position,
                        tag: *tag,
                        offset: *offset,
                        data: Arc::clone(data),
                        live,
                        settling,
                    });
                    if *past_cache {
                        self.in_flight.push(line);
                    }
                }
            }
            Entry::FlushLines { offset, len, .. } => {
                for line in touched(*offset, *len, LINE) {
                    if let Some(fragments) = self.waiting.get_mut(&line) {
                        fragments.iter_mut().for_each(|f| f.settling = f.live);
                        self.in_flight.push(line);
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
        for line in std::mem::take(&mut self.in_flight) {
            let Some(fragments) = self.waiting.get_mut(&line) else {
                continue;
            };
            // A word that was stored past the cache takes the place of what waits under it.
            let mut above = 0;
            for fragment in fragments.iter_mut().rev() {
                fragment.live &= fragment.settling | !above;
                above |= fragment.settling;
            }
            for fragment in fragments.iter_mut() {
                for layer in fragment.layers(line, fragment.settling) {
                    put(&mut self.stable, &layer);
                }
                fragment.live &= !fragment.settling;
                fragment.settling = 0;
            }
            fragments.retain(|fragment| fragment.live != 0);
            if fragments.is_empty() {
                self.waiting.remove(&line);
            }
        }
    }

    /// What waits, word by word.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        let mut all: Vec<Layer> = self
            .waiting
            .iter()
            .flat_map(|(line, fragments)| fragments.iter().map(move |f| f.layers(*line, f.live)))
            .flatten()
            .collect();
        all.sort_by_key(|layer| (layer.position, layer.offset));
        all
    }
}

impl Fragment {
    /// Those words, as far as the store reaches into them.
    fn layers(&self, line: u64, words: u8) -> impl Iterator<Item = Layer> {
        let end = self.offset + self.data.len() as u64;
        (0..LINE / WORD)
            .filter(move |word| words >> word & 1 == 1)
            .map(move |word| {
                let first = line * LINE + word * WORD;
                let offset = first.max(self.offset);
                Layer {
                    position: self.position,
                    offset,
                    len: (first + WORD).min(end) - offset,
                    tag: Some(self.tag),
                    content: Content::Written(
                        Arc::clone(&self.data),
                        (offset - self.offset) as usize,
                    ),
                    is_certain: false,
                }
            })
    }
}

/// The units of `unit` bytes that a range touches; none when it is empty.
fn touched(offset: u64, len: u64, unit: u64) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / unit..(offset + len).div_ceil(unit)
}

/// The words of a line that a range touches.
fn words_of(line: u64, offset: u64, len: u64) -> u8 {
    let words = touched(offset, len, WORD);
    (0..LINE / WORD)
        .filter(|word| words.contains(&(line * (LINE / WORD) + word)))
        .fold(0, |mask, word| mask | 1 << word)
}
