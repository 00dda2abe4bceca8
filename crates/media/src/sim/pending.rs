//! The rule of what survives a power cut on a block device: the stable content and the changes that
//! wait above it.
//!
//! It also defines [`Layer`], the piece of a change of any medium.

use std::sync::Arc;

use crate::image::Image;
use crate::sim::entry::Entry;
use crate::sim::options::SimOptions;
use crate::tag::Tag;
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// A piece of a change, above the stable content and under later ones.
#[derive(Clone)]
pub(crate) struct Layer {
    /// Position on the tape of the change to which it belongs.
    pub(crate) position: usize,
    /// First byte on the medium.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The label of a write.
    pub(crate) tag: Option<Tag>,
    pub(crate) content: Content,
    /// No power cut can lose it: the layer only marks its place in the order.
    pub(crate) is_certain: bool,
}

#[derive(Clone)]
pub(crate) enum Content {
    /// The bytes of a write, from this index on.
    Written(Arc<[u8]>, usize),
    /// This byte everywhere.
    Filled(u8),
}

impl Layer {
    /// The bytes of a write; `None` for a filled range.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Written(data, start) => Some(&data[*start..*start + u64_as_usize(self.len)]),
            Content::Filled(_) => None,
        }
    }
}

/// Writes a layer into an image.
pub(crate) fn put(image: &mut Image, layer: &Layer) {
    match &layer.content {
        Content::Written(data, start) => {
            image.write(
                layer.offset,
                &data[*start..*start + u64_as_usize(layer.len)],
            );
        }
        Content::Filled(byte) => image.fill(layer.offset, layer.len, *byte),
    }
}

/// Splits the change at `position` into layers: a write in units of `unit` bytes, a discard as a
/// whole. A change that only settles others gives none.
pub(crate) fn layers(
    change: &Entry,
    position: usize,
    unit: u64,
    discard_fill: u8,
) -> impl Iterator<Item = Layer> {
    let (offset, len, step) = match change {
        Entry::Write { offset, data, .. } | Entry::Store { offset, data, .. } => {
            (*offset, usize_as_u64(data.len()), unit)
        }
        Entry::Discard { offset, len } => (*offset, *len, u64::MAX),
        Entry::Flush { .. } | Entry::FlushLines { .. } | Entry::Fence { .. } => (0, 0, unit),
    };
    let written = match change {
        Entry::Write { data, tag, .. } | Entry::Store { data, tag, .. } => {
            Some((Arc::clone(data), *tag))
        }
        _ => None,
    };
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let next = (at - at % step).saturating_add(step).min(end);
        let layer = Layer {
            position,
            offset: at,
            len: next - at,
            tag: written.as_ref().map(|(_, tag)| *tag),
            content: match &written {
                Some((data, _)) => Content::Written(Arc::clone(data), u64_as_usize(at - offset)),
                None => Content::Filled(discard_fill),
            },
            is_certain: false,
        };
        at = next;
        Some(layer)
    })
}

/// Stable content and pending changes.
pub(crate) struct Pending {
    options: SimOptions,
    stable: Image,
    /// In the order in which they were made.
    changes: Vec<Waiting>,
}

/// A write or discard that has not been flushed.
struct Waiting {
    position: usize,
    change: Entry,
    /// The device has called it durable.
    is_certain: bool,
}

impl Pending {
    pub(crate) fn new(stable: Image, options: SimOptions) -> Self {
        Self {
            options,
            stable,
            changes: Vec::new(),
        }
    }

    pub(crate) fn stable(&self) -> &Image {
        &self.stable
    }

    /// Carries out the entry at `position`.
    pub(crate) fn apply(&mut self, position: usize, entry: &Entry) {
        let is_certain = match entry {
            Entry::Write { durable, .. } => *durable || !self.options.volatile_cache,
            Entry::Discard { .. } => !self.options.volatile_cache,
            Entry::Flush { .. } => return self.settle(),
            Entry::Store { .. } | Entry::FlushLines { .. } | Entry::Fence { .. } => {
                unreachable!("{entry} on a block device")
            }
        };
        if is_certain && self.changes.is_empty() {
            return self.make_stable(entry);
        }
        self.changes.push(Waiting {
            position,
            change: entry.clone(),
            is_certain,
        });
    }

    /// Makes everything pending stable.
    fn settle(&mut self) {
        for waiting in std::mem::take(&mut self.changes) {
            self.make_stable(&waiting.change);
        }
    }

    fn make_stable(&mut self, change: &Entry) {
        for layer in layers(change, 0, u64::MAX, self.options.discard_fill) {
            put(&mut self.stable, &layer);
        }
    }

    /// Returns what waits: certain changes as a whole, the rest in atomic units.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        let mut all = Vec::new();
        for waiting in &self.changes {
            let unit = if waiting.is_certain {
                u64::MAX
            } else {
                u64::from(self.options.atomic_unit)
            };
            let fill = self.options.discard_fill;
            all.extend(
                layers(&waiting.change, waiting.position, unit, fill).map(|layer| Layer {
                    is_certain: waiting.is_certain,
                    ..layer
                }),
            );
        }
        all
    }
}
