//! Preallocation, holes and zeroed ranges.
//!
//! Preallocated blocks are unwritten extents: they read as zeros until data is placed in them. Each
//! handle allocates or frees what its credits allow and leaves a valid file. So a crash in between
//! leaves a shorter preallocation or a smaller hole, and nothing needs the orphan list. Files with
//! ext3's block pointers have no unwritten blocks; as in the kernel, only holes can be punched in
//! them.

use std::ops::Range;

use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_journal::{CREDITS_PER_RUN, Handle};
use stetfs_media::Class;
use stetfs_planted::{Bug, is_planted};

use crate::alloc::Source;
use crate::blocks::{self, delayed_in, zero_in_block};
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::scope::Scope;
use crate::truncate;
use crate::types::{Caller, FallocateMode};
use crate::unfold;
use crate::volume::Volume;

/// How many blocks one handle allocates at most: a full unwritten extent (`EXT_UNWRITTEN_MAX_LEN`).
const RUN_MAX: u32 = 32_767;

/// Credits for zeroing the edges of a range and the rest of the last block, three blocks and the
/// superblock, and for a run of new blocks that the range splits.
const EDGE_CREDITS: u32 = 4 + CREDITS_PER_RUN;

/// Returns the credits for allocating or changing one run, and for storing the inode.
fn step_credits(vol: &Volume, st: &InodeState) -> u32 {
    mapping::credits_for_insert(vol, st, RUN_MAX) + 2 + blocks::INODE_CREDITS
}

/// Does what `mode` says to the bytes `[offset, offset + len)`.
///
/// # Errors
/// `Invalid` for an empty range, `NotSupported` for modes and files that do not allow it, `TooBig`,
/// `NoSpace`.
pub(crate) fn fallocate(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    mode: FallocateMode,
    offset: u64,
    len: u64,
) -> Result<()> {
    let _guard = inode.lock.write();
    vol.check_writable()?;
    check_mode(mode)?;
    let end = offset
        .checked_add(len)
        .filter(|_| len > 0)
        .ok_or(Error::Invalid)?;
    check_inode(vol, inode, mode, end)?;
    crate::attr::strip_privileges(vol, c, inode, false)?;
    unfold::unfold(vol, c, inode)?;
    if mode.contains(FallocateMode::PUNCH_HOLE) {
        return punch(vol, inode, offset..end);
    }
    if !mode.contains(FallocateMode::ZERO_RANGE) {
        blocks::zero_past_end(vol, inode, offset)?;
    }
    let grow = |st: &mut InodeState| {
        if !mode.contains(FallocateMode::KEEP_SIZE) && end > st.raw.size {
            inode.set_size(vol, st, end);
        }
    };
    if !mode.contains(FallocateMode::ZERO_RANGE) {
        let noted = [false, true].map(|datasync| (inode.wanted_tid(datasync), datasync));
        let done = preallocate(vol, c, inode, offset..end, |st| {
            grow(st);
            set_times(vol, st);
        });
        if mode.contains(FallocateMode::KEEP_SIZE) && is_planted(Bug::UnnotedAllocation) {
            noted
                .iter()
                .for_each(|(tid, datasync)| inode.restore_tid(*tid, *datasync));
        }
        return done;
    }
    // Before any change that can be seen, so that a full volume is left as it was.
    preallocate(vol, c, inode, offset..end, |_| ())?;
    if vol.journal.terms().places_new {
        remove(vol, inode, offset..end, grow)?;
        preallocate(vol, c, inode, offset..end, |_| ())
    } else {
        zero(vol, inode, offset..end, grow)
    }
}

fn check_mode(mode: FallocateMode) -> Result<()> {
    use FallocateMode as M;
    if !M::all().contains(mode)
        || mode.intersects(M::COLLAPSE_RANGE | M::INSERT_RANGE | M::UNSHARE_RANGE)
    {
        return Err(Error::NotSupported);
    }
    let punch = mode.contains(M::PUNCH_HOLE);
    if punch && (!mode.contains(M::KEEP_SIZE) || mode.contains(M::ZERO_RANGE)) {
        return Err(Error::NotSupported);
    }
    Ok(())
}

