//! The choices of a scheme whose log is JBD2's: where data goes, and how logged blocks get home.

use std::ops::Range;

use stetfs_format::BlockNo;

use crate::parts::area::JournalArea;
use stetfs_scheme::{DirtyBlock, Placement, Relocates, Result};

/// A logged block that was not escaped: its home, and its log block.
pub(crate) type Place = (BlockNo, u32);

/// The choices of one scheme. The log itself is the same for all of them.
pub(crate) trait Ways: Send + Sync {
    /// [`Terms::relocates`](stetfs_scheme::Terms::relocates).
    fn relocates(&self) -> Relocates {
        Relocates::No
    }

    /// True when `data=journal` writes new data where it stays, as `data=ordered` does, instead of
    /// logging it.
    fn places_new(&self) -> bool {
        false
    }

    /// [`Scheme::place`](stetfs_scheme::Scheme::place).
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// True when a checkpoint of everything follows the commit after which `used` log blocks are in
    /// use.
    fn is_time(&self, area: &JournalArea, used: u32) -> bool {
        let _ = (area, used);
        false
    }

    /// Chooses the blocks that get home without a write there; the others are written home.
    fn choose(&self, area: &JournalArea, logged: Vec<Place>) -> Result<Vec<Place>> {
        let _ = (area, logged);
        Ok(Vec::new())
    }

    /// Notes that a recovery will [bring](Self::bring) and write home this many blocks.
    fn found(&self, chosen: usize, written: usize) {
        let _ = (chosen, written);
    }

    /// Brings the chosen blocks home; durable when it returns. It must leave the log's copies
    /// alone: until the tail has moved, a replay reads them.
    fn bring(&self, area: &JournalArea, chosen: &[Place]) -> Result<()> {
        let _ = (area, chosen);
        Ok(())
    }

    /// Gives up log blocks: the tail is behind the transactions in `left`, which are runs of log
    /// blocks. Of their blocks, those in `brought` got home by [`bring`](Self::bring).
    fn leave(&self, area: &JournalArea, left: &[Range<u32>], brought: &[Place]) -> Result<()> {
        let _ = (area, left, brought);
        Ok(())
    }
}

/// The kernel's choices: the mode decides where data goes, and a checkpoint writes everything home.
pub(crate) struct Plain;

impl Ways for Plain {}
