//! The layer as a block device that can remap. Sectors are logical pages.
//!
//! Without a write buffer every write is durable on return, and a flush only writes trims. With one
//! ([`MountOptions::write_buffer_pages`]), a page written several times before a flush is
//! programmed once. Buffered pages are written in the order of their addresses. A remap, or a write
//! of several ranges as a whole, writes them first. A power cut loses the content of the buffer.
//!
//! The meter of the part counts everything: pages under the caller's cause, moved pages under
//! [`Cause::Gc`], map, log and anchors under [`Cause::Map`]. Flushes and discards are not requests
//! to the part, so they are not counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;
use parking_lot::Mutex;
use stetfs_format::ftl::NO_PAGE;
use stetfs_format::num::PageNo;
use stetfs_format::width::{low32, u32_as_usize, usize_as_u64};
use stetfs_media::nand::Nand;
use stetfs_media::{
    AtomicWrite, BlockDev, Cause, Errno, JournalCopy, MediaError, Meter, Op, Remap, RemapPair,
    Survives, Tag,
};
use stetfs_planted::{Bug, is_planted};

use crate::core::{Core, FtlStats};
use crate::error::{FtlError, Stop, too_long};
use crate::flash::{Flash, Found};
use crate::log::runs_of;
use crate::recovery::{MountReport, load};
use crate::shape::{FtlOptions, Shape};
use crate::wear::Wear;

/// How to use a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct MountOptions {
    /// How many written pages stay in memory until a flush. More than that are written earlier; 0:
    /// no buffer, so that every write is durable on return.
    pub write_buffer_pages: usize,
    /// Whether to change nothing on the part. Remains of a power cut stay there; reads work all the
    /// same.
    pub read_only: bool,
    /// Whether [`close`](BlockDev::close) writes a checkpoint. With one, the statistics are kept
    /// and the next mount has nothing to scan; without one, the next mount scans.
    pub checkpoint_at_end: bool,
}

/// A mounted flash translation layer.
pub struct Ftl {
    nand: Arc<dyn Nand>,
    size: u64,
    sector: u32,
    max_pairs: usize,
    buffer_pages: usize,
    checkpoint_at_end: bool,
    report: MountReport,
    pub(crate) state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) core: Core,
    buffer: BTreeMap<u32, (Vec<u8>, Tag)>,
}

impl Ftl {
    /// Makes a layer on a part, over whatever is there, and mounts it. `uuid` must be new: it tells
    /// the layer's pages from those of an earlier layer.
    pub fn create(
        nand: Arc<dyn Nand>,
        uuid: [u8; 16],
        options: &FtlOptions,
        mount: MountOptions,
    ) -> Result<Self, FtlError> {
        let geometry = nand.geometry();
        let largest = Shape::new(geometry, geometry.pages())?;
        let flash = Flash::new(Arc::clone(&nand), &uuid);
        let mut core = Core::new(flash, largest, uuid)?;
        let shape = Shape::of_new(geometry, core.blocks.good(), options)?;
        let flash = Flash::new(Arc::clone(&nand), &uuid);
        core = Core::new(flash, shape, uuid)?;
        core.forget_anchors()?;
        // These blocks need no durable list: before the first anchor nothing can need their
        // content.
        let blocks = core.next_free();
        core.add_to_pool(blocks);
        core.stats.mounts = 1;
        core.checkpoint()?;
        Ok(Self::new(nand, core, MountReport::default(), mount))
    }

    /// Mounts the layer of a part.
    pub fn mount(nand: Arc<dyn Nand>, options: MountOptions) -> Result<Self, FtlError> {
        let loaded = load(Arc::clone(&nand))?;
        let (core, report) = if options.read_only {
            let (mut core, report) = loaded.into_view();
            core.stopped = Some(Stop::ReadOnly);
            (core, report)
        } else {
            loaded.settle()?
        };
        Ok(Self::new(nand, core, report, options))
    }

    fn new(nand: Arc<dyn Nand>, core: Core, report: MountReport, options: MountOptions) -> Self {
        let sector = core.shape.geometry.page_bytes;
        Self {
            nand,
            size: u64::from(core.shape.logical_pages) * u64::from(sector),
            sector,
            // At worst each pair takes two runs, one for the home and one for the journal.
            max_pairs: core.shape.runs_max() / 2,
            buffer_pages: options.write_buffer_pages,
            checkpoint_at_end: options.checkpoint_at_end,
            report,
            state: Mutex::new(State {
                core,
                buffer: BTreeMap::new(),
            }),
        }
    }

    /// The part.
    pub fn nand(&self) -> &Arc<dyn Nand> {
        &self.nand
    }

    /// What mounting found; all zero for a new layer.
    pub fn mount_report(&self) -> MountReport {
        self.report
    }

    /// Counts of what the layer has done since it was made.
    pub fn stats(&self) -> FtlStats {
        self.state.lock().core.stats
    }

