//! Mounting: from what is on the part to the state in memory.
//!
//! Every mount is a recovery, because nothing marks a clean unmount: the last page may be the one
//! that was in flight. Each thing found (first column) becomes a list of changes with sequence
//! numbers. The mount applies them in order to the map of the checkpoint.
//!
//! | found | done | why that is right |
//! |---|---|---|
//! | several anchors | the newest that is valid counts | an anchor is programmed when everything it names is durable; the old checkpoint's pages are kept until the new anchor is |
//! | a page of the map that is not valid | an error that names it | it was durable before the anchor: it is damage |
//! | a data page, newer than the checkpoint | its logical page lies there from then on | it was complete, and its write may have returned |
//! | a data page, not newer | nothing | the map of the checkpoint decides: the page may have been trimmed or remapped since |
//! | an old copy of a page, newer than the checkpoint, even in a block that was being erased | the newer change wins | a block is erased only when every change that made its pages dead is durable |
//! | the spare area of a remapped page | counts with its own sequence number | the record of the remap is newer; once a checkpoint contains the remap, the page is not newer than the checkpoint |
//! | pages of a write of several, and the last of them | as for data pages, newer than the checkpoint | the others were programmed before the last one |
//! | such pages without the last | nothing | the write has not returned; it is the newest of all, since a mount that finds it makes a checkpoint |
//! | a log record with all its parts | its changes are made | this makes a remap atomic |
//! | a record with a part missing | nothing | its remap has not returned |
//! | a pool page | its blocks are scanned as well | it was durable before they were opened |
//! | a page that is unreadable, or fails its checksum | nothing | it was in flight, or it is the first copy of a page that was programmed again elsewhere; a cut does not destroy a durable page |
//! | a page that reads as erased | the rest of its block is left alone, like every block that was open | it may have been in flight: it must not be programmed |
//! | the newest page of all | left out at first; programmed again elsewhere, then its change is made as if it were new | it may be the one that was in flight, and be unreadable the next time; or it may be an old one that was durable. Until the second copy is durable, the mount opens no block that is needed with this page or without it |
//! | a block that is marked bad and has live pages | they are saved | its program has failed, and its earlier pages stay readable |
//!
//! The mount then writes, in this order: the anchor again, with a higher sequence number (so that
//! no number is given twice, whatever could not be read); the newest page again; a checkpoint.
//! After a cut in between, the next mount finds the same state, or less of what was in flight;
//! nothing else has changed. Only then does the mount free or show anything.
//!
//! A mount reads the anchors' blocks (first pages, and the newest block of each slot), the map, and
//! everything programmed since the checkpoint. This is at most as much as is programmed before the
//! next one is due (`checkpoint.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use stetfs_format::ftl::{
    FtlAnchor, FtlCorrupt, FtlLog, FtlRun, FtlSpare, NO_PAGE, PageKind, SpareCodec, entries, pool,
};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_media::nand::{Nand, NandError};
use stetfs_media::{Cause, Class, Tag};
use stetfs_planted::{Bug, is_planted};

use crate::blocks::Use;
use crate::core::{Core, GC_TAG, MAP_TAG, Stream};
use crate::error::{FtlError, Stop, check_block};
use crate::flash::{Flash, Found};
use crate::log::runs_of;
use crate::shape::{ANCHOR_BLOCKS, Shape};

const TAG: Tag = Tag::new(Class::Mapping, Cause::Recovery);
/// How many sequence numbers a mount skips: more than can have been used without a trace. The
/// numbers last for 2^27 mounts.
const SEQ_GAP: u64 = 1 << 20;
/// The end of the layer's life: a part is worn out long before it has programmed 2^47 pages.
const SEQ_END: u64 = 1 << 47;

