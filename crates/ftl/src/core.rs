//! The state of a mounted layer, and how it programs a page: streams, the pool, blocks that go bad.

use stetfs_format::ftl::{FtlSpare, NO_PAGE, PageKind, pool};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{must_fit, nearest_f64, u32_as_usize};
use stetfs_media::nand::{NandError, NandGeometry};
use stetfs_media::{Cause, Class, Tag};

use smallvec::SmallVec;

use crate::anchors::Anchors;
use crate::blocks::{Blocks, Use};
use crate::error::Stop;
use crate::flash::Flash;
use crate::ledger::{Lifespan, Log, Table};
use crate::map::Map;
use crate::shape::{POOL_LOW, STREAMS, Shape};

/// The label of map, log and anchors.
pub(crate) const MAP_TAG: Tag = Tag::new(Class::Mapping, Cause::Map);
/// The label of data that is moved.
pub(crate) const GC_TAG: Tag = Tag::new(Class::Data, Cause::Gc);

/// A kind of data. Each stream has a block open for itself, so that pages that die together lie
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Data that the host writes and will probably overwrite soon.
    Hot,
    /// All other data that the host writes.
    Cold,
    /// Moved data, which has already stayed long.
    Moved,
    /// Map and log.
    Map,
}

impl Stream {
    #[expect(
        clippy::as_conversions,
        reason = "the discriminant is the place in arrays of streams"
    )]
    const fn index(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Copy)]
pub(crate) struct OpenBlock {
    pub(crate) block: BlockAddr,
    next: u32,
}

/// Counts of what the layer has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlStats {
    /// Mounts.
    pub mounts: u32,
    /// Pages programmed for the user.
    pub host_pages: u64,
    /// Pages moved.
    pub gc_pages: u64,
    /// Pages of map, log and anchors programmed.
    pub map_pages: u64,
    /// Logical pages that were remapped instead of being programmed.
    pub remapped_pages: u64,
}

impl FtlStats {
    /// Pages programmed for each page that the user wrote; `None` before the first one.
    pub fn write_amplification(&self) -> Option<f64> {
        let all = self.host_pages + self.gc_pages + self.map_pages;
        (self.host_pages > 0).then(|| nearest_f64(all) / nearest_f64(self.host_pages))
    }
}

pub(crate) struct Core {
    pub(crate) flash: Flash,
    pub(crate) shape: Shape,
    pub(crate) uuid: [u8; 16],
    pub(crate) map: Map,
    pub(crate) blocks: Blocks,
    pub(crate) table: Table,
    pub(crate) log: Log,
    pub(crate) anchors: Anchors,
    pub(crate) streams: [Option<OpenBlock>; STREAMS],
    pub(crate) pool: Vec<BlockAddr>,
    is_refilling: bool,
    /// Bad blocks whose live pages are still to be saved.
    pub(crate) retired: Vec<BlockAddr>,
    /// The next sequence number.
    pub(crate) seq: u64,
    /// Pages programmed since the last checkpoint.
    pub(crate) programs: u64,
    /// Blocks erased since wear was last checked.
    pub(crate) erases: u32,
    pub(crate) lifespan: Lifespan,
    pub(crate) stats: FtlStats,
    pub(crate) stopped: Option<Stop>,
    /// A buffer for a page that is being moved.
    pub(crate) copy: Vec<u8>,
}

impl Core {
    /// A layer with an empty map, on a part whose bad block marks have been read.
    pub(crate) fn new(flash: Flash, shape: Shape, uuid: [u8; 16]) -> Result<Self, NandError> {
        let geometry = shape.geometry;
        let mut blocks = Blocks::new(geometry.blocks, geometry.pages_per_block);
        let mut bad = vec![false; u32_as_usize(geometry.blocks)];
        for block in (0..geometry.blocks).map(BlockAddr) {
            bad[block.index()] = flash.is_bad(block)?;
            if bad[block.index()] {
                blocks.put_to(block, Use::Bad, 0);
            } else if block.0 < crate::shape::ANCHOR_BLOCKS {
                blocks.put_to(block, Use::Anchor, 0);
            }
        }
        Ok(Self {
            map: Map::new(shape.logical_pages, geometry.pages()),
            blocks,
            table: Table::new(&shape),
            log: Log::default(),
            anchors: Anchors::new(geometry, |block| bad[block.index()]),
            streams: [None; STREAMS],
            pool: Vec::new(),
            is_refilling: false,
            retired: Vec::new(),
            seq: 1,
            programs: 0,
            erases: 0,
            lifespan: Lifespan::default(),
            stats: FtlStats::default(),
            stopped: None,
            copy: vec![0; geometry.page_len()],
            flash,
            shape,
            uuid,
        })
    }

