//! Shortcut-JFS: only changed bytes are logged, and a block that would be logged whole *becomes*
//! the home block.
//!
//! Source: Lee, Yoo, Jang, Bahn, "Shortcut-JFS: A Write Efficient Journaling File System for Phase
//! Change Memory" (MSST 2012).
//!
//! Home and log are in one byte-addressable memory. The log is the volume's journal area, a ring of
//! cache lines. The four variants are those of the paper's Table I:
//!
//! | variant | data is logged as | and reaches home by | metadata is logged as | and reaches home by |
//! |---|---|---|---|---|
//! | `blk` | whole blocks | a copy | changed bytes, whole inodes | a copy |
//! | `diff` | changed bytes | a copy | the same | a copy |
//! | `blk-s` | whole blocks | a switch of the mapping | the same | a copy |
//! | `adp-s` | whole blocks if more than half of one changed, else changed bytes | a switch; a copy | the same | a copy |
//!
//! A commit, in order of stores:
//! 1. data that stays where it is stored (new blocks, switched blocks), past the cache, into free
//!    blocks of the volume;
//! 2. the transaction's record into the log: changed bytes, the checksums of the blocks of step 1,
//!    freed blocks. Its checksum covers all of it, its state is COMMIT;
//! 3. a fence. Then both are durable. After a power cut before that, recovery finds a checksum that
//!    does not fit, and drops the transaction.
//!
//! With `fences=paper` the state orders the stores as in the paper: PENDING, fence; steps 1 and 2,
//! fence; COMMIT, fence.
//!
//! A checkpoint of all transactions, in order of stores:
//! 1. the changed bytes of the newest version of each block, home;
//! 2. fence;
//! 3. the log's new tail, behind all records: one word, fence.
//!
//! It runs when a quarter of the log is in use, when too much content is held in memory, and
//! `checkpoint=` seconds after the oldest commit that it takes in.
//!
//! Deviations from the paper:
//! - A commit has one fence instead of three (`fences=paper` has three).
//! - The transaction itself switches the mapping; its checkpoint has nothing left to do for it.
//! - A switched block is written outside of the log, where it stays, so that the log is not
//!   scattered over the volume.
//! - Chunks are linked by their lengths.
//! - Bitmaps, descriptors, directories and mapping blocks, on which the paper is silent, are logged
//!   by their changed bytes.
//! - The state CHECKPOINT is stored only with `fences=paper`, because the tail says the same.
//! - Of a block that is overwritten whole, one line in eight is compared first, to guess whether
//!   more than half of it changed.
//!
//! Recovery: see [`recovery`].

mod recovery;
mod version;

use std::sync::Arc;

use stetfs_format::private_log::{CHECKPOINT, COMMIT, ChunkKind, PENDING, Tail, state_word};
use stetfs_format::width::usize_as_u64;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::pmem::Dirty;
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, BlockRef, Cause, Class, Pmem, Tag};

