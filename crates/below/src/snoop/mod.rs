//! Reads the journal of an ext4 volume as the kernel writes it, and remaps home what was logged:
//! JFTL for a file system that knows nothing of it.
//!
//! In the paper (Lim, Choi, Park, HPCC 2007) the file system tells the device which home each
//! journal block stands for. The kernel's jbd2 tells no device, but writes it into the descriptor
//! blocks of its log. This layer finds the log and keeps a table of its content. When the kernel
//! later writes home what a journal block holds, the home gets the journal block's page instead of
//! a page of its own.
//!
//! # What makes it right
//!
//! 1. A home is remapped only to a copy with exactly the content that is being written: the layer
//!    compares the checksum in its table, then reads the copy. So even with a wrong table, a read
//!    returns what was written; a wrong table only costs pages.
//! 2. The copy stays in the journal ([`JournalCopy::Kept`]): until the kernel writes over it,
//!    recovery finds it there.
//! 3. Remaps are collected until the next flush, because each list costs at least a page of the
//!    map. Until then they are like a write in a volatile cache. Before another request touches a
//!    home or a copy that one of them names, all are made.
//!
//! # What is not remapped
//!
//! Some blocks are not remapped: blocks whose copy was escaped (their content begins with JBD2's
//! magic, the copy does not); revoked blocks; blocks of which only a part is written; blocks whose
//! copy was overwritten in a later lap of the log, or has fallen out of a table that is shorter
//! than the log; blocks logged with `journal_async_commit`, where the commit block may come first.
//! Volumes with blocks smaller than the device's sectors, and volumes without a journal of their
//! own, are only passed through.
//!
//! The superblock and the journal's superblock are read again when they are written.

mod table;

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashSet;
use parking_lot::Mutex;
use serde::Serialize;
use stetfs_format::checksum::crc32c;
use stetfs_format::jbd2::{BlockType, CommitBlock, DescriptorBlock, Header, RevokeBlock};
use stetfs_format::width::{low32, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockSize, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use stetfs_media::{
    Block, BlockDev, Cause, Class, Errno, JournalCopy, Layer, MediaError, Remap, RemapPair, Tag,
};

use crate::log::{Identity, Log, Start};
use table::Table;

/// How many blocks of the log are remembered by default: 256 MiB of blocks of 4 KiB, in 4 MiB of
/// memory.
pub const TABLE_BLOCKS: u32 = 1 << 16;

/// The largest block of a volume, in bytes.
const MAX_BLOCK: usize = 4096;

/// The tag of everything that is written into the log, whatever the caller calls it.
const LOG_TAG: Tag = Tag::new(Class::Journal, Cause::Log);
const LOG_READ: Tag = Tag::read(Class::Journal);

/// Why a device cannot be snooped on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnoopError {
    /// The device has no [`Remap`].
    CannotRemap,
}

impl std::fmt::Display for SnoopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CannotRemap => f.write_str("the device cannot remap"),
        }
    }
}

impl std::error::Error for SnoopError {}

/// Counts of what was seen and done, in blocks of the volume unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnoopStats {
    /// Whether a journal was found and is followed.
    pub follows: bool,
    /// Transactions whose commit block has passed.
    pub commits: u64,
    /// Blocks of data in the log.
    pub logged: u64,
    /// Blocks that came home and were remapped.
    pub remapped: u64,
    /// Lists of remaps that were made.
    pub lists: u64,
    /// Blocks that came home with another content than their newest copy in the log.
    pub changed: u64,
    /// Logged blocks that were escaped.
    pub escaped: u64,
}

/// The snooping layer. See the module's description.
pub struct Snoop {
    below: Arc<dyn BlockDev>,
    sector: u64,
    max_pairs: usize,
    state: Mutex<State>,
}

struct State {
    log: Option<Log>,
    /// The superblock was written: look up the journal again when all of the volume is there.
    is_stale: bool,
    table: Table,
    /// Remaps that are still to be made, in sectors.
    pending: Vec<RemapPair>,
    /// The blocks of the volume that these name.
    touched: HashSet<u64>,
    /// Buffer for a copy from the log that is to be compared.
    copy: Block,
    stats: SnoopStats,
}

