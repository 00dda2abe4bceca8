//! Delta Journaling: a block that changed little is logged as a small delta in a little NVRAM, any
//! other in the volume's journal.
//!
//! Source: Kim, Min, Eom, "Reducing Excessive Journaling Overhead with Small-Sized NVRAM for Mobile
//! Devices" (IEEE Trans. Consumer Electronics 60(2), 2014).
//!
//! Home is a block device; the delta journal is in persistent memory beside it, 16 MiB unless told
//! otherwise. A commit, in order of writes:
//! 1. `ordered`: data home, but for what is to be [whole](LoggedBlock::whole) and is not new, and
//!    what the log has an older version of;
//! 2. each block that overwrites another is compared with what it was: if less than `threshold`
//!    percent of the bits differ, or all but so few, their exclusive or is compressed and goes to
//!    the NVRAM. Whatever else there is, new blocks included, goes to the volume's journal;
//! 3. flush, if 1 or 2 wrote anything to the device;
//! 4. descriptor, deltas and commit record into the NVRAM, with a checksum over all of it, and a
//!    fence;
//! 5. a word that says that it was durable, without a fence.
//!
//! A checkpoint brings the newest version of every block home. It happens when `nvm_checkpoint`
//! percent of the NVRAM or a quarter of the journal are used, when too much is held in memory, and
//! `checkpoint=` seconds after the oldest commit that it takes in. When there is no room in the
//! NVRAM for a delta, the block goes to the journal; when there is none for the descriptor, the
//! commit waits for a checkpoint.
//!
//! **The paper's hole.** A delta is worth nothing without its base. If home is the base, a home
//! that is torn by a power cut in the middle of a checkpoint takes the newest version with it, and
//! one that was written wholly gets the delta a second time, which undoes it. Therefore a block on
//! which deltas rest is kept whole in the NVRAM while it is on its way home: a batch of up to an
//! eighth of the NVRAM, fence, its homes, flush, the checkpoint's number (`owner.rs`), a flag in
//! the newest tag of each of them, fence, and the batch is forgotten. It costs the NVRAM one copy
//! of each such block a checkpoint and the device a flush a batch; nothing is written to the device
//! that the paper does not write. A block whose base is in the journal needs none of this. Each
//! delta carries the checksum of the block that it leads to (4 bytes), so that a wrong base is
//! never taken for the right one.
//!
//! Further deviations from the paper: one fence a commit, since the checksum vouches for the
//! deltas; blocks that begin like a record of JBD2 are escaped in the journal, as there; freed
//! blocks are named by tags of their own; the journal's superblock stays as it is, and the mark of
//! a private log keeps the kernel and e2fsck away.
//!
//! Recovery: see [`recovery`]; what it found is brought home in `dj/replay.rs`.

mod checkpoint;
mod draft;
mod recovery;
mod region;
mod replay;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::{SmallVec, smallvec};
use stetfs_format::delta_log::{Record, TagFlags};
use stetfs_format::jbd2::JournalSuperblock;
use stetfs_format::nvm_pair::PairState;
use stetfs_format::private_log::Tail;
use stetfs_format::width::{must_fit_u32, u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockRef, Cause, Class, Dirty, Tag, pmem};

use self::draft::{COMPRESS, DECIDE, Draft, Place, Rule, THRESHOLD};
use self::region::{DeltaRegion, TagWord};
use crate::parts::area::JournalArea;
use crate::parts::home::{BusyHomes, Write};
use crate::parts::index::{Index, Indexed};
use crate::parts::owner::{self, Claim, Pair};
use crate::parts::period::{CHECKPOINT_INTERVAL, Period};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Backlog, Beside, DataMode, DataPromise, Goal, Ground, Held, InMemory, Jbd2Log,
    LoggedBlock, Mark, OpenArgs, OptionAbout, Parts, RecoveryReport, Registration, Relocates,
    Result, Scheme, SchemeError, Snapshot, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// Its row in the registry.
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
    needs_journal_area: true,
    in_memory: InMemory::Never,
    needs_remap: false,
    nvm: Beside::Only(16 << 20),
    caches: false,
    jbd2: Jbd2Log::Never,
    atomic: true,
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
};

