//! stet: the first copy stands, wherever that is cheapest.
//!
//! Source: the ideas of five papers, put together (docs/STET.md): the log of changed bytes and the
//! switch of Shortcut-JFS, the delta of Delta Journaling, the commit in place of UBJ.
//!
//! Home and log are on a block device or in byte-addressable memory. The log is the volume's
//! journal area, a ring of sectors or, in memory, of cache lines. Or the log is in memory beside
//! the volume ([`place`]). Then no block is written where it stays, and a block that the log has
//! whole is not kept in other memory.
//!
//! A commit, in order of writes:
//! 1. data that stays where it is written (new blocks, switched blocks), into free blocks of the
//!    volume;
//! 2. the transaction's record into the log: the changed bytes of every other block, whole blocks
//!    that changed as a whole, the checksums of the blocks of step 1, freed blocks. Its checksum
//!    covers all of it;
//! 3. a flush. Then both are durable. After a power cut before that, recovery finds a checksum that
//!    does not fit, and drops the transaction.
//!
//! For a block of data that has a home, [`rule`] chooses the cheapest of three actions. A switch is
//! a request to the file system: where it would break the file up more than the medium can bear
//! ([`Relocates`](stetfs_scheme::Relocates)), the block keeps its home and is logged.
//!
//! Some devices can write several ranges atomically (our flash translation layer can). There, if
//! this is cheapest, blocks that are not in the log go to their homes in one such write with the
//! record. That write is the commit, and leaves nothing for a checkpoint.
//!
//! A checkpoint of the versions that hold back the log's tail (for the background: of the oldest
//! quarter of the log), in order of writes:
//! 1. the changed sectors of these versions, home;
//! 2. flush;
//! 3. the log's header with the new tail, durable.
//!
//! A commit carries a changed block forward if few bytes of it other than the new ones differ from
//! home, and the oldest of them are in the older half of the log: it logs them again with the new
//! ones. So a block that changes again and again never goes home, and does not hold back the tail.
//!
//! When a block with bytes in the log is freed, home or not, the record revokes it.
//!
//! Recovery: see [`recovery`].

mod draft;
mod long_runs;
mod place;
mod recovery;
mod rule;
mod version;

use std::ops::Range;

use stetfs_format::private_log::{COMMIT, Tail};
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockRef, Cause, Dirty, Errno, MediaError};

use self::draft::{Describing, Draft};
use self::long_runs::LongRuns;
use self::place::LogPlace;
use self::rule::{ACTION, Action, Bed, MEDIUM, Rule, Wish};
use self::version::{Content, RangesVersion};
use crate::engine::log::serving::Serving;
use crate::engine::log::{DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Until, Which};
use crate::jbd2::{self};
use crate::parts::fill::{FILL, filled};
use crate::parts::home::{Piece, runs_of, write_pieces};
use crate::parts::index::Changing;
use crate::parts::look::changes_less;
use crate::parts::record::{Place, Record};
use crate::parts::{byte_log, owner, reader, replay};
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, ActionCount, Beside, DirtyBlock, Goal, Ground, InMemory, Jbd2Log, LoggedBlock, OpenArgs,
    OptionAbout, Origin, Parts, Placement, Registration, Result, SchemeError, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// The scheme's row in the registry.
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
            .planted(&[Bug::LateData, Bug::EarlyReuse]),
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
    in_memory: InMemory::Too,
    nvm: Beside::Too(16 << 20),
    jbd2: Jbd2Log::With(&LOG, "jbd2"),
    cost: "commit: the changed bytes and some 200 more, in sectors, whole blocks once, 1 flush; \
        checkpoint: the changed sectors",
    recovery: &[
        byte_log::LEFT,
        reader::LEFT,
        replay::LEFT,
        byte_log::MOVED,
        owner::LEFT,
        place::ELSEWHERE,
    ],
    options: &[&LOG, &ACTION, &MEDIUM, &FILL],
    ..About::PLAIN
};

