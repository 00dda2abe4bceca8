//! The choices of stet on JBD2's log (`log=jbd2`).

use stetfs_scheme::{DirtyBlock, Placement, Relocates};

use crate::jbd2::Ways;

/// New data and long runs of overwritten data get places of their own, and are not logged. JBD2's
/// log has whole blocks, so a switch costs whole blocks of bitmap, descriptor and mapping, which
/// are logged and go home too.
pub(super) struct LongRuns;

impl LongRuns {
    /// The least blocks of a run that is switched. A shorter run is logged and brought home for
    /// less than the three metadata blocks cost, twice.
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