/// Counts of what mounting found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// Pages read in all.
    pub pages_read: u64,
    /// How many of these were read because they could be newer than the checkpoint.
    pub pages_scanned: u64,
    /// Data pages newer than the checkpoint.
    pub data_pages: u64,
    /// Complete log records newer than the checkpoint.
    pub log_records: u64,
    /// Log records with parts missing: remaps that a power cut undid.
    pub log_records_dropped: u64,
}

/// An anchor and the page where it was found.
struct FoundAnchor {
    anchor: FtlAnchor,
    seq: u64,
    page: PageNo,
}

/// A change of the map, with its sequence number.
struct Change {
    seq: u64,
    run: FtlRun,
    /// Whether it counts only if the newest page does.
    by_newest: bool,
}

impl Change {
    /// The change that the spare area of a data page describes.
    fn of_page(record: &FtlSpare, page: PageNo, by_newest: bool) -> Self {
        Self {
            seq: record.seq,
            run: FtlRun {
                logical: record.index,
                page: page.0,
                count: 1,
                age: 0,
            },
            by_newest,
        }
    }
}

/// The newest page of all.
struct Newest {
    record: FtlSpare,
    data: Vec<u8>,
}

/// The results of the scan.
#[derive(Default)]
struct Scan {
    report: MountReport,
    changes: Vec<Change>,
    /// Pages of writes of several pages as a whole.
    staged: Vec<(FtlSpare, PageNo)>,
    /// Log records by sequence number: the number of their parts, and the parts found.
    records: BTreeMap<u64, (u32, BTreeMap<u32, Vec<FtlRun>>)>,
    newest: Option<Newest>,
    /// Scanned blocks, and how often each was listed.
    listed: HashMap<BlockAddr, u32>,
    /// Scanned blocks with something newer than the checkpoint; `logs`: those in which it was log
    /// or pool.
    used: HashSet<BlockAddr>,
    logs: HashSet<BlockAddr>,
    last_seq: u64,
}

/// A layer as it is on the part, before anything is programmed.
pub(crate) struct Loaded {
    pub(crate) core: Core,
    pub(crate) report: MountReport,
    anchor: FtlAnchor,
    newest: Option<Newest>,
    /// The changes of the newest page, which the map does not have yet.
    redo: BTreeMap<u32, u32>,
    /// Blocks that are needed only with these changes.
    kept: Vec<BlockAddr>,
}

/// Reads everything that a mount needs. Changes nothing.
pub(crate) fn load(nand: Arc<dyn Nand>) -> Result<Loaded, FtlError> {
    let before = nand.meter().snapshot();
    let geometry = nand.geometry();
    if geometry.spare_bytes < SpareCodec::SPARE_BYTES {
        return Err(FtlError::SpareTooSmall {
            found: geometry.spare_bytes,
            needed: SpareCodec::SPARE_BYTES,
        });
    }
    let anchors = find_anchors(&nand)?;
    let newest = anchors.iter().max_by_key(|found| found.seq);
    let FoundAnchor { anchor, seq, .. } = newest.ok_or(FtlError::NotFormatted)?;
    check_anchor(anchor, &nand)?;
    let shape = Shape::new(geometry, anchor.logical_pages)?;
    if anchor.directories.len() != u32_as_usize(shape.directories) {
        return Err(impossible(
            "FTL anchor",
            "number of directory pages",
            usize_as_u64(anchor.directories.len()),
        ));
    }
    let flash = Flash::new(Arc::clone(&nand), &anchor.uuid);
    let mut core = Core::new(flash, shape, anchor.uuid)?;
    core.stats.mounts = anchor.mounts;
    core.stats.host_pages = anchor.host_pages;
    core.stats.gc_pages = anchor.gc_pages;
    core.stats.map_pages = anchor.map_pages;
    core.stats.remapped_pages = anchor.remapped_pages;
    for found in &anchors {
        core.anchors.begin_behind(geometry.block_of(found.page));
    }
    core.load_map(anchor)?;
    let mut scan = Scan {
        last_seq: *seq,
        ..Scan::default()
    };
    core.scan(anchor, &mut scan)?;
    // The anchor itself is programmed again in any case.
    scan.newest.take_if(|newest| newest.record.seq < *seq);
    let redo = core.replay(anchor.checkpoint, &mut scan)?;
    let kept = core.sort_blocks(anchor, &scan, &redo)?;
    core.seq = anchor.next_seq.max(scan.last_seq + 1);
    if core.seq >= SEQ_END {
        return Err(impossible("FTL spare area", "sequence number", core.seq));
    }
    let mut report = scan.report;
    report.pages_read = (nand.meter().snapshot() - &before).total().reads;
    Ok(Loaded {
        anchor: anchor.clone(),
        core,
        report,
        newest: scan.newest,
        redo,
        kept,
    })
}

