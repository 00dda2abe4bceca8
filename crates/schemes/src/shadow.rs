//! Copy-on-write with a root in two slots. No committed block is overwritten, at home or in the
//! log, before a root that does not name it is durable.
//!
//! Source: none. It is the example of CONTRIBUTING.md, "Add a scheme", made from `template`.
//!
//! Home and log are on one block device. The log is the volume's journal area. The root is a map
//! ([`mapped_log`](crate::mapped_log)) of all committed blocks that are not home. Roots of odd
//! generations lie in the second slot, those of even ones in the first.
//!
//! A commit, in order of writes:
//! 1. if too few places are free: a checkpoint;
//! 2. the transaction's blocks, metadata and data, whole, to places that the durable root does not
//!    name;
//! 3. all of the next root but its first block, over the root before the durable one;
//! 4. flush;
//! 5. the root's first block, which has the checksum, durable. This root leaves out blocks that the
//!    transaction freed. From now on the places of replaced versions are free.
//!
//! A checkpoint, in order of writes:
//! 1. all held blocks home;
//! 2. flush;
//! 3. the next root, which is empty, durable. Only then may home be read in place of the held
//!    blocks.
//!
//! Deviations: none.
//!
//! Recovery: [`LEFT`], and the rows that maps share ([`mapped_log::LEFT`]).
//!
//! A second cut before the empty root is durable finds the same root and does the same again.

use hashbrown::HashSet;
use stetfs_format::width::{must_fit_u32, u64_as_usize};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Cause, Dirty, Tag};

use crate::engine::log::serving::Serving;
use crate::engine::log::{DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Span, Until, Which};
use crate::mapped_log::{self, Entry, FIRST, Map, MappedLog, content_crc};
use crate::parts::fill::{FILL, filled};
use crate::parts::index::{Changing, Index};
use crate::parts::version::WholeVersion;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Ground, LoggedBlock, OpenArgs, Parts, RecoveryReport, Registration, Result, SchemeError,
    Terms, Trial, recovery_cases,
};
use stetfs_sync::Mutex;

recovery_cases! {
    LEFT:
    ONE "one root that counts"
        => "it is the newest", "the other was being written: nobody was told that it is durable";
    TWO "two"
        => "the one of the higher generation is the newest",
        "it was durable when a commit or a checkpoint returned, or all of it was";
    NONE "none"
        => "error, nothing is written",
        "one is always durable while the other is written, so both were damaged later";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("shadow", "", Ground::Block).planted(&[
            Bug::MissingBodyFlush,
            Bug::MissingRecordFlush,
            Bug::MissingCheckpointFlush,
            Bug::UncheckedReplay,
            Bug::SingleSlot,
            Bug::EarlyPlace,
        ]),
        Trial::setting("shadow-fill", "fill=5", Ground::Block),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "shadow",
    title: "copy-on-write with a root in two slots, an example (for tests)",
    source: "none",
    cost: "n blocks, 16 bytes for each of the m blocks that are not home, and 2 flushes for a \
        commit of n blocks; m + 1 blocks and 2 flushes at checkpoint",
    recovery: &[LEFT, mapped_log::LEFT],
    options: &[&FILL],
    ..About::PLAIN
};

/// The most blocks of a root: it bounds the writes of a commit besides the transaction.
const MOST_SLOT: u32 = 16;

struct Shadow {
    /// The versions that the durable root names.
    log: Log<CowVersion>,
    mapped: MappedLog,
    /// The blocks of a slot.
    slot: u32,
    /// The log blocks for contents.
    places: std::ops::Range<u32>,
    newest: Mutex<Newest>,
}

/// The durable root.
struct Newest {
    generation: u64,
    transactions: u32,
}

/// A version, and its entry in the root.
type CowVersion = WholeVersion<Entry>;

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let fill = u64_as_usize(filled(&ABOUT, &args.options, 50)?);
    let mapped = MappedLog::open(&ABOUT, &args)?;
    let (slot, places) = mapped.split(2, MOST_SLOT)?;
    let (generation, report) = recover(&mapped, slot, &args)?;
    // A quarter, because placing at the commit may log more (`Terms::max_transaction`).
    let terms = Terms::plain(must_fit_u32(places.len()) / 4);
    let in_memory = Limits::most_here(args.memory, args.block_size);
    let limits = Limits {
        // The places bound the log, not the number of transactions.
        room: u64::MAX,
        most_used: u64::MAX,
        most_here: in_memory.min(places.len() * fill / 100),
        period: None,
    };
    let span = Span::empty(0, Tid(0));
    let shadow = Shadow {
        log: Log::new(args.dev, args.block_size, limits, span, Index::default()),
        mapped,
        slot,
        places,
        newest: Mutex::new(Newest {
            generation,
            transactions: 0,
        }),
    };
    Ok((Box::new(Serving(shadow)), terms, report))
}

/// Returns the log block at which a root of that generation begins.
fn slot_of(generation: u64, slot: u32) -> u32 {
    match generation % 2 {
        1 if !is_planted(Bug::SingleSlot) => FIRST + slot,
        _ => FIRST,
    }
}

