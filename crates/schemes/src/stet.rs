//! stet: the first copy stands, wherever that is the cheapest.
//!
//! Source: what remains when the ideas of five papers are put together (docs/STET.md): the log of
//! changed bytes and the switch of Shortcut-JFS, the delta of Delta Journaling, the commit in place
//! of UBJ. Home and log are on a block device, or in byte-addressable memory; the log is the
//! volume's journal area, as a ring of sectors, in memory of cache lines. Or the log is in memory
//! beside the volume ([`log`]): then nothing is written where it stays, and what the log has whole
//! is not kept in other memory.
//!
//! A commit, in order of writes:
//! 1. blocks that lay in nobody's file before (new ones, and those to which the file's mapping was
//!    switched) to where they stay;
//! 2. one record into the log: the changed bytes of every other block, whole blocks that changed
//!    as a whole, the checksums of what 1 wrote, freed blocks; its checksum covers all of it;
//! 3. one flush. Both are durable, or recovery finds that one of the checksums does not fit and
//!    drops the transaction.
//!
//! What is done with a block of data that has a home is the cheapest of three actions: [`rule`]. A
//! switch is only asked for: where it would break the file up more than the medium can bear
//! ([`Relocates`](stetfs_scheme::Relocates)), the block stays home and is logged.
//!
//! Where the device can write several ranges as a whole (our flash translation layer can), blocks
//! of which the log has nothing are written to their homes in one such write with the record, if
//! that is the cheapest: it is the commit, and nothing remains to be done.
//!
//! A checkpoint takes the versions that hold the log's end back, the oldest quarter when the
//! background asks for it: their changed sectors home, flush, and the log's header with the new
//! end, durable. A commit that changes a block of which little is not home logs that again with
//! what is new, if the block's oldest bytes are in the older half of the log: so what is changed
//! again and again never goes home, and does not hold the log's end back.
//!
//! A block that the log has bytes of, home or not, is revoked when it is freed.
//!
//! Recovery: see [`recovery`].

mod log;
mod recovery;
mod rule;
mod versions;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs_format::private_log::{COMMIT, ChunkKind, Tail};
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockDev, BlockRef, Cause, Dirty, Errno, MediaError};

use self::log::Log;
use self::rule::{ACTION, Action, Bed, MEDIUM, Rule, Wish};
use self::versions::{Content, Due, Version};
use crate::jbd2::{self, Copied, Placing};
use crate::parts::byte_log::{self, Start};
use crate::parts::fill::{FILL, filled};
use crate::parts::home::{BusyHomes, Piece, runs_of, write_pieces};
use crate::parts::index::{Index, Indexed};
use crate::parts::look::changes_less;
use crate::parts::owner;
use crate::parts::record::{Place, Record};
use crate::parts::{reader, replay};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, ActionCount, Backlog, Beside, DataPromise, DirtyBlock, Goal, Ground, Held, InMemory,
    Jbd2Log, LoggedBlock, Mark, OpenArgs, OptionAbout, Parts, Placement, Ranges, Registration,
    Result, Scheme, SchemeError, Snapshot, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// Its row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("stet", "", Ground::Block).planted(&[
            Bug::MissingRecordFlush,
            Bug::MissingCheckpointFlush,
            Bug::LateTail,
            Bug::UncheckedReplay,
            Bug::StaleLap,
            Bug::ForgottenRevoke,
            Bug::IgnoredRevoke,
            Bug::UnzeroedBase,
            Bug::UncheckedPayload,
            Bug::TornGroup,
        ]),
        Trial::setting("stet-delta", "stet=delta", Ground::Block),
        Trial::new("stet-jbd2", "log=jbd2", Ground::Block).planted(&[Bug::MissingBodyFlush]),
        Trial::new("stet-switch", "stet=switch", Ground::Block)
            .planted(&[Bug::LatePayload, Bug::EarlyReuse]),
        Trial::setting("stet-whole", "stet=whole", Ground::Block),
        Trial::setting("stet-flash", "medium=flash", Ground::Block),
        Trial::setting("stet-disk", "medium=disk", Ground::Block),
        Trial::new("stet-memory", "", Ground::Memory).planted(&[
            Bug::MissingRecordFlush,
            Bug::MissingCheckpointFlush,
            Bug::LateTail,
        ]),
        Trial::new("stet-nvram", "", Ground::Nvram)
            .planted(&[Bug::MissingRecordFlush, Bug::MissingCheckpointFlush]),
        Trial::new("stet-nand", "", Ground::Flash).planted(&[Bug::SplitWrite, Bug::PlacedOverLog]),
        // Checkpoints all the time.
        Trial::new("stet-fill", "fill=1", Ground::Block).planted(&[
            Bug::EarlyForget,
            Bug::LostCarry,
            Bug::LostChange,
        ]),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "stet",
    title: "stet: changed bytes are logged, whole blocks go to new homes, one flush a commit",
    source: "docs/STET.md",
    modes: &[],
    needs_journal_area: true,
    in_memory: InMemory::Too,
    needs_remap: false,
    nvm: Beside::Too(16 << 20),
    caches: false,
    jbd2: Jbd2Log::With(&LOG, "jbd2"),
    atomic: true,
    cost: "commit: the changed bytes and some 200 more, in sectors, whole blocks once, 1 flush; \
        checkpoint: the changed sectors",
    recovery: &[
        byte_log::LEFT,
        reader::LEFT,
        replay::LEFT,
        byte_log::MOVED,
        owner::LEFT,
        log::ELSEWHERE,
    ],
    options: &[&LOG, &ACTION, &MEDIUM, &FILL],
};

