//! The engine of the logs: the common part of jbd2, jftl, shortcut, dj and stet.
//!
//! A commit appends a transaction to a log, and a checkpoint brings the newest version of each
//! block home later. Each scheme decides the bytes of its log and the way of each block
//! ([`OnLog`]). The engine knows which part of the log is in use and which versions are held,
//! serves reads, makes room, and runs the steps of commits and checkpoints.
//!
//! A commit:
//! 1. *sort*: each block of data goes home or into the log ([`Sorted`]);
//! 2. *draft*: the transaction's record, and the most room that it takes;
//! 3. *room*: a checkpoint, if the log has too little;
//! 4. *write*: data home and the record into the log, durable;
//! 5. *note*: the index lists these versions as the newest.
//!
//! A checkpoint:
//! 1. *due*: the versions that go home; from here on their homes are busy;
//! 2. *land*: they go home, durable;
//! 3. *tail*: the log begins with the first transaction that a replay still needs, or with an
//!    earlier one, durable;
//! 4. *forget*: the index drops versions that have no bytes in the log any more.
//!
//! The index lists a version, even one that is home, until the tail has passed the last transaction
//! that has bytes of it. Until then a replay would write these bytes over home. So a freed block is
//! revoked and new data for it is logged, as long as it is listed.
//!
//! Locks, in this order: `checkpointing`, busy homes, `span`, the index. Only the first one is held
//! during a read or write of a medium.

pub(crate) mod serving;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs_format::{BlockNo, BlockSize, Tid};
use stetfs_media::{BlockDev, BlockRef, Dirty};
use stetfs_scheme::{ActionCount, DirtyBlock, Goal, LoggedBlock, Placement, Result, SchemeError};
use stetfs_sync::Mutex;

use crate::parts::home::{BusyHomes, Write};
use crate::parts::index::{Changing, Index, Indexed};
use crate::parts::period::Period;

/// Where a commit writes a block of data that is not in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goes {
    /// Home, before the record.
    Home,
    /// Home, after the record is durable.
    HomeLate,
    /// Into the log.
    Log,
}

/// The blocks of a transaction, by where they go.
pub(crate) struct Sorted<'t> {
    /// Data that goes home before the record.
    pub(crate) home: Vec<&'t LoggedBlock>,
    /// Data that goes home after the record is durable.
    late: Vec<&'t LoggedBlock>,
    /// Blocks that go into the log: data, then metadata.
    pub(crate) logged: Vec<&'t LoggedBlock>,
    /// The number of data blocks in `logged`.
    pub(crate) logged_data: usize,
    /// Freed blocks with bytes in the log.
    pub(crate) revoked: Vec<BlockNo>,
}

impl Sorted<'_> {
    fn has_record(&self) -> bool {
        !self.logged.is_empty() || !self.revoked.is_empty()
    }
}

/// The place in the log where a transaction goes.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    /// The position. Positions count units of the scheme from the log's start and never wrap.
    pub(crate) at: u64,
    /// The transaction's number.
    pub(crate) sequence: Tid,
    /// The number of free units from there on.
    pub(crate) room: u64,
}

/// How far a checkpoint goes.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// Until a transaction of this many units fits.
    Room(u64),
    /// Until the caller's goal is reached.
    Goal(Goal),
}

/// Which versions go home.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// Versions for which a replay needs a transaction before this one.
    Before(Tid),
    /// Versions whose content is in memory.
    Here,
    /// All versions.
    All,
}

/// The newest committed version of a block, as the index has it.
pub(crate) trait Version: Indexed + Send + Sync {
    /// What a checkpoint needs to bring the version home.
    type Due: Send;

    /// Returns the first transaction that a replay needs for it. Only for a held version.
    fn oldest(&self) -> Tid;

    /// Returns the last transaction that has bytes of it.
    fn newest(&self) -> Tid;

    /// Notes that it is on its way home, in its present state.
    fn leave(&mut self) -> Self::Due;