impl Loaded {
    /// Secures everything that was found, and begins to use the layer.
    pub(crate) fn settle(self) -> Result<(Core, MountReport), FtlError> {
        let Self {
            mut core,
            report,
            mut anchor,
            newest,
            redo,
            kept,
        } = self;
        core.seq += SEQ_GAP;
        core.stats.mounts = core.stats.mounts.saturating_add(1);
        anchor.mounts = core.stats.mounts;
        anchor.next_seq = core.seq;
        core.write_anchor(&anchor)?;
        if let Some(newest) = newest {
            core.secure(&newest, redo)?;
        }
        let now = core.now();
        kept.into_iter()
            .for_each(|block| core.blocks.close(block, now));
        core.checkpoint()?;
        Ok((core, report))
    }

    /// Returns the layer as a mount would have it, for inspection only.
    pub(crate) fn into_view(mut self) -> (Core, MountReport) {
        self.core.assign(self.redo);
        (self.core, self.report)
    }
}

fn impossible(record: &'static str, what: &'static str, value: u64) -> FtlError {
    FtlError::Impossible {
        record,
        what,
        value,
    }
}

/// The error for data in a block of anchors, map or log.
fn mixed(block: BlockAddr) -> FtlError {
    impossible("FTL map", "data in erase block", block.0.into())
}

/// Checks that the anchor can belong to this part.
fn check_anchor(anchor: &FtlAnchor, nand: &Arc<dyn Nand>) -> Result<(), FtlError> {
    const RECORD: &str = "FTL anchor";
    let geometry = nand.geometry();
    let found = [
        geometry.page_bytes,
        geometry.pages_per_block,
        geometry.blocks,
    ];
    let made = [anchor.page_bytes, anchor.pages_per_block, anchor.blocks];
    if made != found {
        return Err(FtlError::OtherPart {
            made: format!("{made:?}"),
            found: format!("{found:?}"),
        });
    }
    if anchor.logical_pages == 0 || anchor.logical_pages > geometry.pages() {
        let value = anchor.logical_pages.into();
        return Err(impossible(RECORD, "number of logical pages", value));
    }
    // Neither a sequence number nor a counter may overflow.
    if anchor.next_seq >= SEQ_END {
        return Err(impossible(RECORD, "sequence number", anchor.next_seq));
    }
    let counters = [
        anchor.host_pages,
        anchor.gc_pages,
        anchor.map_pages,
        anchor.remapped_pages,
    ];
    if let Some(value) = counters.into_iter().find(|n| *n >= SEQ_END) {
        return Err(impossible(RECORD, "counter", value));
    }
    for page in &anchor.directories {
        if page.0 >= geometry.pages() {
            return Err(impossible(RECORD, "directory page", page.0.into()));
        }
    }
    let mut lists = anchor.open.iter().chain(&anchor.pool);
    lists.try_for_each(|block| check_block(RECORD, *block, geometry.blocks))
}

