//! Shortcut-JFS: only what changed is logged, and a block that is logged whole *becomes* the home
//! block.
//!
//! Source: Lee, Yoo, Jang, Bahn, "Shortcut-JFS: A Write Efficient Journaling File System for Phase
//! Change Memory" (MSST 2012).
//!
//! The home medium is byte-addressable, and the log lies in it: the volume's journal area. The four
//! variants are those of the paper's Table I:
//!
//! | variant | data is logged as | and reaches home by | metadata is logged as | and reaches home by |
//! |---|---|---|---|---|
//! | `blk` | whole blocks | a copy | changed bytes, whole inodes | a copy |
//! | `diff` | changed bytes | a copy | the same | a copy |
//! | `blk-s` | whole blocks | a switch of the mapping | the same | a copy |
//! | `adp-s` | whole blocks if more than half of one changed, else changed bytes | a switch; a copy | the same | a copy |
//!
//! A commit, in order of stores:
//! 1. data that stays where it is written (new blocks, switched blocks), past the cache, into free
//!    blocks of the volume;
//! 2. the transaction's record into the log: changed bytes, the checksums of what 1 wrote, freed
//!    blocks; its checksum covers all of it, its state is COMMIT;
//! 3. a fence. Both are durable, or recovery finds that one of the checksums does not fit and drops
//!    the transaction.
//!
//! With `fences=paper` the state orders the rest as in the paper: PENDING, fence; 1 and 2, fence;
//! COMMIT, fence.
//!
//! A checkpoint writes the changed bytes of the newest version of each block home, fence, and moves
//! the log's tail behind everything that was logged, one word, fence. It happens when a quarter of
//! the log is used, when too much is held in memory, and `checkpoint=` seconds after the oldest
//! commit that it takes in.
//!
//! Deviations from the paper: one fence a commit instead of three (the paper's way is an option);
//! the mapping is switched in the transaction itself, not at its checkpoint, so nothing is left to
//! do then; a switched block is written outside of the log, where it stays, so the log is not
//! scattered over the volume; chunks are linked by their lengths; bitmaps, descriptors, directories
//! and mapping blocks, which the paper does not speak of, are logged by their changed bytes; the
//! state CHECKPOINT is stored only with `fences=paper`, since the tail says the same; of a block
//! that is overwritten whole, whether more than half of it changed is first guessed from a look at
//! one line in eight.
//!
//! Recovery: see [`recovery`].

mod recovery;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs_format::private_log::{CHECKPOINT, COMMIT, ChunkKind, PENDING, Tail, state_word};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::pmem::{Dirty, WORD};
use stetfs_media::{Block, BlockRef, Cause, Class, Pmem, Tag};

use crate::parts::byte_log::{self, ByteLog};
use crate::parts::index::{Index, Indexed};
use crate::parts::look::changes_less;
use crate::parts::period::{CHECKPOINT_INTERVAL, Period};
use crate::parts::record::{Place, Record};
use crate::parts::{reader, replay};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Backlog, Beside, DataPromise, DirtyBlock, Goal, Ground, Held, InMemory, Jbd2Log,
    LoggedBlock, Mark, OpenArgs, OptionAbout, Parts, Placement, Ranges, Registration, Relocates,
    Result, Scheme, SchemeError, Snapshot, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// Its row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("shortcut-adp-s", "variant=adp-s", Ground::Memory).planted(&[
            Bug::MissingRecordFlush,
            Bug::ForgottenRevoke,
            Bug::MissingCheckpointFlush,
            Bug::LateTail,
            Bug::UncheckedReplay,
            Bug::IgnoredRevoke,
            Bug::MissingReplayFlush,
            Bug::UnloggedGroupDesc,
            Bug::EarlyFsync,
            Bug::ForgottenOrphan,
            Bug::EarlyReuse,
        ]),
        Trial::new("shortcut-blk", "variant=blk", Ground::Memory),
        Trial::new("shortcut-blk-s", "variant=blk-s", Ground::Memory),
        Trial::new("shortcut-diff", "variant=diff", Ground::Memory),
        Trial::new("shortcut-paper", "fences=paper", Ground::Memory).planted(&[Bug::EarlySwitch]),
        Trial::setting(
            "shortcut-blk-s-paper",
            "variant=blk-s,fences=paper,checkpoint=1",
            Ground::Memory,
        ),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "shortcut",
    title: "Shortcut-JFS: changed bytes are logged, and a logged block can become the home block",
    source: "Lee, Yoo, Jang, Bahn, MSST 2012",
    modes: &[],
    needs_journal_area: true,
    in_memory: InMemory::Only,
    needs_remap: false,
    nvm: Beside::Never,
    caches: false,
    jbd2: Jbd2Log::Never,
    atomic: true,
    cost: "commit: the changed bytes and 64 more, whole blocks once, 1 fence; checkpoint: the \
        changed bytes again",
    recovery: &[byte_log::LEFT, reader::LEFT, replay::LEFT],
    options: &[&VARIANT, &FENCES, &CHECKPOINT_INTERVAL],
};

