//! Checkpoints: the map on the part.
//!
//! The map is an array of numbers in map pages: places of logical pages, then erase counts of
//! blocks. A checkpoint programs the map pages that changed, the directory that says where all map
//! pages lie, and at the end the anchor with the place of the directory. Until the anchor is
//! durable, the old checkpoint counts, and its pages are still there:
//! checkpoint counts, whose pages are still there:
//! 1. map pages; erase counts last, because opening blocks for the map changes them
//! 1. map pages, erase counts last, because opening blocks for the map changes them
//! 2. directory
//! 3. anchor, in both slots (`anchors.rs`)
//! 4. the blocks of the old map and log that hold nothing of the new map become free
//!
//! Map pages that did not change stay where they are, in blocks that hold fewer and fewer valid
//! pages. When there are too many such blocks, the next checkpoint rewrites the emptiest.
//!
//! A checkpoint is due when the log is long, or when sixteen times as many pages were programmed as
//! the checkpoint would take. So it costs little, and a mount reads at most that many pages beyond
//! it.

use hashbrown::{HashMap, HashSet};
use stetfs_format::ftl::{FtlAnchor, FtlSpare, NO_PAGE, PageKind, put_entry};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_media::Cause;
use stetfs_media::nand::NandError;

use crate::anchors::Next;
use crate::blocks::Use;
use crate::core::{Core, MAP_TAG, Stream};
use crate::error::Stop;
use crate::shape::PROGRAMS_A_CHECKPOINT_PAGE;