static LOG: OptionAbout = OptionAbout {
    name: "log",
    syntax: "private|jbd2",
    default: "private",
    what: "what the log is: changed bytes, which only stetfs recovers; or JBD2's, which the kernel \
        and e2fsck recover too: changed blocks are logged whole, new and long ones written once",
};

struct Stet {
    dev: Arc<dyn BlockDev>,
    log: Log,
    uuid: [u8; 16],
    epoch: u64,
    rule: Rule,
    block_size: usize,
    /// The content of a block of which nothing is known.
    zeros: BlockRef,
    /// Bytes of the log in use at which a checkpoint is wanted.
    most_used: u64,
    /// Contents that may be held before a checkpoint is wanted, in blocks.
    most_held: usize,
    span: Mutex<Span>,
    /// The newest committed version of each block that the log has bytes of.
    index: Index<Version>,
    /// Bytes between tail and head: for looks from outside.
    used: AtomicU64,
    /// Checkpoints that commits have made.
    forced: AtomicU64,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    busy_homes: BusyHomes,
    /// What lies between two writes home is written along, if it is no more.
    jump_bytes: u64,
}

/// A checkpoint in the background takes one of so many parts of what is in use, the oldest. Larger
/// ones are written in better order, smaller ones leave more in the log that may be freed or
/// overwritten before it goes home.
const PARTS: u64 = 4;

/// Bytes that a checkpoint writes home at a time.
const BATCH: usize = 8 << 20;

/// What is placed where the log is JBD2's, which logs blocks whole: bitmaps, descriptors and
/// mapping of a run that is switched, and they go home too.
struct LongRuns;

impl LongRuns {
    /// Of fewer blocks a run is logged and brought home for less than these cost: three blocks,
    /// twice.
    const LEAST: u32 = 7;
}

impl Placing for LongRuns {
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        match block.run >= Self::LEAST {
            true => Placement::Relocate,
            false => Placement::Home,
        }
    }
}

/// What of the ring is in use.
struct Span {
    /// Where the next transaction goes.
    head: u64,
    /// The oldest that would be replayed.
    tail: u64,
    /// The number of the next transaction.
    sequence: Tid,
    /// From tail to head: number and position.
    transactions: VecDeque<(Tid, u64)>,
    record: Record,
}

impl Span {
    /// The first transaction that is not in the oldest part, one of so many, of what is in use; the
    /// next one to be written, if there is none.
    fn behind_oldest(&self, parts: u64) -> Tid {
        let end = self.tail + (self.head - self.tail) / parts;
        let n = self.transactions.partition_point(|(_, at)| *at < end);
        self.transactions
            .get(n)
            .map_or(self.sequence, |found| found.0)
    }