/// Finds the newest anchors: those in the block of each slot that was begun last.
fn find_anchors(nand: &Arc<dyn Nand>) -> Result<Vec<FoundAnchor>, FtlError> {
    let geometry = nand.geometry();
    let mut all = Vec::new();
    let mut damage = None;
    for parity in 0..2 {
        let mut newest: Option<FoundAnchor> = None;
        for block in (0..ANCHOR_BLOCKS.min(geometry.blocks)).filter(|b| b % 2 == parity) {
            let page = geometry.page_at(BlockAddr(block), 0);
            match read_anchor(nand, page)? {
                Look::Anchor(found) => {
                    if newest.as_ref().is_none_or(|newest| newest.seq < found.seq) {
                        newest = Some(found);
                    }
                }
                Look::Damaged(why) => damage = Some(why),
                Look::Nothing | Look::Erased => {}
            }
        }
        let Some(first) = newest else {
            continue;
        };
        let block = geometry.block_of(first.page);
        all.push(first);
        for index in 1..geometry.pages_per_block {
            match read_anchor(nand, geometry.page_at(block, index))? {
                Look::Anchor(found) => all.push(found),
                Look::Erased => break,
                Look::Nothing | Look::Damaged(_) => {}
            }
        }
    }
    match damage {
        Some(why) if all.is_empty() => Err(FtlError::NoAnchor(why)),
        _ => Ok(all),
    }
}

enum Look {
    Anchor(FoundAnchor),
    Damaged(FtlCorrupt),
    Nothing,
    Erased,
}

/// Reads a page that may be an anchor. Its checksum begins with the UUID that the page itself
/// names.
fn read_anchor(nand: &Arc<dyn Nand>, page: PageNo) -> Result<Look, NandError> {
    let geometry = nand.geometry();
    let mut data = vec![0; geometry.page_len()];
    let mut spare = vec![0; geometry.spare_len()];
    match nand.read(page, &mut data, &mut spare, TAG) {
        Ok(_) => {}
        Err(NandError::Uncorrectable { .. }) => return Ok(Look::Nothing),
        Err(e) => return Err(e),
    }
    let anchor = match FtlAnchor::decode(&data) {
        Ok(anchor) => anchor,
        Err(FtlCorrupt::Magic(_)) if spare.iter().chain(&data).all(|byte| *byte == 0xff) => {
            return Ok(Look::Erased);
        }
        Err(FtlCorrupt::Magic(_)) => return Ok(Look::Nothing),
        Err(why) => return Ok(Look::Damaged(why)),
    };
    let codec = SpareCodec::new(&anchor.uuid, geometry.bad_mark);
    Ok(match codec.decode(page, &data, &spare) {
        Ok(Some(record)) if record.kind == PageKind::Anchor => Look::Anchor(FoundAnchor {
            anchor,
            seq: record.seq,
            page,
        }),
        Ok(_) => Look::Nothing,
        Err(why) => Look::Damaged(why),
    })
}

impl Core {
    /// Reads a page of the map or its directory.
    fn read_map_page(
        &mut self,
        page: PageNo,
        kind: PageKind,
        index: u32,
        data: &mut [u8],
    ) -> Result<Found, FtlError> {
        let wrong = FtlError::MapPage { page, kind, index };
        if page.0 >= self.geometry().pages() {
            return Err(wrong);
        }
        let found = self.flash.read(page, data, TAG)?;
        match found.record() {
            Some(record) if record.kind == kind && record.index == index => Ok(found),
            _ => Err(wrong),
        }
    }