static VARIANT: OptionAbout = OptionAbout {
    name: "variant",
    syntax: "adp-s|blk|diff|blk-s",
    default: "adp-s",
    what: "what is logged and how it gets home (Table I of the paper)",
};

static FENCES: OptionAbout = OptionAbout {
    name: "fences",
    syntax: "checksum|paper",
    default: "checksum",
    what: "what makes a commit: a checksum and one fence, or the paper's states and three",
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Blk,
    Diff,
    BlkS,
    AdpS,
}

impl Variant {
    /// Whole data blocks get home by a switch of the mapping.
    fn switches(self) -> bool {
        matches!(self, Self::BlkS | Self::AdpS)
    }
}

struct Shortcut {
    byte_log: ByteLog<Arc<dyn Pmem>>,
    uuid: [u8; 16],
    epoch: u64,
    variant: Variant,
    /// Changed bytes of a block from which on its blocks are logged whole, or switched.
    least_switched: usize,
    by_paper: bool,
    period: Period,
    block_size: usize,
    inode_size: usize,
    /// Contents that may be held before a checkpoint is wanted, in blocks.
    most_held: usize,
    /// Commits and checkpoints, one at a time.
    log: Mutex<Log>,
    /// The newest committed version of each block that is not home yet.
    index: Index<PartialVersion>,
    /// Bytes between tail and head: for looks from outside.
    used: AtomicU64,
}

struct Log {
    /// Where the next transaction goes.
    head: u64,
    /// The oldest that would be replayed.
    tail: u64,
    sequence: Tid,
    /// The most that was in use of the ring, from its start.
    reached: u64,
    /// Transactions from tail to head: for the state CHECKPOINT.
    transactions: Vec<(u64, Tid)>,
    record: Record,
}

struct PartialVersion {
    class: Class,
    /// What differs from home, in whole words.
    ranges: Ranges,
    kept: Kept,
}

/// What is kept of a version.
enum Kept {
    /// The bytes of its ranges, one behind the other.
    Parts(Vec<u8>),
    /// All of it.
    Whole(BlockRef),
}

impl Indexed for PartialVersion {}

impl PartialVersion {
    fn new(class: Class) -> Self {
        Self {
            class,
            ranges: Ranges::new(),
            kept: Kept::Parts(Vec::new()),
        }
    }

    /// Takes over what `changed` names from the newer `content`. What is kept whole is a copy of
    /// its own from the second change on, so that who changes a block again and again need not
    /// leave the whole of it behind each time.
    fn update(&mut self, content: &BlockRef, changed: &Ranges) {
        self.ranges.add_all(&changed.widened(u64_as_usize(WORD)));
        match &mut self.kept {
            Kept::Parts(bytes) if self.ranges.bytes() <= content.len() / 4 => {
                bytes.clear();
                bytes.reserve_exact(self.ranges.bytes());
                self.ranges
                    .iter()
                    .for_each(|r| bytes.extend_from_slice(&content[r]));
            }
            Kept::Whole(own) if own.is_unshared() => {
                let own = own.make_mut();
                changed
                    .iter()
                    .for_each(|r| own[r.clone()].copy_from_slice(&content[r]));
            }
            kept => *kept = Kept::Whole(content.clone()),
        }
    }