    /// Notes that home has it in the state in which it left. It may have changed since.
    fn arrive(&mut self, due: &Self::Due);

    /// Notes that it did not get home.
    fn stay(&mut self) {}
}

/// A block on its way home.
pub(crate) struct Due<D> {
    pub(crate) home: BlockNo,
    pub(crate) version: D,
}

/// A block on its way home, with its scheme's version.
pub(crate) type DueOf<S> = Due<<<S as OnLog>::Version as Version>::Due>;

/// A scheme's part of each step, in the order of a commit and of a checkpoint.
pub(crate) trait OnLog: Send + Sync {
    type Version: Version;
    /// A transaction's record before it is written.
    type Draft<'t>;

    /// The name of the log's unit, for messages.
    const UNITS: &'static str;
    /// Commits and checkpoints exclude each other.
    const ONE_AT_A_TIME: bool = false;
    /// A record vouches for data that goes home. Otherwise a transaction with only such data has no
    /// record.
    const VOUCHES_FOR_DATA: bool = false;
    /// The tail moves to the transaction that [`Which::Before`] names, and no further. Otherwise it
    /// moves to the first transaction that a replay needs.
    const STOPS_AT_GOAL: bool = false;
    /// Data may be [overwritten](stetfs_scheme::Scheme::overwrite) without a transaction.
    const OVERWRITES: bool = false;

    fn log(&self) -> &Log<Self::Version>;

    /// Returns the content of a held version.
    fn content(&self, block: BlockNo, version: &Self::Version) -> Result<BlockRef>;

    /// [`Scheme::wants_changes`](stetfs_scheme::Scheme::wants_changes).
    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        let _ = (home, content);
        Ok(true)
    }

    /// [`Scheme::place`](stetfs_scheme::Scheme::place).
    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        let _ = block;
        Placement::Home
    }

    /// *sort*: decides where a block of data goes that is not in the log. A block that is there
    /// goes into the log again.
    fn goes(&self, block: &LoggedBlock) -> Goes;

    /// True when the record revokes freed blocks. A log that has all data needs no revokes: the
    /// next owner's data is logged later, and a replay writes the latest.
    fn revokes(&self) -> bool {
        true
    }

    /// *draft*: makes the record, and returns the most units of the log that it takes; 0: there is
    /// nothing to write. `is_again`: the first draft [did not do](Self::tries_again).
    fn draft<'t>(&self, head: &Head, sorted: &Sorted<'t>, is_again: bool)
    -> (Self::Draft<'t>, u64);

    /// *room*: true when these blocks fit into the scheme's other memory, besides the log.
    fn fits(&self, sorted: &Sorted<'_>) -> bool {
        let _ = sorted;
        true
    }

    /// True when the scheme wants a checkpoint for a reason besides the log and its limits.
    fn is_due(&self) -> bool {
        false
    }

    /// *write*: writes data home and the record into the log, durable when it returns. Returns the
    /// units of the log that the record took.
    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        draft: &mut Self::Draft<'_>,
        time: (u64, u32),
    ) -> Result<u64>;

    /// True when [`write`](Self::write) has failed with an error that another draft would avoid.
    /// Nothing has been written then.
    fn tries_again(&self, error: &SchemeError) -> bool {
        let _ = error;
        false
    }

    /// *note*: lists the versions of a durable transaction as the newest.
    fn note<'t>(
        &self,
        index: &mut Changing<'_, Self::Version>,
        head: &Head,
        sorted: &Sorted<'t>,
        draft: Self::Draft<'t>,
    );

    /// True when a checkpoint of everything follows this commit.
    fn lands_at_once(&self) -> bool {
        false
    }

    /// *due*: decides which versions go home; `None`: no checkpoint is needed.
    fn due(&self, until: Until) -> Option<Which>;

    /// *land*: brings versions home, in ascending order of blocks; durable when it returns.
    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()>;

    /// *tail*: writes where the log begins; durable when it returns.
    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()>;

    /// Gives up the part of the log before `at`, which is the durable tail now. Commits reuse it
    /// only after this returns. `due` has the blocks that this checkpoint brought home.
    fn leave(&self, at: u64, due: &[DueOf<Self>]) -> Result<()> {
        let _ = (at, due);
        Ok(())
    }

    /// Leaves an empty log, durable. All blocks are home.
    fn close(&self) -> Result<()>;

    /// [`Scheme::actions`](stetfs_scheme::Scheme::actions).
    fn actions(&self) -> Vec<ActionCount> {
        Vec::new()
    }
}

