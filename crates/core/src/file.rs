//! Reading and writing file contents.
//!
//! Reading looks into the file's cached blocks first and into the mapping second. A block leaves
//! the cache only after the mapping shows where it went, so a block that is in neither is a hole.
//! Everything else is read from home straight into the caller's memory, or from the inode.
//!
//! Writing allocates nothing. Each block that has no place yet takes one reserved block
//! ([`InodeState::reserved`]) and gets its place when the transaction commits (`place.rs`);
//! unwritten extents already have theirs. A write is one handle, unless it is larger than a quarter
//! of a transaction.

use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_format::width::{must_fit, must_fit_u32, u64_as_usize, usize_as_u64};
use stetfs_journal::{CREDITS_PER_RUN, Handle, Old, Wrote};
use stetfs_media::{Block, BlockRef, Class};
use stetfs_planted::{Bug, is_planted};

use crate::atomic;
use crate::blocks::{
    self, CHUNK_BLOCKS_MAX, INODE_CREDITS, chunk_blocks, not_delayed_in, runs_of, size_limit,
    zero_past_end,
};
use crate::error::{Error, Inconsistent, Result};
use crate::inline;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::scope::Scope;
use crate::truncate;
use crate::types::{Caller, WriteFlags, mode};
use crate::unfold;
use crate::volume::Volume;

/// Reads at `offset`; returns how many bytes were read, up to the end of the file.
pub(crate) fn read(vol: &Volume, inode: &Inode, offset: u64, out: &mut [u8]) -> Result<usize> {
    let _guard = inode.lock.read();
    let size = {
        let st = inode.state.read();
        st.check_live()?;
        match st.raw.mode & mode::S_IFMT {
            // A damaged inode may claim more than is possible.
            mode::S_IFREG => st.raw.size.min(size_limit(vol, &st)),
            mode::S_IFDIR => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
    };
    let len = u64_as_usize(usize_as_u64(out.len()).min(size.saturating_sub(offset)));
    read_range(vol, inode, offset, &mut out[..len])?;
    Ok(len)
}

/// Reads bytes that lie before the end of the file. The caller holds the inode's lock.
pub(crate) fn read_range(vol: &Volume, inode: &Inode, offset: u64, out: &mut [u8]) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let size = vol.geo.block_size();
    let (mut lblk, mut skip) = vol.split(offset);
    let data = inode.data(vol);
    if skip + out.len() <= size {
        if let Some(block) = data.get(lblk) {
            out.copy_from_slice(&block[skip..skip + out.len()]);
            return Ok(());
        }
        return read_gap(vol, inode, lblk, 1, skip, out);
    }
    let mut out = out;
    while !out.is_empty() {
        let touched = vol.geo.block.touched(skip, out.len());
        let count = touched.min(CHUNK_BLOCKS_MAX);
        let end = lblk.0 + count;
        for (at, block) in data.get_range(lblk, count) {
            out = read_part(vol, inode, lblk, at.0 - lblk.0, &mut skip, out)?;
            let n = (size - skip).min(out.len());
            let (now, rest) = out.split_at_mut(n);
            now.copy_from_slice(&block[skip..skip + n]);
            (out, skip, lblk) = (rest, 0, at.plus(1));
        }
        out = read_part(vol, inode, lblk, end - lblk.0, &mut skip, out)?;
        lblk = LBlock(end);
    }
    Ok(())
}

/// Reads the next `count` blocks, none of which is cached; returns the rest of `out`.
fn read_part<'a>(
    vol: &Volume,
    inode: &Inode,
    lblk: LBlock,
    count: u32,
    skip: &mut usize,
    out: &'a mut [u8],
) -> Result<&'a mut [u8]> {
    if count == 0 || out.is_empty() {
        return Ok(out);
    }
    let n = (vol.geo.block.bytes_of(count) - *skip).min(out.len());
    let (now, rest) = out.split_at_mut(n);
    read_gap(vol, inode, lblk, count, *skip, now)?;
    *skip = 0;
    Ok(rest)
}