    /// Reads the map of the checkpoint.
    fn load_map(&mut self, anchor: &FtlAnchor) -> Result<(), FtlError> {
        let shape = self.shape;
        let mut data = vec![0; shape.geometry.page_len()];
        for (directory, page) in (0..).zip(&anchor.directories) {
            let _ = self.read_map_page(*page, PageKind::Directory, directory, &mut data)?;
            let first = directory * shape.entries;
            for (map_page, place) in (first..shape.map_pages).zip(entries(&data)) {
                self.table.places[u32_as_usize(map_page)] = place;
            }
        }
        self.table.directories = anchor.directories.clone();
        for map_page in 0..shape.map_pages {
            let page = self.table.places[u32_as_usize(map_page)];
            if page == NO_PAGE {
                continue;
            }
            let found = self.read_map_page(PageNo(page), PageKind::Map, map_page, &mut data)?;
            if matches!(found, Found::Weak(_)) {
                self.table.touch(map_page);
            }
            self.load_entries(map_page, &data)?;
        }
        Ok(())
    }

    fn load_entries(&mut self, map_page: u32, data: &[u8]) -> Result<(), FtlError> {
        let shape = self.shape;
        let now = entries(data);
        if map_page >= shape.place_pages {
            let first = (map_page - shape.place_pages) * shape.entries;
            for (block, erases) in (first..shape.geometry.blocks).zip(now) {
                self.blocks.set_erases(BlockAddr(block), erases);
            }
            return Ok(());
        }
        let first = map_page * shape.entries;
        for (logical, page) in (first..shape.logical_pages).zip(now) {
            if page != NO_PAGE && page >= shape.geometry.pages() {
                return Err(impossible("FTL map page", "page", page.into()));
            }
            self.map.load_place(logical, page);
        }
        Ok(())
    }

    /// Scans everything that may be newer than the checkpoint.
    fn scan(&mut self, anchor: &FtlAnchor, scan: &mut Scan) -> Result<(), FtlError> {
        let mut data = vec![0; self.geometry().page_len()];
        let mut blocks: Vec<(BlockAddr, bool)> = Vec::new();
        blocks.extend(anchor.open.iter().map(|block| (*block, true)));
        blocks.extend(anchor.pool.iter().map(|block| (*block, false)));
        let mut done = 0;
        while let Some(&(block, was_open)) = blocks.get(done) {
            done += 1;
            let times = scan.listed.entry(block).or_default();
            *times += 1;
            if *times == 1 {
                let further =
                    self.scan_block(block, was_open, anchor.checkpoint, &mut data, scan)?;
                blocks.extend(further.into_iter().map(|block| (block, false)));
            }
        }
        Ok(())
    }

    /// Scans a block. Returns the blocks that pool pages in it list.
    fn scan_block(
        &mut self,
        block: BlockAddr,
        was_open: bool,
        checkpoint: u64,
        data: &mut [u8],
        scan: &mut Scan,
    ) -> Result<Vec<BlockAddr>, FtlError> {
        let mut listed = Vec::new();
        let geometry = *self.geometry();
        for index in 0..geometry.pages_per_block {
            let page = geometry.page_at(block, index);
            scan.report.pages_scanned += 1;
            let found = self.flash.look(page, data, TAG)?;
            if matches!(found, Found::Erased) {
                break;
            }
            let Some(record) = found.record() else {
                continue;
            };
            if record.seq <= checkpoint {
                if index == 0 && !was_open {
                    // The block was not erased since it was listed.
                    break;
                }
                continue;
            }
            scan.used.insert(block);
            scan.last_seq = scan.last_seq.max(record.seq);
            if scan
                .newest
                .as_ref()
                .is_none_or(|newest| newest.record.seq < record.seq)
            {
                scan.newest = Some(Newest {
                    record,
                    data: data.to_vec(),
                });
            }
            match record.kind {
                PageKind::Data | PageKind::Lost => {
                    scan.report.data_pages += 1;
                    scan.changes.push(Change::of_page(&record, page, false));
                }
                PageKind::Log => {
                    scan.logs.insert(block);
                    let log = FtlLog::decode(data)?;
                    let parts = scan.records.entry(log.seq).or_default();
                    parts.0 = log.parts;
                    parts.1.insert(log.part, log.runs);
                }
                PageKind::Pool => {
                    scan.logs.insert(block);
                    for block in pool::decode(data)? {
                        check_block("FTL pool page", block, geometry.blocks)?;
                        listed.push(block);
                    }
                }
                PageKind::Staged | PageKind::Last => scan.staged.push((record, page)),
                // Pages of a checkpoint that was not finished.
                PageKind::Map | PageKind::Directory | PageKind::Anchor => {}
            }
        }
        Ok(listed)
    }

