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
//! 4. *forget*: the index drops versions of which the log has nothing any more.
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

use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockDev, BlockRef, Dirty};
use stetfs_scheme::{ActionCount, DirtyBlock, Goal, LoggedBlock, Placement, Result, SchemeError};
use stetfs_sync::Mutex;

use crate::parts::home::{BusyHomes, Write};
use crate::parts::index::{Changing, Index, Indexed};
use crate::parts::period::Period;

/// Where a block of data goes of which the log has nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goes {
    /// Home, before the record.
    Home,
    /// Home, behind the record.
    HomeLate,
    /// Into the log.
    Log,
}

/// The blocks of a transaction, by where they go.
pub(crate) struct Sorted<'t> {
    /// Data that goes home before the record.
    pub(crate) home: Vec<&'t LoggedBlock>,
    /// Data that goes home behind it.
    late: Vec<&'t LoggedBlock>,
    /// Into the log: data, then metadata.
    pub(crate) logged: Vec<&'t LoggedBlock>,
    /// How many of these are data.
    pub(crate) logged_data: usize,
    /// Freed blocks of which the log has something.
    pub(crate) revoked: Vec<BlockNo>,
}

impl Sorted<'_> {
    fn has_record(&self) -> bool {
        !self.logged.is_empty() || !self.revoked.is_empty()
    }
}

/// Where a transaction goes.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    /// The position. Positions count from the log's start without end, in the scheme's units.
    pub(crate) at: u64,
    /// The transaction's number.
    pub(crate) sequence: Tid,
    /// Units that are free from there on.
    pub(crate) room: u64,
}

/// How far a checkpoint goes.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// A transaction of so many units must fit.
    Room(u64),
    /// As the caller wants it.
    Goal(Goal),
}

/// Which versions go home.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// Those for which a replay needs transactions before this one.
    Before(Tid),
    /// Those of which the content is in memory.
    Here,
    /// All.
    All,
}

/// The newest committed version of a block, as it is known in memory.
pub(crate) trait Version: Indexed + Send + Sync {
    /// What a checkpoint takes along.
    type Due: Send;

    /// The first transaction that a replay needs for it. Only of one that is held.
    fn oldest(&self) -> Tid;

    /// The last transaction that has something of it.
    fn newest(&self) -> Tid;

    /// It is on its way home, as it is now.
    fn leave(&mut self) -> Self::Due;

    /// It is home, as it was when it left. It may have changed since.
    fn arrive(&mut self, due: &Self::Due);

    /// It did not get home.
    fn stay(&mut self) {}
}

/// A block on its way home.
pub(crate) struct Due<D> {
    pub(crate) home: BlockNo,
    pub(crate) version: D,
}

/// What a scheme's version takes along on its way home.
pub(crate) type DueOf<S> = Due<<<S as OnLog>::Version as Version>::Due>;

/// What a scheme adds to its log, in the order of a commit and of a checkpoint.
pub(crate) trait OnLog: Send + Sync {
    type Version: Version;
    /// A transaction's record while it is made.
    type Draft<'t>;

    /// What its log counts in, for messages.
    const UNITS: &'static str;
    /// Commits and checkpoints exclude each other.
    const ONE_AT_A_TIME: bool = false;
    /// Data goes home with a record that vouches for it. Otherwise data alone needs none.
    const VOUCHES_FOR_DATA: bool = false;
    /// The tail moves to the transaction that [`Which::Before`] names, and no further. Otherwise it
    /// moves to the first that a replay needs.
    const STOPS_AT_GOAL: bool = false;
    /// Data may be [overwritten](stetfs_scheme::Scheme::overwrite) without a transaction.
    const OVERWRITES: bool = false;

    fn log(&self) -> &Log<Self::Version>;

    /// The content of a version that is held.
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

    /// Where a block of data goes of which the log has nothing. What it has something of is logged.
    fn goes(&self, block: &LoggedBlock) -> Goes;

    /// Freed blocks are revoked. Not where all is logged: a freed block's next owner is logged
    /// behind it, and wins.
    fn revokes(&self) -> bool {
        true
    }

