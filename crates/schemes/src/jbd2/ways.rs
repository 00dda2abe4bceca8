//! What a scheme whose log is JBD2's does in its own way: where data goes, and how what is logged
//! gets home.

use std::ops::Range;

use stetfs_format::BlockNo;

use crate::parts::area::JournalArea;
use stetfs_scheme::{DirtyBlock, Placement, Relocates, Result};

/// A logged block that the log holds as it is: its home, and the log block.
pub(crate) type Place = (BlockNo, u32);

/// What is a scheme's own. The log itself is the same for every scheme that has it.
pub(crate) trait Ways: Send + Sync {
    /// [`Terms::relocates`](stetfs_scheme::Terms::relocates).
    fn relocates(&self) -> Relocates {
        Relocates::No
    }

    /// Data that `data=journal` would log does not go to the log if it lay in nobody's file before:
    /// it is written where it stays, as `data=ordered` does.
    fn places_new(&self) -> bool {
        false
    }

    /// Where a dirty block that has a home should go.
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// Whether everything gets home with the commit after which `used` blocks of the log are taken.
    fn is_time(&self, area: &JournalArea, used: u32) -> bool {
        let _ = (area, used);
        false
    }

    /// Which of these blocks get home without being written there. What is not chosen is.
    fn choose(&self, area: &JournalArea, logged: Vec<Place>) -> Result<Vec<Place>> {
        let _ = (area, logged);
        Ok(Vec::new())
    }

    /// A recovery is about to bring home so many, and to write so many.
    fn found(&self, chosen: usize, written: usize) {
        let _ = (chosen, written);
    }

    /// Brings home what was chosen; durable when it returns. The log keeps what it has, since a
    /// replay reads it until the tail is moved.
    fn bring(&self, area: &JournalArea, chosen: &[Place]) -> Result<()> {
        let _ = (area, chosen);
        Ok(())
    }

    /// The log's tail is behind the transactions in `left`, runs of log blocks, of which the blocks
    /// in `brought` got home by [`bring`](Self::bring).
    fn leave(&self, area: &JournalArea, left: &[Range<u32>], brought: &[Place]) -> Result<()> {
        let _ = (area, left, brought);
        Ok(())
    }
}

/// As the kernel does it: data is placed by the mode, and everything is written home at a
/// checkpoint.
pub(crate) struct Plain;

impl Ways for Plain {}