static NVM_CHECKPOINT: OptionAbout = OptionAbout {
    name: "nvm_checkpoint",
    syntax: "PERCENT",
    default: "75",
    what: "how much of the NVRAM is filled before a checkpoint",
};

/// The first block of the journal's inode that holds blocks: JBD2's superblock and our header are
/// before it.
const FIRST: u32 = 2;

/// The number of a region's first transaction.
const FIRST_TRANSACTION: Tid = Tid(1);

struct Dj {
    pair: Pair,
    region: DeltaRegion,
    area: JournalArea,
    mode: DataMode,
    rule: Rule,
    /// Bytes of the ring in use at which a checkpoint is wanted.
    most_used: u64,
    /// Contents that may be held before a checkpoint is wanted, in blocks.
    most_held: usize,
    period: Period,
    log: Mutex<Log>,
    /// The newest committed version of each block that is not home yet.
    index: Index<DeltaVersion>,
    /// What looks from outside see: bytes of the ring in use, blocks of the journal in use.
    used: AtomicU64,
    used_blocks: AtomicU64,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    busy_homes: BusyHomes,
    /// Checkpoints that commits have made.
    forced: AtomicU64,
}

struct Log {
    /// Where the next transaction goes, and the oldest that would be replayed.
    head: u64,
    tail: u64,
    sequence: Tid,
    /// The block of the journal that is written next, and how many may be.
    next: u32,
    free: u32,
    /// From tail to head.
    transactions: VecDeque<Logged>,
    draft: Draft,
}

/// A transaction in the ring.
struct Logged {
    sequence: Tid,
    /// Where the next one begins.
    end: u64,
    /// Blocks of the journal that it takes.
    blocks: u32,
    /// Blocks that need it to be replayed.
    needed: u32,
}

struct DeltaVersion {
    class: Class,
    content: BlockRef,
    /// Its newest tag.
    tag: TagWord,
    /// The transactions that a replay takes it from, its own last.
    transactions: SmallVec<[Tid; 2]>,
    /// The last of them that has all of it. None: they rest on home.
    whole: Option<Tid>,
}

impl Indexed for DeltaVersion {}

impl DeltaVersion {
    /// The transaction that it is from.
    fn sequence(&self) -> Tid {
        *self.transactions.last().expect("its own")
    }
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let options = &args.options;
    let rule = Rule::of(&ABOUT, options)?;
    let nvm_checkpoint = options.percent(&ABOUT, &NVM_CHECKPOINT)?;
    let period = Period::of(&ABOUT, options)?;
    let area = journal_area(&args)?;
    let mode = options.data.unwrap_or(ABOUT.modes[0]);
    let (pair, region, start) = take_region(&args, &area)?;
    let capacity = region.ring.capacity;
    let dj = Dj {
        mode,
        rule,
        most_used: capacity * nvm_checkpoint / 100,
        most_held: (args.memory / args.block_size).max(16),
        period,
        log: Mutex::new(Log {
            head: start.at,
            tail: start.at,
            sequence: start.sequence,
            next: area.first,
            free: area.capacity(),
            transactions: VecDeque::new(),
            draft: Draft::default(),
        }),
        index: Index::default(),
        used: AtomicU64::new(0),
        used_blocks: AtomicU64::new(0),
        checkpointing: Mutex::new(()),
        busy_homes: BusyHomes::default(),
        forced: AtomicU64::new(0),
        pair,
        region,
        area,
    };
    let report = match start.is_left {
        true => dj.recover(&args)?,
        false => RecoveryReport::default(),
    };
    // All of them may be whole, and half of the tags may be of freed blocks.
    let tags = capacity / 8 / Record::length(1, 0);
    let tags = u32::try_from(tags).unwrap_or(u32::MAX);
    let terms = Terms {
        promise: match mode {
            DataMode::Journal => DataPromise::Atomic,
            _ => DataPromise::Ordered,
        },
        mark: Mark::PrivateLog,
        max_transaction: (dj.area.capacity() / 4).min(tags),
        logs_data: mode == DataMode::Journal,
        logs_marked: true,
        wants: Wants {
            base: true,
            changed_bytes: 0,
        },
        relocates: Relocates::No,
        places_new: false,
        remaps: None,
        is_buffer_cache: false,
        keeps: false,
    };
    Ok((Box::new(dj), terms, report))
}