/// Reads blocks that are not cached: `out` begins `skip` bytes into `lblk` and ends in the last of
/// `count` blocks.
fn read_gap(
    vol: &Volume,
    inode: &Inode,
    lblk: LBlock,
    count: u32,
    skip: usize,
    out: &mut [u8],
) -> Result<()> {
    let is_cached = vol.dev.host_cached() || vol.journal.terms().is_buffer_cache;
    let most = vol.opts.kept_read.unwrap_or(vol.opts.memory / 64);
    let keep = !is_cached && usize_as_u64(out.len()) <= most;
    // The runs cannot move while the inode's lock is held: commits place only dirty blocks, which
    // are cached.
    let runs = {
        let st = inode.state.read();
        if st.raw.is_inline() {
            return inline::read(
                vol,
                inode,
                &st,
                u64_as_usize(vol.start_of(lblk)) + skip,
                out,
            );
        }
        runs_of(vol, inode, &st, lblk, count)?
    };
    let mut skip = skip;
    let mut out = out;
    for run in runs {
        let n = (vol.geo.block.bytes_of(run.len) - skip).min(out.len());
        let (now, rest) = out.split_at_mut(n);
        match run.state {
            MapState::Hole | MapState::Unwritten => now.fill(0),
            MapState::Written => read_run(vol, inode, run, skip, now, keep)?,
        }
        (out, skip) = (rest, 0);
    }
    if keep {
        vol.journal.trim_caches();
    }
    Ok(())
}

/// Reads from one mapped run: whole blocks directly, partial ones through a block of memory.
fn read_run(
    vol: &Volume,
    inode: &Inode,
    run: Run,
    skip: usize,
    out: &mut [u8],
    keep: bool,
) -> Result<()> {
    let size = vol.geo.block_size();
    let mut run = run;
    let mut out = out;
    let mut skip = skip;
    while !out.is_empty() {
        let whole = if skip == 0 { out.len() / size } else { 0 };
        let n = if whole > 0 {
            let n = whole * size;
            vol.journal
                .read_home(run.pblk, must_fit_u32(whole), &mut out[..n], Class::Data)?;
            if keep {
                for (i, bytes) in (0..).zip(out[..n].chunks_exact(size)) {
                    let block = BlockRef::new(Block::copy_of(bytes));
                    inode
                        .data(vol)
                        .insert_clean(run.lblk.plus(i), run.pblk.plus(i.into()), block);
                }
            }
            n
        } else {
            let n = (size - skip).min(out.len());
            let part = &mut out[..n];
            if !vol.journal.read_part(run.pblk, skip, part, Class::Data)? {
                let mut block = Block::zeroed(size);
                vol.journal
                    .read_home(run.pblk, 1, block.bytes_mut(), Class::Data)?;
                part.copy_from_slice(&block.bytes()[skip..skip + n]);
                if keep {
                    let data = inode.data(vol);
                    data.insert_clean(run.lblk, run.pblk, block.into());
                }
            }
            n
        };
        let blocks = must_fit_u32(whole.max(1));
        run.lblk = run.lblk.plus(blocks);
        run.pblk = run.pblk.plus(blocks.into());
        (out, skip) = (&mut out[n..], 0);
    }
    Ok(())
}