fn recover(log: &MappedLog, slot: u32, args: &OpenArgs) -> Result<(u64, RecoveryReport)> {
    if !args.has_private_log {
        for generation in 0..2 {
            if args.writable {
                log.write_empty(slot_of(generation, slot), generation, Cause::Control)?;
            }
        }
        return Ok((1, RecoveryReport::default()));
    }
    let roots = [
        log.read_map(FIRST, slot)?,
        log.read_map(FIRST + slot, slot)?,
    ];
    match roots.iter().flatten().count() {
        0 => NONE.reached(),
        1 => ONE.reached(),
        _ => TWO.reached(),
    }
    let newest = roots.into_iter().flatten().max_by_key(|r| r.generation);
    let Some(newest) = newest else {
        let why = "neither of its roots is intact".to_owned();
        return Err(SchemeError::Unusable(why));
    };
    let report = log.replay(&newest)?;
    let next = newest.generation + 1;
    log.write_empty(slot_of(next, slot), next, Cause::Recovery)?;
    Ok((next, report))
}

impl OnLog for Shadow {
    type Version = CowVersion;
    /// The entries of the transaction's blocks.
    type Draft<'t> = Vec<Entry>;

    const UNITS: &'static str = "transactions";
    const ONE_AT_A_TIME: bool = true;

    fn log(&self) -> &Log<CowVersion> {
        &self.log
    }

    fn content(&self, _: BlockNo, version: &CowVersion) -> Result<BlockRef> {
        Ok(version.content().clone())
    }

    fn goes(&self, _: &LoggedBlock) -> Goes {
        Goes::Log
    }

    fn draft<'t>(&self, _: &Head, sorted: &Sorted<'t>, _: bool) -> (Vec<Entry>, u64) {
        // Without blocks there is nothing to write: freed blocks may still go home, because a new
        // owner's content is in a later root.
        (Vec::new(), u64::from(!sorted.logged.is_empty()))
    }

    fn fits(&self, sorted: &Sorted<'_>) -> bool {
        self.free(sorted).len() >= sorted.logged.len()
    }

    fn write(
        &self,
        _: &Head,
        sorted: &Sorted<'_>,
        entries: &mut Vec<Entry>,
        _: (u64, u32),
    ) -> Result<u64> {
        let places = sorted.logged.iter().zip(self.free(sorted));
        entries.extend(places.map(|(block, at)| Entry {
            home: block.home,
            at,
            crc: content_crc(&block.content),
        }));
        let mut body = Dirty::on(&*self.log.dev);
        self.write_blocks(&mut body, sorted, entries)?;
        self.write_root(body, sorted, entries)?;
        Ok(1)
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, CowVersion>,
        head: &Head,
        sorted: &Sorted<'t>,
        entries: Vec<Entry>,
    ) {
        for (block, entry) in sorted.logged.iter().zip(entries) {
            index.insert(block.home, CowVersion::new(block, head.sequence, entry));
        }
    }

    fn due(&self, _: Until) -> Option<Which> {
        Some(Which::All)
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        self.log.land(due.iter())
    }

    /// Writes an empty root.
    fn write_tail(&self, _: u64, _: Tid) -> Result<()> {
        let mut newest = self.newest.lock();
        let next = newest.generation + 1;
        let at = slot_of(next, self.slot);
        self.mapped.write_empty(at, next, Cause::Checkpoint)?;
        (newest.generation, newest.transactions) = (next, 0);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.mapped.wipe(self.places.end)
    }
}

impl Shadow {
    /// Returns the places that the durable root does not name, in ascending order.
    fn free(&self, next: &Sorted<'_>) -> Vec<u32> {
        let index = self.log.index.read();
        let mut taken: HashSet<u32> = index.values().map(|version| version.place.at).collect();
        if is_planted(Bug::EarlyPlace) {
            for version in next
                .logged
                .iter()
                .filter_map(|block| index.get(&block.home))
            {
                taken.remove(&version.place.at);
            }
        }
        let is_free = |at: &u32| !taken.contains(at);
        self.places.clone().filter(is_free).collect()
    }

    /// Does step 2 of a commit, with neighbours in one request.
    fn write_blocks(
        &self,
        body: &mut Dirty<'_>,
        next: &Sorted<'_>,
        entries: &[Entry],
    ) -> Result<()> {
        let mut blocks = next.logged.iter();
        for run in entries.chunk_by(|a, b| a.at + 1 == b.at) {
            let parts = blocks.by_ref().take(run.len());
            let parts = parts.map(|b| (Tag::new(b.class, Cause::Log), &b.content[..]));
            let parts: Vec<_> = parts.collect();
            self.mapped.area.write(body, run[0].at, &parts)?;
        }
        Ok(())
    }

    /// Does steps 3 to 5 of a commit: the root with these entries, without freed blocks.
    fn write_root(&self, body: Dirty<'_>, next: &Sorted<'_>, entries: &[Entry]) -> Result<()> {
        let gone: HashSet<BlockNo> = {
            let changed = entries.iter().map(|entry| entry.home);
            changed.chain(next.revoked.iter().copied()).collect()
        };
        let mut entries = entries.to_vec();
        {
            let index = self.log.index.read();
            let kept = index.values().map(|version| version.place);
            entries.extend(kept.filter(|entry| !gone.contains(&entry.home)));
        }
        entries.sort_unstable_by_key(|entry| entry.at);
        let mut newest = self.newest.lock();
        let map = Map {
            generation: newest.generation + 1,
            transactions: newest.transactions + 1,
            entries,
        };
        let at = slot_of(map.generation, self.slot);
        self.mapped.write_map(body, at, &map)?;
        (newest.generation, newest.transactions) = (map.generation, map.transactions);
        Ok(())
    }
}
