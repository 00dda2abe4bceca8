//! The write-ahead block journal in genuine JBD2 format: the kernel and e2fsck replay it. It is the
//! baseline of the papers.
//!
//! Source: kernel `Documentation/filesystems/ext4/journal.rst`; Tweedie, "Journaling the Linux
//! ext2fs Filesystem" (LinuxExpo 1998).
//!
//! Home and log are on one block device. The log is the volume's journal, a ring of blocks.
//!
//! A commit, in order of writes:
//! 1. `ordered`: data home. New data of a [whole](LoggedBlock::whole) write goes home here in
//!    `writeback` too. Two kinds of data go into the log instead: overwritten data of a whole
//!    write, and blocks with an older copy in the live log;
//! 2. if the log was marked empty: the journal superblock with the log's start, durable;
//! 3. revoke records, descriptors and the blocks that they name, into the log;
//! 4. flush: data and body are durable;
//! 5. the commit record, durable (its checksum does not cover the blocks' contents, hence step 4);
//! 6. `writeback`: other data home, and a flush, because the caller asked for durable data.
//!
//! With `journal_async_commit`, steps 3 to 5 are one write and one flush if the commit block's
//! checksum covers all that it vouches for: if the transaction has neither ordered data nor revoke
//! records. That checksum is a CRC-32: one torn body in 2^32 passes for a whole one.
//!
//! A transaction with nothing to log, in `ordered` and `writeback`, only writes its data home and
//! flushes. An fsync of a file in which only such data has changed does the same without a
//! transaction, unless the live log has an older copy of a block.
//!
//! A checkpoint of the oldest transactions, in order of writes:
//! 1. the newest versions of their blocks home;
//! 2. flush;
//! 3. the journal superblock with the new tail, durable. Only then may the log blocks before the
//!    tail be written again.
//!
//! Deviations from the kernel:
//! - Transactions are numbered when they are written, so an empty one leaves no gap.
//! - While a checkpoint writes a freed block home, the direct write of its next owner's data waits.
//! - Revoke records are written only for blocks that the live log holds. In `journal` there are
//!   none, as in the kernel.
//!
//! Recovery: see [`recovery`].

mod record;
mod recovery;
mod ways;

use hashbrown::HashSet;
use stetfs_format::width::{must_fit, must_fit_u32, usize_as_u64};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Cause, Class, Dirty, Tag};