/// The part of a log that is in use.
pub(crate) struct Span {
    /// Where the next transaction goes.
    pub(crate) head: u64,
    /// The position of the oldest transaction that a recovery would replay.
    pub(crate) tail: u64,
    /// The next transaction's number.
    pub(crate) sequence: Tid,
    /// The transactions from tail to head: number and position.
    pub(crate) transactions: VecDeque<(Tid, u64)>,
}

impl Span {
    /// Makes an empty span.
    pub(crate) fn empty(at: u64, sequence: Tid) -> Self {
        Self {
            head: at,
            tail: at,
            sequence,
            transactions: VecDeque::new(),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Returns the first transaction to keep so that at most `most` units stay in use; `None`: no
    /// more are in use now.
    pub(crate) fn first_within(&self, most: u64) -> Option<Tid> {
        (self.used() > most).then(|| self.first_from(self.head - most))
    }

    /// Returns the first transaction behind the oldest of `parts` equal parts of the used log.
    pub(crate) fn behind_oldest(&self, parts: u64) -> Tid {
        self.first_from(self.tail + self.used() / parts)
    }

    /// Returns the first transaction at or behind a position, or else the number of the next one.
    fn first_from(&self, at: u64) -> Tid {
        let n = self.transactions.partition_point(|(_, its)| *its < at);
        self.transactions
            .get(n)
            .map_or(self.sequence, |found| found.0)
    }

    /// Returns the position of a transaction, or that of the head if it is not written yet.
    fn position_of(&self, tid: Tid) -> u64 {
        let is_before = |other: &(Tid, u64)| tid.is_after(other.0);
        let n = self.transactions.partition_point(is_before);
        self.transactions.get(n).map_or(self.head, |found| found.1)
    }

    /// Yields the transactions before a position.
    pub(crate) fn before(&self, at: u64) -> impl Iterator<Item = &(Tid, u64)> {
        self.transactions
            .iter()
            .take_while(move |(_, its)| *its < at)
    }

    /// Moves the tail to a position.
    fn cut(&mut self, at: u64) {
        let n = self.before(at).count();
        self.transactions.drain(..n);
        self.tail = at;
    }
}

/// The limits of a log and of its memory.
pub(crate) struct Limits {
    /// The most units of the log that all transactions may take together.
    pub(crate) room: u64,
    /// Units in use beyond which a checkpoint is due.
    pub(crate) most_used: u64,
    /// Contents in memory, in blocks, beyond which a checkpoint is due.
    pub(crate) most_here: usize,
    /// The time after which a checkpoint is due; `None`: time does not count.
    pub(crate) period: Option<Period>,
}

impl Limits {
    /// The least value of `most_here`, in blocks.
    const LEAST_HERE: usize = 16;

    /// Returns `most_here` for `memory` bytes.
    pub(crate) fn most_here(memory: usize, block_size: BlockSize) -> usize {
        (memory >> block_size.bits()).max(Self::LEAST_HERE)
    }
}

/// The engine's state of a log.
pub(crate) struct Log<V> {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) block_size: BlockSize,
    pub(crate) limits: Limits,
    pub(crate) span: Mutex<Span>,
    /// Units in use, readable without the lock of `span`.
    used: AtomicU64,
    /// The newest committed version of each block with bytes in the log.
    pub(crate) index: Index<V>,
    pub(crate) busy_homes: BusyHomes,
    /// Held by the one checkpoint that runs.
    checkpointing: Mutex<()>,
    /// The number of checkpoints within commits.
    forced: AtomicU64,
}

impl<V: Version> Log<V> {
    pub(crate) fn new(
        dev: Arc<dyn BlockDev>,
        block_size: BlockSize,
        limits: Limits,
        span: Span,
        index: Index<V>,
    ) -> Self {
        Self {
            dev,
            block_size,
            limits,
            used: AtomicU64::new(span.used()),
            span: Mutex::new(span),
            index,
            busy_homes: BusyHomes::default(),
            checkpointing: Mutex::new(()),
            forced: AtomicU64::new(0),
        }
    }

