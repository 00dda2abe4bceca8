//! Copy-on-write with a root in two slots: a block that was committed is never overwritten, neither
//! at home nor in the log, before a root that does without it is durable.
//!
//! Source: none. It is the example of CONTRIBUTING.md, "Add a scheme", made from `template`.
//!
//! The root is a map ([`mapped_log`](crate::mapped_log)) of everything that is committed and not
//! home. Odd generations lie in the second slot, even ones in the first.
//!
//! A commit, in order of writes:
//! 1. if too few places are free: a checkpoint;
//! 2. the transaction's blocks, metadata and data, whole, to places that the durable root does not
//!    name;
//! 3. all of the next root but its first block, over the root before the durable one;
//! 4. flush;
//! 5. the root's first block, which has the checksum, durable. Blocks that the transaction freed
//!    are not in this root, and places of versions that it replaced are free from now on.
//!
//! A checkpoint: everything home, flush, the next root, which is empty (durable). Only then may
//! home be read in place of what is held.
//!
//! Deviations: none.
//!
//! Recovery: [`LEFT`], and what maps have in common ([`mapped_log::LEFT`]).
//!
//! A second cut before the empty root is durable finds the same root and does the same again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashbrown::HashSet;
use stetfs_format::BlockNo;
use stetfs_format::width::{must_fit_u32, u64_as_usize};
use stetfs_media::{BlockRef, Cause, Class, Dirty, Tag};

use crate::mapped_log::{self, Entry, FIRST, Map, MappedLog, content_crc};
use crate::parts::fill::{FILL, filled};
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
    ONE "one root that counts"
        => "it is the newest", "the other was being written: nobody was told that it is durable";
    TWO "two"
        => "the one of the higher generation is the newest",
        "it was durable when a commit or a checkpoint returned, or all of it was";
    NONE "none"
        => "error, nothing is written",
        "one is always durable while the other is written, so both were damaged later";
}

/// Its row in the registry.
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
    modes: &[],
    needs_journal_area: true,
    in_memory: InMemory::Never,
    needs_remap: false,
    nvm: Beside::Never,
    caches: false,
    jbd2: Jbd2Log::Never,
    atomic: true,
    cost: "n blocks, 16 bytes for each of the m blocks that are not home, and 2 flushes for a \
        commit of n blocks; m + 1 blocks and 2 flushes at checkpoint",
    recovery: &[LEFT, mapped_log::LEFT],
    options: &[&FILL],
};

/// Blocks of a root at most: it bounds what each commit writes beside the transaction.
const MOST_SLOT: u32 = 16;

struct Shadow {
    log: MappedLog,
    /// Blocks of a slot.
    slot: u32,
    /// Where blocks go in the log.
    places: std::ops::Range<u32>,
    /// Blocks that may be held before a checkpoint is due.
    most_held: usize,
    /// Commits and checkpoints, one at a time.
    newest: Mutex<Newest>,
    /// What the durable root names.
    held: Index<CowVersion>,
    /// Checkpoints that commits had to make.
    forced: AtomicU64,
}

/// The durable root.
struct Newest {
    generation: u64,
    transactions: u32,
}

/// The newest committed version of a block that is not home.
struct CowVersion {
    class: Class,
    content: BlockRef,
    at: u32,
    crc: u32,
}

impl Indexed for CowVersion {}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let fill = u64_as_usize(filled(&ABOUT, &args.options, 50)?);
    let log = MappedLog::open(&ABOUT, &args)?;
    let (slot, places) = log.split(2, MOST_SLOT)?;
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
    let shadow = Shadow {
        most_held: (places.len() * fill / 100).min((args.memory / args.block_size).max(16)),
        log,
        slot,
        places,
        newest: Mutex::new(Newest {
            generation,
            transactions: 0,
        }),
        held: Index::default(),
        forced: AtomicU64::new(0),
    };
    Ok((Box::new(shadow), terms, report))
}

/// The log block where a root of that generation begins.
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
        0 => NONE.met(),
        1 => ONE.met(),
        _ => TWO.met(),
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

