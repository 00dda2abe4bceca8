//! Wear levelling, and the wear of a part.
//!
//! Dynamic levelling opens the least worn of the free blocks first, but the most worn ones for
//! moved pages (`core.rs`, `blocks.rs`). Static levelling: a block that keeps its data is not
//! erased while the others are. When its erase count falls behind the mean by a limit, its data
//! goes to a worn block, and it takes its share of the erases. This happens to at most one block
//! for each 16 erased, so levelling never costs more than a fifteenth of the erases.

use stetfs_format::width::{must_fit, nearest_f64, usize_as_u64};

use crate::blocks::{Blocks, Use};
use crate::core::Core;
use crate::error::Stop;

/// Erases between two checks of the wear.
const ERASES_A_LOOK: u32 = 16;

/// How many erases a block may be behind the mean.
fn limit(mean: u32) -> u32 {
    2 + mean / 32
}

impl Core {
    /// Moves the data of the least worn block elsewhere, if that is due.
    pub(crate) fn level_wear(&mut self) -> Result<(), Stop> {
        if self.erases < ERASES_A_LOOK {
            return Ok(());
        }
        self.erases = 0;
        let mean = self.blocks.mean_erases();
        match self.blocks.least_erased() {
            Some(block) if self.blocks.get(block).erases.saturating_add(limit(mean)) < mean => {
                self.collect_block(block)
            }
            _ => Ok(()),
        }
    }
}

/// How the erases are distributed over a part, by the layer's own counts. After a power cut such a
/// count can be one too low for a block whose erase was under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Blocks that are not bad, the anchors' included.
    pub good_blocks: u32,
    /// Blocks that must not be used, from the factory or grown bad.
    pub bad_blocks: u32,
    /// Blocks that may still go bad before the layer can no longer be written.
    pub spare_blocks: u32,
    /// Blocks that hold data, live or dead, or are being filled with it. The other good blocks are
    /// free or hold the map and its log.
    pub data_blocks: u32,
    /// Erase counts of the blocks that are neither bad nor the anchors', ascending.
    pub erases: Vec<u32>,
    /// Erase counts of the anchors' blocks.
    pub anchor_erases: Vec<u32>,
}

impl Wear {
    pub(crate) fn of(blocks: &Blocks, least_good: u32) -> Self {
        let mut wear = Self {
            spare_blocks: blocks.good().saturating_sub(least_good),
            ..Self::default()
        };
        for (_, block) in blocks.iter() {
            match block.used {
                Use::Bad => wear.bad_blocks += 1,
                Use::Anchor => wear.anchor_erases.push(block.erases),
                used => {
                    wear.erases.push(block.erases);
                    wear.data_blocks +=
                        u32::from(matches!(used, Use::Data | Use::Open | Use::Emptied));
                }
            }
        }
        wear.good_blocks = must_fit(wear.erases.len() + wear.anchor_erases.len());
        wear.erases.sort_unstable();
        wear
    }

    /// The mean of the erase counts.
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.erases.iter().map(|n| u64::from(*n)).sum();
        nearest_f64(sum) / nearest_f64(usize_as_u64(self.erases.len().max(1)))
    }

    /// The lowest and the highest erase count.
    pub fn range(&self) -> (u32, u32) {
        let end = |n: Option<&u32>| n.copied().unwrap_or(0);
        (end(self.erases.first()), end(self.erases.last()))
    }

    /// The standard deviation of the erase counts.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.erases.iter().map(|n| (f64::from(*n) - mean).powi(2));
        (squares.sum::<f64>() / nearest_f64(usize_as_u64(self.erases.len().max(1)))).sqrt()
    }
}