use self::record::Records;
pub(super) use self::recovery::LEFT;
pub(super) use self::ways::{Place, Plain, Ways};
use crate::engine::log::serving::Serving;
use crate::engine::log::{DueOf, Goes, Head, Limits, Log, OnLog, Sorted, Span, Until, Which};
use crate::parts::area::JournalArea;
use crate::parts::fill::{FILL, filled};
use crate::parts::index::{Changing, Index};
use crate::parts::version::WholeVersion;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, DataMode, DataPromise, DirtyBlock, Goal, Ground, Jbd2Log, LoggedBlock, Mark, OpenArgs,
    OptionAbout, Parts, Placement, Registration, Result, SchemeError, Terms, Trial,
};
use stetfs_sync::Mutex;

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::new("jbd2-journal", "data=journal", Ground::Block).planted(&[
            Bug::RecordBeforeBody,
            Bug::MissingBodyFlush,
            Bug::MissingRecordFlush,
            Bug::UntoldEscape,
            Bug::LateFirstMark,
            Bug::MissingCheckpointFlush,
            Bug::LateTail,
            Bug::StaleLap,
            Bug::OldestCopy,
            Bug::MissingReplayFlush,
            Bug::UnloggedGroupDesc,
            Bug::EarlyFsync,
            Bug::ForgottenOrphan,
            Bug::ConvertedBeyond,
            Bug::UnnotedAllocation,
            Bug::UnstoredTimes,
            Bug::CleanedNext,
            Bug::OlderNewest,
            Bug::BrokenChain,
            Bug::SplitRename,
            Bug::UnlistedTruncate,
            Bug::ReusedSequence,
            Bug::ForgottenInode,
            Bug::LateListing,
            Bug::TornGroup,
            Bug::KeptPage,
            Bug::ShownGroup,
            Bug::UnseenConflict,
        ]),
        Trial::new("jbd2-ordered", "data=ordered", Ground::Block).planted(&[
            Bug::LateData,
            Bug::ForgottenRevoke,
            Bug::IgnoredRevoke,
            Bug::EarlyReuse,
            Bug::UnflushedOverwrite,
            Bug::EarlySize,
            Bug::EvictedDelayed,
            Bug::UnplacedRename,
            Bug::UnplacedClose,
            Bug::UnplacedFsync,
            Bug::ForgottenOverwrite,
            Bug::TimesForData,
            Bug::UnplacedMark,
            Bug::SplitRecord,
        ]),
        Trial::new("jbd2-writeback", "data=writeback", Ground::Block),
        Trial::new(
            "jbd2-async",
            "data=journal,journal_async_commit",
            Ground::Block,
        )
        .planted(&[Bug::UncheckedReplay]),
        Trial::new(
            "jbd2-ordered-async",
            "data=ordered,journal_async_commit",
            Ground::Block,
        ),
        Trial::new("jbd2-ordered-atomic", "data=ordered", Ground::Block)
            .atomic()
            .planted(&[Bug::UnloggedWhole, Bug::TornRecord, Bug::TornGroup]),
        Trial::setting("jbd2-writeback-atomic", "data=writeback", Ground::Block).atomic(),
        Trial::setting("jbd2-flash", "data=writeback,fill=20", Ground::Flash),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "jbd2",
    title: "the kernel's block journal: blocks are logged, then copied home",
    source: "kernel Documentation/filesystems/ext4/journal.rst",
    modes: &[DataMode::Journal, DataMode::Ordered, DataMode::Writeback],
    jbd2: Jbd2Log::Always,
    cost: "commit of n blocks: n + 2 blocks, 2 flushes; checkpoint: n blocks",
    recovery: &[LEFT],
    options: &[&ASYNC_COMMIT, &FILL],
    ..About::PLAIN
};

/// ext4's option of this name.
pub(super) static ASYNC_COMMIT: OptionAbout = OptionAbout {
    name: "journal_async_commit",
    syntax: "on|off",
    default: "off",
    what: "write the commit block with the body that its checksum covers: one flush a commit \
        instead of two",
};

struct Jbd2 {
    log: Log<BlockVersion>,
    area: JournalArea,
    records: Records,
    mode: DataMode,
    async_commit: bool,
    ways: Box<dyn Ways>,
    /// The journal superblock as it is on the medium.
    superblock: Mutex<record::Super>,
}

/// A version, and the log block with its unchanged content. `None` if the block was escaped in the
/// log, or if the checkpoint writes it home.
type BlockVersion = WholeVersion<Option<u32>>;

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    open_as(&ABOUT, args, Box::new(Plain))
}