fn check_inode(vol: &Volume, inode: &Inode, mode: FallocateMode, end: u64) -> Result<()> {
    let st = inode.state.read();
    st.check_live()?;
    if !st.is_reg() {
        return Err(if st.is_dir() {
            Error::IsDirectory
        } else {
            Error::NoSuchDevice
        });
    }
    let punch = mode.contains(FallocateMode::PUNCH_HOLE);
    let flags = st.raw.flags;
    // An append-only file may be appended to, but not changed (vfs_fallocate).
    if flags.contains(InodeFlags::IMMUTABLE)
        || flags.contains(InodeFlags::APPEND) && !(mode - FallocateMode::KEEP_SIZE).is_empty()
    {
        return Err(Error::NotPermitted);
    }
    if !blocks::has_extents(vol, &st) && !punch {
        return Err(Error::NotSupported);
    }
    if end > blocks::size_limit(vol, &st) && !punch {
        return Err(Error::TooBig);
    }
    Ok(())
}

/// Stores a changed inode, with its times.
fn store_changed(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
    set_times(vol, st);
    inode.settle_size(vol, st);
    vol.store_inode(h, inode, st)
}

fn set_times(vol: &Volume, st: &mut InodeState) {
    st.raw.mtime = vol.now();
    st.raw.ctime = st.raw.mtime;
}

/// Returns the blocks that lie wholly in a byte range.
fn whole_blocks(vol: &Volume, bytes: &Range<u64>) -> Range<u32> {
    let first = vol.end_block(bytes.start).0;
    let end = vol.block_of(bytes.end).0;
    first..end.max(first)
}

/// Zeroes the range's parts of the blocks at its ends that it covers only partly. If the range
/// begins beyond the end of the file, also zeroes the rest of the file's last block.
fn zero_edges(vol: &Volume, h: &Handle, inode: &Inode, bytes: &Range<u64>) -> Result<()> {
    let size = inode.state.read().raw.size;
    if bytes.start > size {
        blocks::zero_to_block_end(vol, h, inode, size)?;
    }
    let block = vol.geo.block;
    let within = |lblk: u64, from: usize, to: usize| match u32::try_from(lblk) {
        Ok(lblk) if from < to => zero_in_block(vol, h, inode, LBlock(lblk), from, to - from),
        _ => Ok(()),
    };
    let (first, start) = block.split(bytes.start);
    let (last, end) = block.split(bytes.end);
    if first == last {
        within(first, start, end)
    } else {
        if start != 0 {
            within(first, start, block.bytes())?;
        }
        within(last, 0, end)
    }
}

/// Makes a hole, up to the file's last block.
fn punch(vol: &Scope<'_>, inode: &Inode, bytes: Range<u64>) -> Result<()> {
    let size = inode.state.read().raw.size;
    if bytes.start >= size {
        return vol.with_handle(blocks::INODE_CREDITS, |h| {
            store_changed(vol, h, inode, &mut inode.state.write())
        });
    }
    // Up to the end of the last block, which can go as a whole: it is zero behind the end of the
    // file.
    let end = if bytes.end >= size {
        vol.geo.block.offset_of(vol.blocks_for(size))
    } else {
        bytes.end
    };
    remove(vol, inode, bytes.start..end, |_| ())
}

/// Makes the range read as zeros: writes the edges and frees whole blocks. In the last handle,
/// `change` makes the other changes of the inode.
///
/// ZERO_RANGE uses this too where a scheme writes new blocks home before the commit
/// ([`places_new`](stetfs_scheme::Terms::places_new)). Such a scheme would take blocks that became
/// unwritten for new ones, although their committed content is still there.
fn remove(
    vol: &Scope<'_>,
    inode: &Inode,
    bytes: Range<u64>,
    change: impl Fn(&mut InodeState),
) -> Result<()> {
    let blocks = whole_blocks(vol, &bytes);
    let credits = |more: u32| {
        let credits = truncate::removal_credits(vol, inode) + more;
        credits.min(vol.journal.max_credits())
    };
    with_edges(vol, inode, &bytes, credits, |h| {
        let mut st = inode.state.write();
        let to = Some(LBlock(blocks.end));
        let done = blocks.is_empty() || {
            truncate::forget(vol, h, inode, &mut st, LBlock(blocks.start), to)?;
            mapping::remove(vol, h, inode, &mut st, LBlock(blocks.start), to)?
        };
        if done {
            change(&mut st);
        }
        store_changed(vol, h, inode, &mut st)?;
        Ok(done)
    })
}

