//! What stet adds to a log that is JBD2's.

use stetfs_scheme::{DirtyBlock, Placement, Relocates};

use crate::jbd2::Ways;

/// What is placed where the log is JBD2's, which logs blocks whole: bitmaps, descriptors and
/// mapping of a run that is switched, and they go home too.
pub(super) struct LongRuns;

impl LongRuns {
    /// Of fewer blocks a run is logged and brought home for less than these cost: three blocks,
    /// twice.
    const LEAST: u32 = 7;
}

impl Ways for LongRuns {
    fn relocates(&self) -> Relocates {
        Relocates::Freely
    }

    fn places_new(&self) -> bool {
        true
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        if block.run >= Self::LEAST {
            Placement::Relocate
        } else {
            Placement::Home
        }
    }
}
