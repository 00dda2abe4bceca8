//! Delta Journaling: a block that changed little is logged as a small delta in a small NVRAM, any
//! other block in the volume's journal.
//!
//! Source: Kim, Min, Eom, "Reducing Excessive Journaling Overhead with Small-Sized NVRAM for Mobile
//! Devices" (IEEE Trans. Consumer Electronics 60(2), 2014).
//!
//! Home and the volume's journal are on a block device. The delta journal is in persistent memory
//! beside it, 16 MiB unless told otherwise.
//!
//! A commit, in order of writes:
//! 1. `ordered`: data home. Two kinds of data are logged instead: overwritten data of a
//!    [whole](LoggedBlock::whole) write, and blocks with an older version in the log;
//! 2. into the volume's journal: each logged block that does not become a delta, new blocks
//!    included. A block that overwrites another is compared with it. If less than `threshold`
//!    percent of the bits differ, or all but less than that, the exclusive or of the two is
//!    compressed: the delta;
//! 3. flush, if step 1 or 2 wrote anything to the device;
//! 4. descriptor, deltas and commit record into the NVRAM, with a checksum over all of it, and a
//!    fence;
//! 5. a word that says that the transaction was durable, without a fence.
//!
//! When the NVRAM has no room for a delta, the block goes to the journal. When it has none for the
//! descriptor, the commit waits for a checkpoint.
//!
//! A checkpoint brings the newest version of every block home. It runs when `nvm_checkpoint`
//! percent of the NVRAM or a quarter of the journal is in use, when too much content is held in
//! memory, and `checkpoint=` seconds after the oldest commit that it takes in. For each batch of
//! blocks, in order of writes:
//! 1. blocks whose deltas rest on home, whole into the NVRAM, fence (see below);
//! 2. all blocks of the batch home;
//! 3. with the first batch, the checkpoint's number (`owner.rs`);
//! 4. flush;
//! 5. a flag in the newest tag of each block, fence; then the copies of step 1 are forgotten,
//!    fence.
//!
//! After the last batch the log's new tail goes into the NVRAM, durable.
//!
//! **The paper's hole.** A delta is worth nothing without its base. If home is the base, a power
//! cut during a checkpoint can destroy the newest version in two ways: a home that is torn is no
//! base any more, and a home that was written completely gets the delta a second time, which undoes
//! it. Therefore the NVRAM keeps each block whose deltas rest on home, whole, while the block is on
//! its way home, in batches of up to an eighth of the NVRAM. This costs the NVRAM one copy of each
//! such block per checkpoint, and the device one flush per batch, but no write. A block whose base
//! is in the journal needs none of this. Each delta carries the checksum of the block that it leads
//! to (4 bytes), so that a wrong base is never taken for the right one.
//!
//! Further deviations from the paper:
//! - A commit has one fence, because the checksum vouches for the deltas.
//! - Blocks that begin like a record of JBD2 are escaped in the journal, as in JBD2.
//! - Freed blocks have tags of their own.
//! - The journal's superblock stays as it is. The mark of a private log keeps the kernel and e2fsck
//!   away.
//!
//! Recovery: see [`recovery`]. `dj/replay.rs` brings home what it found.

mod checkpoint;
mod draft;
mod recovery;
mod region;
mod replay;

use std::collections::VecDeque;

use smallvec::SmallVec;
use stetfs_format::delta_log::{Record, TagFlags};
use stetfs_format::jbd2::JournalSuperblock;
use stetfs_format::nvm_pair::PairState;
use stetfs_format::private_log::Tail;
use stetfs_format::width::{must_fit_u32, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, BlockRef, Cause, Class, Dirty, Tag, pmem};