    /// What the record says, and units of the log that it takes at most; 0: it has nothing to say.
    /// Again when the first [did not fit](Self::tries_again).
    fn draft<'t>(&self, head: &Head, sorted: &Sorted<'t>, is_again: bool)
    -> (Self::Draft<'t>, u64);

    /// There is room for these blocks, where the log alone does not tell.
    fn fits(&self, sorted: &Sorted<'_>) -> bool {
        let _ = sorted;
        true
    }

    /// A checkpoint is wanted, for what the log alone does not tell.
    fn is_due(&self) -> bool {
        false
    }

    /// Writes data home and the record; durable when it returns. Units of the log that it took.
    fn write(
        &self,
        head: &Head,
        sorted: &Sorted<'_>,
        draft: &mut Self::Draft<'_>,
        time: (u64, u32),
    ) -> Result<u64>;

    /// Whether this error of [`write`](Self::write) says that another draft would do. Nothing has
    /// been written.
    fn tries_again(&self, error: &SchemeError) -> bool {
        let _ = error;
        false
    }

    /// The transaction is durable: what it logged is the newest.
    fn note<'t>(
        &self,
        index: &mut Changing<'_, Self::Version>,
        head: &Head,
        sorted: &Sorted<'t>,
        draft: Self::Draft<'t>,
    );

    /// Everything goes home with this commit.
    fn lands_at_once(&self) -> bool {
        false
    }

    /// Which versions must go home; `None`: none need to.
    fn due(&self, until: Until) -> Option<Which>;

    /// Brings versions home, which are in ascending order; durable when it returns.
    fn land(&self, due: &mut [DueOf<Self>]) -> Result<()>;

    /// Where the log begins; durable when it returns.
    fn write_tail(&self, at: u64, sequence: Tid) -> Result<()>;

    /// The log begins at `at`, and what was before that is of no use. Nothing is written over it
    /// before this returns. These are the blocks that went home.
    fn leave(&self, at: u64, due: &[DueOf<Self>]) -> Result<()> {
        let _ = (at, due);
        Ok(())
    }

    /// Everything is home. Leaves an empty log, durable.
    fn close(&self) -> Result<()>;

    /// [`Scheme::actions`](stetfs_scheme::Scheme::actions).
    fn actions(&self) -> Vec<ActionCount> {
        Vec::new()
    }
}

/// What of a log is in use.
pub(crate) struct Span {
    /// Where the next transaction goes.
    pub(crate) head: u64,
    /// The oldest that would be replayed.
    pub(crate) tail: u64,
    /// The next transaction's number.
    pub(crate) sequence: Tid,
    /// From tail to head: number and position.
    pub(crate) transactions: VecDeque<(Tid, u64)>,
}

impl Span {
    /// Nothing is.
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

    /// The first transaction that stays if no more than `most` units are to be in use; `None`: no
    /// more are.
    pub(crate) fn first_within(&self, most: u64) -> Option<Tid> {
        (self.used() > most).then(|| self.first_from(self.head - most))
    }

    /// The first transaction that is not in the oldest of so many parts of what is in use.
    pub(crate) fn behind_oldest(&self, parts: u64) -> Tid {
        self.first_from(self.tail + self.used() / parts)
    }

    /// The first transaction at a position or behind it; the next one, if there is none.
    fn first_from(&self, at: u64) -> Tid {
        let n = self.transactions.partition_point(|(_, its)| *its < at);
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

    /// The transactions before a position.
    pub(crate) fn before(&self, at: u64) -> impl Iterator<Item = &(Tid, u64)> {
        self.transactions
            .iter()
            .take_while(move |(_, its)| *its < at)
    }

    /// Lets the log begin at a position.
    fn cut(&mut self, at: u64) {
        let n = self.before(at).count();
        self.transactions.drain(..n);
        self.tail = at;
    }
}

/// How much of a log may be used, and of memory.
pub(crate) struct Limits {
    /// Units of the log that transactions may take together.
    pub(crate) room: u64,
    /// Units in use at which a checkpoint is wanted.
    pub(crate) most_used: u64,
    /// Contents in memory at which a checkpoint is wanted, in blocks.
    pub(crate) most_here: usize,
    /// Checkpoints are made by time, too.
    pub(crate) period: Option<Period>,
}

impl Limits {
    /// The least number of contents in memory at which a checkpoint is wanted, in blocks.
    const LEAST_HERE: usize = 16;

    /// Contents that fit into `memory` bytes, but for a few.
    pub(crate) fn most_here(memory: usize, block_size: usize) -> usize {
        (memory / block_size).max(Self::LEAST_HERE)
    }
}

/// What any log has.
pub(crate) struct Log<V> {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) block_size: usize,
    pub(crate) limits: Limits,
    pub(crate) span: Mutex<Span>,
    /// Units in use, for looks from outside.
    used: AtomicU64,
    /// The newest committed version of each block that the log has something of.
    pub(crate) index: Index<V>,
    pub(crate) busy_homes: BusyHomes,
    /// One checkpoint at a time.
    checkpointing: Mutex<()>,
    /// Checkpoints that commits have made.
    forced: AtomicU64,
}

impl<V: Version> Log<V> {
    pub(crate) fn new(
        dev: Arc<dyn BlockDev>,
        block_size: usize,
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

    /// Units in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// More contents are in memory than there should be.
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

    /// Writes a transaction's data home, as a part of its body.
    pub(crate) fn write_data(&self, body: &mut Dirty<'_>, data: &[&LoggedBlock]) -> Result<()> {
        self.busy_homes
            .write_data(body, self.block_size, data.iter().copied())
    }

    /// Writes data home for which no record vouches; durable when it returns.
    fn write_data_alone<'b>(
        &self,
        data: impl Iterator<Item = impl Into<Write<'b>>> + Clone,
    ) -> Result<()> {
        self.busy_homes
            .write_last_data(Dirty::on(&*self.dev), self.block_size, data)
    }

    /// The versions that go home, in ascending order. Their homes are busy.
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

    /// They are home, or are not.
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

    /// The first transaction that a replay needs, and where it is; or `goal`.
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

    /// Lets it begin at a position, in memory.
    fn cut(&self, at: u64) {
        let mut span = self.span.lock();
        span.cut(at);
        self.used.store(span.used(), Relaxed);
    }

    /// Forgets what the log has nothing of any more that begins with transaction `first` now.
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