impl Scheme for Shadow {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let found = self
            .held
            .find(block, |version| Some(version.content.clone()));
        Ok(found.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.held.holds_any(start, count)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks: Vec<&LoggedBlock> = txn.data.iter().chain(&txn.meta).collect();
        if blocks.is_empty() {
            // What it freed may go home all the same: any newer owner's content is in a later root.
            return Ok(());
        }
        let mut newest = self.newest.lock();
        let mut free = self.free(&blocks);
        if free.len() < blocks.len() {
            self.bring_home(&mut newest)?;
            self.forced.fetch_add(1, Relaxed);
            free = self.free(&blocks);
        }
        if free.len() < blocks.len() {
            let why = format!("a transaction of {} blocks does not fit", blocks.len());
            return Err(SchemeError::Unusable(why));
        }
        let version = |(block, at): (&&LoggedBlock, u32)| CowVersion {
            class: block.class,
            content: block.content.clone(),
            at,
            crc: content_crc(&block.content),
        };
        let versions: Vec<_> = blocks.iter().zip(free).map(version).collect();
        let homes: Vec<_> = blocks.iter().map(|block| block.home).collect();
        let mut body = Dirty::on(&*self.log.area.dev);
        self.write_blocks(&mut body, &versions)?;
        self.write_root(body, &mut newest, &txn.revoked, &homes, &versions)?;
        let mut held = self.held.write();
        for freed in &txn.revoked {
            held.remove(freed);
        }
        for (home, version) in homes.into_iter().zip(versions) {
            held.insert(home, version);
        }
        Ok(())
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.held.held() > self.most_held,
            forced: self.forced.load(Relaxed),
        }
    }

    fn checkpoint(&self, _: Goal) -> Result<()> {
        self.bring_home(&mut self.newest.lock())
    }

    fn close(&self) -> Result<()> {
        self.checkpoint(Goal::All)?;
        self.log.wipe(self.places.clone())
    }
}

impl Shadow {
    /// The places that the durable root does not name, in ascending order.
    fn free(&self, next: &[&LoggedBlock]) -> Vec<u32> {
        let held = self.held.read();
        let mut taken: HashSet<u32> = held.values().map(|version| version.at).collect();
        if is_planted(Bug::EarlyPlace) {
            for version in next.iter().filter_map(|block| held.get(&block.home)) {
                taken.remove(&version.at);
            }
        }
        let is_free = |at: &u32| !taken.contains(at);
        self.places.clone().filter(is_free).collect()
    }

    /// Step 2: neighbours in one request.
    fn write_blocks(&self, body: &mut Dirty<'_>, versions: &[CowVersion]) -> Result<()> {
        for run in versions.chunk_by(|a, b| a.at + 1 == b.at) {
            let tags = run.iter().map(|v| Tag::new(v.class, Cause::Log));
            let parts: Vec<_> = tags.zip(run.iter().map(|v| &v.content[..])).collect();
            self.log.area.write(body, run[0].at, &parts)?;
        }
        Ok(())
    }

    /// Steps 3 to 5: the root that has these versions of these homes, and not what was freed.
    fn write_root(
        &self,
        body: Dirty<'_>,
        newest: &mut Newest,
        freed: &[BlockNo],
        homes: &[BlockNo],
        versions: &[CowVersion],
    ) -> Result<()> {
        let entry = |(home, version): (&BlockNo, &CowVersion)| Entry {
            home: *home,
            at: version.at,
            crc: version.crc,
        };
        let gone: HashSet<&BlockNo> = freed.iter().chain(homes).collect();
        let mut entries: Vec<_> = homes.iter().zip(versions).map(entry).collect();
        let held = self.held.read();
        entries.extend(
            held.iter()
                .filter(|(home, _)| !gone.contains(home))
                .map(entry),
        );
        drop(held);
        entries.sort_unstable_by_key(|entry| entry.at);
        let map = Map {
            generation: newest.generation + 1,
            transactions: newest.transactions + 1,
            entries,
        };
        let at = slot_of(map.generation, self.slot);
        self.log.write_map(body, at, &map)?;
        (newest.generation, newest.transactions) = (map.generation, map.transactions);
        Ok(())
    }

    /// Everything home, and the root empty.
    fn bring_home(&self, newest: &mut Newest) -> Result<()> {
        {
            let held = self.held.read();
            if held.is_empty() {
                return Ok(());
            }
            let writes = held.iter().map(|(home, version)| Write {
                home: *home,
                class: version.class,
                content: &version.content,
            });
            let (dev, size) = (&*self.log.area.dev, self.log.area.block_size);
            write_home(dev, size, Cause::Checkpoint, writes.collect())?;
            if !is_planted(Bug::MissingCheckpointFlush) {
                dev.flush(Cause::Checkpoint)?;
            }
        }
        let next = newest.generation + 1;
        let at = slot_of(next, self.slot);
        self.log.write_empty(at, next, Cause::Checkpoint)?;
        (newest.generation, newest.transactions) = (next, 0);
        self.held.write().clear();
        Ok(())
    }
}