/// Opens the log for the scheme that `about` describes.
pub(super) fn open_as(about: &'static About, args: OpenArgs, ways: Box<dyn Ways>) -> Result<Parts> {
    args.options.check_known(about)?;
    if args.log.is_empty() {
        return Err(SchemeError::Unusable(
            "the volume has no journal; make one with `tune2fs -j`, or mount with scheme=null"
                .to_owned(),
        ));
    }
    let default = about.modes.first().copied();
    let mode = args.options.data.or(default).unwrap_or(DataMode::Journal);
    let mut area = JournalArea::new(args.dev.clone(), args.block_size, args.log.clone());
    let async_commit = args.options.switch(about, &ASYNC_COMMIT)?;
    let fill = filled(about, &args.options, 50)?;
    let (mut superblock, report) = recovery::recover(&mut area, &args, &*ways)?;
    if args.writable {
        superblock.set_async_commit(async_commit);
    }
    let capacity = u64::from(area.capacity());
    let limits = Limits {
        // One block stays free: if the head reached the tail, a full log would look empty.
        room: capacity - 1,
        most_used: capacity * fill / 100,
        most_here: Limits::most_here(args.memory, args.block_size),
        period: None,
    };
    let span = Span::empty(0, superblock.fields.sequence);
    let terms = Terms {
        promise: match mode {
            DataMode::Journal => DataPromise::Atomic,
            DataMode::Ordered => DataPromise::Ordered,
            DataMode::Writeback => DataPromise::Writeback,
        },
        mark: Mark::NeedsRecovery,
        logs_data: mode == DataMode::Journal,
        relocates: ways.relocates(),
        places_new: ways.places_new(),
        // A quarter, as jbd2's j_max_transaction_buffers: it leaves room for the records, for the
        // blocks that placing adds at the commit, and for the next transaction.
        ..Terms::plain(area.capacity() / 4)
    };
    let jbd2 = Jbd2 {
        log: Log::new(args.dev, args.block_size, limits, span, Index::default()),
        records: Records::new(&superblock),
        area,
        mode,
        async_commit,
        ways,
        superblock: Mutex::new(superblock),
    };
    Ok((Box::new(Serving(jbd2)), terms, report))
}

impl OnLog for Jbd2 {
    type Version = BlockVersion;
    type Draft<'t> = record::Body;

    const UNITS: &'static str = "blocks";
    const STOPS_AT_GOAL: bool = true;
    const OVERWRITES: bool = true;

    fn log(&self) -> &Log<BlockVersion> {
        &self.log
    }

    fn content(&self, _: BlockNo, version: &BlockVersion) -> Result<BlockRef> {
        Ok(version.content().clone())
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        self.ways.place(block)
    }

    fn goes(&self, block: &LoggedBlock) -> Goes {
        let is_new = block.origin.is_new();
        let is_logged = match self.mode {
            DataMode::Journal => !(is_new && self.ways.places_new()),
            _ => block.whole && !is_new,
        };
        match self.mode {
            _ if is_logged => Goes::Log,
            DataMode::Writeback if !block.whole => Goes::HomeLate,
            _ => Goes::Home,
        }
    }

    fn revokes(&self) -> bool {
        self.mode != DataMode::Journal || self.ways.places_new()
    }