impl Snoop {
    /// Puts the layer in front of a device, and looks for a journal on it. The table remembers
    /// `table_blocks` blocks of the log.
    ///
    /// # Errors
    /// [`SnoopError`].
    pub fn new(below: Arc<dyn BlockDev>, table_blocks: u32) -> Result<Self, SnoopError> {
        let max_pairs = below.remap().ok_or(SnoopError::CannotRemap)?.max_pairs();
        let sector = below.sector_size().into();
        let snoop = Self {
            sector,
            max_pairs,
            state: Mutex::new(State {
                log: None,
                is_stale: false,
                table: Table::new(table_blocks),
                pending: Vec::with_capacity(max_pairs),
                touched: HashSet::with_capacity(4 * max_pairs),
                copy: Block::zeroed(MAX_BLOCK),
                stats: SnoopStats::default(),
            }),
            below,
        };
        snoop.look(&mut snoop.state.lock());
        Ok(snoop)
    }

    /// Returns the counts of what was seen and done.
    pub fn stats(&self) -> SnoopStats {
        let state = self.state.lock();
        SnoopStats {
            follows: state.log.is_some(),
            ..state.stats
        }
    }

    fn remap(&self) -> &dyn Remap {
        self.below.remap().expect("asked for at the start")
    }

    /// Looks up where the journal lies. The table stays if the journal is the same one.
    fn look(&self, state: &mut State) {
        let found = Log::find(&*self.below);
        let is_same = found.as_ref().map(|(log, _)| log) == state.log.as_ref();
        if is_same {
            return;
        }
        state.table.clear();
        let Some((log, start)) = found else {
            state.log = None;
            return;
        };
        tracing::info!(
            "following a journal of {} blocks of {} bytes",
            log.capacity(),
            log.block.bytes()
        );
        state.log = Some(log);
        self.catch_up(state, start);
    }

    /// Reads what recovery would replay: the kernel will write that home.
    fn catch_up(&self, state: &mut State, start: Start) {
        let Some((mut at, mut tid)) = start else {
            return;
        };
        let log = state.log.clone().expect("just found");
        let mut block = Block::zeroed(log.block.bytes());
        // Blocks of data that the last descriptor has named and that were not read yet.
        let mut data = 0;
        for _ in 0..log.capacity() {
            let place = log.block.start_of(log.place(at));
            if self
                .below
                .read_at(place, block.bytes_mut(), LOG_READ)
                .is_err()
            {
                return;
            }
            let header = Header::decode(block.bytes()).filter(|h| h.sequence == tid);
            if data == 0 && header.is_none() {
                return;
            }
            data = match state.logged(at, block.bytes()) {
                Seen::Descriptor(tags) => tags,
                Seen::Commit => {
                    tid = tid.next();
                    0
                }
                Seen::Other => data.saturating_sub(1),
            };
            at = log.step(at, 1);
        }
    }

    /// Makes the pending remaps before a request touches one of the blocks that they name.
    fn settle_touched(&self, state: &mut State, blocks: &Range<u64>) -> Result<(), MediaError> {
        if state.pending.is_empty() {
            return Ok(());
        }
        let few = blocks.end - blocks.start <= usize_as_u64(state.touched.len());
        let is_touched = if few {
            blocks.clone().any(|block| state.touched.contains(&block))
        } else {
            state.touched.iter().any(|block| blocks.contains(block))
        };
        if is_touched {
            self.settle(state)?;
        }
        Ok(())
    }

    /// Makes the pending remaps. When that fails they stay pending, and the request that wants them
    /// durable gets the error.
    fn settle(&self, state: &mut State) -> Result<(), MediaError> {
        if state.pending.is_empty() {
            return Ok(());
        }
        // A list costs a page, as much as programming a single page.
        let made = if state.pending.len() > 1 {
            state.stats.lists += 1;
            self.remap().remap(&state.pending, JournalCopy::Kept)
        } else {
            self.copy(state)
        };
        match made {
            Err(MediaError::Io {
                source: Errno::TOOBIG,
                ..
            }) => self.copy(state)?,
            made => made?,
        }
        state.pending.clear();
        state.touched.clear();
        Ok(())
    }