use self::draft::{COMPRESS, DECIDE, Draft, Place, Rule, THRESHOLD};
use self::region::{DeltaRegion, TagWord};
use crate::engine::log::serving::Serving;
use crate::engine::log::{
    DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Span, Until, Version, Which,
};
use crate::parts::area::JournalArea;
use crate::parts::index::{Changing, Index, Indexed};
use crate::parts::owner::{self, Claim, Pair};
use crate::parts::period::{CHECKPOINT_INTERVAL, Period};
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, Beside, DataMode, DataPromise, Goal, Ground, LoggedBlock, OpenArgs, OptionAbout, Origin,
    Parts, RecoveryReport, Registration, Result, Scheme, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("dj-journal", "data=journal", Ground::Nvram).planted(&[
            Bug::MissingBodyFlush,
            Bug::MissingCheckpointFlush,
            Bug::UncheckedReplay,
            Bug::DeltaTwice,
            Bug::UnkeptBase,
            Bug::ReusedSequence,
        ]),
        Trial::new("dj-ordered", "data=ordered", Ground::Nvram).planted(&[
            Bug::ForgottenRevoke,
            Bug::DeltaTwice,
            Bug::UnkeptBase,
        ]),
        Trial::new("dj-ordered-atomic", "data=ordered", Ground::Nvram)
            .atomic()
            .planted(&[Bug::UnloggedWhole]),
        Trial::setting("dj-all", "data=journal,threshold=100", Ground::Nvram),
        Trial::setting("dj-size", "data=journal,decide=size", Ground::Nvram),
        Trial::setting("dj-early", "data=journal,nvm_checkpoint=20", Ground::Nvram),
        Trial::setting(
            "dj-ranges",
            "data=ordered,compress=ranges,decide=size,checkpoint=1",
            Ground::Nvram,
        ),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "dj",
    title: "Delta Journaling: a block that changed little is logged as a small delta in NVRAM",
    source: "Kim, Min, Eom, IEEE Trans. Consumer Electronics 60(2), 2014",
    modes: &[DataMode::Journal, DataMode::Ordered],
    nvm: Beside::Only(16 << 20),
    cost: "commit: in NVRAM 64 bytes, 16 and a delta for each block, 1 fence; what changed much \
        whole in the journal, 1 flush; checkpoint: n blocks",
    recovery: &[recovery::LEFT, owner::LEFT],
    options: &[
        &THRESHOLD,
        &DECIDE,
        &COMPRESS,
        &NVM_CHECKPOINT,
        &CHECKPOINT_INTERVAL,
    ],
    ..About::PLAIN
};

static NVM_CHECKPOINT: OptionAbout = OptionAbout {
    name: "nvm_checkpoint",
    syntax: "PERCENT",
    default: "75",
    what: "how much of the NVRAM is filled before a checkpoint",
};

/// The first block of the journal's inode that holds logged blocks, behind JBD2's superblock and
/// our header.
const FIRST: u32 = 2;

/// The number of a region's first transaction.
const FIRST_TRANSACTION: Tid = Tid(1);

struct Dj {
    log: Log<DeltaVersion>,
    pair: Pair,
    region: DeltaRegion,
    area: JournalArea,
    mode: DataMode,
    rule: Rule,
    journal: Mutex<Journal>,
    /// The buffers of the last transaction, for the next one.
    draft: Mutex<Draft>,
}

/// The part of the volume's journal that is in use.
struct Journal {
    /// The block that is written next, and the number of blocks that may be written.
    next: u32,
    free: u32,
    /// The number of journal blocks of each transaction in the log.
    taken: VecDeque<u32>,
}

struct DeltaVersion {
    class: Class,
    content: BlockRef,
    /// Its newest tag.
    tag: TagWord,
    /// The transaction that made it.
    newest: Tid,
    /// The transactions from which a replay would make it; empty: it is home.
    transactions: SmallVec<[Tid; 2]>,
    /// The last of them that has all of it; `None`: the deltas rest on home.
    whole: Option<Tid>,
}

impl Indexed for DeltaVersion {
    fn is_held(&self) -> bool {
        !self.transactions.is_empty()
    }
}

/// A version on its way home.
struct DueDelta {
    class: Class,
    content: BlockRef,
    tag: TagWord,
    sequence: Tid,
    rests_on_home: bool,
}

impl Version for DeltaVersion {
    type Due = DueDelta;

    fn oldest(&self) -> Tid {
        *self.transactions.first().expect("it is held")
    }

    fn newest(&self) -> Tid {
        self.newest
    }

    fn leave(&mut self) -> DueDelta {
        DueDelta {
            class: self.class,
            content: self.content.clone(),
            tag: self.tag,
            sequence: self.newest,
            rests_on_home: self.whole.is_none(),
        }
    }

