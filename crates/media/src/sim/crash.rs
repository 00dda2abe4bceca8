//! The states that a power cut can leave: a moment, its pieces, and the images in which some of
//! them are kept.

use std::fmt;
use std::ops::Range;

use hashbrown::HashSet;

use crate::image::Image;
use crate::sim::entry::Entry;
use crate::sim::keep::Keep;
use crate::sim::pending::{Layer, layers, put};
use crate::sim::volatile::{Kind, Volatile};
use crate::tag::Tag;

/// A moment at which the power goes off: the stable content, and the pending changes, any part of
/// which may have reached the medium. The change in flight is among them, durable or not.
#[derive(Clone)]
pub struct CrashPoint {
    position: usize,
    moment: u64,
    pub(super) kind: Kind,
    stable: Image,
    /// Everything above the stable content, in the order of the tape.
    layers: Vec<Layer>,
    /// Those of the layers that may be lost.
    pieces: Vec<Piece>,
}

/// A piece of a pending change that is there or not after the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Position on the tape of the change that it belongs to.
    pub entry: usize,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The label of the write; `None` for a discard.
    pub tag: Option<Tag>,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {}+{}", self.entry, self.offset, self.len)?;
        match self.tag {
            Some(tag) => write!(f, " {tag}"),
            None => f.write_str(" discard"),
        }
    }
}

impl CrashPoint {
    pub(crate) fn new(
        position: usize,
        moment: u64,
        kind: Kind,
        volatile: &Volatile,
        in_flight: Option<&Entry>,
    ) -> Self {
        let mut all = volatile.layers();
        if let Some(change) = in_flight {
            let unit = kind.atomic_unit();
            all.extend(layers(change, position, unit, kind.discard_fill()));
        }
        let pieces = all.iter().filter(|layer| !layer.is_certain);
        Self {
            position,
            moment,
            kind,
            stable: volatile.stable().clone(),
            pieces: pieces
                .map(|layer| Piece {
                    entry: layer.position,
                    offset: layer.offset,
                    len: layer.len,
                    tag: layer.tag,
                })
                .collect(),
            layers: all,
        }
    }

    /// How many entries of the tape were carried out.
    pub fn position(&self) -> usize {
        self.position
    }

    /// How many changes were carried out on all media of the supply. Changes of other media make
    /// several moments between two changes of this device;
    /// [`Tape::crash_points`](crate::sim::Tape::crash_points) gives the last of these.
    pub fn moment(&self) -> u64 {
        self.moment
    }

    /// The content that is certainly there, without durable writes that lie above a pending one.
    pub fn stable(&self) -> &Image {
        &self.stable
    }

    /// The pieces, in the order of the tape: everything that may be there or not. Each subset is a
    /// state that the cut may leave; later pieces lie over earlier ones.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the content after the cut that keeps the pieces for which `keep` returns true.
    /// `keep` gets the index in [`pieces`](Self::pieces), once for each piece, in ascending order.
    pub fn image(&self, mut keep: impl FnMut(usize) -> bool) -> Image {
        let mut image = self.stable.clone();
        let mut piece = 0..;
        for layer in &self.layers {
            if layer.is_certain || piece.next().is_some_and(&mut keep) {
                put(&mut image, layer);
            }
        }
        image
    }

    /// Returns the content that `keep` describes.
    pub fn state(&self, keep: &Keep) -> Image {
        self.image(|i| keep.keeps(i))
    }

    /// Returns the indices of the pieces that can make a difference. Any other piece lies under
    /// later content that is certain, or writes bytes that are there anyway. Keeping or losing it
    /// changes nothing, so an enumeration of states leaves it out.
    pub fn relevant_pieces(&self) -> Vec<usize> {
        let covered = self.covered_layers();
        let mut touched = Touched::new(self.kind.grain());
        let mut relevant = Vec::new();
        let mut piece = 0;
        for (layer, covered) in self.layers.iter().zip(covered) {
            if layer.is_certain {
                touched.add(layer);
                continue;
            }
            if touched.meets(layer) || !self.is_stable_content(layer) {
                touched.add(layer);
                if !covered {
                    relevant.push(piece);
                }
            }
            piece += 1;
        }
        relevant
    }

    /// Returns for each layer whether it lies wholly under later ones that are certain.
    fn covered_layers(&self) -> Vec<bool> {
        let mut certain = Touched::new(self.kind.grain());
        let mut covered = vec![false; self.layers.len()];
        for (layer, covered) in self.layers.iter().zip(&mut covered).rev() {
            if layer.is_certain {
                certain.add(layer);
            } else {
                *covered = certain.covers(layer);
            }
        }
        covered
    }

    /// Whether the stable content already has the bytes of a written piece.
    fn is_stable_content(&self, layer: &Layer) -> bool {
        let Some(bytes) = layer.bytes() else {
            return false;
        };
        let mut there = vec![0; bytes.len()];
        self.stable.read(layer.offset, &mut there);
        there == bytes
    }
}

/// A set of grains (sectors or words); long ranges are stored separately.
struct Touched {
    grain: u64,
    grains: HashSet<u64>,
    long: Vec<Range<u64>>,
}

impl Touched {
    /// From this many grains on, a range is stored as a range.
    const LONG: u64 = 4096;

    fn new(grain: u64) -> Self {
        Self {
            grain,
            grains: HashSet::new(),
            long: Vec::new(),
        }
    }

    fn grains_of(&self, layer: &Layer) -> Range<u64> {
        layer.offset / self.grain..(layer.offset + layer.len).div_ceil(self.grain)
    }

    fn add(&mut self, layer: &Layer) {
        let grains = self.grains_of(layer);
        if grains.end - grains.start < Self::LONG {
            self.grains.extend(grains);
        } else {
            self.long.push(grains);
        }
    }

    fn has(&self, grain: u64) -> bool {
        let in_long = self.long.iter().any(|long| long.contains(&grain));
        self.grains.contains(&grain) || in_long
    }

    fn meets(&self, layer: &Layer) -> bool {
        self.grains_of(layer).any(|grain| self.has(grain))
    }

    fn covers(&self, layer: &Layer) -> bool {
        self.grains_of(layer).all(|grain| self.has(grain))
    }
}

impl fmt::Debug for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashPoint")
            .field("position", &self.position)
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}