    /// Its ranges and what is there.
    fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut done = 0;
        self.ranges.iter().map(move |range| {
            let start = range.start;
            let bytes = match &self.kept {
                Kept::Parts(bytes) => &bytes[done..done + range.len()],
                Kept::Whole(content) => &content[range.clone()],
            };
            done += range.len();
            (start, bytes)
        })
    }
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let variant = match args.options.value(&VARIANT) {
        "blk" => Variant::Blk,
        "diff" => Variant::Diff,
        "blk-s" => Variant::BlkS,
        "adp-s" => Variant::AdpS,
        _ => return Err(args.options.wrong(&ABOUT, &VARIANT)),
    };
    let by_paper = match args.options.value(&FENCES) {
        "checksum" => false,
        "paper" => true,
        _ => return Err(args.options.wrong(&ABOUT, &FENCES)),
    };
    let period = Period::of(&ABOUT, &args.options)?;
    let Some(pmem) = args.dev.pmem() else {
        return Err(SchemeError::Unusable(format!(
            "scheme {} needs a volume in byte-addressable memory, not {}",
            ABOUT.name,
            args.dev.describe()
        )));
    };
    let mut byte_log = ByteLog::new(pmem.clone(), args.block_size, &args.log)?;
    let (start, report) = recovery::recover(&ABOUT, &mut byte_log, &args)?;
    let least_switched = match variant {
        Variant::Blk | Variant::BlkS => 1,
        Variant::Diff => usize::MAX,
        // Exactly half is not more than half.
        Variant::AdpS => args.block_size / 2 + 1,
    };
    let terms = Terms {
        promise: DataPromise::Atomic,
        mark: Mark::PrivateLog,
        max_transaction: {
            let block = Record::bound(1, 1, args.block_size);
            u32::try_from(byte_log.ring.capacity / 4 / block).unwrap_or(u32::MAX)
        },
        logs_data: true,
        logs_marked: true,
        wants: Wants {
            base: false,
            changed_bytes: least_switched,
        },
        relocates: Relocates::Freely,
        places_new: true,
        remaps: None,
        is_buffer_cache: false,
        keeps: false,
    };
    let shortcut = Shortcut {
        uuid: args.uuid,
        epoch: start.epoch,
        variant,
        least_switched,
        by_paper,
        period,
        block_size: args.block_size,
        inode_size: args.inode_size,
        most_held: (args.memory / args.block_size).max(16),
        log: Mutex::new(Log {
            head: start.at,
            tail: start.at,
            sequence: start.sequence,
            reached: if start.was_used {
                byte_log.ring.capacity
            } else {
                0
            },
            transactions: Vec::new(),
            record: Record::default(),
        }),
        byte_log,
        index: Index::default(),
        used: AtomicU64::new(0),
    };
    Ok((Box::new(shortcut), terms, report))
}

impl Scheme for Shortcut {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let content = self.index.find(block, |version| {
            if let Kept::Whole(content) = &version.kept {
                return Some(Ok(content.clone()));
            }
            let mut content = Block::zeroed(self.block_size);
            let home = block.0 * usize_as_u64(self.block_size);
            let bytes = content.bytes_mut();
            if let Err(error) = self.pmem().load(home, bytes, Tag::read(version.class)) {
                return Some(Err(error));
            }
            for (start, part) in version.parts() {
                bytes[start..start + part.len()].copy_from_slice(part);
            }
            Some(Ok(content.into()))
        });
        Ok(content.transpose()?.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.index.holds_any(start, count)
    }

    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        if self.holds_any(home, 1) {
            return Ok(true);
        }
        let start = home.0 * usize_as_u64(self.block_size);
        changes_less(self.pmem(), start, content, self.least_switched)
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let relocate = match self.variant {
            Variant::Blk | Variant::Diff => false,
            Variant::BlkS => true,
            Variant::AdpS => block.ranges.bytes() >= self.least_switched,
        };
        if relocate {
            Placement::Relocate
        } else {
            Placement::Home
        }
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let mut log = self.log.lock();
        let mut record = std::mem::take(&mut log.record);
        let result = self.commit_as(&mut log, &mut record, txn);
        log.record = record;
        result
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.used.load(Relaxed) > self.byte_log.ring.capacity / 4
                || self.index.held() > self.most_held
                || self.period.is_over(),
            forced: 0,
        }
    }

    fn checkpoint(&self, _: Goal) -> Result<()> {
        // All of it: what is logged often is then written home once.
        self.checkpoint_all(&mut self.log.lock())
    }

    fn close(&self) -> Result<()> {
        let mut log = self.log.lock();
        self.checkpoint_all(&mut log)?;
        self.byte_log.wipe(log.reached)?;
        self.byte_log.write_log_state(true)
    }
}

