//! The account of a medium: requests, bytes, cache lines and busy time by class and cause; flushes,
//! fences and erases by cause; discards.
//!
//! One account serves every kind of medium, and each fills in what it has:
//!
//! | | block device | persistent memory | NAND |
//! |---|---|---|---|
//! | reads, writes | requests | loads, stores | pages read, pages programmed |
//! | lines | - | cache lines of 64 bytes written back: flushed, or stored past the cache | - |
//! | flushes | cache flushes | - | - |
//! | durable writes | forced unit access | - | - |
//! | fences | - | store fences | - |
//! | erases | - | - | blocks erased |
//! | discards | requests | - | - |
//! | busy time | of the timing model, or real | of the timing model, or of msync | of the timing model |
//!
//! Busy time is the sum over all requests, so where several run at once it is more than the time
//! that passed. A request that failed is not counted, nor is its time.
//!
//! Counting is always on. It is relaxed atomic additions into one of a few copies of the counters,
//! chosen by thread, so that threads do not pull one cache line back and forth; a [`MeterSnapshot`]
//! adds the copies up. That costs 9 ns a request; with one copy for all, two threads would pay 24
//! ns each (`examples/media_cost.rs meter`). Numbers of a snapshot taken while requests run may be
//! one request apart from each other.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::tag::{Cause, Class, Tag};
use stetfs_format::width::usize_as_u64;

const CLASSES: usize = Class::ALL.len();
const CAUSES: usize = Cause::ALL.len();

/// Defines the same numbers twice: as they are counted, and as a snapshot shows them.
macro_rules! counters {
    ($counted:ident, $(#[$about:meta])* $vis:vis $shown:ident {
        $($(#[$field:meta])* $name:ident),* $(,)?
    }) => {
        #[derive(Default)]
        struct $counted {
            $($name: AtomicU64,)*
        }

        impl $counted {
            fn load(&self) -> $shown {
                $shown { $($name: self.$name.load(Relaxed),)* }
            }
        }

        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        $vis struct $shown {
            $($(#[$field])* $vis $name: u64,)*
        }

        impl $shown {
            /// Applies `f` to each pair of numbers.
            fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($name: f(self.$name, other.$name),)* }
            }
        }

        impl AddAssign for $shown {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Add for $shown {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                self.zip(other, u64::saturating_add)
            }
        }
    };
}

counters! { CellCount,
    /// Requests, bytes, lines and time, of one class and cause or of several added up.
    pub Traffic {
        /// Read requests; on NAND pages read.
        reads,
        /// Bytes read.
        read_bytes,
        /// Write requests; on NAND pages programmed.
        writes,
        /// Bytes written.
        write_bytes,
        /// Cache lines of 64 bytes that were flushed, changed or not, or stored past the cache.
        #[serde(default, skip_serializing_if = "is_zero")]
        lines,
        /// Time that the medium needed for them, in nanoseconds.
        #[serde(default, skip_serializing_if = "is_zero")]
        busy_ns,
    }
}

counters! { CauseCount,
    /// What has a cause and no class.
    CauseTotals {
        flushes,
        durable_writes,
        #[serde(default, skip_serializing_if = "is_zero")]
        fences,
        #[serde(default, skip_serializing_if = "is_zero")]
        erases,
        #[serde(default, skip_serializing_if = "is_zero")]
        busy_ns,
    }
}

counters! { DiscardCount,
    DiscardTotals {
        discards,
        discard_bytes,
        #[serde(default, skip_serializing_if = "is_zero", rename = "discard_busy_ns")]
        busy_ns,
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// One copy of all counters. The alignment keeps neighbouring copies off each other's cache lines
/// (pairs of lines: the prefetcher takes two).
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    cells: [[CellCount; CAUSES]; CLASSES],
    causes: [CauseCount; CAUSES],
    discards: DiscardCount,
}

/// The counters of one medium.
pub struct Meter {
    shards: Box<[Shard]>,
}

/// A number for each thread, in the order in which they first count something.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed) & (usize::MAX >> 1));
        }
        mine.get()
    })
}

/// One copy for each processor, at most 16, a power of two.
fn shard_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.next_power_of_two().min(16)
    })
}

