//! Truncates files, and grows them without data.
//!
//! The first handle zeroes the last block beyond the new size, sets the size, forgets cached
//! blocks, and unmaps as much as its credits allow. If blocks remain, it also puts the inode on the
//! orphan list, and further handles go on until the last one takes it off. A crash in between
//! leaves an orphan; the next mount frees the blocks beyond its size.

use std::sync::atomic::Ordering;

use stetfs_format::LBlock;
use stetfs_journal::Handle;
use stetfs_planted::{Bug, is_planted};

use crate::blocks;
use crate::error::{Error, Result};
use crate::inline;
use crate::inode::{Inode, InodeState};
use crate::mapping;
use crate::orphan;
use crate::scope::Scope;
use crate::types::Caller;
use crate::unfold;
use crate::volume::Volume;

/// Credits that a truncate asks for at first: the inode, the superblock and a neighbour on the
/// orphan list, the last block and the attribute block, and freeing a handful of extents. It asks
/// for more on the way if needed.
pub(crate) const TRUNCATE_CREDITS: u32 = 40;

/// Sets the file's size. `change` makes the other changes of the inode that belong to the same
/// operation. The caller holds the inode's lock for writing, and has checked everything but the
/// size limit.
///
/// # Errors
/// `TooBig`; errors of the journal or the mapping.
pub(crate) fn set_size(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    size: u64,
    change: impl FnOnce(&Handle, &mut InodeState) -> Result<()>,
) -> Result<()> {
    let old = {
        let st = inode.state.read();
        if size > blocks::size_limit(vol, &st) {
            return Err(Error::TooBig);
        }
        st.raw.size
    };
    unfold::unfold(vol, c, inode)?;
    let credits = TRUNCATE_CREDITS.min(vol.journal.max_credits());
    let done = vol.with_handle(credits, |h| {
        blocks::zero_to_block_end(vol, h, inode, size.min(old))?;
        let mut st = inode.state.write();
        change(h, &mut st)?;
        if size == 0 && vol.opts.auto_da_alloc {
            inode.places_on_close.store(true, Ordering::Relaxed);
        }
        inode.set_size(vol, &mut st, size);
        inode.settle_size(vol, &mut st);
        // At an unchanged size too: blocks may be preallocated beyond it.
        let done = size > old || cut(vol, h, inode, &mut st)?;
        if !done && !is_planted(Bug::UnlistedTruncate) {
            orphan::add(vol, h, inode, &mut st)?;
        }
        vol.store_inode(h, inode, &st)?;
        Ok(done)
    })?;
    if done { Ok(()) } else { finish(vol, inode) }
}

/// Frees what an interrupted truncate left beyond the end of the file. Takes the inode off the
/// orphan list, unless it has no name. The caller holds the inode's lock for writing, or nobody
/// else knows the inode yet.
pub(crate) fn finish(vol: &Scope<'_>, inode: &Inode) -> Result<()> {
    let step = |h: &Handle| {
        let mut st = inode.state.write();
        let done = cut(vol, h, inode, &mut st)?;
        // Without a name, the inode stays an orphan until it is closed for the last time.
        if done && st.raw.links_count > 0 {
            orphan::del(vol, h, inode, &mut st)?;
        }
        vol.store_inode(h, inode, &st)?;
        Ok(done)
    };
    while !vol.with_handle(removal_credits(vol, inode), step)? {}
    Ok(())
}

/// Credits that let [`mapping::remove`] make progress, and let the inode be freed. The caller must
/// not hold the inode's state while it waits for a handle: a commit takes it to place the file's
/// data.
pub(crate) fn removal_credits(vol: &Volume, inode: &Inode) -> u32 {
    let credits = mapping::credits_for_remove(vol, &inode.state.read());
    credits.max(TRUNCATE_CREDITS).min(vol.journal.max_credits())
}

/// Forgets and unmaps the blocks beyond the file's size. Returns false when credits ran out first.
fn cut(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<bool> {
    if st.raw.is_inline() {
        inline::cut(vol, h, inode, st)?;
        return Ok(true);
    }
    let from = vol.end_block(st.raw.size);
    forget(vol, h, inode, st, from, None)?;
    h.allow_split();
    mapping::remove(vol, h, inode, st, from, None)
}

/// Forgets the cached blocks of `[from, to)`, and releases the blocks reserved for them.
pub(crate) fn forget(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    from: LBlock,
    to: Option<LBlock>,
) -> Result<()> {
    let Some(data) = inode.data_if_any(vol) else {
        return Ok(());
    };
    let given_back = match (from, to) {
        _ if st.reserved == 0 => 0,
        (LBlock(0), None) => st.reserved,
        _ => reserved_in(vol, inode, st, from, to)?,
    };
    h.discard_data(&data, from, to);
    st.reserved -= given_back;
    vol.alloc.release(given_back.into());
    Ok(())
}

/// Returns how many blocks of `[from, to)` hold a reserved block: the delayed ones in holes.
pub(crate) fn reserved_in(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    from: LBlock,
    to: Option<LBlock>,
) -> Result<u32> {
    let data = inode.data(vol);
    let mut reserved = 0;
    let mut at = from;
    while let Some((start, len)) = data.dirty_in(at, to) {
        for run in blocks::runs_of(vol, inode, st, start, len)? {
            if run.state == mapping::MapState::Hole {
                reserved += run.len;
            }
        }
        at = start.plus(len);
    }
    Ok(reserved)
}
