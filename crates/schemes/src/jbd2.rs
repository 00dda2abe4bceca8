//! The classic write-ahead block journal, in genuine JBD2 format: what the kernel and e2fsck
//! replay, and the baseline of all five papers.
//!
//! Source: kernel `Documentation/filesystems/ext4/journal.rst`; Tweedie, "Journaling the Linux
//! ext2fs Filesystem" (LinuxExpo 1998).
//!
//! A commit, in order of writes:
//! 1. if the log was marked empty: the journal superblock with the log's start, durable;
//! 2. `ordered`: data home. Of what is to be [whole](LoggedBlock::whole) only what is new, in
//!    `writeback` too; the rest is logged, as is what the live log has an older copy of;
//! 3. revoke records, descriptors and the blocks they name, into the log;
//! 4. flush: data and body are durable;
//! 5. the commit record, durable (it does not cover the blocks' contents by a checksum, hence step
//!    4);
//! 6. `writeback`: other data home, and a flush, since the caller asked for durable data.
//!
//! With `journal_async_commit` steps 3 to 5 are one write and one flush where the commit block's
//! checksum covers everything that it vouches for: a transaction without ordered data and without
//! revoke records. Its chance of taking a torn body for a whole one is that of a CRC-32, 1 in 2^32
//! torn commits.
//!
//! A transaction without anything to log in `ordered` and `writeback` is no more than that: its
//! data goes home and is flushed. An fsync of a file of which only such data has changed does the
//! same without a transaction, unless the live log has an older copy of a block.
//!
//! A checkpoint takes the oldest transactions: newest versions home, flush, journal superblock with
//! the new tail (durable), and only then may their blocks be written again.
//!
//! Deviations from the kernel: transactions are numbered when they are written, so an empty one
//! leaves no gap; a block freed while a checkpoint is writing it holds back the direct write of its
//! next owner's data; revoke records are written only for blocks that the live log holds. As in the
//! kernel there are none in `journal`.
//!
//! Recovery: see [`recovery`].

mod homeward;
mod live;
mod record;
mod recovery;

use hashbrown::HashSet;
use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Cause, Class, Dirty, Tag};

pub(super) use self::homeward::{Copied, Homeward, Place};
use self::live::{Committed, DueLogged, Live, Logged, Span};
use self::record::Records;
pub(super) use self::recovery::LEFT;
use crate::parts::area::JournalArea;
use crate::parts::fill::{FILL, filled};
use crate::parts::home::{BusyHomes, Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    About, Backlog, Beside, DataMode, DataPromise, DirtyBlock, Goal, Ground, Held, InMemory,
    Jbd2Log, LoggedBlock, Mark, OpenArgs, OptionAbout, Parts, Placement, Registration, Relocates,
    Result, Scheme, SchemeError, Snapshot, Terms, Trial, Wants,
};
use stetfs_sync::Mutex;

/// Its row in the registry.
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
            Bug::LateOrderedData,
            Bug::ForgottenRevoke,
            Bug::IgnoredRevoke,
            Bug::EarlyReuse,
            Bug::UnrevokedXattr,
            Bug::UnflushedOverwrite,
            Bug::EarlySize,
            Bug::EvictedWaiting,
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
    needs_journal_area: true,
    in_memory: InMemory::Never,
    needs_remap: false,
    nvm: Beside::Never,
    caches: false,
    jbd2: Jbd2Log::Always,
    atomic: true,
    cost: "commit of n blocks: n + 2 blocks, 2 flushes; checkpoint: n blocks",
    recovery: &[LEFT],
    options: &[&ASYNC_COMMIT, &FILL],
};

/// ext4's option of that name.
pub(super) static ASYNC_COMMIT: OptionAbout = OptionAbout {
    name: "journal_async_commit",
    syntax: "on|off",
    default: "off",
    what: "write the commit block with the body that its checksum covers: one flush a commit \
        instead of two",
};

struct Jbd2 {
    area: JournalArea,
    records: Records,
    mode: DataMode,
    async_commit: bool,
    homeward: Box<dyn Homeward>,
    placing: Option<Box<dyn Placing>>,
    live: Live,
    /// Blocks of the log that may be used before a checkpoint is wanted.
    most_used: u32,
    /// Contents that may be held until then, in blocks.
    most_held: usize,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    busy_homes: BusyHomes,
    /// The journal superblock as it stands on the medium.
    superblock: Mutex<record::Super>,
}