    /// The position of a transaction; the head's, if it is not written yet.
    fn position_of(&self, tid: Tid) -> u64 {
        let is_before = |other: &(Tid, u64)| tid.is_after(other.0);
        let n = self.transactions.partition_point(is_before);
        self.transactions.get(n).map_or(self.head, |found| found.1)
    }
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    // Whatever they say, they must say it rightly before something is written.
    let wish = Wish::of(&ABOUT, &args.options)?;
    // What is in memory beside the volume is read from there, and may be freed before it goes home.
    let usual = if args.nvm.is_some() { 90 } else { 50 };
    let fill = filled(&ABOUT, &args.options, usual)?;
    match args.options.value(&LOG) {
        "private" => {}
        "jbd2" => {
            let has_none = |what| Err(SchemeError::Unusable(format!("log=jbd2 {what}")));
            if args.writable && args.dev.pmem().is_some() {
                return has_none("needs a device that keeps sectors whole: mount without dax");
            }
            if args.nvm.is_some() {
                return has_none("has its log in the volume: mount without nvm=FILE");
            }
            return jbd2::open_as(&ABOUT, args, Box::new(Copied), Some(Box::new(LongRuns)));
        }
        _ => return Err(args.options.wrong(&ABOUT, &LOG)),
    }
    let (log, left, report) = recovery::recover(&ABOUT, &args)?;
    let (capacity, unit) = (log.ring().capacity, u64_as_usize(log.ring().unit));
    let bed = Bed {
        block_size: args.block_size,
        log: unit,
        home: match log.is_beside() {
            // A log in the volume may have longer units than the device has now.
            false => unit,
            true => u32_as_usize(args.dev.sector_size()),
        },
        is_beside: log.is_beside(),
        is_atomic: !log.is_beside() && args.dev.atomic_write().is_some(),
    };
    let rule = Rule::new(wish, bed);
    let Start {
        epoch, sequence, ..
    } = left.start;
    let jump_bytes = rule.jump_bytes(&*args.dev);
    let terms = Terms {
        promise: DataPromise::Atomic,
        mark: Mark::PrivateLog,
        max_transaction: log.max_transaction(args.block_size),
        logs_data: true,
        logs_marked: true,
        wants: Wants {
            base: false,
            changed_bytes: args.block_size,
        },
        relocates: rule.relocates(&*args.dev),
        places_new: !log.is_beside(),
        remaps: None,
        is_buffer_cache: false,
        keeps: false,
    };
    let stet = Stet {
        uuid: args.uuid,
        epoch,
        rule,
        block_size: args.block_size,
        zeros: Block::zeroed(args.block_size).into(),
        most_used: capacity * fill / 100,
        most_held: (args.memory / args.block_size).max(16),
        used: AtomicU64::new(left.start.at - left.tail),
        span: Mutex::new(Span {
            head: left.start.at,
            tail: left.tail,
            sequence,
            transactions: left.transactions,
            record: Record::default(),
        }),
        index: left.index,
        forced: AtomicU64::new(0),
        checkpointing: Mutex::new(()),
        busy_homes: BusyHomes::default(),
        jump_bytes,
        dev: args.dev,
        log,
    };
    Ok((Box::new(stet), terms, report))
}

impl Scheme for Stet {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let held = self.index.find(block, |v| Some(self.content(v.content())));
        Ok(held.transpose()?.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.index.holds_any(start, count)
    }

    /// What is on a device would have to be read, which costs more than it saves.
    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        if self.index.holds_any(home, 1) {
            return Ok(true);
        }
        let Some(pmem) = self.dev.pmem() else {
            return Ok(false);
        };
        // A delta is written twice, a whole block once.
        let (start, least) = (self.offset(home), self.block_size / 2 + 1);
        changes_less(&**pmem, start, content, least)
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let changes = self.index.find(block.home, |version| Some(version.changes));
        match self
            .rule
            .choose(block.ino, block.ranges, changes.unwrap_or(0))
        {
            Action::Switch => Placement::Relocate,
            Action::Delta | Action::Whole | Action::InPlace => Placement::Home,
        }
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let mut record = std::mem::take(&mut self.span.lock().record);
        let result = self.commit_as(&mut record, txn);
        self.span.lock().record = record;
        result
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.used.load(Relaxed) > self.most_used || self.index.here() > self.most_held,
            forced: self.forced.load(Relaxed),
        }
    }

    fn actions(&self) -> Vec<ActionCount> {
        self.rule.actions()
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        match goal {
            Goal::Background | Goal::Some => self.bring_home(Until::Part),
            Goal::All => self.bring_home(Until::End),
        }
    }

    fn close(&self) -> Result<()> {
        self.bring_home(Until::End)?;
        self.log.close()
    }
}