static LOG: OptionAbout = OptionAbout {
    name: "log",
    syntax: "private|jbd2",
    default: "private",
    what: "what the log is: changed bytes, which only stetfs recovers; or JBD2's, which the kernel \
        and e2fsck recover too: changed blocks are logged whole, new and long ones written once",
};

struct Stet {
    log: Log<RangesVersion>,
    place: LogPlace,
    uuid: [u8; 16],
    epoch: u64,
    rule: Rule,
    /// Zeros: the old content of a new block.
    zeros: BlockRef,
    /// The longest gap between two pieces that go home, in bytes, that is written along with them.
    jump_bytes: u64,
    /// The buffer of the last record, for the next one.
    record: Mutex<Record>,
}

/// A checkpoint in the background takes the oldest of this many parts of the used log. Larger parts
/// are written in better order; smaller ones leave more versions in the log that may be freed or
/// overwritten before they go home.
const PARTS: u64 = 4;

/// Bytes that a checkpoint reads and writes home at a time.
const BATCH: usize = 8 << 20;

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    // A wrong option is an error before anything is written.
    let wish = Wish::of(&ABOUT, &args.options)?;
    // Memory beside the volume serves reads, and its blocks may be freed before they go home: so it
    // is filled further.
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
            return jbd2::open_as(&ABOUT, args, Box::new(LongRuns));
        }
        _ => return Err(args.options.wrong(&ABOUT, &LOG)),
    }
    let (place, left, report) = recovery::recover(&ABOUT, &args)?;
    let (capacity, unit) = (place.ring().capacity, u64_as_usize(place.ring().unit));
    let bed = Bed {
        block_size: args.block_size,
        log: unit,
        home: if place.is_beside() {
            u32_as_usize(args.dev.sector_size())
        } else {
            // A log in the volume may have longer units than the present device.
            unit
        },
        is_beside: place.is_beside(),
        is_atomic: !place.is_beside() && args.dev.atomic_write().is_some(),
    };
    let rule = Rule::new(wish, bed);
    let limits = Limits {
        room: capacity,
        most_used: capacity * fill / 100,
        most_here: Limits::most_here(args.memory, args.block_size),
        period: None,
    };
    let terms = Terms {
        wants: Wants {
            base: false,
            changed_bytes: args.block_size.bytes(),
        },
        relocates: rule.relocates(&*args.dev),
        places_new: !place.is_beside(),
        ..Terms::plain(place.max_transaction(args.block_size))
    };
    let stet = Stet {
        uuid: args.uuid,
        epoch: left.epoch,
        jump_bytes: rule.jump_bytes(&*args.dev),
        rule,
        zeros: Block::zeroed(args.block_size.bytes()).into(),
        log: Log::new(args.dev, args.block_size, limits, left.span, left.index),
        place,
        record: Mutex::default(),
    };
    Ok((Box::new(Serving(stet)), terms, report))
}

impl OnLog for Stet {
    type Version = RangesVersion;
    type Draft<'t> = Draft<'t>;

    const UNITS: &'static str = "bytes";
    const VOUCHES_FOR_DATA: bool = true;

    fn log(&self) -> &Log<RangesVersion> {
        &self.log
    }

    fn content(&self, _: BlockNo, version: &RangesVersion) -> Result<BlockRef> {
        self.content_of(version.content())
    }