/// Returns the target of a symbolic link: from the inode when it is short, else from its block.
///
/// # Errors
/// `Invalid` for anything but a symbolic link; `Inconsistent::SymlinkSize`.
pub(crate) fn readlink(vol: &Volume, inode: &Inode) -> Result<Vec<u8>> {
    let _guard = inode.lock.read();
    let st = inode.state.read();
    st.check_live()?;
    if !st.is_lnk() {
        return Err(Error::Invalid);
    }
    let size = u64_as_usize(st.raw.size);
    let target = if st.raw.is_inline() {
        let target = inline::content(vol, inode, &st)?;
        if target.len() != size {
            return Err(symlink_size(inode, &st));
        }
        target
    } else if st.is_fast_symlink() {
        st.raw.block[..size].to_vec()
    } else {
        let run = mapping::lookup(vol, inode, &st, LBlock(0), 1)?;
        if run.state != MapState::Written || size >= vol.geo.block_size() {
            return Err(symlink_size(inode, &st));
        }
        vol.journal.read(run.pblk, Class::Directory)?[..size].to_vec()
    };
    if target.is_empty() || target.contains(&0) {
        return Err(symlink_size(inode, &st));
    }
    Ok(target)
}

fn symlink_size(inode: &Inode, st: &InodeState) -> Error {
    let (ino, size) = (inode.ino, st.raw.size);
    Inconsistent::SymlinkSize { ino, size }.into()
}