impl Core {
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let anchors: u32 = must_fit(self.anchors.slots.len());
        let pages = self.table.dirty_count + self.shape.directories + anchors;
        // Without this minimum, a few map pages that change all the time would wear out the
        // anchors' blocks before the others.
        let least = u64::from(self.geometry().pages() / 64);
        self.table.checkpoint_now
            || self.log.pages >= self.shape.log_pages / 2
            || self.programs >= (PROGRAMS_A_CHECKPOINT_PAGE * u64::from(pages)).max(least)
    }

    pub(crate) fn checkpoint(&mut self) -> Result<(), Stop> {
        self.touch_scattered();
        let checkpoint = self.take_seq();
        let mut data = vec![0; self.geometry().page_len()];
        for map_page in 0..self.shape.map_pages {
            if !self.table.dirty[u32_as_usize(map_page)] {
                continue;
            }
            self.table.clean(map_page);
            self.fill_map_page(map_page, &mut data);
            let page = self.program(Stream::Map, PageKind::Map, map_page, &data, MAP_TAG)?;
            self.table.places[u32_as_usize(map_page)] = page.0;
        }
        let mut directories = Vec::with_capacity(u32_as_usize(self.shape.directories));
        for directory in 0..self.shape.directories {
            data.fill(0xff);
            let first = u32_as_usize(directory * self.shape.entries);
            let places = self.table.places[first..].iter();
            for (index, place) in places.take(u32_as_usize(self.shape.entries)).enumerate() {
                put_entry(&mut data, index, *place);
            }
            let kind = PageKind::Directory;
            directories.push(self.program(Stream::Map, kind, directory, &data, MAP_TAG)?);
        }
        self.table.directories = directories;
        self.write_anchor(&self.anchor(checkpoint))?;
        self.table.checkpoint_now = false;
        self.log.clear();
        self.programs = 0;
        self.free_old_maps();
        Ok(())
    }

    fn fill_map_page(&self, map_page: u32, data: &mut [u8]) {
        data.fill(0xff);
        let shape = &self.shape;
        let is_wear = map_page >= shape.place_pages;
        let (first, end) = if is_wear {
            let first = (map_page - shape.place_pages) * shape.entries;
            (first, shape.geometry.blocks)
        } else {
            (map_page * shape.entries, shape.logical_pages)
        };
        for (index, n) in (first..end).take(u32_as_usize(shape.entries)).enumerate() {
            let value = if is_wear {
                self.blocks.get(BlockAddr(n)).erases
            } else {
                self.map.raw_place(n)
            };
            put_entry(data, index, value);
        }
    }

    /// Returns the anchor of a checkpoint, from the present state.
    fn anchor(&self, checkpoint: u64) -> FtlAnchor {
        let geometry = self.geometry();
        FtlAnchor {
            uuid: self.uuid,
            mounts: self.stats.mounts,
            checkpoint,
            next_seq: self.seq,
            page_bytes: geometry.page_bytes,
            pages_per_block: geometry.pages_per_block,
            blocks: geometry.blocks,
            logical_pages: self.shape.logical_pages,
            host_pages: self.stats.host_pages,
            gc_pages: self.stats.gc_pages,
            map_pages: self.stats.map_pages,
            remapped_pages: self.stats.remapped_pages,
            directories: self.table.directories.clone(),
            open: self.streams.iter().flatten().map(|s| s.block).collect(),
            pool: self.pool.clone(),
        }
    }

    /// Programs an anchor into both slots; durable on return.
    pub(crate) fn write_anchor(&mut self, anchor: &FtlAnchor) -> Result<(), Stop> {
        let mut data = vec![0; self.geometry().page_len()];
        anchor.encode(&mut data);
        let mut written = false;
        for slot in 0..self.anchors.slots.len() {
            written |= self.write_to_slot(slot, &data)?;
        }
        if written {
            Ok(())
        } else {
            Err(self.stop(Stop::WornOut))
        }
    }

    /// Programs an anchor into one slot. Returns false if the slot has no good block left.
    fn write_to_slot(&mut self, slot: usize, data: &[u8]) -> Result<bool, Stop> {
        let geometry = *self.geometry();
        loop {
            let bad = match self.anchors.slots[slot].next(&geometry) {
                None => return Ok(false),
                Some(Next::Erase(block)) => {
                    if self.erase(block, Cause::Map)? {
                        self.anchors.slots[slot].erased();
                        continue;
                    }
                    block
                }
                Some(Next::Page(page)) => {
                    let record = FtlSpare {
                        kind: PageKind::Anchor,
                        index: 0,
                        seq: self.take_seq(),
                    };
                    match self.flash.program(page, &record, data, MAP_TAG) {
                        Ok(()) => {
                            self.anchors.slots[slot].programmed();
                            self.count(MAP_TAG);
                            return Ok(true);
                        }
                        Err(NandError::ProgramFailed { .. }) => {
                            let block = geometry.block_of(page);
                            self.mark_bad(block, Cause::Map)?;
                            block
                        }
                        Err(e) => return Err(self.fail(e)),
                    }
                }
            };
            self.anchors.slots[slot].remove(bad, &geometry);
        }
    }

    /// Counts the valid pages of the present map in each block.
    fn live_map_pages(&self) -> HashMap<BlockAddr, u32> {
        let mut live = HashMap::new();
        let places = self.table.places.iter().filter(|page| **page != NO_PAGE);
        let directories = self.table.directories.iter().map(|page| page.0);
        for page in places.copied().chain(directories) {
            *live
                .entry(self.geometry().block_of(PageNo(page)))
                .or_default() += 1;
        }
        live
    }

    /// Marks map pages for rewriting that lie in bad blocks, or in the emptiest blocks if the map
    /// takes too many.
    fn touch_scattered(&mut self) {
        let live = self.live_map_pages();
        let mut blocks: Vec<(u32, BlockAddr)> = live.iter().map(|(b, n)| (*n, *b)).collect();
        blocks.sort_unstable();
        let limit = u32_as_usize(self.shape.checkpoint_blocks);
        let excess = blocks.len().saturating_sub(limit);
        let scattered: HashSet<BlockAddr> = blocks
            .iter()
            .enumerate()
            .filter(|(at, (_, block))| *at < excess || self.blocks.get(*block).used == Use::Bad)
            .map(|(_, (_, block))| *block)
            .collect();
        for map_page in 0..self.shape.map_pages {
            let page = self.table.places[u32_as_usize(map_page)];
            let block = self.geometry().block_of(PageNo(page));
            if page != NO_PAGE && scattered.contains(&block) {
                self.table.touch(map_page);
            }
        }
    }

    /// Erases the blocks of anchors, so that there is no layer until the first anchor.
    pub(crate) fn forget_anchors(&mut self) -> Result<(), Stop> {
        let anchors = self.blocks.iter().filter(|(_, b)| b.used == Use::Anchor);
        let anchors: Vec<BlockAddr> = anchors.map(|(block, _)| block).collect();
        let geometry = *self.geometry();
        for block in anchors {
            if !self.erase(block, Cause::Map)? {
                for slot in &mut self.anchors.slots {
                    slot.remove(block, &geometry);
                }
            }
        }
        Ok(())
    }

    /// Frees the blocks of maps and logs that hold nothing of the present checkpoint.
    pub(crate) fn free_old_maps(&mut self) {
        let live = self.live_map_pages();
        let is_old = |block: &BlockAddr| !live.contains_key(block);
        let maps = self.blocks.iter().filter(|(_, b)| b.used == Use::Map);
        let old: Vec<BlockAddr> = maps.map(|(block, _)| block).filter(is_old).collect();
        let now = self.now();
        for block in old {
            self.blocks.put_to(block, Use::Free, now);
        }
    }
}