    /// Returns the units in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// True when more contents are in memory than `most_here`.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.index.here() > self.limits.most_here
    }

    fn head(&self) -> Head {
        let span = self.span.lock();
        Head {
            at: span.head,
            sequence: span.sequence,
            room: self.limits.room - span.used(),
        }
    }

    /// Writes a transaction's data home, as part of its body.
    pub(crate) fn write_data(&self, body: &mut Dirty<'_>, data: &[&LoggedBlock]) -> Result<()> {
        self.busy_homes
            .write_data(body, self.block_size, data.iter().copied())
    }

    /// Writes data home without a record; durable when it returns.
    fn write_data_alone<'b>(
        &self,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Result<()> {
        self.busy_homes
            .write_last_data(Dirty::on(&*self.dev), self.block_size, data)
    }

    /// Collects the versions that go home, in ascending order, and makes their homes busy.
    fn take_due(&self, which: Which) -> Vec<Due<V::Due>> {
        let is_due = |version: &V| {
            version.is_held()
                && match which {
                    Which::Before(tid) => tid.is_after(version.oldest()),
                    Which::Here => version.is_here(),
                    Which::All => true,
                }
        };
        let find = || {
            let mut index = self.index.write();
            let due = index.iter().filter(|(_, version)| is_due(version));
            let homes: Vec<BlockNo> = due.map(|(home, _)| *home).collect();
            let mut due = Vec::with_capacity(homes.len());
            for home in homes {
                index.change(&home, |version| {
                    let version = version.leave();
                    due.push(Due { home, version });
                });
            }
            due
        };
        let mut due = self.busy_homes.occupy(find, |due| due.home);
        due.sort_unstable_by_key(|due| due.home);
        due
    }

    /// Notes that these versions are home, or that they are not.
    fn settle(&self, due: &[Due<V::Due>], are_home: bool) {
        let mut index = self.index.write();
        for block in due {
            index.change(&block.home, |version| {
                if are_home {
                    version.arrive(&block.version);
                } else {
                    version.stay();
                }
            });
        }
    }

    /// Returns `goal`, or else the first transaction that a replay needs, and its position.
    fn first_needed(&self, goal: Option<Tid>) -> (Tid, u64) {
        let span = self.span.lock();
        let index = self.index.read();
        let oldest = goal.or_else(|| {
            let held = index.values().filter(|version| version.is_held());
            held.map(V::oldest)
                .reduce(|a, b| if a.is_after(b) { b } else { a })
        });
        let tid = oldest.unwrap_or(span.sequence);
        (tid, span.position_of(tid))
    }

    /// Moves the tail to a position, in memory.
    fn cut(&self, at: u64) {
        let mut span = self.span.lock();
        span.cut(at);
        self.used.store(span.used(), Relaxed);
    }

    /// Drops home versions whose last bytes were in a transaction before `first`, where the log
    /// begins now.
    fn forget_before(&self, first: Tid) {
        let mut index = self.index.write();
        let is_gone = |version: &V| !version.is_held() && first.is_after(version.newest());
        let gone = index.iter().filter(|(_, version)| is_gone(version));
        let gone: Vec<BlockNo> = gone.map(|(home, _)| *home).collect();
        for home in gone {
            index.remove(&home);
        }
    }
}