    /// On a device the old block would have to be read, which costs more than it saves.
    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        if self.log.index.holds_any(home, 1) {
            return Ok(true);
        }
        let Some(pmem) = self.log.dev.pmem() else {
            return Ok(false);
        };
        // A delta is written twice, a whole block once: so half a block is the limit.
        let (start, least) = (self.offset(home), self.log.block_size.bytes() / 2 + 1);
        changes_less(&**pmem, start, content, least)
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let index = &self.log.index;
        let changes = index.find(block.home, |version| Some(version.changes));
        match self
            .rule
            .choose(block.ino, block.ranges, changes.unwrap_or(0))
        {
            Action::Switch => Placement::Relocate,
            Action::Delta | Action::Whole | Action::InPlace => Placement::Home,
        }
    }

    fn goes(&self, block: &LoggedBlock) -> Goes {
        if block.origin == Origin::Relocated || block.origin.is_new() && !self.place.is_beside() {
            Goes::Home
        } else {
            Goes::Log
        }
    }

    fn draft<'t>(&self, _: &Head, sorted: &Sorted<'t>, is_again: bool) -> (Draft<'t>, u64) {
        let mut draft = Draft {
            record: std::mem::take(&mut *self.record.lock()),
            logged: Vec::with_capacity(sorted.logged.len()),
            placed: Vec::new(),
            room: if is_again {
                0
            } else {
                self.room_in_place(sorted)
            },
        };
        let to = Describing {
            log: &self.log,
            rule: &self.rule,
            zeros: &self.zeros,
        };
        draft.record.begin();
        let (data, metadata) = sorted.logged.split_at(sorted.logged_data);
        draft.describe(&to, data);
        let bytes = draft.record.bytes();
        draft.describe(&to, metadata);
        draft.describe_placed(&to, &sorted.home);
        draft.record.revoke(&sorted.revoked);
        self.rule.is_sealed(draft.record.bytes() - bytes);
        // With blocks in place there is a record even if it is empty. Otherwise the one before
        // would stay the last, whose blocks recovery compares with their places.
        let len = if draft.record.is_empty() && draft.placed.is_empty() {
            0
        } else {
            draft.record.len(self.place.ring().unit)
        };
        (draft, len)
    }

    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        draft: &mut Draft<'_>,
        time: (u64, u32),
    ) -> Result<u64> {
        let Head { at, sequence, .. } = *head;
        let ring = self.place.ring();
        let len = draft.record.len(ring.unit);
        let place = Place {
            at,
            sequence,
            epoch: self.epoch,
            seed: ring.seed(&self.uuid, self.epoch, at, sequence),
            unit: ring.unit,
            masked: self.place.masked(self.log.block_size),
        };
        let record = draft.record.seal(&place, COMMIT, time);
        let mut body = Dirty::on(&*self.log.dev);
        self.log.write_data(&mut body, &sorted.home)?;
        if draft.placed.is_empty() {
            self.place.write(body, at, record, sequence)?;
        } else {
            self.write_placed(body, std::mem::take(&mut draft.placed), at, record)?;
        }
        Ok(len)
    }

    /// True when the device has less room for an atomic write than it said.
    fn tries_again(&self, error: &SchemeError) -> bool {
        let SchemeError::Media(error) = error else {
            return false;
        };
        matches!(&**error, MediaError::Io { source, .. } if *source == Errno::TOOBIG)
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, RangesVersion>,
        head: &Head,
        _: &Sorted<'t>,
        draft: Draft<'t>,
    ) {
        *self.record.lock() = draft.record;
        for change in draft.logged {
            let block = change.block;
            let content = match change.whole.filter(|_| self.place.is_beside()) {
                Some(offset) => Content::Logged(head.at + usize_as_u64(offset)),
                None => Content::Here(block.content.clone()),
            };
            let ino = block.owner.map(|(ino, _)| ino);
            let new = || RangesVersion::new(block.class, ino, content.clone(), head.sequence);
            index.change_or_insert(block.home, new, |version| {
                version.class = block.class;
                version.ino = ino;
                version.change(
                    head.sequence,
                    content.clone(),
                    &change.changed,
                    change.carried,
                );
            });
        }
    }

    fn due(&self, until: Until) -> Option<Which> {
        match until {
            Until::Goal(Goal::All) => Some(Which::All),
            // Only contents in memory give memory back.
            _ if self.log.is_short_of_memory() => Some(Which::Here),
            _ => Some(Which::Before(self.log.span.lock().behind_oldest(PARTS))),
        }
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        // In batches, because contents that are only in the log are read from there.
        for due in due.chunks((BATCH >> self.log.block_size.bits()).max(1)) {
            let contents = due.iter().map(|due| self.content_of(&due.version.content));
            let contents: Vec<BlockRef> = contents.collect::<Result<_>>()?;
            let pieces = self.pieces(due, &contents);
            write_pieces(&*self.log.dev, Cause::Checkpoint, pieces)?;
        }
        self.place.make_durable(&*self.log.dev)?;
        for due in due {
            if let Some(ino) = due.version.ino {
                self.rule.learn(ino, due.version.changes);
            }
        }
        Ok(())
    }

    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()> {
        let line = self.place.ring().line(at);
        self.place
            .write_tail(Tail { line, sequence }, Cause::Checkpoint)
    }

    fn close(&self) -> Result<()> {
        self.place.close()
    }

    fn actions(&self) -> Vec<ActionCount> {
        self.rule.actions()
    }
}

