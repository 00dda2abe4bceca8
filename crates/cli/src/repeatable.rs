//! Images whose bytes depend on their input alone: what `SOURCE_DATE_EPOCH` asks for.
//!
//! Three things would differ from run to run. Times are those of the machine: a clock that stands
//! still gives them. Delayed data is placed when it has grown old: it never does. The records of
//! the journal hold the time of their commit: they are cleared when the volume is clean.

use std::path::Path;
use std::time::Duration;

use stetfs::MountOptions;
use stetfs::clock::Clock;
use stetfs_media::{Cause, Class, Tag};

use crate::disk::Disk;
use crate::failure::Result;
use crate::part;
use crate::tree::{Meta, Stamp};

/// Longer than any command works.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Makes what a mount writes depend on its input alone. New things are of the time `seconds`.
pub(crate) fn settle(options: &mut MountOptions, seconds: u64) {
    options.clock = Clock::still(seconds);
    options.dirty_expire = NEVER;
}

/// Returns when a file was last read and changed, as a copy that depends on the content alone has
/// it: reading changes the first, so it is the second, and neither is later than `latest`.
pub(crate) fn times(meta: &Meta, latest: Option<Stamp>) -> (Stamp, Stamp) {
    let mtime = latest.map_or(meta.mtime, |latest| meta.mtime.min(latest));
    (mtime, mtime)
}

/// Clears the records in the journal of a clean volume, which nobody needs.
pub(crate) fn clear_log(image: &Path) -> Result<()> {
    let superblock = Disk::open(image)?.superblock;
    if superblock.journal_inum == 0 {
        return Ok(());
    }
    let dev = part::open_device(image)?;
    let log = stetfs::journal_extents(&*dev, &superblock)?;
    let block = &superblock.block;
    // The first block is the journal's superblock.
    let mut skip = 1;
    for extent in log {
        let start = block.start_of(extent.start.plus(skip));
        let len = block.offset_of(u64::from(extent.len) - skip);
        skip = 0;
        if len > 0 {
            dev.write_zeros(start, len, Tag::new(Class::Journal, Cause::Home))?;
        }
    }
    dev.flush(Cause::Control)?;
    Ok(dev.close()?)
}