    pub(crate) fn geometry(&self) -> &NandGeometry {
        &self.shape.geometry
    }

    /// The time, counted in pages that the host has written.
    pub(crate) fn now(&self) -> u64 {
        self.stats.host_pages
    }

    pub(crate) fn take_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq - 1
    }

    /// Ends all writing; the first reason stays.
    pub(crate) fn stop(&mut self, why: Stop) -> Stop {
        self.stopped.get_or_insert(why).clone()
    }

    pub(crate) fn fail(&mut self, error: NandError) -> Stop {
        self.stop(Stop::Nand(error))
    }

    /// Programs the next page of a stream; if its block goes bad, in another one.
    pub(crate) fn program(
        &mut self,
        stream: Stream,
        kind: PageKind,
        index: u32,
        data: &[u8],
        tag: Tag,
    ) -> Result<PageNo, Stop> {
        loop {
            let page = self.next_page(stream)?;
            let seq = self.take_seq();
            let record = FtlSpare { kind, index, seq };
            match self.flash.program(page, &record, data, tag) {
                Ok(()) => {
                    let open = self.streams[stream.index()].as_mut();
                    open.expect("it has a next page").next += 1;
                    self.count(tag);
                    return Ok(page);
                }
                Err(NandError::ProgramFailed { .. }) => self.retire_open(stream)?,
                Err(e) => return Err(self.fail(e)),
            }
        }
    }

    pub(crate) fn count(&mut self, tag: Tag) {
        self.programs += 1;
        *match tag.cause {
            Cause::Gc => &mut self.stats.gc_pages,
            Cause::Map => &mut self.stats.map_pages,
            _ => &mut self.stats.host_pages,
        } += 1;
    }

    /// Returns the page of a stream to program next; opens another block if the present one is
    /// full.
    fn next_page(&mut self, stream: Stream) -> Result<PageNo, Stop> {
        if let Some(page) = self.room(stream) {
            return Ok(page);
        }
        if let Some(open) = self.streams[stream.index()].take() {
            let now = self.now();
            match stream {
                Stream::Map => self.blocks.put_to(open.block, Use::Map, now),
                _ => self.blocks.close(open.block, now),
            }
        }
        if self.pool.len() <= POOL_LOW && !self.is_refilling {
            self.is_refilling = true;
            let refilled = self.refill_pool();
            self.is_refilling = false;
            refilled?;
            // Writing the list may have opened a block for the map.
            if let Some(page) = self.room(stream) {
                return Ok(page);
            }
        }
        self.open(stream)?;
        let page = self.room(stream);
        Ok(page.expect("the block is empty"))
    }

    fn room(&self, stream: Stream) -> Option<PageNo> {
        let geometry = self.geometry();
        let open = self.streams[stream.index()]?;
        (open.next < geometry.pages_per_block).then(|| geometry.page_at(open.block, open.next))
    }

    /// Erases a block of the pool and opens it: the most worn for moved data, the least worn for
    /// all else.
    fn open(&mut self, stream: Stream) -> Result<(), Stop> {
        loop {
            let by_wear = |at: &usize| self.blocks.get(self.pool[*at]).erases;
            let all = 0..self.pool.len();
            let at = match stream {
                Stream::Moved => all.max_by_key(by_wear),
                _ => all.min_by_key(by_wear),
            };
            let Some(at) = at else {
                return Err(self.stop(Stop::WornOut));
            };
            let block = self.pool.remove(at);
            let cause = match stream {
                Stream::Map => Cause::Map,
                _ => Cause::Gc,
            };
            let state = self.blocks.get(block);
            if state.hot {
                self.lifespan.add(state.changed.saturating_sub(state.born));
            }
            if self.erase(block, cause)? {
                let now = self.now();
                self.blocks.put_to(block, Use::Open, now);
                self.blocks.set_hot(block, stream == Stream::Hot);
                self.streams[stream.index()] = Some(OpenBlock { block, next: 0 });
                return Ok(());
            }
        }
    }

    /// Erases a block. Returns whether it is still good.
    pub(crate) fn erase(&mut self, block: BlockAddr, cause: Cause) -> Result<bool, Stop> {
        let erases = self.blocks.get(block).erases.saturating_add(1);
        self.blocks.set_erases(block, erases);
        self.table.touch(self.shape.wear_page_of(block.0));
        self.erases += 1;
        match self.flash.erase(block, cause) {
            Ok(()) => Ok(true),
            Err(NandError::EraseFailed { .. }) => self.mark_bad(block, cause).map(|()| false),
            Err(e) => Err(self.fail(e)),
        }
    }

    pub(crate) fn mark_bad(&mut self, block: BlockAddr, cause: Cause) -> Result<(), Stop> {
        let marked = self.flash.mark_bad(block, cause);
        marked.map_err(|e| self.fail(e))?;
        let now = self.now();
        self.blocks.put_to(block, Use::Bad, now);
        Ok(())
    }

    /// Retires the open block of a stream after a failed program. The next
    /// [`make_room`](Self::make_room) saves its data; the next checkpoint saves its map pages.
    fn retire_open(&mut self, stream: Stream) -> Result<(), Stop> {
        let open = self.streams[stream.index()].take();
        let block = open.expect("a page of it was programmed").block;
        self.mark_bad(block, Cause::Gc)?;
        if stream == Stream::Map {
            self.table.checkpoint_now = true;
        } else {
            self.retired.push(block);
        }
        Ok(())
    }

    /// Lists the blocks to open next, so that a mount finds them. Every change that freed them is
    /// durable before the list is, so no block is erased that an older state of the map needs.
    fn refill_pool(&mut self) -> Result<(), Stop> {
        self.flush_log()?;
        let blocks = self.next_free();
        if blocks.is_empty() {
            return Ok(());
        }
        let mut data = vec![0; self.geometry().page_len()];
        pool::encode(&blocks, &mut data);
        self.program(Stream::Map, PageKind::Pool, 0, &data, MAP_TAG)?;
        self.log.pages += 1;
        self.add_to_pool(blocks);
        Ok(())
    }

    /// Returns as many free blocks as the pool has room for.
    pub(crate) fn next_free(&self) -> Vec<BlockAddr> {
        let room = self.shape.pool_blocks.saturating_sub(self.pool.len());
        self.blocks.next_free(room)
    }

    pub(crate) fn add_to_pool(&mut self, blocks: Vec<BlockAddr>) {
        let now = self.now();
        for block in &blocks {
            self.blocks.put_to(*block, Use::Pool, now);
        }
        self.pool.extend(blocks);
    }

    /// How many blocks can be opened.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.blocks.free_count() + must_fit::<_, u32>(self.pool.len())
    }

    /// Gives logical pages their new places, all at once: no page dies in between.
    pub(crate) fn assign(&mut self, changes: impl IntoIterator<Item = (u32, u32)>) {
        self.assign_as(changes, false);
    }

    /// Assigns as [`assign`](Self::assign) does. `are_counted`: pages without an owner are already
    /// counted as live in their blocks.
    pub(crate) fn assign_as(
        &mut self,
        changes: impl IntoIterator<Item = (u32, u32)>,
        are_counted: bool,
    ) {
        let now = self.now();
        let mut old = SmallVec::<[(u32, u32); 4]>::new();
        for (logical, page) in changes {
            if self.map.raw_place(logical) == page {
                continue;
            }
            let (before, is_new) = self.map.enter(logical, page);
            if is_new && !are_counted {
                let block = self.geometry().block_of(PageNo(page));
                self.blocks.add_live(block);
            }
            self.table.touch(self.shape.map_page_of(logical));
            if before != NO_PAGE {
                old.push((logical, before));
            }
        }
        for (logical, page) in old {
            if self.map.leave(logical, page) {
                let block = self.geometry().block_of(PageNo(page));
                self.blocks.remove_live(block, now);
            }
        }
    }

    /// Writes a logical page; durable on return.
    pub(crate) fn write(&mut self, logical: u32, data: &[u8], tag: Tag) -> Result<(), Stop> {
        self.make_room()?;
        let stream = self.stream_of(logical);
        let page = self.program(stream, PageKind::Data, logical, data, tag)?;
        self.assign([(logical, page.0)]);
        Ok(())
    }
}