/// How far a checkpoint moves the log's end.
#[derive(Clone, Copy)]
enum Until {
    /// Behind the oldest [part](PARTS) of what is in use; as far as that makes memory, when it is
    /// the memory that is short.
    Part,
    /// To the head.
    End,
}

/// Whether a device refused an atomic write because it has too little room for it.
fn is_too_long(error: &MediaError) -> bool {
    matches!(error, MediaError::Io { source, .. } if *source == Errno::TOOBIG)
}

/// What a transaction has of the blocks that stay at their homes.
#[derive(Default)]
struct Described<'a> {
    /// Those that its record has.
    logged: Vec<Change<'a>>,
    /// What is written home with the record, as a whole.
    placed: Vec<Piece<'a>>,
    /// Bytes that still can be.
    room: usize,
}

/// What a transaction logs of a block.
struct Change<'a> {
    block: &'a LoggedBlock,
    /// The bytes that the transaction changed.
    changed: Ranges,
    /// More than these: all that home has not got.
    carried: bool,
    /// Where in the record the chunk begins that has all of the block, if one has.
    whole: Option<usize>,
}

impl Stet {
    /// Where a block is on the device.
    fn offset(&self, block: BlockNo) -> u64 {
        block.0 * usize_as_u64(self.block_size)
    }

    /// The content of a block that is held.
    fn content(&self, content: &Content) -> Result<BlockRef> {
        match content {
            Content::Here(content) => Ok(content.clone()),
            Content::Logged(at) => self.log.content(*at, self.block_size),
            Content::Home => Ok(self.zeros.clone()),
        }
    }

    fn commit_as(&self, record: &mut Record, txn: &Snapshot) -> Result<()> {
        let blocks = txn.data.len() + txn.meta.len();
        let room = self.room_in_place(Record::bound(blocks, txn.revoked.len(), self.block_size));
        match self.commit_within(room, record, txn) {
            // The device has lost room meanwhile, and has changed nothing.
            Err(SchemeError::Media(error)) if room > 0 && is_too_long(&error) => {
                self.commit_within(0, record, txn)
            }
            result => result,
        }
    }

    /// Commits, with at most so many bytes home as a whole.
    fn commit_within(&self, room: usize, record: &mut Record, txn: &Snapshot) -> Result<()> {
        let mut in_place: Vec<&LoggedBlock> = Vec::with_capacity(txn.data.len());
        let mut stays: Vec<&LoggedBlock> = Vec::new();
        let mut revoked = Vec::new();
        {
            let index = self.index.read();
            for block in &txn.data {
                let is_in_place = block.relocated || block.fresh && !self.log.is_beside();
                if !is_in_place || index.contains_key(&block.home) {
                    stays.push(block);
                    continue;
                }
                in_place.push(block);
                if let Some((ino, _)) = block.owner.filter(|_| block.relocated) {
                    self.rule.count(Action::Switch, ino, &block.ranges, 0, 0);
                }
            }
            let is_logged = |block: &&BlockNo| {
                let found = index.get(*block);
                found.is_some_and(|v| v.is_held() || !is_planted(Bug::EarlyForget))
            };
            if !is_planted(Bug::ForgottenRevoke) {
                revoked.extend(txn.revoked.iter().filter(is_logged));
            }
        }
        in_place.sort_unstable_by_key(|block| block.home);
        record.begin();
        let mut described = Described {
            room,
            ..Described::default()
        };
        self.describe(record, stays, &mut described);
        let data = record.bytes();
        self.describe(record, &txn.meta, &mut described);
        for run in in_place.chunk_by(|a, b| a.home.plus(1) == b.home && a.class == b.class) {
            for run in run.chunks(usize::from(u16::MAX)) {
                let contents = run.iter().map(|block| &block.content[..]);
                record.run(run[0].home, run[0].class, contents);
            }
        }
        record.revoke(&revoked);
        self.rule.is_sealed(record.bytes() - data);
        let Described { logged, placed, .. } = described;
        // With blocks in place there is one even if it has nothing to say: otherwise the one before
        // would stay the last, which recovery compares with what is in place.
        if record.is_empty() && placed.is_empty() {
            return Ok(());
        }
        let len = record.len(self.log.ring().unit);
        self.make_room(len)?;
        self.write(record, &in_place, placed, txn.time)?;
        self.note(len, logged, &txn.revoked);
        Ok(())
    }

