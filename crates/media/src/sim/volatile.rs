//! What a power cut may take from a medium, by the medium's own rule.

use crate::image::Image;
use crate::pmem::contract::WORD;
use crate::sim::entry::Entry;
use crate::sim::lines::Lines;
use crate::sim::options::SimOptions;
use crate::sim::pending::{Layer, Pending};

/// The rule by which a medium keeps and loses changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A block device.
    Device(SimOptions),
    /// Persistent memory.
    Pmem,
}

impl Kind {
    /// Bytes that a power cut keeps or loses as a whole.
    pub(crate) fn atomic_unit(&self) -> u64 {
        match self {
            Self::Device(options) => u64::from(options.atomic_unit),
            Self::Pmem => WORD,
        }
    }

    /// The smallest range that can be written alone; it divides the atomic unit.
    pub(crate) fn grain(&self) -> u64 {
        match self {
            Self::Device(options) => u64::from(options.sector),
            Self::Pmem => WORD,
        }
    }

    pub(crate) fn discard_fill(&self) -> u8 {
        match self {
            Self::Device(options) => options.discard_fill,
            Self::Pmem => 0,
        }
    }
}

/// The stable content, and what waits above it by the medium's rule.
pub(crate) enum Volatile {
    Device(Pending),
    Pmem(Lines),
}

impl Volatile {
    pub(crate) fn new(stable: Image, kind: Kind) -> Self {
        match kind {
            Kind::Device(options) => Self::Device(Pending::new(stable, options)),
            Kind::Pmem => Self::Pmem(Lines::new(stable)),
        }
    }

    pub(crate) fn stable(&self) -> &Image {
        match self {
            Self::Device(pending) => pending.stable(),
            Self::Pmem(lines) => lines.stable(),
        }
    }

    /// Carries out the entry at `position`.
    pub(crate) fn apply(&mut self, position: usize, entry: &Entry) {
        match self {
            Self::Device(pending) => pending.apply(position, entry),
            Self::Pmem(lines) => lines.apply(position, entry),
        }
    }

    /// Returns what waits, piece by piece, in the order in which it was done.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        match self {
            Self::Device(pending) => pending.layers(),
            Self::Pmem(lines) => lines.layers(),
        }
    }
}
