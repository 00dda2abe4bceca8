//! A scheme to copy (CONTRIBUTING.md, "Add a scheme"): a log that holds one transaction.
//!
//! Source: none. It is what a write-ahead log is without anything that makes one fast.
//!
//! A commit, in order of writes:
//! 1. the transaction before it goes home, if that has not been done (a checkpoint);
//! 2. the transaction's blocks, metadata and data, whole, into the log, and all of their map but
//!    its first block;
//! 3. flush;
//! 4. the map's first block, which has the checksum, durable.
//!
//! A checkpoint: the blocks home, flush, an empty map (durable). Only then may the log be written
//! again, and home be read in place of what is held.
//!
//! Deviations: none.
//!
//! Recovery: [`LEFT`], and what maps have in common ([`mapped_log::LEFT`]).
//!
//! A second cut before the empty map is durable finds the same map and does the same again.

use stetfs_format::BlockNo;
use stetfs_format::width::must_fit_u32;
use stetfs_media::{BlockRef, Cause, Class, Dirty, Tag};

use crate::mapped_log::{self, Entry, FIRST, Map, MappedLog, content_crc};
use crate::parts::home::{Write, write_home};
use crate::parts::index::{Index, Indexed};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Backlog, Beside, DataPromise, Goal, Ground, Held, InMemory, Jbd2Log, LoggedBlock, Mark,
    OpenArgs, Parts, RecoveryReport, Registration, Relocates, Result, Scheme, SchemeError,
    Snapshot, Terms, Trial, Wants, remnants,
};
use stetfs_sync::Mutex;

remnants! {
    LEFT:
    NO_MAP "no map that counts"
        => "nothing",
        "it was being written: nobody was told that its transaction is durable, and the one before \
            it is home. (A map that was damaged later looks the same; `shadow` can tell)";
    EMPTY "an empty map"
        => "nothing", "a checkpoint wrote it when everything was home";
}

/// Its row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[Trial::new("template", "", Ground::Block).planted(&[Bug::MissingCheckpointFlush])],
};

pub(crate) static ABOUT: About = About {
    name: "template",
    title: "a log of one transaction, to be copied (for tests)",
    source: "none",
    modes: &[],
    needs_journal_area: true,
    in_memory: InMemory::Never,
    needs_remap: false,
    nvm: Beside::Never,
    caches: false,
    jbd2: Jbd2Log::Never,
    atomic: true,
    cost: "n blocks, a map of 16 bytes each and 2 flushes for a commit of n blocks; n + 1 blocks \
        and 2 flushes more at checkpoint, which the next commit waits for",
    recovery: &[LEFT, mapped_log::LEFT],
    options: &[],
};

/// Blocks of the map at most: it bounds what a checkpoint takes.
const MOST_SLOT: u32 = 16;

struct Template {
    log: MappedLog,
    /// Where blocks go in the log.
    places: std::ops::Range<u32>,
    /// Commits and checkpoints, one at a time. The generation of the newest map.
    generation: Mutex<u64>,
    /// What the log holds and home does not.
    held: Index<Logged>,
}

/// A block of the transaction.
struct Logged {
    class: Class,
    content: BlockRef,
}

impl Indexed for Logged {}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let log = MappedLog::open(&ABOUT, &args)?;
    let (slot, places) = log.split(1, MOST_SLOT)?;
    let (generation, report) = recover(&log, slot, &args)?;
    let terms = Terms {
        promise: DataPromise::Atomic,
        mark: Mark::PrivateLog,
        // Placing at commit may log more: see there.
        max_transaction: must_fit_u32(places.len()) / 4,
        logs_data: true,
        logs_marked: true,
        wants: Wants::default(),
        relocates: Relocates::No,
        places_new: false,
        remaps: None,
        is_buffer_cache: false,
        keeps: false,
    };
    let template = Template {
        log,
        places,
        generation: Mutex::new(generation),
        held: Index::default(),
    };
    Ok((Box::new(template), terms, report))
}

fn recover(log: &MappedLog, slot: u32, args: &OpenArgs) -> Result<(u64, RecoveryReport)> {
    if !args.has_private_log {
        if args.writable {
            log.write_empty(FIRST, 0, Cause::Control)?;
        }
        return Ok((0, RecoveryReport::default()));
    }
    let map = log.read_map(FIRST, slot)?;
    match &map {
        None => NO_MAP.met(),
        Some(map) if map.entries.is_empty() => EMPTY.met(),
        Some(_) => {}
    }
    let map = map.unwrap_or_default();
    let report = log.replay(&map)?;
    log.write_empty(FIRST, map.generation + 1, Cause::Recovery)?;
    Ok((map.generation + 1, report))
}

impl Scheme for Template {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let found = self.held.find(block, |b| Some(b.content.clone()));
        Ok(found.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.held.holds_any(start, count)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks: Vec<&LoggedBlock> = txn.data.iter().chain(&txn.meta).collect();
        if blocks.is_empty() {
            // What it freed needs no record: nothing but the newest transaction is ever replayed.
            return Ok(());
        }
        if blocks.len() > self.places.len() {
            let why = format!("a transaction of {} blocks does not fit", blocks.len());
            return Err(SchemeError::Unusable(why));
        }
        let mut generation = self.generation.lock();
        self.bring_home(&mut generation)?;
        self.write_log(*generation + 1, &blocks)?;
        *generation += 1;
        let mut held = self.held.write();
        for block in blocks {
            let (class, content) = (block.class, block.content.clone());
            held.insert(block.home, Logged { class, content });
        }
        Ok(())
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.held.held() > 0,
            forced: 0,
        }
    }

    fn checkpoint(&self, _: Goal) -> Result<()> {
        self.bring_home(&mut self.generation.lock())
    }

    fn close(&self) -> Result<()> {
        self.checkpoint(Goal::All)?;
        self.log.wipe(self.places.clone())
    }
}

impl Template {
    /// Steps 2 to 4.
    fn write_log(&self, generation: u64, blocks: &[&LoggedBlock]) -> Result<()> {
        let parts = blocks.iter().map(|b| Tag::new(b.class, Cause::Log));
        let parts: Vec<_> = parts.zip(blocks.iter().map(|b| &b.content[..])).collect();
        let entries = self.places.clone().zip(blocks).map(|(at, b)| Entry {
            home: b.home,
            at,
            crc: content_crc(&b.content),
        });
        let map = Map {
            generation,
            transactions: 1,
            entries: entries.collect(),
        };
        let mut body = Dirty::on(&*self.log.area.dev);
        self.log.area.write(&mut body, self.places.start, &parts)?;
        self.log.write_map(body, FIRST, &map)
    }

    /// Everything home, and the log empty.
    fn bring_home(&self, generation: &mut u64) -> Result<()> {
        {
            let held = self.held.read();
            if held.is_empty() {
                return Ok(());
            }
            let writes = held.iter().map(|(home, block)| Write {
                home: *home,
                class: block.class,
                content: &block.content,
            });
            let (dev, size) = (&*self.log.area.dev, self.log.area.block_size);
            write_home(dev, size, Cause::Checkpoint, writes.collect())?;
            if !is_planted(Bug::MissingCheckpointFlush) {
                dev.flush(Cause::Checkpoint)?;
            }
        }
        self.log
            .write_empty(FIRST, *generation + 1, Cause::Checkpoint)?;
        *generation += 1;
        self.held.write().clear();
        Ok(())
    }
}