/// With it, data that `data=journal` would log does not go to the log if it lay in nobody's file
/// before: it is written where it stays, as `data=ordered` does. What has a home can be sent to
/// another one.
pub(super) trait Placing: Send + Sync {
    /// Where a dirty block should go.
    fn place(&self, block: &DirtyBlock<'_>) -> Placement;
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    open_as(&ABOUT, args, Box::new(Copied), None)
}

/// Opens the log for a scheme that says `about` of itself.
pub(super) fn open_as(
    about: &'static About,
    args: OpenArgs,
    homeward: Box<dyn Homeward>,
    placing: Option<Box<dyn Placing>>,
) -> Result<Parts> {
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
    let (mut superblock, report) = recovery::recover(&mut area, &args, &*homeward)?;
    if args.writable {
        superblock.set_async_commit(async_commit);
    }
    let records = Records::new(&superblock);
    let span = Span {
        head: area.first,
        free: area.capacity(),
        sequence: superblock.fields.sequence,
        marked_empty: true,
        transactions: Default::default(),
    };
    let jbd2 = Jbd2 {
        most_used: u32::try_from(u64::from(area.capacity()) * fill / 100).unwrap_or(u32::MAX),
        most_held: (args.memory / args.block_size).max(16),
        homeward,
        placing,
        area,
        records,
        mode,
        async_commit,
        live: Live::new(span),
        checkpointing: Mutex::new(()),
        busy_homes: BusyHomes::default(),
        superblock: Mutex::new(superblock),
    };
    let terms = Terms {
        promise: match mode {
            DataMode::Journal => DataPromise::Atomic,
            DataMode::Ordered => DataPromise::Ordered,
            DataMode::Writeback => DataPromise::Writeback,
        },
        mark: Mark::NeedsRecovery,
        // As jbd2's j_max_transaction_buffers: a quarter, so that placing at commit and the
        // records have room, and the next transaction finds some.
        max_transaction: jbd2.area.capacity() / 4,
        logs_data: mode == DataMode::Journal,
        logs_marked: true,
        wants: Wants::default(),
        relocates: match jbd2.placing {
            None => Relocates::No,
            Some(_) => Relocates::Freely,
        },
        places_new: jbd2.placing.is_some(),
        remaps: None,
        is_buffer_cache: false,
        keeps: false,
    };
    Ok((Box::new(jbd2), terms, report))
}

impl Scheme for Jbd2 {
    fn read(&self, block: BlockNo) -> Result<Held> {
        Ok(self.live.content(block).map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.live.holds_any(start, count)
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let placing = self.placing.as_ref();
        placing.map_or(Placement::Home, |placing| placing.place(block))
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let Sorted {
            first,
            late,
            mut logged,
        } = self.sort(&txn.data);
        logged.extend(&txn.meta);
        let revoked: Vec<BlockNo> = {
            let has_copy = self.live.logged();
            // Where all is logged, a freed block's next owner is logged behind it, and wins.
            let logs_all = self.mode == DataMode::Journal && self.placing.is_none();
            let is_needed =
                |b: &BlockNo| !logs_all && has_copy(*b) && !is_planted(Bug::ForgottenRevoke);
            txn.revoked.iter().copied().filter(is_needed).collect()
        };
        if logged.is_empty() && revoked.is_empty() {
            // Nothing that a record would have to make valid.
            return self.write_only_data(first.into_iter().chain(late));
        }
        let mut body = Dirty::on(&*self.area.dev);
        let data = first.iter().copied();
        self.busy_homes
            .write_data(&mut body, self.area.block_size, data)?;
        self.write_log(body, txn, &logged, &revoked)?;
        if self.homeward.is_time(&self.area, self.used()) {
            self.checkpoint_until(|_| false)?;
        }
        match late.is_empty() {
            true => Ok(()),
            false => self.write_only_data(late.into_iter()),
        }
    }

    fn overwrite(&self, blocks: &[(BlockNo, BlockRef)]) -> Result<bool> {
        let is_logged = {
            let has_copy = self.live.logged();
            blocks.iter().any(|(home, _)| has_copy(*home))
        };
        if is_logged {
            // A replay would write over them.
            return Ok(false);
        }
        let data = blocks.iter().map(Write::data);
        match is_planted(Bug::UnflushedOverwrite) {
            true => {
                let mut body = Dirty::on(&*self.area.dev);
                self.busy_homes
                    .write_data(&mut body, self.area.block_size, data)?;
            }
            false => self.write_only_data(data)?,
        }
        Ok(true)
    }

    fn backlog(&self) -> Backlog {
        Backlog {
            is_due: self.used() > self.most_used || self.live.held() > self.most_held,
            forced: 0,
        }
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        // No more contents are held than there are blocks in the log.
        let most = (self.most_used / 2).min(u32::try_from(self.most_held).unwrap_or(u32::MAX));
        self.checkpoint_until(|span| match goal {
            Goal::Some | Goal::All => false,
            Goal::Background => self.area.capacity() - span.free <= most,
        })
    }

    fn close(&self) -> Result<()> {
        self.checkpoint(Goal::All)?;
        let mut span = self.live.span.lock();
        self.superblock.lock().set_async_commit(false);
        self.update_superblock(0, span.sequence)?;
        span.marked_empty = true;
        Ok(())
    }
}

/// The data of a transaction, by what is done with it.
struct Sorted<'a> {
    /// Written home before the record.
    first: Vec<&'a LoggedBlock>,
    /// Written home behind it.
    late: Vec<&'a LoggedBlock>,
    logged: Vec<&'a LoggedBlock>,
}

impl Jbd2 {
    fn sort<'a>(&self, data: &'a [LoggedBlock]) -> Sorted<'a> {
        let is_new = |block: &LoggedBlock| block.fresh || block.relocated;
        let has_copy = self.live.logged();
        let is_logged = |block: &&LoggedBlock| {
            let is_meant = match self.mode {
                DataMode::Journal => self.placing.is_none() || !is_new(block),
                _ => block.whole && !is_new(block) && !is_planted(Bug::UnloggedWhole),
            };
            is_meant || has_copy(block.home)
        };
        let is_late = |block: &&LoggedBlock| match self.mode {
            DataMode::Journal => false,
            DataMode::Ordered => is_planted(Bug::LateOrderedData),
            DataMode::Writeback => !block.whole,
        };
        let (logged, home): (Vec<_>, Vec<_>) = data.iter().partition(is_logged);
        let (late, first) = home.into_iter().partition(is_late);
        Sorted {
            first,
            late,
            logged,
        }
    }

    /// Data home, for which nothing vouches; durable when it returns.
    fn write_only_data<'b>(
        &self,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Result<()> {
        let body = Dirty::on(&*self.area.dev);
        self.busy_homes
            .write_last_data(body, self.area.block_size, data)
    }

    /// Blocks of the log that are taken.
    fn used(&self) -> u32 {
        self.area.capacity() - self.live.span.lock().free
    }

    fn flush(&self, cause: Cause) -> Result<()> {
        Ok(self.area.dev.flush(cause)?)
    }

    /// Steps 1 and 3 to 5.
    fn write_log(
        &self,
        mut body: Dirty<'_>,
        txn: &Snapshot,
        logged: &[&LoggedBlock],
        revoked: &[BlockNo],
    ) -> Result<()> {
        let needed = self.records.log_blocks(logged.len(), revoked.len());
        self.make_room(needed)?;
        if self.live.held() > 2 * self.most_held {
            // The background does not keep up: whoever commits helps, or waits for it.
            self.checkpoint(Goal::Background)?;
        }
        let (head, sequence) = self.begin_log()?;
        let records = self.records.body(sequence, logged, revoked);
        let mut parts = records.parts(logged);
        let len = must_fit_u32(parts.len()) + 1;
        assert_eq!(
            len, needed,
            "the transaction is as long as it was said to be"
        );
        let commit = self.records.commit(sequence, txn.time, &records, &parts);
        if self.is_covered(&body, revoked) {
            let record = Tag::new(Class::Journal, Cause::CommitRecord);
            parts.push((record, commit.bytes()));
            self.area.write_covering_commit(body, head, &parts)?;
        } else {
            let commit_at = self.area.step(head, len - 1);
            if is_planted(Bug::RecordBeforeBody) {
                self.area.write_unvouched(commit_at, commit.bytes(), true)?;
            }
            if is_planted(Bug::MissingBodyFlush) {
                self.area.write(&mut body, head, &parts)?;
                self.area.write_unvouched(commit_at, commit.bytes(), true)?;
            } else {
                let durable = self.area.write_last(body, head, &parts, Cause::Log)?;
                match is_planted(Bug::MissingRecordFlush) {
                    true => self
                        .area
                        .write_unvouched(commit_at, commit.bytes(), false)?,
                    false => self.area.write_commit(durable, commit_at, commit.bytes())?,
                }
            }
        }
        if is_planted(Bug::LateFirstMark) && self.live.span.lock().marked_empty {
            let mut superblock = self.superblock.lock();
            let bytes = superblock.update(head, sequence);
            self.area.write_unvouched(0, bytes, false)?;
            self.live.span.lock().marked_empty = false;
        }
        let homes = logged.iter().map(|b| b.home).collect();
        let versions = logged.iter().enumerate().map(|(n, b)| Committed {
            home: b.home,
            class: b.class,
            content: b.content.clone(),
            at: records.place(n).map(|place| self.area.step(head, place)),
        });
        let logged = Logged {
            sequence,
            start: head,
            len,
            homes,
        };
        let head = self.area.step(head, len);
        self.live.add(logged, head, versions, &txn.revoked);
        Ok(())
    }

    /// The commit block's checksum vouches for everything that must be there with it: not for data
    /// at home, and not for revoke blocks, which version 1 leaves out.
    fn is_covered(&self, body: &Dirty<'_>, revoked: &[BlockNo]) -> bool {
        self.async_commit && revoked.is_empty() && body.is_empty()
    }

    /// Where the transaction goes. A log that is marked empty is first marked as beginning there.
    fn begin_log(&self) -> Result<(u32, Tid)> {
        let (head, sequence, marked_empty) = {
            let span = self.live.span.lock();
            (span.head, span.sequence, span.marked_empty)
        };
        if marked_empty && !is_planted(Bug::LateFirstMark) {
            self.update_superblock(head, sequence)?;
            self.live.span.lock().marked_empty = false;
        }
        Ok((head, sequence))
    }

    /// Waits for `needed` free log blocks, checkpointing as far as that takes.
    fn make_room(&self, needed: u32) -> Result<()> {
        // One block stays free: a head that meets the tail would look like an empty log.
        if needed >= self.area.capacity() {
            let why = format!(
                "a transaction of {needed} blocks does not fit into its {} blocks",
                self.area.capacity()
            );
            return Err(SchemeError::Unusable(why));
        }
        if self.live.span.lock().free > needed {
            return Ok(());
        }
        self.checkpoint_until(|span| span.free > needed)
    }

    /// Takes transactions out of the log, oldest first, until `enough` says so of the span that
    /// would remain.
    fn checkpoint_until(&self, enough: impl Fn(&Span) -> bool) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        let (n, tail, sequence, left) = {
            let mut span = self.live.span.lock();
            let free = span.free;
            let mut n = 0;
            while n < span.transactions.len() && !enough(&span) {
                span.free += span.transactions[n].len;
                n += 1;
            }
            span.free = free;
            let (tail, sequence) = match span.transactions.get(n) {
                Some(logged) => (logged.start, logged.sequence),
                None => (span.head, span.sequence),
            };
            let left = span
                .transactions
                .range(..n)
                .map(|logged| logged.start..logged.start + logged.len);
            (n, tail, sequence, left.collect::<Vec<_>>())
        };
        if n == 0 {
            return Ok(());
        }
        let due = self.busy_homes.occupy(|| self.live.due(n), |due| due.home);
        let brought = self.write_due(&due)?;
        if !is_planted(Bug::LateTail) {
            self.update_superblock(tail, sequence)?;
        }
        self.homeward.leave(&self.area, &left, &brought)?;
        self.live.drop_oldest(n);
        Ok(())
    }

    /// Brings home what is due; gives what was not written for that.
    fn write_due(&self, due: &[DueLogged]) -> Result<Vec<Place>> {
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let brought = self.bring_home(due);
        self.busy_homes.release();
        let brought = brought?;
        self.live.are_home(due);
        Ok(brought)
    }

    /// Durable when it returns.
    fn bring_home(&self, due: &[DueLogged]) -> Result<Vec<Place>> {
        let as_they_are = due.iter().filter_map(|d| Some((d.home, d.at?))).collect();
        let chosen = self.homeward.choose(&self.area, as_they_are)?;
        self.homeward.bring(&self.area, &chosen)?;
        if chosen.len() == due.len() {
            return Ok(chosen);
        }
        let homes: HashSet<BlockNo> = chosen.iter().map(|(home, _)| *home).collect();
        let written = due.iter().filter(|d| !homes.contains(&d.home));
        let writes = written.map(|d| Write {
            home: d.home,
            class: d.class,
            content: &d.content,
        });
        let (dev, size) = (&*self.area.dev, self.area.block_size);
        write_home(dev, size, Cause::Checkpoint, writes.collect())?;
        if !is_planted(Bug::MissingCheckpointFlush) {
            self.flush(Cause::Checkpoint)?;
        }
        Ok(chosen)
    }

    /// Where the log begins; `start` 0 says that it is empty. Durable when it returns.
    fn update_superblock(&self, start: u32, sequence: Tid) -> Result<()> {
        let mut superblock = self.superblock.lock();
        let bytes = superblock.update(start, sequence);
        self.area.write_record(0, bytes, Cause::Control)
    }
}