    /// The distribution of the erases.
    pub fn wear(&self) -> Wear {
        let core = &self.state.lock().core;
        Wear::of(&core.blocks, core.shape.least_good_blocks())
    }

    /// Writes the buffer and a checkpoint, after which the next mount has nothing to scan.
    pub fn checkpoint(&self) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        let done = state.write_buffered().and_then(|()| {
            state.core.make_room()?;
            state.core.checkpoint()
        });
        done.map_err(|stop| stop.into_media(Op::Flush, 0, 0))
    }

    /// Returns the first logical page and the number of logical pages of a range, which must be in
    /// whole sectors within the device.
    fn pages(&self, op: Op, offset: u64, len: u64) -> Result<(u32, u32), MediaError> {
        let sector = u64::from(self.sector);
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return Err(MediaError::Misaligned {
                op,
                offset,
                len,
                sector: self.sector,
            });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok((low32(offset / sector), low32(len / sector))),
            _ => Err(MediaError::PastEnd {
                op,
                offset,
                len,
                size: self.size,
            }),
        }
    }

    /// Returns the length of `parts` and the new content of each logical page from `offset` on.
    pub(crate) fn pages_of<'a>(
        &self,
        offset: u64,
        parts: &'a [&'a [u8]],
    ) -> Result<(u64, impl Iterator<Item = (u32, &'a [u8])> + use<'a>), MediaError> {
        let sector = u32_as_usize(self.sector);
        let mut len = 0;
        for part in parts {
            if !part.len().is_multiple_of(sector) {
                return Err(MediaError::Misaligned {
                    op: Op::Write,
                    offset,
                    len: usize_as_u64(part.len()),
                    sector: self.sector,
                });
            }
            len += usize_as_u64(part.len());
        }
        let (first, _) = self.pages(Op::Write, offset, len)?;
        let pages = parts.iter().flat_map(move |part| part.chunks_exact(sector));
        Ok((len, (first..).zip(pages)))
    }

    /// Makes a range read as zeros.
    fn clear(&self, op: Op, offset: u64, len: u64, durably: bool) -> Result<(), MediaError> {
        let (first, count) = self.pages(op, offset, len)?;
        let mut state = self.state.lock();
        for logical in first..first + count {
            state.buffer.remove(&logical);
        }
        let mut done = state.core.trim(first, count);
        if durably {
            done = done.and_then(|()| state.core.flush_log());
        }
        done.map_err(|stop| stop.into_media(op, offset, len))
    }
}

impl State {
    /// Makes every write that has returned durable.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        self.write_buffered()?;
        self.core.flush_log()
    }

    fn write_buffered(&mut self) -> Result<(), Stop> {
        while let Some((logical, (data, tag))) = self.buffer.first_key_value() {
            self.core.write(*logical, data, *tag)?;
            self.buffer.pop_first();
        }
        Ok(())
    }

    /// Reads a logical page into `out`; false if it cannot be read any more. Notes the page if it
    /// should be moved.
    fn read(
        &mut self,
        logical: u32,
        out: &mut [u8],
        tag: Tag,
        weak: &mut Vec<PageNo>,
    ) -> Result<bool, Stop> {
        if let Some((data, _)) = self.buffer.get(&logical) {
            out.copy_from_slice(data);
            return Ok(true);
        }
        let Some(page) = self.core.map.place(logical) else {
            out.fill(0);
            return Ok(true);
        };
        let found = self.core.flash.read(page, out, tag).map_err(Stop::Nand)?;
        if matches!(found, Found::Weak(_)) {
            weak.push(page);
        }
        Ok(found
            .record()
            .is_some_and(|record| record.kind.is_content()))
    }
}