impl Meter {
    /// All counters at zero.
    pub fn new() -> Self {
        Self {
            shards: (0..shard_count()).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self) -> &Shard {
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }

    fn cell(&self, tag: Tag) -> &CellCount {
        &self.shard().cells[tag.class.index()][tag.cause.index()]
    }

    fn cause(&self, cause: Cause) -> &CauseCount {
        &self.shard().causes[cause.index()]
    }

    pub(crate) fn count_read(&self, tag: Tag, bytes: u64) {
        let cell = self.cell(tag);
        cell.reads.fetch_add(1, Relaxed);
        cell.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn count_write(&self, tag: Tag, bytes: u64) {
        let cell = self.cell(tag);
        cell.writes.fetch_add(1, Relaxed);
        cell.write_bytes.fetch_add(bytes, Relaxed);
    }

    /// Cache lines of 64 bytes on their way to persistent memory.
    pub(crate) fn count_lines(&self, tag: Tag, lines: u64) {
        self.cell(tag).lines.fetch_add(lines, Relaxed);
    }

    /// Time that a read or write took.
    pub(crate) fn count_busy(&self, tag: Tag, busy_ns: u64) {
        self.cell(tag).busy_ns.fetch_add(busy_ns, Relaxed);
    }

    /// Time that a flush, a fence or an erase took.
    pub(crate) fn count_cause_busy(&self, cause: Cause, busy_ns: u64) {
        self.cause(cause).busy_ns.fetch_add(busy_ns, Relaxed);
    }

    /// Moves the bytes of a write that was counted as `counted` to where its parts really belong.
    /// The request and its time stay where they are.
    pub(crate) fn reclassify(&self, counted: Tag, parts: &[(Tag, &[u8])]) {
        let cells = &self.shard().cells;
        let from = &cells[counted.class.index()][counted.cause.index()];
        for (tag, bytes) in parts.iter().filter(|part| part.0 != counted) {
            let to = &cells[tag.class.index()][tag.cause.index()];
            from.write_bytes
                .fetch_sub(usize_as_u64(bytes.len()), Relaxed);
            to.write_bytes.fetch_add(usize_as_u64(bytes.len()), Relaxed);
        }
    }

    pub(crate) fn count_durable_write(&self, tag: Tag, bytes: u64) {
        self.count_write(tag, bytes);
        self.cause(tag.cause).durable_writes.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_flush(&self, cause: Cause) {
        self.cause(cause).flushes.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_fence(&self, cause: Cause) {
        self.cause(cause).fences.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_erase(&self, cause: Cause) {
        self.cause(cause).erases.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_discard(&self, bytes: u64, busy_ns: u64) {
        let discards = &self.shard().discards;
        discards.discards.fetch_add(1, Relaxed);
        discards.discard_bytes.fetch_add(bytes, Relaxed);
        discards.busy_ns.fetch_add(busy_ns, Relaxed);
    }

    /// The numbers now.
    pub fn snapshot(&self) -> MeterSnapshot {
        let read = |shard: &Shard| MeterSnapshot {
            cells: shard
                .cells
                .each_ref()
                .map(|row| row.each_ref().map(CellCount::load)),
            causes: shard.causes.each_ref().map(CauseCount::load),
            discards: shard.discards.load(),
        };
        self.shards
            .iter()
            .fold(MeterSnapshot::default(), |sum, shard| sum + &read(shard))
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

/// What a [`Meter`] showed at one moment; or, as the difference of two, what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Account", from = "Account")]
pub struct MeterSnapshot {
    cells: [[Traffic; CAUSES]; CLASSES],
    causes: [CauseTotals; CAUSES],
    discards: DiscardTotals,
}

impl MeterSnapshot {
    /// The traffic of one class and cause.
    pub fn of(&self, tag: Tag) -> Traffic {
        self.cells[tag.class.index()][tag.cause.index()]
    }

    /// Everything that is not zero, by class and then by cause, in the order of [`Class::ALL`] and
    /// [`Cause::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Tag, Traffic)> + '_ {
        Class::ALL
            .into_iter()
            .flat_map(|class| {
                Cause::ALL
                    .into_iter()
                    .map(move |cause| Tag::new(class, cause))
            })
            .map(|tag| (tag, self.of(tag)))
            .filter(|(_, traffic)| *traffic != Traffic::default())
    }

    /// The traffic of one class, all causes.
    pub fn by_class(&self, class: Class) -> Traffic {
        self.cells[class.index()]
            .iter()
            .fold(Traffic::default(), |sum, t| sum + *t)
    }

    /// The traffic of one cause, all classes.
    pub fn by_cause(&self, cause: Cause) -> Traffic {
        self.cells
            .iter()
            .fold(Traffic::default(), |sum, row| sum + row[cause.index()])
    }

    /// All traffic.
    pub fn total(&self) -> Traffic {
        self.cells
            .iter()
            .flatten()
            .fold(Traffic::default(), |sum, t| sum + *t)
    }

    /// Flushes of one cause.
    pub fn flushes(&self, cause: Cause) -> u64 {
        self.causes[cause.index()].flushes
    }

    /// All flushes.
    pub fn total_flushes(&self) -> u64 {
        self.causes.iter().map(|c| c.flushes).sum()
    }

    /// Writes of one cause that were durable at once; they are among the writes too.
    pub fn durable_writes(&self, cause: Cause) -> u64 {
        self.causes[cause.index()].durable_writes
    }

    /// All writes that were durable at once.
    pub fn total_durable_writes(&self) -> u64 {
        self.causes.iter().map(|c| c.durable_writes).sum()
    }

    /// Fences of one cause.
    pub fn fences(&self, cause: Cause) -> u64 {
        self.causes[cause.index()].fences
    }

    /// All fences.
    pub fn total_fences(&self) -> u64 {
        self.causes.iter().map(|c| c.fences).sum()
    }

    /// Blocks erased for one cause.
    pub fn erases(&self, cause: Cause) -> u64 {
        self.causes[cause.index()].erases
    }

    /// All blocks erased.
    pub fn total_erases(&self) -> u64 {
        self.causes.iter().map(|c| c.erases).sum()
    }

    /// Time of one cause's reads, writes, flushes, fences and erases, in nanoseconds.
    pub fn busy_ns(&self, cause: Cause) -> u64 {
        self.by_cause(cause).busy_ns + self.causes[cause.index()].busy_ns
    }

    /// Time of everything, discards included, in nanoseconds.
    pub fn total_busy_ns(&self) -> u64 {
        let causes: u64 = self.causes.iter().map(|c| c.busy_ns).sum();
        self.total().busy_ns + causes + self.discards.busy_ns
    }

    /// Discard requests.
    pub fn discards(&self) -> u64 {
        self.discards.discards
    }

    /// Bytes discarded.
    pub fn discard_bytes(&self) -> u64 {
        self.discards.discard_bytes
    }

    /// The same without anything of one cause.
    pub fn without(mut self, cause: Cause) -> Self {
        for row in &mut self.cells {
            row[cause.index()] = Traffic::default();
        }
        self.causes[cause.index()] = CauseTotals::default();
        self
    }

    /// Applies `f` to each pair of numbers.
    fn zip(mut self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let pairs = self.cells.iter_mut().flatten();
        for (mine, theirs) in pairs.zip(other.cells.iter().flatten()) {
            *mine = mine.zip(*theirs, &f);
        }
        for (mine, theirs) in self.causes.iter_mut().zip(&other.causes) {
            *mine = mine.zip(*theirs, &f);
        }
        self.discards = self.discards.zip(other.discards, &f);
        self
    }
}

/// What happened since the earlier snapshot `earlier` of the same meter.
impl Sub<&MeterSnapshot> for MeterSnapshot {
    type Output = Self;

    fn sub(self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }
}

/// The sum of two media's accounts.
impl Add<&MeterSnapshot> for MeterSnapshot {
    type Output = Self;

    fn add(self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }
}

/// The form of a snapshot in JSON: only what is not zero, always in the same order.
#[derive(Serialize, Deserialize)]
struct Account {
    traffic: Vec<TrafficRow>,
    flushes: Vec<CauseRow>,
    #[serde(flatten)]
    discards: DiscardTotals,
}

#[derive(Serialize, Deserialize)]
struct TrafficRow {
    class: Class,
    cause: Cause,
    #[serde(flatten)]
    traffic: Traffic,
}

#[derive(Serialize, Deserialize)]
struct CauseRow {
    cause: Cause,
    #[serde(flatten)]
    totals: CauseTotals,
}

impl From<MeterSnapshot> for Account {
    fn from(snapshot: MeterSnapshot) -> Self {
        let traffic = snapshot
            .iter()
            .map(|(tag, traffic)| TrafficRow {
                class: tag.class,
                cause: tag.cause,
                traffic,
            })
            .collect();
        let flushes = Cause::ALL
            .into_iter()
            .zip(snapshot.causes)
            .filter(|(_, totals)| *totals != CauseTotals::default())
            .map(|(cause, totals)| CauseRow { cause, totals })
            .collect();
        Self {
            traffic,
            flushes,
            discards: snapshot.discards,
        }
    }
}

impl From<Account> for MeterSnapshot {
    fn from(account: Account) -> Self {
        let mut snapshot = Self {
            discards: account.discards,
            ..Self::default()
        };
        for row in account.traffic {
            snapshot.cells[row.class.index()][row.cause.index()] += row.traffic;
        }
        for row in account.flushes {
            snapshot.causes[row.cause.index()] += row.totals;
        }
        snapshot
    }
}
