//! Atomic files: one write is one transaction, or nothing of it. They are the files marked with
//! ext4's `EXT4_JOURNAL_DATA_FL` (`chattr +j`, inherited from a directory), or all files
//! (`atomic=`).
//!
//! Such a write is one handle. Before anything is changed, the write makes sure that there is room
//! for all of it, and reads the old content of blocks that it changes in part. If a read fails
//! after a change all the same, the journal stops, as for any half-done operation. A scheme that
//! does not log file data logs that of these files
//! ([`Terms::logs_marked`](stetfs_scheme::Terms::logs_marked)).

use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{DataPromise, Goal};

use crate::blocks;
use crate::error::Result;
use crate::inode::Inode;
use crate::mapping::MapState;
use crate::options::AtomicFiles;
use crate::sync;
use crate::volume::Volume;

/// Whether a file with these attributes is atomic.
pub(crate) fn is_atomic(vol: &Volume, raw: &stetfs_format::Inode) -> bool {
    let is_meant = match vol.opts.atomic {
        AtomicFiles::All => true,
        AtomicFiles::Marked => raw.flags.contains(InodeFlags::JOURNAL_DATA),
        AtomicFiles::None => false,
    };
    is_meant && raw.is_regular() && can_be(vol)
}

/// Whether the scheme can make a file's data change with its transaction.
pub(crate) fn can_be(vol: &Volume) -> bool {
    let terms = vol.journal.terms();
    terms.promise == DataPromise::Atomic || terms.logs_marked
}

/// Whether writes to this file can be part of a [`Group`](crate::Group).
pub(crate) fn can_group(vol: &Volume, inode: &Inode) -> bool {
    inode.is_atomic() || promise(vol) == DataPromise::Atomic
}

/// Returns which files are atomic: none if the scheme cannot make them so.
pub(crate) fn which(vol: &Volume) -> AtomicFiles {
    if can_be(vol) {
        vol.opts.atomic
    } else {
        AtomicFiles::None
    }
}

/// Returns what a crash may do to the data of any file.
pub(crate) fn promise(vol: &Volume) -> DataPromise {
    match which(vol) {
        AtomicFiles::All => DataPromise::Atomic,
        _ => vol.journal.terms().promise,
    }
}

/// Returns the longest write to an atomic file, in bytes, wherever in a block it begins: what one
/// transaction takes, and at most 4 MiB.
pub(crate) fn write_max(vol: &Volume) -> u64 {
    const MOST: u64 = 4 << 20;
    let size = vol.geo.block;
    let most = size.offset_of(blocks::most_blocks(vol) - 1);
    most.clamp(size.offset_of(1), MOST)
}

/// Returns the longest atomic write to any file, in bytes; 0 when data is not part of the
/// transaction.
pub(crate) fn write_max_of_others(vol: &Volume) -> u64 {
    let block = vol.geo.block.offset_of(1);
    match promise(vol) {
        DataPromise::Atomic => (blocks::handle_write_max(vol) - block).max(block),
        _ => 0,
    }
}

/// Reads the old content that a write of `bytes` needs, from byte `skip` of block `first` on.
pub(crate) fn read_ahead(
    vol: &Volume,
    inode: &Inode,
    (first, skip): (LBlock, usize),
    bytes: &[u8],
) -> Result<()> {
    let size = vol.geo.block_size();
    let data = inode.data(vol);
    let count = vol.geo.block.touched(skip, bytes.len());
    let runs = blocks::runs_of(vol, inode, &inode.state.read(), first, count)?;
    let (mut skip, mut rest) = (skip, bytes);
    for run in runs {
        for i in 0..run.len {
            let (part, behind) = rest.split_at(rest.len().min(size - skip));
            if run.state == MapState::Written {
                let (lblk, home) = (run.lblk.plus(i), run.pblk.plus(i.into()));
                vol.journal.read_ahead_of_write(data, lblk, home, part)?;
            }
            (skip, rest) = (0, behind);
        }
    }
    Ok(())
}

/// Acts on the file's flags after a change. The caller holds the inode's lock for writing, and no
/// handle.
///
/// When a file becomes atomic, its delayed data is placed first, so that no later write overtakes
/// it. When it stops being atomic, its logged blocks go home, because freeing them will not write
/// revokes any more.
pub(crate) fn flags_changed(vol: &Volume, inode: &Inode) -> Result<()> {
    let is_atomic = is_atomic(vol, &inode.state.read().raw);
    if is_atomic && !is_planted(Bug::UnplacedMark) {
        sync::place(vol, inode)?;
    }
    if inode.set_atomic(is_atomic) && !is_atomic && !vol.journal.terms().logs_data {
        vol.journal.commit_running()?;
        vol.journal.checkpoint(Goal::All)?;
    }
    Ok(())
}
