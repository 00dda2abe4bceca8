//! The kind of block device to simulate.

use crate::sim::timing::Timing;

/// The kind of device to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Unit of offsets and lengths in bytes: a power of two, at least 512.
    pub sector: u32,
    /// Bytes that a power cut never tears: a multiple of the sector.
    pub atomic_unit: u32,
    /// Whether a write can be lost after it has returned. Without a cache, only the write in flight
    /// can be lost.
    pub volatile_cache: bool,
    /// Whether to keep the tape.
    pub record: bool,
    /// The byte that discarded ranges are filled with. A device may return anything for them, so
    /// the default is a pattern that cannot be mistaken for content.
    pub discard_fill: u8,
    /// Whether writes are refused.
    pub read_only: bool,
    /// How long requests take.
    pub timing: Timing,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            sector: 512,
            atomic_unit: 512,
            volatile_cache: true,
            record: true,
            discard_fill: 0xD5,
            read_only: false,
            timing: Timing::None,
        }
    }
}