/// The journal's blocks, as many as its superblock says that there are.
fn journal_area(args: &OpenArgs) -> Result<JournalArea> {
    let mut area = JournalArea::new(args.dev.clone(), args.block_size, args.log.clone());
    let mut raw = Block::zeroed(args.block_size);
    area.read(0, raw.bytes_mut())?;
    let superblock = JournalSuperblock::decode(raw.bytes(), args.block_size)?;
    area.set_log(FIRST, superblock.maxlen)?;
    Ok(area)
}

/// Where the region's log goes on, and whether something in it is to be brought home.
struct Start {
    at: u64,
    sequence: Tid,
    is_left: bool,
}

/// Makes the region ours or opens it again.
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

impl Scheme for Dj {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let content = self
            .index
            .find(block, |version| Some(version.content.clone()));
        Ok(content.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.index.holds_any(start, count)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let (mut logged, home, revoked) = {
            let index = self.index.read();
            let is_logged = |block: &&LoggedBlock| {
                let is_meant = block.whole && !block.fresh && !is_planted(Bug::UnloggedWhole);
                self.mode == DataMode::Journal || is_meant || index.contains_key(&block.home)
            };
            let (logged, home): (Vec<_>, Vec<_>) = txn.data.iter().partition(is_logged);
            let is_logged =
                |block: &BlockNo| index.contains_key(block) && !is_planted(Bug::ForgottenRevoke);
            let revoked: Vec<_> = txn.revoked.iter().copied().filter(is_logged).collect();
            (logged, home, revoked)
        };
        logged.extend(&txn.meta);
        let mut on_device = Dirty::on(&*self.area.dev);
        let (is_only_data, any_data) = (logged.is_empty() && revoked.is_empty(), !home.is_empty());
        let home = home.into_iter();
        let (homes, size) = (&self.busy_homes, self.area.block_size);
        match (is_only_data, any_data) {
            (true, false) => return Ok(()),
            (true, true) => return homes.write_last_data(on_device, size, home),
            (false, _) => homes.write_data(&mut on_device, size, home)?,
        }
        self.make_room(logged.len(), revoked.len())?;
        let (place, mut draft) = {
            let mut log = self.log.lock();
            let place = Place {
                sequence: log.sequence,
                at: log.head,
                room: self.region.ring.capacity - (log.head - log.tail),
                first: log.next,
            };
            (place, std::mem::take(&mut log.draft))
        };
        draft.describe(&place, &self.rule, &self.area, &logged, &revoked);
        self.write(&place, &mut draft, on_device, txn.time)?;
        self.add(&place, draft, &logged, &txn.revoked);
        Ok(())
    }

    fn overwrite(&self, blocks: &[(BlockNo, BlockRef)]) -> Result<bool> {
        let is_logged = {
            let index = self.index.read();
            blocks.iter().any(|(home, _)| index.contains_key(home))
        };
        if is_logged {
            // A replay would write over them.
            return Ok(false);
        }
        let data = blocks.iter().map(Write::data);
        let on_device = Dirty::on(&*self.area.dev);
        self.busy_homes
            .write_last_data(on_device, self.area.block_size, data)?;
        Ok(true)
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.used.load(Relaxed) > self.most_used
                || self.used_blocks.load(Relaxed) > u64::from(self.area.capacity() / 4)
                || self.index.held() > self.most_held
                || self.period.is_over(),
            forced: self.forced.load(Relaxed),
        }
    }

    fn checkpoint(&self, _goal: Goal) -> Result<()> {
        self.bring_home()
    }

    fn close(&self) -> Result<()> {
        self.bring_home()?;
        self.pair.close(PairState::Shut)
    }
}