    fn arrive(&mut self, due: &DueDelta) {
        let is_later = |tid: &Tid| tid.is_after(due.sequence);
        self.transactions.retain(|tid| is_later(tid));
        self.whole = self.whole.filter(is_later);
    }
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let options = &args.options;
    let rule = Rule::of(&ABOUT, options)?;
    let nvm_checkpoint = options.percent(&ABOUT, &NVM_CHECKPOINT)?;
    let period = Some(Period::of(&ABOUT, options)?);
    let area = journal_area(&args)?;
    let mode = options.data.unwrap_or(ABOUT.modes[0]);
    let (pair, region, start) = take_region(&args, &area)?;
    let capacity = region.ring.capacity;
    let limits = Limits {
        // One line stays free.
        room: capacity - LINE,
        most_used: capacity * nvm_checkpoint / 100,
        most_here: Limits::most_here(args.memory, args.block_size),
        period,
    };
    let span = Span::empty(start.at, start.sequence);
    // Every block may go to the journal whole, and half of the tags may be those of freed blocks.
    let tags = capacity / 8 / Record::length(1, 0);
    let tags = u32::try_from(tags).unwrap_or(u32::MAX);
    let terms = Terms {
        promise: match mode {
            DataMode::Journal => DataPromise::Atomic,
            _ => DataPromise::Ordered,
        },
        logs_data: mode == DataMode::Journal,
        wants: Wants {
            base: true,
            changed_bytes: 0,
        },
        ..Terms::plain((area.capacity() / 4).min(tags))
    };
    let dj = Serving(Dj {
        log: Log::new(
            args.dev.clone(),
            args.block_size,
            limits,
            span,
            Index::default(),
        ),
        pair,
        region,
        mode,
        rule,
        journal: Mutex::new(Journal {
            next: area.first,
            free: area.capacity(),
            taken: VecDeque::new(),
        }),
        draft: Mutex::default(),
        area,
    });
    if !start.is_left {
        return Ok((Box::new(dj), terms, RecoveryReport::default()));
    }
    let report = dj.0.take_over(&args)?;
    dj.checkpoint(Goal::All)?;
    dj.0.begin_anew()?;
    Ok((Box::new(dj), terms, report))
}

/// Returns the journal area, with the length that its superblock gives.
fn journal_area(args: &OpenArgs) -> Result<JournalArea> {
    let mut area = JournalArea::new(args.dev.clone(), args.block_size, args.log.clone());
    let mut raw = Block::zeroed(args.block_size.bytes());
    area.read(0, raw.bytes_mut())?;
    let superblock = JournalSuperblock::decode(raw.bytes(), args.block_size)?;
    area.set_log(FIRST, superblock.maxlen)?;
    Ok(area)
}

/// The place where the region's log goes on, and whether a recovery must bring it home.
struct Start {
    at: u64,
    sequence: Tid,
    is_left: bool,
}

/// Begins a region, or opens the volume's own again.
fn take_region(args: &OpenArgs, area: &JournalArea) -> Result<(Pair, DeltaRegion, Start)> {
    let nvm = owner::memory(&ABOUT, args)?;
    let look = recovery::Contents {
        pmem: nvm.clone(),
        block_size: args.block_size,
    };
    match owner::claim(&ABOUT, args, area, &nvm, &look)? {
        Claim::New(pair) => {
            let region = DeltaRegion::new(nvm, args.block_size, &pair.header)?;
            let start = Start {
                at: 0,
                sequence: FIRST_TRANSACTION,
                is_left: false,
            };
            let tail = Tail {
                line: 0,
                sequence: FIRST_TRANSACTION,
            };
            if args.writable {
                let newest = Tid(FIRST_TRANSACTION.0 - 1);
                pair.begin(args.has_private_log, tail, newest, || {
                    region.prepare(newest)
                })?;
            }
            Ok((pair, region, start))
        }
        Claim::Left(pair) => {
            let region = DeltaRegion::new(nvm, args.block_size, &pair.header)?;
            let tail = pair.tail();
            let start = Start {
                at: region.checked_position(tail)?,
                sequence: tail.sequence,
                is_left: true,
            };
            Ok((pair, region, start))
        }
    }
}

impl OnLog for Dj {
    type Version = DeltaVersion;
    type Draft<'t> = Draft;

    const UNITS: &'static str = "bytes";
    const OVERWRITES: bool = true;

