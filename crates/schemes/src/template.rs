//! A scheme to copy (CONTRIBUTING.md, "Add a scheme"): a log that holds one transaction.
//!
//! Source: none. It is a write-ahead log without anything that makes one fast.
//!
//! Home and log are on one block device. The log is the volume's journal area.
//!
//! A commit, in order of writes:
//! 1. the transaction before it home, if no checkpoint has done so yet (a checkpoint);
//! 2. the transaction's blocks, metadata and data, whole, into the log, and all of their map but
//!    its first block;
//! 3. flush;
//! 4. the map's first block, which has the checksum, durable.
//!
//! A checkpoint, in order of writes:
//! 1. the blocks home;
//! 2. flush;
//! 3. an empty map, durable. Only then may the log be written again, and home be read in place of
//!    the held blocks.
//!
//! Deviations: none.
//!
//! Recovery: [`LEFT`], and the rows that maps share ([`mapped_log::LEFT`]).
//!
//! A second cut before the empty map is durable finds the same map and does the same again.

use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Cause, Dirty, Tag};

use crate::engine::log::serving::Serving;
use crate::engine::log::{DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Span, Until, Which};
use crate::mapped_log::{self, Entry, FIRST, Map, MappedLog, content_crc};
use crate::parts::index::{Changing, Index};
use crate::parts::version::WholeVersion;
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, Ground, LoggedBlock, OpenArgs, Parts, RecoveryReport, Registration, Result, Terms,
    Trial, recovery_cases,
};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    NO_MAP "no map that counts"
        => "nothing",
        "it was being written: nobody was told that its transaction is durable, and the one before \
            it is home. (A map that was damaged later looks the same; `shadow` can tell)";
    EMPTY "an empty map"
        => "nothing", "a checkpoint wrote it when everything was home";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[Trial::new("template", "", Ground::Block).planted(&[Bug::MissingCheckpointFlush])],
};

pub(crate) static ABOUT: About = About {
    name: "template",
    title: "a log of one transaction, to be copied (for tests)",
    source: "none",
    cost: "n blocks, a map of 16 bytes each and 2 flushes for a commit of n blocks; n + 1 blocks \
        and 2 flushes more at checkpoint, which the next commit waits for",
    recovery: &[LEFT, mapped_log::LEFT],
    ..About::PLAIN
};

/// The most blocks of the map: it bounds the time of a checkpoint.
const MOST_SLOT: u32 = 16;

struct Template {
    log: Log<WholeVersion<()>>,
    mapped: MappedLog,
    /// The log blocks for contents.
    places: std::ops::Range<u32>,
    /// The generation of the newest map.
    generation: Mutex<u64>,
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let mapped = MappedLog::open(&ABOUT, &args)?;
    let (slot, places) = mapped.split(1, MOST_SLOT)?;
    let (generation, report) = recover(&mapped, slot, &args)?;
    // A quarter, because placing at the commit may log more (`Terms::max_transaction`).
    let terms = Terms::plain(must_fit_u32(places.len()) / 4);
    let limits = Limits {
        room: 1,
        most_used: 0,
        most_here: usize::MAX,
        period: None,
    };
    let span = Span::empty(0, Tid(0));
    let template = Template {
        log: Log::new(args.dev, args.block_size, limits, span, Index::default()),
        mapped,
        places,
        generation: Mutex::new(generation),
    };
    Ok((Box::new(Serving(template)), terms, report))
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
        None => NO_MAP.reached(),
        Some(map) if map.entries.is_empty() => EMPTY.reached(),
        Some(_) => {}
    }
    let map = map.unwrap_or_default();
    let report = log.replay(&map)?;
    log.write_empty(FIRST, map.generation + 1, Cause::Recovery)?;
    Ok((map.generation + 1, report))
}

impl OnLog for Template {
    type Version = WholeVersion<()>;
    type Draft<'t> = ();

    const UNITS: &'static str = "transactions";
    const ONE_AT_A_TIME: bool = true;

    fn log(&self) -> &Log<WholeVersion<()>> {
        &self.log
    }

    fn content(&self, _: BlockNo, version: &WholeVersion<()>) -> Result<BlockRef> {
        Ok(version.content().clone())
    }

    fn goes(&self, _: &LoggedBlock) -> Goes {
        Goes::Log
    }

    /// False: the log has all data, and a recovery replays the newest transaction alone.
    fn revokes(&self) -> bool {
        false
    }

    fn draft<'t>(&self, _: &Head, _: &Sorted<'t>, _: bool) -> ((), u64) {
        ((), 1)
    }

    fn fits(&self, sorted: &Sorted<'_>) -> bool {
        sorted.logged.len() <= self.places.len()
    }

    /// Does steps 2 to 4 of a commit.
    fn write(&self, _: &Head, sorted: &Sorted<'_>, _: &mut (), _: (u64, u32)) -> Result<u64> {
        let blocks = sorted.logged.iter();
        let parts = blocks.map(|b| (Tag::new(b.class, Cause::Log), &b.content[..]));
        let entries = self.places.clone().zip(&sorted.logged);
        let entries = entries.map(|(at, b)| Entry {
            home: b.home,
            at,
            crc: content_crc(&b.content),
        });
        let mut generation = self.generation.lock();
        let map = Map {
            generation: *generation + 1,
            transactions: 1,
            entries: entries.collect(),
        };
        let mut body = Dirty::on(&*self.log.dev);
        let parts: Vec<_> = parts.collect();
        self.mapped
            .area
            .write(&mut body, self.places.start, &parts)?;
        self.mapped.write_map(body, FIRST, &map)?;
        *generation += 1;
        Ok(1)
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, WholeVersion<()>>,
        head: &Head,
        sorted: &Sorted<'t>,
        (): (),
    ) {
        for block in &sorted.logged {
            index.insert(block.home, WholeVersion::new(block, head.sequence, ()));
        }
    }

    fn due(&self, _: Until) -> Option<Which> {
        Some(Which::All)
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        self.log.land(due.iter())
    }

    fn write_tail(&self, _: u64, _: Tid) -> Result<()> {
        let mut generation = self.generation.lock();
        self.mapped
            .write_empty(FIRST, *generation + 1, Cause::Checkpoint)?;
        *generation += 1;
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.mapped.wipe(self.places.end)
    }
}