use self::version::{Kept, PartialVersion};
use crate::engine::log::serving::Serving;
use crate::engine::log::{DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Span, Until, Which};
use crate::parts::byte_log::{self, ByteLog};
use crate::parts::index::{Changing, Index};
use crate::parts::look::changes_less;
use crate::parts::period::{CHECKPOINT_INTERVAL, Period};
use crate::parts::record::{Place, Record};
use crate::parts::{reader, replay};
use stetfs_planted::Bug;
use stetfs_scheme::{
    About, DirtyBlock, Ground, InMemory, LoggedBlock, OpenArgs, OptionAbout, Parts, Placement,
    Ranges, Registration, Relocates, Result, SchemeError, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("shortcut-adp-s", "variant=adp-s", Ground::Memory).planted(&[
            Bug::MissingBodyFlush,
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
        Trial::new("shortcut-paper", "fences=paper", Ground::Memory).planted(&[Bug::LateData]),
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
    in_memory: InMemory::Only,
    cost: "commit: the changed bytes and 64 more, whole blocks once, 1 fence; checkpoint: the \
        changed bytes again",
    recovery: &[byte_log::LEFT, reader::LEFT, replay::LEFT],
    options: &[&VARIANT, &FENCES, &CHECKPOINT_INTERVAL],
    ..About::PLAIN
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
    /// True when a whole data block gets home by a switch of the mapping.
    fn switches(self) -> bool {
        matches!(self, Self::BlkS | Self::AdpS)
    }
}

struct Shortcut {
    log: Log<PartialVersion>,
    byte_log: ByteLog<Arc<dyn Pmem>>,
    uuid: [u8; 16],
    epoch: u64,
    variant: Variant,
    /// The least number of changed bytes with which a block is logged whole, or switched.
    least_switched: usize,
    by_paper: bool,
    inode_size: usize,
    /// The log was written to before this mount.
    was_used: bool,
    /// The buffer of the last record, for the next one.
    record: Mutex<Record>,
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
    let period = Some(Period::of(&ABOUT, &args.options)?);
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
        Variant::AdpS => args.block_size.bytes() / 2 + 1,
    };
    let blocks = byte_log.ring.capacity / 4 / Record::bound(1, 1, args.block_size);
    let terms = Terms {
        wants: Wants {
            base: false,
            changed_bytes: least_switched,
        },
        relocates: Relocates::Freely,
        places_new: true,
        ..Terms::plain(u32::try_from(blocks).unwrap_or(u32::MAX))
    };
    let limits = Limits {
        room: byte_log.ring.capacity,
        most_used: byte_log.ring.capacity / 4,
        most_here: Limits::most_here(args.memory, args.block_size),
        period,
    };
    let span = Span::empty(start.at, start.sequence);
    let shortcut = Shortcut {
        log: Log::new(args.dev, args.block_size, limits, span, Index::default()),
        uuid: args.uuid,
        epoch: start.epoch,
        variant,
        least_switched,
        by_paper,
        inode_size: args.inode_size,
        was_used: start.was_used,
        byte_log,
        record: Mutex::default(),
    };
    Ok((Box::new(Serving(shortcut)), terms, report))
}

/// A transaction's record, and the part of each logged block that it has.
struct Draft {
    record: Record,
    parts: Vec<Part>,
}

/// The part of a block that goes into the log.
enum Part {
    Nothing,
    Whole,
    Ranges(ChunkKind, Ranges),
}

impl OnLog for Shortcut {
    type Version = PartialVersion;
    type Draft<'t> = Draft;

    const UNITS: &'static str = "bytes";
    /// A checkpoint brings all of the log home, so that a block that was logged often is written
    /// once.
    const ONE_AT_A_TIME: bool = true;
    const VOUCHES_FOR_DATA: bool = true;

    fn log(&self) -> &Log<PartialVersion> {
        &self.log
    }

    fn content(&self, block: BlockNo, version: &PartialVersion) -> Result<BlockRef> {
        if let Kept::Whole(content) = &version.kept {
            return Ok(content.clone());
        }
        let mut content = Block::zeroed(self.log.block_size.bytes());
        let bytes = content.bytes_mut();
        let tag = Tag::read(version.class);
        self.pmem().load(self.offset(block), bytes, tag)?;
        for (start, part) in version.parts() {
            bytes[start..start + part.len()].copy_from_slice(part);
        }
        Ok(content.into())
    }

    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        if self.log.index.holds_any(home, 1) {
            return Ok(true);
        }
        changes_less(self.pmem(), self.offset(home), content, self.least_switched)
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

    fn goes(&self, block: &LoggedBlock) -> Goes {
        if self.variant.switches() && block.origin.is_new() {
            Goes::Home
        } else {
            Goes::Log
        }
    }

    fn draft<'t>(&self, _: &Head, sorted: &Sorted<'t>, _: bool) -> (Draft, u64) {
        let mut record = std::mem::take(&mut *self.record.lock());
        record.begin();
        for block in &sorted.home {
            record.in_place(block.home, block.class, &block.content);
        }
        let mut parts = Vec::with_capacity(sorted.logged.len());
        for block in &sorted.logged {
            let part = self.part(block);
            match &part {
                Part::Nothing => {}
                Part::Whole => record.block(block.home, block.class, &block.content),
                Part::Ranges(kind, ranges) => {
                    record.ranges(*kind, block.home, block.class, &block.content, ranges);
                }
            }
            parts.push(part);
        }
        record.revoke(&sorted.revoked);
        let len = if record.is_empty() {
            0
        } else {
            record.len(LINE)
        };
        (Draft { record, parts }, len)
    }

    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        draft: &mut Draft,
        time: (u64, u32),
    ) -> Result<u64> {
        let (Head { at, sequence, .. }, ring) = (*head, &self.byte_log.ring);
        let len = draft.record.len(LINE);
        let place = Place {
            at,
            sequence,
            epoch: self.epoch,
            seed: ring.seed(&self.uuid, self.epoch, at, sequence),
            unit: LINE,
            masked: 0,
        };
        let state = if self.by_paper { PENDING } else { COMMIT };
        if self.by_paper {
            let word = state_word(PENDING, sequence);
            self.byte_log.write_state(at, word, Cause::Log)?;
        }
        let mut body = Dirty::in_memory(self.pmem());
        for block in &sorted.home {
            let tag = Tag::new(block.class, Cause::Home);
            body.store_nt(self.offset(block.home), &block.content, tag)?;
        }
        let record = draft.record.seal(&place, state, time);
        if self.by_paper {
            ring.write(&mut body, at, record)?;
            let word = state_word(COMMIT, sequence);
            let durable = body.submit()?.fence(Cause::Log)?;
            self.byte_log.write_commit(durable, at, word)?;
        } else {
            ring.write_covering_commit(body, at, record)?;
        }
        Ok(len)
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, PartialVersion>,
        head: &Head,
        sorted: &Sorted<'t>,
        draft: Draft,
    ) {
        *self.record.lock() = draft.record;
        for (block, part) in sorted.logged.iter().zip(draft.parts) {
            let ranges = match part {
                Part::Nothing => continue,
                Part::Whole => Ranges::whole(self.log.block_size.bytes()),
                Part::Ranges(_, ranges) => ranges,
            };
            let new = || PartialVersion::new(block.class, head.sequence);
            index.change_or_insert(block.home, new, |version| {
                version.class = block.class;
                version.update(head.sequence, &block.content, &ranges);
            });
        }
    }

    fn due(&self, _: Until) -> Option<Which> {
        Some(Which::All)
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        let index = self.log.index.read();
        for block in due {
            let version = index.get(&block.home).expect("it is listed");
            let tag = Tag::new(version.class, Cause::Checkpoint);
            let home = self.offset(block.home);
            for (start, part) in version.parts() {
                let at = home + usize_as_u64(start);
                self.pmem().store_nt(at, part, tag)?;
            }
        }
        Ok(self.pmem().fence(Cause::Checkpoint)?)
    }

    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()> {
        if self.by_paper {
            for (tid, its) in self.log.span.lock().before(at) {
                let word = state_word(CHECKPOINT, *tid);
                self.byte_log.write_state(*its, word, Cause::Checkpoint)?;
            }
        }
        let line = self.byte_log.ring.line(at);
        self.byte_log
            .write_tail(Tail { line, sequence }, Cause::Checkpoint)
    }

    fn close(&self) -> Result<()> {
        let capacity = self.byte_log.ring.capacity;
        let reached = if self.was_used {
            capacity
        } else {
            self.log.span.lock().head.min(capacity)
        };
        self.byte_log.wipe(reached)?;
        self.byte_log.write_log_state(true)
    }
}

impl Shortcut {
    fn pmem(&self) -> &dyn Pmem {
        &*self.byte_log.ring.medium
    }

    /// Returns the byte offset of a block in memory.
    fn offset(&self, block: BlockNo) -> u64 {
        self.log.block_size.start_of(block)
    }

    /// Chooses the part of a logged block that goes into the log.
    fn part(&self, block: &LoggedBlock) -> Part {
        let is_data = block.owner.is_some();
        if block.origin.is_new() || (is_data && self.variant == Variant::Blk) {
            return Part::Whole;
        }
        let changed = &block.ranges;
        match block.class {
            _ if changed.is_empty() => Part::Nothing,
            Class::InodeTable => Part::Ranges(ChunkKind::Inodes, changed.widened(self.inode_size)),
            _ => Part::Ranges(ChunkKind::Ranges, changed.clone()),
        }
    }
}