    /// Bytes that can be written home as a whole with a record of at most so many.
    fn room_in_place(&self, record: u64) -> usize {
        match self.dev.atomic_write() {
            Some(atomic) if self.rule.offers(Action::InPlace) => {
                let unit = u64_as_usize(self.log.ring().unit);
                let most = atomic.max_sectors() * u32_as_usize(self.dev.sector_size());
                most.saturating_sub(u64_as_usize(record).next_multiple_of(unit))
            }
            _ => 0,
        }
    }

    /// Puts the bytes of blocks that stay at their homes into the record, or to what is written
    /// home with it.
    fn describe<'a>(
        &self,
        record: &mut Record,
        stays: impl IntoIterator<Item = &'a LoggedBlock>,
        described: &mut Described<'a>,
    ) {
        let (middle, fills) = {
            let span = self.span.lock();
            // A checkpoint is far away in the first half of what brings one.
            (
                span.behind_oldest(2),
                span.head - span.tail > self.most_used / 2,
            )
        };
        let index = self.index.read();
        for block in stays {
            let (home, class, content) = (block.home, block.class, &block.content);
            if block.fresh || block.relocated {
                let mut set = Ranges::new();
                set.add_changes(0, &self.zeros, content);
                let whole = Some(record.bytes());
                match self.rule.logged(block, &set) {
                    Action::Delta => record.zeroed(home, class, content, &set),
                    _ => record.block(home, class, content),
                }
                described.logged.push(Change {
                    block,
                    changed: Ranges::whole(content.len()),
                    carried: true,
                    whole,
                });
                continue;
            }
            if block.ranges.is_empty() {
                continue;
            }
            let old = index.get(&home);
            // Recovery would put what the log has of it over what is home.
            let is_logged = old.is_some() && !is_planted(Bug::PlacedOverLog);
            if !is_logged && self.is_placed(block, record.bytes(), described) {
                continue;
            }
            let delays = old.filter(|version| middle.is_after(version.oldest()));
            let pending = delays.and_then(Version::portable);
            let all = pending.map(|pending| {
                let mut all = pending.clone();
                all.add_all(&block.ranges);
                all
            });
            let all = all.filter(|all| self.rule.carries(&block.ranges, all, fills));
            let carried = all.is_some();
            let ranges = match is_planted(Bug::LostCarry) {
                false => all.as_ref().unwrap_or(&block.ranges),
                true => &block.ranges,
            };
            let action = self.rule.logged(block, ranges);
            let data = record.bytes();
            match action {
                Action::Delta => record.ranges(ChunkKind::Ranges, home, class, content, ranges),
                _ => record.block(home, class, content),
            }
            if let Some((ino, _)) = block.owner {
                let changes = old.map_or(0, |version| version.changes);
                self.rule.count(action, ino, &block.ranges, changes, data);
            }
            let is_whole = action == Action::Whole;
            described.logged.push(Change {
                block,
                changed: block.ranges.clone(),
                carried: carried || is_whole,
                whole: is_whole.then_some(data),
            });
        }
    }

    /// Whether a block that the log has nothing of is to be written home with the record, which has
    /// so many bytes of data before it. Then it is among what is.
    fn is_placed<'a>(
        &self,
        block: &'a LoggedBlock,
        data: usize,
        described: &mut Described<'a>,
    ) -> bool {
        let Some((ino, _)) = block.owner.filter(|_| described.room > 0) else {
            return false;
        };
        let sectors = block.ranges.widened(self.rule.home_unit());
        if sectors.bytes() > described.room
            || self.rule.choose(ino, &block.ranges, 0) != Action::InPlace
        {
            return false;
        }
        self.rule
            .count(Action::InPlace, ino, &block.ranges, 0, data);
        described.room -= sectors.bytes();
        let start = self.offset(block.home);
        described.placed.extend(sectors.iter().map(|range| Piece {
            offset: start + usize_as_u64(range.start),
            class: block.class,
            bytes: &block.content[range],
        }));
        true
    }

    /// Writes a transaction; durable when it returns.
    fn write(
        &self,
        record: &mut Record,
        in_place: &[&LoggedBlock],
        placed: Vec<Piece<'_>>,
        time: (u64, u32),
    ) -> Result<()> {
        let (at, sequence) = {
            let span = self.span.lock();
            (span.head, span.sequence)
        };
        let ring = self.log.ring();
        let place = Place {
            at,
            sequence,
            epoch: self.epoch,
            seed: ring.seed(&self.uuid, self.epoch, at, sequence),
            unit: ring.unit,
            masked: self.log.masked(self.block_size),
        };
        let record = record.seal(&place, COMMIT, time);
        let mut body = Dirty::on(&*self.dev);
        let data = in_place.iter().copied();
        if is_planted(Bug::LatePayload) {
            self.log.write(body, at, record, sequence)?;
            let mut late = Dirty::on(&*self.dev);
            return self.busy_homes.write_data(&mut late, self.block_size, data);
        }
        self.busy_homes
            .write_data(&mut body, self.block_size, data)?;
        if !placed.is_empty() {
            return self.write_placed(body, placed, at, record);
        }
        if is_planted(Bug::MissingRecordFlush) {
            return ring.write_unvouched(at, record);
        }
        self.log.write(body, at, record, sequence)
    }

    /// Writes blocks home, in one with the record at this position; durable when it returns.
    fn write_placed(
        &self,
        body: Dirty<'_>,
        placed: Vec<Piece<'_>>,
        at: u64,
        record: &[u8],
    ) -> Result<()> {
        let size = usize_as_u64(self.block_size);
        let homes = placed.iter().map(|piece| BlockNo(piece.offset / size));
        self.busy_homes.wait_for(homes);
        let mut runs = runs_of(Cause::Home, placed);
        runs.extend(self.log.ring().runs(at, record));
        Ok(body.write_whole_commit(&runs)?)
    }

    /// A transaction is durable: it is the newest, what it freed is gone.
    fn note(&self, len: u64, changes: Vec<Change<'_>>, revoked: &[BlockNo]) {
        let mut span = self.span.lock();
        let mut index = self.index.write();
        let (sequence, at) = (span.sequence, span.head);
        for Change {
            block,
            changed,
            carried,
            whole,
        } in changes
        {
            let content = match whole.filter(|_| self.log.is_beside()) {
                Some(offset) => Content::Logged(at + usize_as_u64(offset)),
                None => Content::Here(block.content.clone()),
            };
            let ino = block.owner.map(|(ino, _)| ino);
            let new = || Version::new(block.class, ino, content.clone(), sequence);
            index.change_or_insert(block.home, new, |version| {
                version.class = block.class;
                version.ino = ino;
                version.change(sequence, content.clone(), &changed, carried);
            });
        }
        for block in revoked {
            index.remove(block);
        }
        span.transactions.push_back((sequence, at));
        span.head += len;
        span.sequence = sequence.next();
        self.used.store(span.head - span.tail, Relaxed);
    }

    fn make_room(&self, needed: u64) -> Result<()> {
        let capacity = self.log.ring().capacity;
        let lacks_room = |&until: &Until| {
            let span = self.span.lock();
            let is_full = span.head + needed - span.tail > capacity;
            (is_full || self.index.here() > 2 * self.most_held).then_some(until)
        };
        for until in [Until::Part, Until::End].iter().filter_map(lacks_room) {
            self.forced.fetch_add(1, Relaxed);
            self.bring_home(until)?;
        }
        match lacks_room(&Until::End) {
            Some(_) if needed > capacity => Err(SchemeError::Unusable(format!(
                "a transaction of {needed} bytes does not fit into its {capacity} bytes"
            ))),
            _ => Ok(()),
        }
    }

    /// Brings versions home and moves the log's end.
    fn bring_home(&self, until: Until) -> Result<()> {
        let _one = self.checkpointing.lock();
        let is_short = self.index.here() > self.most_held;
        let first = match until {
            Until::Part if !is_short => Some(self.span.lock().behind_oldest(PARTS)),
            Until::Part | Until::End => None,
        };
        let is_due = |version: &Version| match first {
            Some(first) => first.is_after(version.oldest()),
            // Memory is had of what is there.
            None => version.is_here() || matches!(until, Until::End),
        };
        let take = || versions::take_due(&mut self.index.write(), is_due);
        let mut due = self.busy_homes.occupy(take, |due| due.home);
        due.sort_unstable_by_key(|due| due.home);
        let written = self.write_home(&due);
        self.busy_homes.release();
        if written.is_err() {
            versions::stay(&mut self.index.write(), &due);
        }
        written?;
        let (tid, at) = {
            let span = self.span.lock();
            let mut index = self.index.write();
            versions::are_home(&mut index, &due, |ino, changes| {
                if let Some(ino) = ino {
                    self.rule.learn(ino, changes);
                }
            });
            let tid = versions::first_needed(&index).unwrap_or(span.sequence);
            (tid, span.position_of(tid))
        };
        if at == self.span.lock().tail {
            return Ok(());
        }
        let tail = Tail {
            line: self.log.ring().line(at),
            sequence: tid,
        };
        if !is_planted(Bug::LateTail) {
            self.log.write_tail(tail, Cause::Checkpoint)?;
        }
        let mut span = self.span.lock();
        span.tail = at;
        let gone = span.transactions.partition_point(|(_, its)| *its < at);
        span.transactions.drain(..gone);
        versions::forget_before(&mut self.index.write(), tid);
        self.used.store(span.head - span.tail, Relaxed);
        Ok(())
    }

    /// Durable when it returns.
    fn write_home(&self, due: &[Due]) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        // What lies in the log is read from there, not all at once.
        for due in due.chunks((BATCH / self.block_size).max(1)) {
            let contents: Vec<BlockRef> = due
                .iter()
                .map(|block| self.content(&block.content))
                .collect::<Result<_>>()?;
            let pieces = self.pieces(due, &contents);
            write_pieces(&*self.dev, Cause::Checkpoint, pieces)?;
        }
        if is_planted(Bug::MissingCheckpointFlush) {
            return Ok(());
        }
        self.log.make_durable(&*self.dev)
    }

    /// What is written of these blocks, which are in ascending order: the sectors in which the
    /// bytes are that home has not got, and what lies between two of them, in one block or in
    /// neighbours, where the device would take longer to leave it out.
    fn pieces<'a>(&self, due: &[Due], contents: &'a [BlockRef]) -> Vec<Piece<'a>> {
        let mut spans: Vec<(usize, Range<usize>)> = Vec::with_capacity(due.len());
        for (i, block) in due.iter().enumerate() {
            let start = self.offset(block.home);
            for range in block.pending.widened(self.rule.home_unit()).iter() {
                if let Some((last, before)) = spans.last_mut() {
                    let end = self.offset(due[*last].home) + usize_as_u64(before.end);
                    let is_near = start + usize_as_u64(range.start) - end <= self.jump_bytes;
                    if is_near && *last == i {
                        before.end = range.end;
                        continue;
                    }
                    if is_near && due[*last].home.plus(1) == block.home {
                        before.end = self.block_size;
                        spans.push((i, 0..range.end));
                        continue;
                    }
                }
                spans.push((i, range));
            }
        }
        let piece = |(i, range): (usize, Range<usize>)| Piece {
            offset: self.offset(due[i].home) + usize_as_u64(range.start),
            class: due[i].class,
            bytes: &contents[i][range],
        };
        spans.into_iter().map(piece).collect()
    }
}