/// What of a block goes into the log.
enum Part {
    Nothing,
    Whole,
    Ranges(ChunkKind, Ranges),
}

impl Shortcut {
    fn pmem(&self) -> &dyn Pmem {
        &*self.byte_log.ring.medium
    }

    fn commit_as(&self, log: &mut Log, record: &mut Record, txn: &Snapshot) -> Result<()> {
        record.begin();
        let mut in_place: Vec<&LoggedBlock> = Vec::new();
        let mut logged: Vec<(&LoggedBlock, Part)> = Vec::with_capacity(txn.meta.len());
        let mut revoked = Vec::new();
        {
            let index = self.index.read();
            for block in &txn.data {
                let is_new = block.fresh || block.relocated;
                if self.variant.switches() && is_new && !index.contains_key(&block.home) {
                    in_place.push(block);
                } else {
                    logged.push((block, self.part(block)));
                }
            }
            logged.extend(txn.meta.iter().map(|block| (block, self.part(block))));
            revoked.extend(txn.revoked.iter().filter(|b| index.contains_key(*b)));
        }
        for block in &in_place {
            record.in_place(block.home, block.class, &block.content);
        }
        for (block, part) in &logged {
            match part {
                Part::Nothing => {}
                Part::Whole => record.block(block.home, block.class, &block.content),
                Part::Ranges(kind, ranges) => {
                    record.ranges(*kind, block.home, block.class, &block.content, ranges);
                }
            }
        }
        if !is_planted(Bug::ForgottenRevoke) {
            record.revoke(&revoked);
        }
        if record.is_empty() {
            return Ok(());
        }
        self.make_room(log, record.len(LINE))?;
        self.write(log, record, &in_place, txn.time)?;
        self.note(log, record.len(LINE), logged, &txn.revoked);
        Ok(())
    }

    /// What of a block that does not stay where it is written goes into the log.
    fn part(&self, block: &LoggedBlock) -> Part {
        let is_data = block.owner.is_some();
        if block.fresh || block.relocated || (is_data && self.variant == Variant::Blk) {
            return Part::Whole;
        }
        let changed = &block.ranges;
        match block.class {
            _ if changed.is_empty() => Part::Nothing,
            Class::InodeTable => Part::Ranges(ChunkKind::Inodes, changed.widened(self.inode_size)),
            _ => Part::Ranges(ChunkKind::Ranges, changed.clone()),
        }
    }

    /// Stores a transaction; durable when it returns.
    fn write(
        &self,
        log: &mut Log,
        record: &mut Record,
        in_place: &[&LoggedBlock],
        time: (u64, u32),
    ) -> Result<()> {
        let (at, sequence) = (log.head, log.sequence);
        let place = Place {
            at,
            sequence,
            epoch: self.epoch,
            seed: self
                .byte_log
                .ring
                .seed(&self.uuid, self.epoch, at, sequence),
            unit: LINE,
            masked: 0,
        };
        let state = if self.by_paper { PENDING } else { COMMIT };
        if self.by_paper {
            self.byte_log
                .write_state(at, state_word(PENDING, sequence), Cause::Log)?;
        }
        let mut body = Dirty::in_memory(self.pmem());
        if !is_planted(Bug::EarlySwitch) {
            self.write_in_place(&mut body, in_place)?;
        }
        let record = record.seal(&place, state, time);
        if is_planted(Bug::MissingRecordFlush) {
            return self.byte_log.ring.write(&mut body, at, record);
        }
        if self.by_paper {
            self.byte_log.ring.write(&mut body, at, record)?;
            let word = state_word(COMMIT, sequence);
            let durable = body.submit()?.fence(Cause::Log)?;
            self.byte_log.write_commit(durable, at, word)?;
            if is_planted(Bug::EarlySwitch) {
                let mut late = Dirty::in_memory(self.pmem());
                self.write_in_place(&mut late, in_place)?;
                let _durable = late.submit()?.fence(Cause::Home)?;
            }
            Ok(())
        } else {
            self.byte_log.ring.write_covering_commit(body, at, record)
        }
    }