    /// Writes home the content of the pending remaps.
    fn copy(&self, state: &mut State) -> Result<(), MediaError> {
        let sector = &mut state.copy.bytes_mut()[..u64_as_usize(self.sector)];
        for pair in &state.pending {
            self.below
                .read_at(pair.journal * self.sector, sector, LOG_READ)?;
            let tag = Tag::new(Class::Data, Cause::Checkpoint);
            self.below.write_at(pair.home * self.sector, sector, tag)?;
        }
        Ok(())
    }

    fn write(
        &self,
        state: &mut State,
        offset: u64,
        data: &[u8],
        tag: Tag,
    ) -> Result<(), MediaError> {
        let Some(size) = state.log.as_ref().map(|log| log.block) else {
            self.below.write_at(offset, data, tag)?;
            self.superblock_written(state, offset, data);
            return Ok(());
        };
        let touched = size.span(offset, usize_as_u64(data.len()));
        self.settle_touched(state, &touched)?;
        let is_log = state.number(touched.start).is_some();
        let tag = if is_log { LOG_TAG } else { tag };
        // Blocks that are not remapped are written in requests as long as possible.
        let mut written = 0;
        for (block, at) in whole_blocks(size, offset, data.len()) {
            if !self.take_home(state, block, &data[at.clone()])? {
                continue;
            }
            if written < at.start {
                let part = &data[written..at.start];
                self.below
                    .write_at(offset + usize_as_u64(written), part, tag)?;
            }
            written = at.end;
        }
        if written < data.len() {
            self.below
                .write_at(offset + usize_as_u64(written), &data[written..], tag)?;
        }
        state.forget(&touched);
        for (block, at) in whole_blocks(size, offset, data.len()) {
            match state.number(block) {
                Some(0) => self.head_written(state, &data[at]),
                Some(number) => {
                    state.logged(number, &data[at]);
                }
                None => {}
            }
        }
        self.superblock_written(state, offset, data);
        Ok(())
    }

    /// Notes that a home gets its content from its copy in the log. False when no copy is the same.
    fn take_home(&self, state: &mut State, block: u64, content: &[u8]) -> Result<bool, MediaError> {
        let Some((log, copy)) = state.log.as_ref().zip(state.table.copy_of(block)) else {
            return Ok(false);
        };
        let (place, size) = (log.place(copy.at), log.block);
        let found = &mut state.copy.bytes_mut()[..content.len()];
        let is_same = copy.crc == crc32c(!0, content)
            && self
                .below
                .read_at(size.start_of(place), found, LOG_READ)
                .is_ok()
            && found == content;
        state.table.release(block);
        if !is_same {
            state.stats.changed += 1;
            return Ok(false);
        }
        let sectors = usize_as_u64(content.len()) / self.sector;
        if state.pending.len() + u64_as_usize(sectors) > self.max_pairs {
            self.settle(state)?;
        }
        if u64_as_usize(sectors) > self.max_pairs {
            return Ok(false);
        }
        state.pending.extend((0..sectors).map(|n| RemapPair {
            home: block * sectors + n,
            journal: place.0 * sectors + n,
        }));
        state.touched.extend([block, place.0]);
        state.stats.remapped += 1;
        Ok(true)
    }

    /// Handles a write of the journal's superblock. Another log, or another form of its records,
    /// makes the table worthless.
    fn head_written(&self, state: &mut State, content: &[u8]) {
        let Some(log) = &mut state.log else {
            return;
        };
        let before = log.clone();
        match log.set_head(content) {
            None => state.is_stale = true,
            Some(_) if before != *log => state.table.clear(),
            Some(_) => {}
        }
    }