    /// Applies the changes that are newer than the checkpoint, in order. Returns the changes of the
    /// newest page, which it does not apply.
    fn replay(&mut self, checkpoint: u64, scan: &mut Scan) -> Result<BTreeMap<u32, u32>, FtlError> {
        let mut newest_log = None;
        match &scan.newest {
            Some(newest) if newest.record.kind == PageKind::Log => {
                newest_log = Some(FtlLog::decode(&newest.data)?.seq);
            }
            Some(newest) => {
                let seq = newest.record.seq;
                for change in scan.changes.iter_mut().filter(|c| c.seq == seq) {
                    change.by_newest = true;
                }
            }
            None => {}
        }
        let newest_seq = scan.newest.as_ref().map(|newest| newest.record.seq);
        let mut staged = std::mem::take(&mut scan.staged);
        staged.sort_unstable_by_key(|(record, _)| record.seq);
        // Pages behind the last end of a write belong to a write that was cut.
        for write in staged.split_inclusive(|(record, _)| record.kind == PageKind::Last) {
            let Some((last, _)) = write.last().filter(|last| last.0.kind == PageKind::Last) else {
                break;
            };
            scan.report.data_pages += usize_as_u64(write.len());
            let by_newest = newest_seq == Some(last.seq);
            let changes = write
                .iter()
                .map(|(record, page)| Change::of_page(record, *page, by_newest));
            scan.changes.extend(changes);
        }
        for (seq, (parts, found)) in std::mem::take(&mut scan.records) {
            if found.len() != u32_as_usize(parts) {
                scan.report.log_records_dropped += 1;
                continue;
            }
            scan.report.log_records += 1;
            let by_newest = newest_log == Some(seq);
            for run in found.into_values().flatten() {
                let seq = seq.saturating_sub(run.age.into());
                if seq > checkpoint {
                    scan.changes.push(Change {
                        seq,
                        run,
                        by_newest,
                    });
                }
            }
        }
        // Changes with the same number belong to one record; the sort keeps their order.
        if !is_planted(Bug::UnsortedChanges) {
            scan.changes.sort_by_key(|change| change.seq);
        }
        let (logical_pages, pages) = (self.shape.logical_pages, self.geometry().pages());
        let mut redo = BTreeMap::new();
        for Change { run, by_newest, .. } in &scan.changes {
            let end = u64::from(run.logical) + u64::from(run.count);
            if end > logical_pages.into() {
                return Err(impossible("change of the FTL map", "logical page", end));
            }
            let is_mapped = run.page != NO_PAGE;
            let end = u64::from(run.page) + u64::from(run.count);
            if is_mapped && end > pages.into() {
                return Err(impossible("change of the FTL map", "page", end));
            }
            for n in 0..run.count {
                let page = if is_mapped { run.page + n } else { NO_PAGE };
                let logical = run.logical + n;
                if *by_newest {
                    redo.insert(logical, page);
                    continue;
                }
                redo.remove(&logical);
                self.map.load_place(logical, page);
                self.table.touch(self.shape.map_page_of(logical));
            }
        }
        Ok(redo)
    }