impl Stet {
    /// Returns the byte offset of a block on the device.
    fn offset(&self, block: BlockNo) -> u64 {
        self.log.block_size.start_of(block)
    }

    fn content_of(&self, content: &Content) -> Result<BlockRef> {
        match content {
            Content::Here(content) => Ok(content.clone()),
            Content::Logged(at) => self.place.content(*at, self.log.block_size),
            Content::Home => Ok(self.zeros.clone()),
        }
    }

    /// Returns the bytes that can go home in one atomic write with the record of these blocks.
    fn room_in_place(&self, sorted: &Sorted<'_>) -> usize {
        match self.log.dev.atomic_write() {
            Some(atomic) if self.rule.offers(Action::InPlace) => {
                let blocks = sorted.home.len() + sorted.logged.len();
                let record = Record::bound(blocks, sorted.revoked.len(), self.log.block_size);
                let unit = u64_as_usize(self.place.ring().unit);
                let most = atomic.max_sectors() * u32_as_usize(self.log.dev.sector_size());
                most.saturating_sub(u64_as_usize(record).next_multiple_of(unit))
            }
            _ => 0,
        }
    }

    /// Writes blocks home in one atomic write with the record at this position; durable when it
    /// returns.
    fn write_placed(
        &self,
        body: Dirty<'_>,
        placed: Vec<Piece<'_>>,
        at: u64,
        record: &[u8],
    ) -> Result<()> {
        let size = self.log.block_size;
        let homes = placed
            .iter()
            .map(|piece| BlockNo(size.block_of(piece.offset)));
        self.log.busy_homes.wait_for(homes);
        let mut runs = runs_of(Cause::Home, placed);
        runs.extend(self.place.ring().runs(at, record));
        Ok(body.write_whole_commit(&runs)?)
    }

    /// Returns the pieces to write of these blocks, which are in ascending order: the sectors with
    /// bytes that home does not have, and gaps between them, in one block or in neighbours, that
    /// the device writes sooner than it jumps over them.
    fn pieces<'a>(&self, due: &[DueOf<Self>], contents: &'a [BlockRef]) -> Vec<Piece<'a>> {
        let mut spans: Vec<(usize, Range<usize>)> = Vec::with_capacity(due.len());
        for (i, block) in due.iter().enumerate() {
            let start = self.offset(block.home);
            for range in block.version.pending.widened(self.rule.home_unit()).iter() {
                if let Some((last, before)) = spans.last_mut() {
                    let end = self.offset(due[*last].home) + usize_as_u64(before.end);
                    let is_near = start + usize_as_u64(range.start) - end <= self.jump_bytes;
                    if is_near && *last == i {
                        before.end = range.end;
                        continue;
                    }
                    if is_near && due[*last].home.plus(1) == block.home {
                        before.end = self.log.block_size.bytes();
                        spans.push((i, 0..range.end));
                        continue;
                    }
                }
                spans.push((i, range));
            }
        }
        let piece = |(i, range): (usize, Range<usize>)| Piece {
            offset: self.offset(due[i].home) + usize_as_u64(range.start),
            class: due[i].version.class,
            bytes: &contents[i][range],
        };
        spans.into_iter().map(piece).collect()
    }
}