    fn superblock_written(&self, state: &mut State, offset: u64, data: &[u8]) {
        let end = offset + usize_as_u64(data.len());
        let area = SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE);
        if offset >= area.end || end <= area.start {
            return;
        }
        let known = state.log.as_ref().map(|log| &log.identity);
        if offset <= area.start && area.end <= end {
            let raw = &data[u64_as_usize(area.start - offset)..][..SUPERBLOCK_SIZE];
            if Identity::decode(raw).as_ref() == known {
                return;
            }
        }
        // Not all of the volume may be there yet.
        state.is_stale = true;
        self.look(state);
    }

    fn clear(
        &self,
        offset: u64,
        len: u64,
        below: impl FnOnce() -> Result<(), MediaError>,
    ) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        let Some(size) = state.log.as_ref().map(|log| log.block) else {
            return below();
        };
        let blocks = size.span(offset, len);
        self.settle_touched(&mut state, &blocks)?;
        below()?;
        state.forget(&blocks);
        state.is_stale |= offset < SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE);
        Ok(())
    }
}

/// Returns the blocks that lie wholly within a write, and where in its data each begins.
fn whole_blocks(
    size: BlockSize,
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, Range<usize>)> {
    let pieces = size.pieces(offset, len);
    let whole = pieces.filter(move |piece| piece.len == size.bytes());
    whole.map(|piece| (piece.block, piece.in_range()))
}

/// What a block of the log turned out to be.
enum Seen {
    /// A descriptor, and the number of blocks of data that follow it.
    Descriptor(u32),
    Commit,
    Other,
}

impl State {
    fn number(&self, block: u64) -> Option<u32> {
        self.log.as_ref()?.number(block)
    }

    /// Forgets blocks whose content has changed: what the log held there is gone.
    fn forget(&mut self, blocks: &Range<u64>) {
        let Some(log) = &self.log else {
            return;
        };
        for (at, extent) in log.extents() {
            let start = blocks.start.max(extent.start.0);
            let end = blocks.end.min(extent.start.0 + u64::from(extent.len));
            for block in start..end {
                self.table.written(at + low32(block - extent.start.0));
            }
        }
    }

    /// Notes the content of a block of the log.
    fn logged(&mut self, at: u32, content: &[u8]) -> Seen {
        let Some(log) = self.log.as_ref().filter(|log| log.is_in_log(at)) else {
            return Seen::Other;
        };
        let kind = Header::decode(content).and_then(|header| header.known_type());
        let Some(kind) = kind else {
            self.table.content(at, crc32c(!0, content));
            self.stats.logged += 1;
            return Seen::Other;
        };
        match kind {
            BlockType::Descriptor => {
                let Ok(descriptor) = DescriptorBlock::decode(content, &log.format) else {
                    return Seen::Other;
                };
                let mut tags = 0;
                for tag in descriptor.tags().map_while(Result::ok) {
                    tags += 1;
                    self.stats.escaped += u64::from(tag.escaped);
                    let is_home = tag.block.0 < log.blocks && log.number(tag.block.0).is_none();
                    if is_home && !tag.escaped && tags < log.capacity() {
                        let copy = log.step(at, tags);
                        self.table.claim(copy, tag.block.0, descriptor.tid.0);
                    }
                }
                Seen::Descriptor(tags)
            }
            BlockType::Revoke => {
                if let Ok(revoke) = RevokeBlock::decode(content, &log.format) {
                    for block in revoke.blocks() {
                        self.table.release(block.0);
                    }
                }
                Seen::Other
            }
            BlockType::Commit => {
                let Ok(commit) = CommitBlock::decode(content, &log.format) else {
                    return Seen::Other;
                };
                self.table.commit(commit.tid.0);
                self.stats.commits += 1;
                Seen::Commit
            }
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => Seen::Other,
        }
    }
}

impl Layer for Snoop {
    fn below(&self) -> &dyn BlockDev {
        &*self.below
    }

    /// True, since remaps wait for the next flush.
    fn volatile_cache(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        if let Some(size) = state.log.as_ref().map(|log| log.block) {
            let blocks = size.span(offset, usize_as_u64(out.len()));
            self.settle_touched(&mut state, &blocks)?;
        }
        self.below.read_at(offset, out, tag)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        let mut at = offset;
        for part in parts {
            self.write(&mut state, at, part, tag)?;
            at += usize_as_u64(part.len());
        }
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        self.settle(&mut state)?;
        self.below.flush(cause)?;
        if std::mem::take(&mut state.is_stale) {
            self.look(&mut state);
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.clear(offset, len, || self.below.discard(offset, len))
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.clear(offset, len, || self.below.write_zeros(offset, len, tag))
    }
}
