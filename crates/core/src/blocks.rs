//! The blocks of a file, for every change of its content: where they are, which are delayed, how
//! many one handle can write, and writing zeros into parts of them.

use smallvec::SmallVec;
use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_journal::{CREDITS_PER_RUN, FileData, Handle, Old};
use stetfs_media::{Block, Class};

use crate::error::Result;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::scope::Scope;
use crate::types::Caller;
use crate::volume::Volume;

/// How many blocks one handle writes at most.
pub(crate) const CHUNK_BLOCKS_MAX: u32 = 1024;

/// Credits for the inode and, when a first large file appears, the superblock.
pub(crate) const INODE_CREDITS: u32 = 2;

/// Returns the largest size that the inode's kind of mapping allows, in bytes (`s_maxbytes`,
/// `s_bitmap_maxbytes`).
pub(crate) fn size_limit(vol: &Volume, st: &InodeState) -> u64 {
    let size = vol.geo.block;
    if has_extents(vol, st) {
        return size.offset_of(u32::MAX.into());
    }
    let n = size.offset_of(1) / 4;
    let pointers = 12 + n + n * n + n * n * n;
    // i_blocks counts the pointer blocks too.
    let meta = 3 + 2 * n + n * n;
    let counted = if vol.geo.huge_file {
        (1 << 48) - 1
    } else {
        u64::from(u32::MAX) >> (size.bits() - 9)
    };
    size.offset_of(pointers.min(counted - meta).min(u32::MAX.into()))
}

/// Whether the file is mapped by extents, or will be when its content leaves the inode.
pub(crate) fn has_extents(vol: &Volume, st: &InodeState) -> bool {
    if st.raw.is_inline() {
        vol.geo.extents
    } else {
        st.raw.flags.contains(InodeFlags::EXTENTS)
    }
}

/// Returns the runs of `[lblk, lblk + count)`, holes included.
pub(crate) fn runs_of(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    lblk: LBlock,
    count: u32,
) -> Result<SmallVec<[Run; 4]>> {
    let mut runs = SmallVec::new();
    let mut at = lblk;
    let mut left = count;
    while left > 0 {
        let run = mapping::lookup(vol, inode, st, at, left)?;
        let len = run.len.min(left);
        runs.push(Run { len, ..run });
        at = at.plus(len);
        left -= len;
    }
    Ok(runs)
}

/// Returns how many blocks of `[from, to)`, all of them in a hole, are delayed.
pub(crate) fn delayed_in(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    from: LBlock,
    to: LBlock,
) -> u32 {
    if st.reserved == 0 {
        return 0;
    }
    let others = not_delayed_in(inode.data(vol), from, to);
    to.0 - from.0 - others.map(|(_, len)| len).sum::<u32>()
}

/// Yields the pieces of `[from, to)` that are not delayed: first block and length.
pub(crate) fn not_delayed_in(
    data: &FileData,
    from: LBlock,
    to: LBlock,
) -> impl Iterator<Item = (LBlock, u32)> {
    let mut at = from;
    let pieces = std::iter::from_fn(move || {
        (at < to).then(|| {
            let start = at;
            let (delayed, len) = data.dirty_in(at, Some(to)).unwrap_or((to, 0));
            at = delayed.plus(len);
            (start, delayed.0 - start.0)
        })
    });
    pieces.filter(|(_, len)| *len > 0)
}

/// Returns how many blocks one handle writes at most, unless the whole write must be in one handle.
pub(crate) fn chunk_blocks(vol: &Volume) -> u64 {
    u64::from((vol.journal.max_credits() / 4).clamp(1, CHUNK_BLOCKS_MAX))
}

/// Returns how many blocks one handle can write if every second one is a run of its own.
pub(crate) fn most_blocks(vol: &Volume) -> u64 {
    let others = u64::from(INODE_CREDITS + CREDITS_PER_RUN);
    let credits = u64::from(vol.journal.max_credits()).saturating_sub(others);
    (credits / (1 + u64::from(CREDITS_PER_RUN) / 2)).max(1)
}

/// Returns how many bytes one handle writes, from the beginning of a block on. A longer write takes
/// several handles of that many bytes.
pub(crate) fn handle_write_max(vol: &Volume) -> u64 {
    vol.geo.block.offset_of(chunk_blocks(vol))
}

/// Reserves `new` blocks. With `converts`, some of the data goes to unwritten blocks, whose map may
/// grow.
pub(crate) fn reserve(vol: &Scope<'_>, c: &Caller, new: u32, converts: bool) -> Result<()> {
    if converts {
        vol.alloc.check_room_for_maps(vol.retries())?;
    }
    let privileged = vol.alloc.may_use_root_blocks(c);
    vol.alloc.reserve(new.into(), privileged, vol.retries())
}

/// Zeros the rest of the file's last block before a write at `offset`, if that leaves a gap behind
/// the end of the file.
pub(crate) fn zero_past_end(vol: &Scope<'_>, inode: &Inode, offset: u64) -> Result<()> {
    let size = inode.state.read().raw.size;
    if offset <= size || vol.geo.block.within(size) == 0 {
        return Ok(());
    }
    vol.with_handle(INODE_CREDITS + 1, |h| {
        zero_to_block_end(vol, h, inode, size)
    })
}

/// Writes zeros from byte `from` to the end of its block, unless the block reads as zeros there
/// already.
pub(crate) fn zero_to_block_end(vol: &Volume, h: &Handle, inode: &Inode, from: u64) -> Result<()> {
    let (lblk, at) = vol.split(from);
    if at == 0 {
        return Ok(());
    }
    zero_in_block(vol, h, inode, lblk, at, vol.geo.block_size() - at)
}

/// Writes zeros into a part of one block, unless it reads as zeros there already.
pub(crate) fn zero_in_block(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    lblk: LBlock,
    at: usize,
    len: usize,
) -> Result<()> {
    let data = inode.data(vol);
    let run = mapping::lookup(vol, inode, &inode.state.read(), lblk, 1)?;
    let (content, old) = match (data.get(lblk), run.state) {
        (Some(content), MapState::Written) => (content, Old::Home(run.pblk)),
        (Some(content), _) => (content, Old::Hole),
        (None, MapState::Written) => {
            let mut block = Block::zeroed(vol.geo.block_size());
            vol.journal
                .read_home(run.pblk, 1, block.bytes_mut(), Class::Data)?;
            (block.into(), Old::Home(run.pblk))
        }
        (None, _) => return Ok(()),
    };
    if content[at..at + len].iter().all(|&b| b == 0) {
        return Ok(());
    }
    let zeros = Block::zeroed(vol.geo.block_size());
    let (zeros, whole) = (&zeros.bytes()[..len], inode.is_atomic());
    h.write_data(data, lblk, at, zeros, old, whole)?;
    Ok(())
}
