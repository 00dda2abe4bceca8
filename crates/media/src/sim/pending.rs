//! The rule of what survives a power cut: the stable content and the changes that wait above it.

use crate::image::Image;
use crate::sim::tape::Entry;

/// Stable content and pending changes.
pub(crate) struct Volatile {
    stable: Image,
    /// In the order in which they were made.
    pending: Vec<Pending>,
    discard_fill: u8,
}

/// A write or discard that has not been flushed.
#[derive(Clone)]
pub(crate) struct Pending {
    /// Its position on the tape.
    pub(crate) position: usize,
    pub(crate) entry: Entry,
    /// The device has said that it is durable: it is here for the order only.
    pub(crate) fixed: bool,
}

/// A piece of a pending change that a power cut keeps or loses as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Volatile {
    pub(crate) fn new(stable: Image, discard_fill: u8) -> Self {
        Self {
            stable,
            pending: Vec::new(),
            discard_fill,
        }
    }

    pub(crate) fn stable(&self) -> &Image {
        &self.stable
    }

    pub(crate) fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Carries out the entry at `position`.
    pub(crate) fn apply(&mut self, position: usize, entry: &Entry, volatile_cache: bool) {
        match entry {
            Entry::Write { durable, .. } => {
                let fixed = *durable || !volatile_cache;
                self.add(Pending {
                    position,
                    entry: entry.clone(),
                    fixed,
                });
            }
            Entry::Discard { .. } => {
                self.add(Pending {
                    position,
                    entry: entry.clone(),
                    fixed: !volatile_cache,
                });
            }
            Entry::Flush { .. } => self.settle(),
        }
    }

    fn add(&mut self, pending: Pending) {
        if pending.fixed && self.pending.is_empty() {
            put(&mut self.stable, &pending.entry, None, self.discard_fill);
        } else {
            self.pending.push(pending);
        }
    }

    /// Makes everything pending stable.
    fn settle(&mut self) {
        for pending in self.pending.drain(..) {
            put(&mut self.stable, &pending.entry, None, self.discard_fill);
        }
    }
}

/// Applies a change, or one piece of it, to an image.
pub(crate) fn put(image: &mut Image, entry: &Entry, piece: Option<Piece>, discard_fill: u8) {
    match entry {
        Entry::Write { offset, data, .. } => match piece {
            None => image.write(*offset, data),
            Some(piece) => {
                let start = (piece.offset - offset) as usize;
                image.write(piece.offset, &data[start..start + piece.len as usize]);
            }
        },
        Entry::Discard { offset, len } => image.fill(*offset, *len, discard_fill),
        Entry::Flush { .. } => {}
    }
}

/// The pieces of a change: a write in atomic units, a discard as a whole.
pub(crate) fn pieces(entry: &Entry, unit: u64) -> impl Iterator<Item = Piece> {
    let (offset, len, step) = match entry {
        Entry::Write { offset, data, .. } => (*offset, data.len() as u64, unit),
        Entry::Discard { offset, len } => (*offset, *len, u64::MAX),
        Entry::Flush { .. } => (0, 0, unit),
    };
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let next = (at - at % step).saturating_add(step).min(end);
        let piece = Piece {
            offset: at,
            len: next - at,
        };
        at = next;
        Some(piece)
    })
}