impl BlockDev for Ftl {
    fn describe(&self) -> String {
        format!("flash translation layer on {}", self.nand.describe())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn read_only(&self) -> bool {
        self.state.lock().core.stopped.is_some()
    }

    fn volatile_cache(&self) -> bool {
        self.buffer_pages > 0
    }

    fn host_cached(&self) -> bool {
        false
    }

    fn survives(&self) -> Option<Survives> {
        self.nand.survives()
    }

    fn remap(&self) -> Option<&dyn Remap> {
        Some(self)
    }

    fn atomic_write(&self) -> Option<&dyn AtomicWrite> {
        Some(self)
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let (first, _) = self.pages(Op::Read, offset, usize_as_u64(out.len()))?;
        let sector = u32_as_usize(self.sector);
        let mut weak = Vec::new();
        let mut state = self.state.lock();
        for (logical, out) in (first..).zip(out.chunks_exact_mut(sector)) {
            let at = u64::from(logical) * usize_as_u64(sector);
            let failed = |stop: Stop| stop.into_media(Op::Read, at, usize_as_u64(sector));
            if !state.read(logical, out, tag, &mut weak).map_err(failed)? {
                return Err(MediaError::Io {
                    op: Op::Read,
                    offset: at,
                    len: usize_as_u64(sector),
                    source: Errno::IO,
                });
            }
        }
        for page in weak {
            // The read succeeded in any case. If nothing can be written any more, the next write
            // reports it.
            let room = state.core.make_room();
            let _ = room.and_then(|()| state.core.move_page(page));
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let (len, pages) = self.pages_of(offset, parts)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let failed = |stop: Stop| stop.into_media(Op::Write, offset, len);
        for (logical, page) in pages {
            if self.buffer_pages == 0 {
                state.core.write(logical, page, tag).map_err(failed)?;
                continue;
            }
            if let Some(stop) = &state.core.stopped {
                return Err(failed(stop.clone()));
            }
            state.buffer.insert(logical, (page.to_vec(), tag));
            if state.buffer.len() > self.buffer_pages {
                state.write_buffered().map_err(failed)?;
            }
        }
        Ok(())
    }

    fn flush(&self, _cause: Cause) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        let done = match &state.core.stopped {
            Some(Stop::ReadOnly) => Ok(()),
            Some(stop) => Err(stop.clone()),
            None => state.flush(),
        };
        done.map_err(|stop| stop.into_media(Op::Flush, 0, 0))
    }

    /// Writes a checkpoint, unless the layer is read-only or has stopped: then there is nothing to
    /// keep.
    fn close(&self) -> Result<(), MediaError> {
        if self.checkpoint_at_end && !self.read_only() {
            self.checkpoint()
        } else {
            Ok(())
        }
    }

    /// Makes a range read as zeros until it is written. After a power cut before the next flush it
    /// may read as before.
    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.clear(Op::Discard, offset, len, false)
    }

    fn write_zeros(&self, offset: u64, len: u64, _tag: Tag) -> Result<(), MediaError> {
        self.clear(Op::Write, offset, len, self.buffer_pages == 0)
    }

    fn meter(&self) -> &Meter {
        self.nand.meter()
    }
}

impl Remap for Ftl {
    fn means(&self) -> &'static str {
        "flash translation layer"
    }

    fn granularity(&self) -> u32 {
        self.sector
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn least_run_bytes(&self) -> u32 {
        0
    }

    fn release(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.discard(offset, len)
    }

    fn max_pairs(&self) -> usize {
        self.max_pairs
    }

    fn remap(&self, pairs: &[RemapPair], journal: JournalCopy) -> Result<(), MediaError> {
        let sector = u64::from(self.sector);
        let mut list = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let page = |n: u64| {
                if n < self.size / sector {
                    return Ok(low32(n));
                }
                Err(MediaError::PastEnd {
                    op: Op::Write,
                    offset: n.saturating_mul(sector),
                    len: sector,
                    size: self.size,
                })
            };
            list.push((page(pair.home)?, page(pair.journal)?));
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let len = usize_as_u64(pairs.len()) * sector;
        let at = pairs.first().map_or(0, |pair| pair.home * sector);
        let failed = |stop: Stop| stop.into_media(Op::Write, at, len);
        state.write_buffered().map_err(failed)?;
        state.core.make_room().map_err(failed)?;
        let changes = state.core.changes_of(&list, journal);
        let runs = runs_of(changes.iter().copied());
        if runs.len() > state.core.shape.runs_max() {
            return Err(too_long(at, len));
        }
        if is_planted(Bug::EarlyRelease) {
            let cleared = runs_of(list.iter().map(|(_, journal)| (*journal, NO_PAGE)));
            let seq = state.core.take_seq();
            state.core.write_record(seq, &cleared).map_err(failed)?;
        }
        state.core.remap(changes, &runs).map_err(failed)?;
        Ok(())
    }
}

impl Core {
    /// Returns the changes of a remap: the homes in the order of the list, then the journal's
    /// released pages.
    fn changes_of(&self, list: &[(u32, u32)], journal: JournalCopy) -> Vec<(u32, u32)> {
        let mut homes = HashSet::with_capacity(list.len());
        let mut changes = Vec::with_capacity(2 * list.len());
        for (home, journal) in list.iter().rev() {
            if homes.insert(*home) {
                changes.push((*home, self.map.raw_place(*journal)));
            }
        }
        changes.reverse();
        if journal == JournalCopy::Released {
            let mut released: Vec<u32> = list.iter().map(|(_, journal)| *journal).collect();
            released.retain(|journal| !homes.contains(journal));
            released.sort_unstable();
            released.dedup();
            changes.extend(released.into_iter().map(|page| (page, NO_PAGE)));
        }
        changes
    }

    /// Makes changes durable as a whole, and only then in memory: until then the journal's pages
    /// count as needed.
    fn remap(
        &mut self,
        changes: Vec<(u32, u32)>,
        runs: &[stetfs_format::ftl::FtlRun],
    ) -> Result<(), Stop> {
        let seq = self.take_seq();
        self.write_record(seq, runs)?;
        let homes = changes.iter().filter(|(_, page)| *page != NO_PAGE);
        self.stats.remapped_pages += usize_as_u64(homes.count());
        self.assign(changes);
        Ok(())
    }
}
