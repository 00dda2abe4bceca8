//! How what is logged gets home: as a copy, or in another way of a scheme that has the same log.

use std::ops::Range;

use stetfs_format::BlockNo;

use crate::parts::area::JournalArea;
use stetfs_scheme::Result;

/// How what is logged gets home. The log itself is the same for every scheme that has it.
pub(crate) trait Homeward: Send + Sync {
    /// Whether everything gets home with the commit after which `used` blocks of the log are taken.
    fn is_time(&self, area: &JournalArea, used: u32) -> bool;

    /// Which of these blocks get home without being written there. What is not chosen is.
    fn choose(&self, area: &JournalArea, logged: Vec<Place>) -> Result<Vec<Place>>;

    /// A recovery is about to bring home so many, and to write so many.
    fn found(&self, chosen: usize, written: usize) {
        let _ = (chosen, written);
    }

    /// Brings home what was chosen; durable when it returns. The log keeps what it has, since a
    /// replay reads it until the tail is moved.
    fn bring(&self, area: &JournalArea, chosen: &[Place]) -> Result<()>;

    /// The log's tail is behind the transactions in `left`, runs of log blocks, of which the blocks
    /// in `brought` got home by [`bring`](Self::bring).
    fn leave(&self, area: &JournalArea, left: &[Range<u32>], brought: &[Place]) -> Result<()>;
}

/// A logged block that the log holds as it is: its home, and the log block.
pub(crate) type Place = (BlockNo, u32);

/// Everything is written home, at a checkpoint.
pub(crate) struct Copied;

impl Homeward for Copied {
    fn is_time(&self, _: &JournalArea, _: u32) -> bool {
        false
    }

    fn choose(&self, _: &JournalArea, _: Vec<Place>) -> Result<Vec<Place>> {
        Ok(Vec::new())
    }

    fn bring(&self, _: &JournalArea, _: &[Place]) -> Result<()> {
        Ok(())
    }

    fn leave(&self, _: &JournalArea, _: &[Range<u32>], _: &[Place]) -> Result<()> {
        Ok(())
    }
}
