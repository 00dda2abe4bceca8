//! Sizes that the arguments leave open.

use crate::args::Mkfs;

pub(super) const MIB: u64 = 1 << 20;

/// Blocks of the smallest journal. There is none on a volume of fewer than 2,048 blocks.
const JOURNAL_BLOCKS_MIN: u64 = 1024;
pub(super) const VOLUME_BLOCKS_MIN: u64 = 2 * JOURNAL_BLOCKS_MIN;

/// Bytes of the largest journal that is made without --journal-size.
const JOURNAL_MAX: u64 = 256 * MIB;

/// Returns the size of the journal in bytes, in whole MiB.
pub(super) fn wanted_journal(args: &Mkfs, size: u64) -> u64 {
    let journal = args
        .journal_size
        .map_or_else(|| journal_size(size, args.block_size.0), |s| s.0);
    journal.div_ceil(MIB) * MIB
}

/// Returns the size of the journal, a sixteenth of the volume: every byte goes through the journal,
/// and a few commits must not already force a checkpoint.
fn journal_size(volume: u64, block: u64) -> u64 {
    (volume / 16).clamp(JOURNAL_BLOCKS_MIN * block, JOURNAL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_a_sixteenth_within_bounds() {
        assert_eq!(journal_size(16 * MIB, 4096), 4 * MIB);
        assert_eq!(journal_size(16 * MIB, 1024), MIB);
        assert_eq!(journal_size(1 << 30, 4096), 64 * MIB);
        assert_eq!(journal_size(1 << 40, 4096), 256 * MIB);
    }
}