/// Writes at `offset`, or at the end with [`WriteFlags::APPEND`]; returns where, and how many
/// bytes.
pub(crate) fn write(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    offset: u64,
    bytes: &[u8],
    flags: WriteFlags,
) -> Result<(u64, usize)> {
    let _guard = inode.lock.write();
    vol.check_writable()?;
    let (offset, room) = check_write(vol, inode, offset, flags)?;
    if bytes.is_empty() {
        return Ok((offset, 0));
    }
    // All or nothing. But pages from a cache above are no single write.
    let is_whole = inode.is_atomic()
        && !flags.contains(WriteFlags::CACHED)
        && usize_as_u64(bytes.len()) <= atomic::write_max(vol);
    if (is_whole || flags.contains(WriteFlags::WHOLE)) && usize_as_u64(bytes.len()) > room {
        return Err(Error::TooBig);
    }
    let bytes = &bytes[..u64_as_usize(usize_as_u64(bytes.len()).min(room))];
    let all = flags.contains(WriteFlags::KILL_SUID);
    if all || !flags.contains(WriteFlags::CACHED) {
        crate::attr::strip_privileges(vol, c, inode, all)?;
    }
    unfold::unfold(vol, c, inode)?;
    zero_past_end(vol, inode, offset)?;
    let size = inode.state.read().raw.size;
    let mut done = 0;
    while done < bytes.len() {
        match write_chunk(
            vol,
            c,
            inode,
            offset + usize_as_u64(done),
            &bytes[done..],
            flags,
            is_whole,
        ) {
            Ok(n) => done += n,
            Err(e) if done > 0 && flags.contains(WriteFlags::WHOLE) => {
                // Each part made the file longer.
                if inode.state.read().raw.size > size {
                    truncate::set_size(vol, c, inode, size, |_, _| Ok(()))?;
                }
                return Err(e);
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok((offset, done))
}

/// Returns where the write goes and how many bytes may follow from there.
pub(crate) fn check_write(
    vol: &Volume,
    inode: &Inode,
    offset: u64,
    flags: WriteFlags,
) -> Result<(u64, u64)> {
    let st = inode.state.read();
    st.check_live()?;
    if !st.is_reg() {
        return Err(if st.is_dir() {
            Error::IsDirectory
        } else {
            Error::Invalid
        });
    }
    let append = flags.contains(WriteFlags::APPEND);
    // A page cache above had accepted these bytes before: flags set since then do not forbid them.
    if !flags.contains(WriteFlags::CACHED) {
        let append_only = st.raw.flags.contains(InodeFlags::APPEND);
        let appends = append || flags.contains(WriteFlags::AT_END);
        if st.raw.flags.contains(InodeFlags::IMMUTABLE) || append_only && !appends {
            return Err(Error::NotPermitted);
        }
    }
    let offset = if append { st.raw.size } else { offset };
    let limit = size_limit(vol, &st);
    if offset >= limit {
        return Err(Error::TooBig);
    }
    Ok((offset, limit - offset))
}

/// Writes as many bytes as one handle takes; returns their number. Writes at least one block, or
/// everything if `is_whole`.
fn write_chunk(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    offset: u64,
    bytes: &[u8],
    flags: WriteFlags,
    is_whole: bool,
) -> Result<usize> {
    let (first, skip) = vol.split(offset);
    let blocks = vol.geo.block.blocks_for(usize_as_u64(skip + bytes.len()));
    let mut count: u32 = must_fit(if is_whole && is_planted(Bug::TornRecord) {
        1
    } else if is_whole && !is_planted(Bug::SplitRecord) {
        blocks
    } else {
        blocks.min(chunk_blocks(vol))
    });
    if is_whole {
        atomic::read_ahead(vol, inode, (first, skip), bytes)?;
    }
    let found = loop {
        match reserve(vol, c, inode, first, count) {
            // On a full volume, write as much as there is room for.
            Err(Error::NoSpace) if count > 1 && !is_whole => count /= 2,
            result => break result?,
        }
    };
    let bytes = &bytes[..bytes.len().min(vol.geo.block.bytes_of(count) - skip)];
    let logged = if vol.journal.terms().logs_data || inode.is_atomic() {
        count
    } else {
        0
    };
    // Ask for all credits at once, so that no commit cuts the write short by refusing more.
    let credits = INODE_CREDITS + logged + CREDITS_PER_RUN * found.places;
    let credits = credits.min(vol.journal.max_credits());
    let mut copied = Copied::default();
    let result = vol.with_handle(credits, |h| {
        let result = copy_in(vol, h, inode, (first, skip), bytes, &found, &mut copied);
        if copied.bytes == 0 {
            // Nothing was changed.
            return Ok(result);
        }
        if is_whole {
            result?;
        }
        // Blocks copied before an error count: only single blocks are promised to be written
        // entirely or not at all.
        let end = offset + usize_as_u64(copied.bytes);
        finish_write(vol, h, inode, end, copied.reserved, flags).map(Ok)
    });
    vol.alloc.release((found.new - copied.reserved).into());
    result?.map(|()| copied.bytes)
}

/// Reserves space for a write to these blocks.
fn reserve(vol: &Scope<'_>, c: &Caller, inode: &Inode, first: LBlock, count: u32) -> Result<Found> {
    let found = look_up(vol, inode, first, count)?;
    blocks::reserve(vol, c, found.new, found.converts)?;
    Ok(found)
}

/// Returns the free bytes that a write of these bytes would take: none for blocks that are placed,
/// preallocated or delayed.
pub(crate) fn takes(vol: &Volume, inode: &Inode, offset: u64, len: u64) -> Result<u64> {
    let _guard = inode.lock.read();
    let limit = size_limit(vol, &inode.state.read());
    let end = offset.saturating_add(len).min(limit);
    if offset >= end {
        return Ok(0);
    }
    let first = vol.block_of(offset);
    let count = vol.block_of(end - 1).0 - first.0 + 1;
    let new = look_up(vol, inode, first, count)?.new;
    Ok(vol.geo.block.offset_of(new.into()))
}

/// What a write finds in the blocks that it goes to.
#[derive(Default)]
pub(crate) struct Found {
    /// How many blocks need a reserved block: those in holes that are not delayed already. The
    /// number holds until the inode's lock is released, because commits place only delayed blocks.
    pub(crate) new: u32,
    /// Some blocks are unwritten and become written.
    pub(crate) converts: bool,
    /// In how many pieces the blocks lie that this write will delay.
    pub(crate) places: u32,
    /// The first run, with the [`InodeState::map_changes`] at which it was read; look again if
    /// that has changed. `None` when the block is cached: its page knows its home.
    run: Option<(Run, u32)>,
}

pub(crate) fn look_up(vol: &Volume, inode: &Inode, first: LBlock, count: u32) -> Result<Found> {
    let data = inode.data(vol);
    if count == 1 && data.home_of(first).is_some() {
        // The block keeps a place while the lock is held, though a commit may give it another one.
        return Ok(Found::default());
    }
    let st = inode.state.read();
    let runs = runs_of(vol, inode, &st, first, count)?;
    let (mut new, mut converts, mut places) = (0, false, 0);
    // Where the previous piece ends.
    let mut behind = None;
    for run in runs.iter().filter(|run| run.state != MapState::Written) {
        converts |= run.state == MapState::Unwritten;
        for (start, len) in not_delayed_in(data, run.lblk, run.lblk.plus(run.len)) {
            places += u32::from(behind != Some(start));
            behind = Some(start.plus(len));
            if run.state == MapState::Hole {
                new += len;
            }
        }
    }
    Ok(Found {
        new,
        converts,
        places,
        run: Some((runs[0], st.map_changes)),
    })
}

/// What one handle copied.
#[derive(Default)]
pub(crate) struct Copied {
    bytes: usize,
    /// How many blocks took a reserved block.
    pub(crate) reserved: u32,
}

/// Returns the run at `lblk`, of at most `max` blocks. A handle is open, so no commit gives blocks
/// places meanwhile.
fn run_at(vol: &Volume, inode: &Inode, lblk: LBlock, max: u32, found: &Found) -> Result<Run> {
    if found.run.is_none()
        && let Some(pblk) = inode.data(vol).home_of(lblk)
    {
        let (len, state) = (1, MapState::Written);
        return Ok(Run {
            lblk,
            len,
            pblk,
            state,
        });
    }
    let st = inode.state.read();
    match found.run {
        Some((run, changes)) if run.lblk == lblk && changes == st.map_changes => Ok(run),
        _ => mapping::lookup(vol, inode, &st, lblk, max),
    }
}

/// Copies bytes into the file's blocks.
pub(crate) fn copy_in(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    (first, skip): (LBlock, usize),
    bytes: &[u8],
    found: &Found,
    copied: &mut Copied,
) -> Result<()> {
    let size = vol.geo.block_size();
    let data = inode.data(vol);
    let mut skip = skip;
    let mut lblk = first;
    while copied.bytes < bytes.len() {
        let left = vol.geo.block.touched(skip, bytes.len() - copied.bytes);
        let run = run_at(vol, inode, lblk, left, found)?;
        for i in 0..run.len.min(left) {
            let n = (size - skip).min(bytes.len() - copied.bytes);
            let part = &bytes[copied.bytes..copied.bytes + n];
            let old = match run.state {
                MapState::Written => Old::Home(run.pblk.plus(i.into())),
                MapState::Hole | MapState::Unwritten => Old::Hole,
            };
            let wrote = h.write_data(data, lblk, skip, part, old, inode.is_atomic())?;
            if run.state == MapState::Hole && wrote == (Wrote::Unplaced { newly: true }) {
                copied.reserved += 1;
            }
            copied.bytes += n;
            (skip, lblk) = (0, lblk.plus(1));
        }
    }
    Ok(())
}

/// Updates size, times and reservation after data was written up to `end`.
pub(crate) fn finish_write(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    end: u64,
    reserved: u32,
    flags: WriteFlags,
) -> Result<()> {
    let mut st = inode.state.write();
    st.reserved += reserved;
    let stored = st.disk_size();
    if end > st.raw.size {
        st.set_size(end);
    }
    inode.settle_size(vol, &mut st);
    let grows = st.disk_size() != stored;
    let mut ages = false;
    if !flags.contains(WriteFlags::CACHED) {
        let now = vol.now();
        ages = (st.raw.mtime != now || st.raw.ctime != now) && !is_planted(Bug::UnstoredTimes);
        st.raw.mtime = now;
        st.raw.ctime = now;
    }
    match (grows, ages) {
        (true, _) => vol.store_inode(h, inode, &st),
        (false, true) => vol.store_times(h, inode, &st),
        (false, false) => Ok(()),
    }
}