    fn draft<'t>(&self, head: &Head, sorted: &Sorted<'t>, _: bool) -> (record::Body, u64) {
        let (logged, revoked) = (&sorted.logged, &sorted.revoked);
        let body = self.records.body(head.sequence, logged, revoked);
        let len = self.records.log_blocks(logged.len(), revoked.len());
        (body, len.into())
    }

    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        records: &mut record::Body,
        time: (u64, u32),
    ) -> Result<u64> {
        let mut body = Dirty::on(&*self.area.dev);
        self.log.write_data(&mut body, &sorted.home)?;
        let (at, sequence) = (self.block_at(head.at), head.sequence);
        let is_marked_empty = self.superblock.lock().fields.start == 0;
        if is_marked_empty && !is_planted(Bug::LateFirstMark) {
            self.update_superblock(at, sequence)?;
        }
        let mut parts = records.parts(&sorted.logged);
        let commit_at = self.area.step(at, must_fit_u32(parts.len()));
        let len = must_fit_u32(parts.len()) + 1;
        let commit = self.records.commit(sequence, time, records, &parts);
        if self.is_covered(&body, &sorted.revoked) {
            let record = Tag::new(Class::Journal, Cause::CommitRecord);
            parts.push((record, commit.bytes()));
            self.area.write_covering_commit(body, at, &parts)?;
        } else {
            if is_planted(Bug::RecordBeforeBody) {
                self.area
                    .write_record(commit_at, commit.bytes(), Cause::CommitRecord)?;
            }
            let durable = self.area.write_last(body, at, &parts, Cause::Log)?;
            self.area.write_commit(durable, commit_at, commit.bytes())?;
        }
        Ok(len.into())
    }

    fn note<'t>(
        &self,
        index: &mut Changing<'_, BlockVersion>,
        head: &Head,
        sorted: &Sorted<'t>,
        records: record::Body,
    ) {
        let at = self.block_at(head.at);
        for (n, block) in sorted.logged.iter().enumerate() {
            let place = records.place(n).map(|place| self.area.step(at, place));
            let version = BlockVersion::new(block, head.sequence, place);
            index.insert(block.home, version);
        }
    }

    fn lands_at_once(&self) -> bool {
        let used = must_fit(self.log.used());
        self.ways.is_time(&self.area, used)
    }

    /// The oldest transactions: as many as make room, or as leave half of `most_used` in use.
    fn due(&self, until: Until) -> Option<Which> {
        let Limits {
            room,
            most_used,
            most_here,
            ..
        } = self.log.limits;
        // The number of contents in memory is at most the number of log blocks in use.
        let half = (most_used / 2).min(usize_as_u64(most_here));
        let most = match until {
            Until::Room(needed) if self.log.is_short_of_memory() => half.min(room - needed),
            Until::Room(needed) => room - needed,
            Until::Goal(Goal::Background) => half,
            Until::Goal(Goal::Some | Goal::All) => 0,
        };
        let first = self.log.span.lock().first_within(most)?;
        Some(Which::Before(first))
    }

    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()> {
        let as_they_are = due.iter().filter_map(|d| Some((d.home, d.version.place?)));
        let chosen = self.ways.choose(&self.area, as_they_are.collect())?;
        self.ways.bring(&self.area, &chosen)?;
        if chosen.len() == due.len() {
            return Ok(());
        }
        let chosen: HashSet<BlockNo> = chosen.into_iter().map(|(home, _)| home).collect();
        let mut written: Vec<_> = due.iter_mut().collect();
        written.retain(|due| !chosen.contains(&due.home));
        written.iter_mut().for_each(|due| due.version.place = None);
        self.log.land(written.iter().map(|due| &**due))
    }

    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()> {
        self.update_superblock(self.block_at(at), sequence)
    }

    fn leave(&self, at: u64, due: &[DueOf<Self>]) -> Result<()> {
        let starts: Vec<u64> = {
            let span = self.log.span.lock();
            span.before(at).map(|(_, start)| *start).collect()
        };
        let ends = starts.iter().skip(1).chain([&at]);
        let runs = starts.iter().zip(ends);
        let left: Vec<_> = runs
            .map(|(start, end)| {
                let at = self.block_at(*start);
                at..at + must_fit::<_, u32>(end - start)
            })
            .collect();
        let brought = due.iter().filter_map(|d| Some((d.home, d.version.place?)));
        self.ways
            .leave(&self.area, &left, &brought.collect::<Vec<_>>())
    }

    fn close(&self) -> Result<()> {
        let sequence = self.log.span.lock().sequence;
        self.superblock.lock().set_async_commit(false);
        self.update_superblock(0, sequence)
    }
}

impl Jbd2 {
    /// Returns the log block at a position.
    fn block_at(&self, at: u64) -> u32 {
        let capacity = u64::from(self.area.capacity());
        self.area.step(self.area.first, must_fit(at % capacity))
    }

    /// True when the commit block's checksum covers all that must be durable with it. It does not
    /// cover data at home, nor revoke blocks, which version 1 leaves out.
    fn is_covered(&self, body: &Dirty<'_>, revoked: &[BlockNo]) -> bool {
        self.async_commit && revoked.is_empty() && body.is_empty()
    }

    /// Writes where the log begins; `start` 0 says that it is empty. Durable when it returns.
    fn update_superblock(&self, start: u32, sequence: Tid) -> Result<()> {
        let mut superblock = self.superblock.lock();
        let bytes = superblock.update(start, sequence);
        self.area.write_record(0, bytes, Cause::Control)
    }
}