/// Writes the edges of the range and does `step` in the same handle. Mostly one handle is enough,
/// and a crash leaves all of the change or nothing. Repeats `step` in further handles until it
/// returns true. `credits(n)` returns the credits of a handle that needs `n` for something else.
fn with_edges(
    vol: &Scope<'_>,
    inode: &Inode,
    bytes: &Range<u64>,
    credits: impl Fn(u32) -> u32,
    mut step: impl FnMut(&Handle) -> Result<bool>,
) -> Result<()> {
    let first = |h: &Handle| {
        zero_edges(vol, h, inode, bytes)?;
        step(h)
    };
    let mut done = vol.with_handle(credits(EDGE_CREDITS), first)?;
    while !done {
        done = vol.with_handle(credits(0), &mut step)?;
    }
    Ok(())
}

/// Makes the range read as zeros: writes the edges, and makes whole blocks unwritten where they
/// are. In the last handle, `change` makes the other changes of the inode.
fn zero(
    vol: &Scope<'_>,
    inode: &Inode,
    bytes: Range<u64>,
    change: impl Fn(&mut InodeState),
) -> Result<()> {
    let blocks = whole_blocks(vol, &bytes);
    let end = LBlock(blocks.end);
    let mut at = LBlock(blocks.start);
    let credits = |more: u32| step_credits(vol, &inode.state.read()) + more;
    with_edges(vol, inode, &bytes, credits, |h| {
        let mut st = inode.state.write();
        let mut result = Ok(());
        if at < end {
            truncate::forget(vol, h, inode, &mut st, at, Some(end))?;
        }
        while at < end && h.has_credits(step_credits(vol, &st)) {
            let run = mapping::lookup(vol, inode, &st, at, end.0 - at.0)?;
            let len = run.len.min(end.0 - at.0).min(RUN_MAX);
            if run.state == MapState::Written {
                result = mapping::set_unwritten(vol, h, inode, &mut st, at, len);
                if result.is_err() {
                    break;
                }
            }
            at = at.plus(len);
        }
        // Also when the map had no space: the earlier changes are part of the transaction.
        let is_done = at >= end;
        if is_done {
            change(&mut st);
        }
        store_changed(vol, h, inode, &mut st)?;
        result.map(|()| is_done)
    })
}

/// Gives every hole of the range unwritten blocks. In the last handle, and mostly there is only
/// one, `change` makes the other changes of the inode.
fn preallocate(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    bytes: Range<u64>,
    change: impl Fn(&mut InodeState),
) -> Result<()> {
    let end = vol.end_block(bytes.end).0;
    let mut at = vol.block_of(bytes.start);
    vol.with_space(|| {
        while at.0 < end {
            at = preallocate_some(vol, c, inode, at, end, &change)?;
        }
        Ok(())
    })
}

/// Fills the first holes from `at` on in one handle; returns where it stopped. Delayed blocks give
/// up their reservation, because they have a home now.
fn preallocate_some(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    at: LBlock,
    end: u32,
    change: impl Fn(&mut InodeState),
) -> Result<LBlock> {
    // Do not hold the state while waiting for a handle: a commit takes it to place data.
    let credits = step_credits(vol, &inode.state.read());
    vol.with_handle(credits, |h| {
        let mut st = inode.state.write();
        let mut at = at;
        let mut result = Ok(());
        while at.0 < end && h.has_credits(step_credits(vol, &st)) {
            let run = mapping::lookup(vol, inode, &st, at, end - at.0)?;
            let want = run.len.min(end - at.0).min(RUN_MAX);
            if run.state != MapState::Hole {
                at = at.plus(want);
                continue;
            }
            let goal = mapping::goal(vol, inode, &st, at)?;
            let (pblk, len) = match vol.alloc.allocate(
                h,
                goal,
                want,
                Source::Free {
                    privileged: vol.alloc.may_use_root_blocks(c),
                },
            ) {
                Ok(got) => got,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            };
            let delayed = delayed_in(vol, inode, &st, at, at.plus(len));
            let run = Run {
                lblk: at,
                len,
                pblk,
                state: MapState::Unwritten,
            };
            if let Err(e) = mapping::insert(vol, h, inode, &mut st, run) {
                // The map has no space for it, and is unchanged.
                vol.alloc.free(h, pblk, len, Class::Data)?;
                result = Err(e);
                break;
            }
            st.reserved -= delayed;
            vol.alloc.release(delayed.into());
            at = at.plus(len);
        }
        if at.0 >= end {
            change(&mut st);
            inode.settle_size(vol, &mut st);
        }
        vol.store_inode(h, inode, &st)?;
        result.map(|()| at)
    })
}