    /// Determines the use of each block. Returns the blocks that are needed only with the changes
    /// of the newest page: until these are made, they are neither free nor collected.
    fn sort_blocks(
        &mut self,
        anchor: &FtlAnchor,
        scan: &Scan,
        redo: &BTreeMap<u32, u32>,
    ) -> Result<Vec<BlockAddr>, FtlError> {
        let geometry = *self.geometry();
        let now = self.now();
        self.map.build_owners();
        for page in (0..geometry.pages()).map(PageNo) {
            if self.map.is_live(page) {
                self.blocks.add_live(geometry.block_of(page));
            }
        }
        for (block, times) in &scan.listed {
            // Each listing led to one erase, except perhaps the last.
            let erases = self.blocks.get(*block).erases;
            let was_used = scan.used.contains(block) && !anchor.open.contains(block);
            let times = times - 1 + u32::from(was_used);
            self.blocks.set_erases(*block, erases.saturating_add(times));
            self.table.touch(self.shape.wear_page_of(block.0));
        }
        let places = self.table.places.iter().filter(|page| **page != NO_PAGE);
        let maps: HashSet<BlockAddr> = places
            .map(|page| PageNo(*page))
            .chain(anchor.directories.iter().copied())
            .map(|page| geometry.block_of(page))
            .chain(scan.logs.iter().copied())
            .collect();
        for block in (0..geometry.blocks).map(BlockAddr) {
            let state = self.blocks.get(block);
            match (state.used, state.live) {
                (Use::Bad | Use::Anchor, 0) => {}
                (Use::Bad, _) => self.retired.push(block),
                (_, 0) if maps.contains(&block) => self.blocks.put_to(block, Use::Map, now),
                (Use::Anchor, _) => return Err(mixed(block)),
                _ if maps.contains(&block) => return Err(mixed(block)),
                (_, 0) => {}
                _ => self.blocks.put_to(block, Use::Data, now),
            }
        }
        let mut kept: Vec<BlockAddr> = redo
            .values()
            .filter(|page| **page != NO_PAGE)
            .map(|page| geometry.block_of(PageNo(*page)))
            .collect();
        kept.sort_unstable();
        kept.dedup();
        for block in &kept {
            match self.blocks.get(*block).used {
                Use::Free | Use::Data => self.blocks.put_to(*block, Use::Emptied, now),
                Use::Bad if self.retired.contains(block) => {}
                Use::Bad => self.retired.push(*block),
                _ => return Err(mixed(*block)),
            }
        }
        kept.retain(|block| self.blocks.get(*block).used == Use::Emptied);
        // Blocks that are already listed can be opened; others have to be listed first.
        let mut pool: Vec<BlockAddr> = scan.listed.keys().copied().collect();
        pool.retain(|block| self.blocks.get(*block).used == Use::Free);
        pool.sort_unstable();
        pool.truncate(self.shape.pool_blocks);
        self.add_to_pool(pool);
        Ok(kept)
    }

    /// Programs the newest page again, because it may become unreadable; then makes its changes.
    fn secure(&mut self, newest: &Newest, mut redo: BTreeMap<u32, u32>) -> Result<(), Stop> {
        let FtlSpare { kind, index, .. } = newest.record;
        match kind {
            _ if is_planted(Bug::UnsecuredPage) => {}
            PageKind::Data | PageKind::Lost => {
                let page = self.program(Stream::Moved, kind, index, &newest.data, GC_TAG)?;
                redo.insert(index, page.0);
            }
            PageKind::Log | PageKind::Pool => {
                self.program(Stream::Map, kind, index, &newest.data, MAP_TAG)?;
            }
            // A second page of this kind would end another write, so a log record makes the changes
            // instead.
            PageKind::Last => {
                let kind = PageKind::Staged;
                let page = self.program(Stream::Moved, kind, index, &newest.data, GC_TAG)?;
                redo.insert(index, page.0);
                let runs = runs_of(redo.iter().map(|(logical, page)| (*logical, *page)));
                let seq = self.take_seq();
                self.write_record(seq, &runs)?;
            }
            // Pages of a checkpoint that was not finished, or of a write that has not returned.
            PageKind::Map | PageKind::Directory | PageKind::Anchor | PageKind::Staged => {}
        }
        self.assign(redo);
        Ok(())
    }
}