    fn log(&self) -> &Log<DeltaVersion> {
        &self.log
    }

    fn content(&self, _: BlockNo, version: &DeltaVersion) -> Result<BlockRef> {
        Ok(version.content.clone())
    }

    fn goes(&self, block: &LoggedBlock) -> Goes {
        let is_meant = block.whole && block.origin != Origin::Fresh;
        if self.mode == DataMode::Journal || is_meant {
            Goes::Log
        } else {
            Goes::Home
        }
    }

    /// Reserves room for descriptor and commit record, as if every block went to the journal.
    /// `write` decides which blocks become deltas, when the room is known.
    fn draft<'t>(&self, _: &Head, sorted: &Sorted<'t>, _: bool) -> (Draft, u64) {
        let tags = sorted.logged.len() + sorted.revoked.len();
        let draft = std::mem::take(&mut *self.draft.lock());
        (draft, Record::length(tags, 0))
    }

    fn fits(&self, sorted: &Sorted<'_>) -> bool {
        usize_as_u64(sorted.logged.len()) < u64::from(self.journal.lock().free)
    }

    fn is_due(&self) -> bool {
        let capacity = self.area.capacity();
        capacity - self.journal.lock().free > capacity / 4
    }

    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        draft: &mut Draft,
        time: (u64, u32),
    ) -> Result<u64> {
        let mut on_device = Dirty::on(&*self.area.dev);
        self.log.write_data(&mut on_device, &sorted.home)?;
        let place = Place {
            head: *head,
            first: self.journal.lock().next,
        };
        draft.describe(&place, &self.rule, &self.area, sorted);
        let wholes = draft.wholes.iter();
        let parts: Vec<(Tag, &[u8])> = wholes.map(|(block, tag)| (*tag, &block[..])).collect();
        let mut in_region = pmem::Dirty::in_memory(&*self.region.ring.medium);
        if !(on_device.is_empty() && parts.is_empty()) {
            let first = place.first;
            in_region.rests_on(self.area.write_last(on_device, first, &parts, Cause::Log)?);
        }
        let seed = self.region.seed(head.at, head.sequence);
        draft.record.seal(head.sequence, seed, time);
        let ring = &self.region.ring;
        ring.write_covering_commit(in_region, head.at, &draft.record.0)?;
        self.region.note_committed(head.sequence)?;
        self.pair.note_commit(head.sequence);
        Ok(usize_as_u64(draft.record.0.len()))
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, DeltaVersion>,
        head: &Head,
        sorted: &Sorted<'t>,
        mut draft: Draft,
    ) {
        let sequence = head.sequence;
        let blocks = must_fit_u32(draft.wholes.len());
        {
            let mut journal = self.journal.lock();
            journal.next = self.area.step(journal.next, blocks);
            journal.free -= blocks;
            journal.taken.push_back(blocks);
        }
        for (n, (block, tag)) in sorted.logged.iter().zip(&draft.tags).enumerate() {
            let is_whole = tag.flags.contains(TagFlags::NON_DELTA);
            let before = index.remove(&block.home).filter(|_| !is_whole);
            let (mut transactions, whole) = match before {
                Some(before) => (before.transactions, before.whole),
                None => (SmallVec::new(), is_whole.then_some(sequence)),
            };
            transactions.push(sequence);
            let version = DeltaVersion {
                class: block.class,
                content: block.content.clone(),
                tag: TagWord {
                    at: head.at + usize_as_u64(Record::tag_at(n)),
                    word: tag.word(),
                },
                newest: sequence,
                transactions,
                whole,
            };
            index.insert(block.home, version);
        }
        // The index has the contents; the others were escaped copies.
        draft.wholes.clear();
        *self.draft.lock() = draft;
    }

    fn due(&self, _: Until) -> Option<Which> {
        Some(Which::All)
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        self.land_in_batches(due)
    }

    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()> {
        let tail = self.region.tail(at, sequence);
        self.pair.move_tail(tail, Cause::Checkpoint)
    }

    fn leave(&self, at: u64, _: &[DueOf<Self>]) -> Result<()> {
        let n = self.log.span.lock().before(at).count();
        let mut journal = self.journal.lock();
        journal.free += journal.taken.drain(..n).sum::<u32>();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.pair.close(PairState::Shut)
    }
}