    /// Data that stays where it is written.
    fn write_in_place(&self, body: &mut Dirty<'_>, blocks: &[&LoggedBlock]) -> Result<()> {
        for block in blocks {
            let offset = block.home.0 * usize_as_u64(self.block_size);
            body.store_nt(offset, &block.content, Tag::new(block.class, Cause::Home))?;
        }
        Ok(())
    }

    /// A transaction is durable: it is the newest, what it freed is gone.
    fn note(
        &self,
        log: &mut Log,
        len: u64,
        logged: Vec<(&LoggedBlock, Part)>,
        revoked: &[BlockNo],
    ) {
        log.transactions.push((log.head, log.sequence));
        log.head += len;
        log.sequence = log.sequence.next();
        log.reached = log.reached.max(log.head.min(self.byte_log.ring.capacity));
        self.used.store(log.head - log.tail, Relaxed);
        self.period.note_commit();
        let mut index = self.index.write();
        for (block, part) in logged {
            let ranges = match part {
                Part::Nothing => continue,
                Part::Whole => Ranges::whole(self.block_size),
                Part::Ranges(_, ranges) => ranges,
            };
            let new = || PartialVersion::new(block.class);
            index.change_or_insert(block.home, new, |version| {
                version.class = block.class;
                version.update(&block.content, &ranges);
            });
        }
        for block in revoked {
            index.remove(block);
        }
    }

    fn make_room(&self, log: &mut Log, needed: u64) -> Result<()> {
        if needed > self.byte_log.ring.capacity {
            let why = format!(
                "a transaction of {needed} bytes does not fit into its {} bytes",
                self.byte_log.ring.capacity
            );
            return Err(SchemeError::Unusable(why));
        }
        if log.head + needed - log.tail > self.byte_log.ring.capacity {
            self.checkpoint_all(log)?;
        }
        Ok(())
    }

    fn tail(&self, log: &Log) -> Tail {
        Tail {
            line: self.byte_log.ring.line(log.head),
            sequence: log.sequence,
        }
    }

    /// Everything home, and the log empty. A commit can only come after it.
    fn checkpoint_all(&self, log: &mut Log) -> Result<()> {
        if log.head == log.tail {
            return Ok(());
        }
        {
            let index = self.index.read();
            let mut blocks: Vec<_> = index.iter().collect();
            blocks.sort_unstable_by_key(|(home, _)| **home);
            for (home, version) in blocks {
                self.write_home(*home, version)?;
            }
        }
        if !is_planted(Bug::MissingCheckpointFlush) {
            self.pmem().fence(Cause::Checkpoint)?;
        }
        if self.by_paper {
            for &(at, sequence) in &log.transactions {
                let word = state_word(CHECKPOINT, sequence);
                self.byte_log.write_state(at, word, Cause::Checkpoint)?;
            }
        }
        if !is_planted(Bug::LateTail) {
            self.byte_log
                .write_tail(self.tail(log), Cause::Checkpoint)?;
        }
        log.transactions.clear();
        log.tail = log.head;
        self.used.store(0, Relaxed);
        self.period.note_checkpoint(None);
        self.index.write().clear();
        Ok(())
    }

    fn write_home(&self, home: BlockNo, version: &PartialVersion) -> Result<()> {
        let base = home.0 * usize_as_u64(self.block_size);
        let tag = Tag::new(version.class, Cause::Checkpoint);
        for (start, part) in version.parts() {
            self.pmem()
                .store_nt(base + usize_as_u64(start), part, tag)?;
        }
        Ok(())
    }
}