impl Dj {
    /// Writes a transaction: what goes to the journal, then the record; durable when it returns.
    fn write(
        &self,
        place: &Place,
        draft: &mut Draft,
        mut on_device: Dirty<'_>,
        time: (u64, u32),
    ) -> Result<()> {
        let Draft { record, wholes, .. } = draft;
        let parts: Vec<(Tag, &[u8])> = wholes
            .iter()
            .map(|(block, tag)| (*tag, &block[..]))
            .collect();
        let mut in_region = pmem::Dirty::in_memory(&*self.region.ring.medium);
        if is_planted(Bug::MissingBodyFlush) {
            self.area.write(&mut on_device, place.first, &parts)?;
        } else if !(on_device.is_empty() && parts.is_empty()) {
            let first = place.first;
            in_region.rests_on(self.area.write_last(on_device, first, &parts, Cause::Log)?);
        }
        let seed = self.region.seed(place.at, place.sequence);
        record.seal(place.sequence, seed, time);
        let ring = &self.region.ring;
        ring.write_covering_commit(in_region, place.at, &record.0)?;
        self.region.note_committed(place.sequence)
    }

    /// Waits until descriptor and commit record fit with every block in the journal.
    fn make_room(&self, logged: usize, revoked: usize) -> Result<()> {
        let bytes = Record::length(logged + revoked, 0);
        let fits = || {
            let log = self.log.lock();
            let free = self.region.ring.capacity - (log.head - log.tail);
            bytes < free && usize_as_u64(logged) < u64::from(log.free)
        };
        if fits() {
            return Ok(());
        }
        self.forced.fetch_add(1, Relaxed);
        self.bring_home()?;
        match fits() {
            true => Ok(()),
            false => Err(SchemeError::Unusable(format!(
                "a transaction of {logged} blocks does not fit into it"
            ))),
        }
    }

    /// A transaction is durable: its versions are the newest, what it freed is gone.
    fn add(&self, place: &Place, mut draft: Draft, logged: &[&LoggedBlock], revoked: &[BlockNo]) {
        let sequence = place.sequence;
        self.pair.note_commit(sequence);
        let blocks = must_fit_u32(draft.wholes.len());
        let mut log = self.log.lock();
        log.head += usize_as_u64(draft.record.0.len());
        log.sequence = sequence.next();
        log.next = self.area.step(place.first, blocks);
        log.free -= blocks;
        let entry = Logged {
            sequence,
            end: log.head,
            blocks,
            needed: must_fit_u32(logged.len()),
        };
        log.transactions.push_back(entry);
        let mut index = self.index.write();
        for (n, (block, tag)) in logged.iter().zip(&draft.tags).enumerate() {
            let is_whole = tag.flags.contains(TagFlags::NON_DELTA);
            let before = index.remove(&block.home);
            let mut version = DeltaVersion {
                class: block.class,
                content: block.content.clone(),
                tag: TagWord {
                    at: place.at + usize_as_u64(Record::tag_at(n)),
                    word: tag.word(),
                },
                transactions: smallvec![],
                whole: is_whole.then_some(sequence),
            };
            match before {
                Some(before) if is_whole => log.need_no_more(&before.transactions),
                Some(before) => {
                    version.transactions = before.transactions;
                    version.whole = before.whole;
                }
                None => {}
            }
            version.transactions.push(sequence);
            index.insert(block.home, version);
        }
        for block in revoked {
            if let Some(before) = index.remove(block) {
                log.need_no_more(&before.transactions);
            }
        }
        drop(index);
        // Its contents are in the index, or were escaped copies.
        draft.wholes.clear();
        log.draft = draft;
        self.note_use(&log);
        self.period.note_commit();
    }

    fn note_use(&self, log: &Log) {
        self.used.store(log.head - log.tail, Relaxed);
        let blocks = self.area.capacity() - log.free;
        self.used_blocks.store(blocks.into(), Relaxed);
    }
}

impl Log {
    /// A block takes nothing from these transactions any more.
    fn need_no_more(&mut self, transactions: &[Tid]) {
        for tid in transactions {
            self.transaction(*tid).needed -= 1;
        }
    }

    fn transaction(&mut self, tid: Tid) -> &mut Logged {
        let first = self
            .transactions
            .front()
            .expect("it is in the log")
            .sequence;
        &mut self.transactions[u32_as_usize(tid.0.wrapping_sub(first.0))]
    }
}
