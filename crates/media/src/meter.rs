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
//! Busy time is the sum over all requests, so with concurrent requests it exceeds the elapsed time.
//! A request that failed is not counted, nor is its time.
//!
//! Counting is always on. Up to 16 threads at a time each have a copy of the counters and add to it
//! without a locked instruction; all others share one. A [`MeterSnapshot`] adds the copies up.
//! Counting so costs 1 ns a request; locked additions would cost 9 and delay the loads and stores
//! behind them. The numbers of a snapshot taken while requests run may be one request apart from
//! each other.

use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use serde::{Deserialize, Serialize};

use crate::tag::{Cause, Class, Tag};
use stetfs_format::width::{u32_as_usize, usize_as_u64};

const CLASSES: usize = Class::ALL.len();
const CAUSES: usize = Cause::ALL.len();

/// Defines the same numbers twice: as atomic counters, and as a snapshot shows them.
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
    /// Numbers that have a cause and no class.
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

/// One copy of all counters. The alignment keeps neighbouring copies off each other's cache lines,
/// in pairs of lines because the prefetcher fetches two.
#[derive(Default)]
#[repr(align(128))]
struct Counts {
    cells: [[CellCount; CAUSES]; CLASSES],
    causes: [CauseCount; CAUSES],
    discards: DiscardCount,
}

/// How many threads at a time have a copy of their own.
const OWN: usize = 16;

/// The counters of one medium.
pub struct Meter {
    /// One copy for each thread that has its own, made when it first counts something, and one for
    /// all others.
    counts: [OnceLock<Box<Counts>>; OWN + 1],
}

/// The index of a thread's copy, for the thread's lifetime.
struct Number(usize);

/// A bit for each copy that belongs to one thread.
static TAKEN: AtomicU32 = AtomicU32::new(0);

thread_local!(static MINE: Number = Number::take());

impl Number {
    fn take() -> Self {
        let lowest = |taken: u32| Some(taken | (taken + 1)).filter(|taken| taken >> OWN == 0);
        // Acquire: this thread sees the counts of the previous owner, which has released the
        // number.
        let taken = TAKEN.fetch_update(Acquire, Relaxed, lowest);
        Self(taken.map_or(OWN, |taken| u32_as_usize(taken.trailing_ones())))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if self.0 < OWN {
            TAKEN.fetch_and(!(1 << self.0), Release);
        }
    }
}

/// The calling thread's copy.
#[derive(Clone, Copy)]
struct Mine<'m> {
    counts: &'m Counts,
    /// No other thread adds to it.
    is_own: bool,
}

impl<'m> Mine<'m> {
    fn cell(self, tag: Tag) -> &'m CellCount {
        &self.counts.cells[tag.class.index()][tag.cause.index()]
    }

    fn cause(self, cause: Cause) -> &'m CauseCount {
        &self.counts.causes[cause.index()]
    }

    /// Adds `n` to one of the copy's counters.
    #[inline]
    fn add(self, counter: &AtomicU64, n: u64) {
        if self.is_own {
            counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            counter.fetch_add(n, Relaxed);
        }
    }
}

impl Meter {
    /// All counters at zero.
    pub fn new() -> Self {
        Self {
            counts: [const { OnceLock::new() }; OWN + 1],
        }
    }

    #[inline]
    fn mine(&self) -> Mine<'_> {
        // A thread that is ending no longer has a copy of its own.
        let number = MINE.try_with(|mine| mine.0).unwrap_or(OWN);
        Mine {
            counts: self.counts[number].get_or_init(Box::default),
            is_own: number < OWN,
        }
    }

    /// Counts a read of `bytes` bytes.
    pub fn count_read(&self, tag: Tag, bytes: u64) {
        let mine = self.mine();
        mine.add(&mine.cell(tag).reads, 1);
        mine.add(&mine.cell(tag).read_bytes, bytes);
    }

    pub(crate) fn count_write(&self, tag: Tag, bytes: u64) {
        let mine = self.mine();
        mine.add(&mine.cell(tag).writes, 1);
        mine.add(&mine.cell(tag).write_bytes, bytes);
    }

    /// Counts cache lines of 64 bytes that are on their way to persistent memory.
    pub(crate) fn count_lines(&self, tag: Tag, lines: u64) {
        let mine = self.mine();
        mine.add(&mine.cell(tag).lines, lines);
    }

    /// Counts the time of a read or write, in nanoseconds.
    pub fn count_busy(&self, tag: Tag, busy_ns: u64) {
        let mine = self.mine();
        mine.add(&mine.cell(tag).busy_ns, busy_ns);
    }

    /// Counts the time of a flush, a fence or an erase.
    pub(crate) fn count_cause_busy(&self, cause: Cause, busy_ns: u64) {
        let mine = self.mine();
        mine.add(&mine.cause(cause).busy_ns, busy_ns);
    }

    /// Moves the bytes of a write that was counted as `counted` to the labels of its parts. The
    /// request and its time stay where they are.
    pub(crate) fn reclassify(&self, counted: Tag, parts: &[(Tag, &[u8])]) {
        let mine = self.mine();
        for (tag, bytes) in parts.iter().filter(|part| part.0 != counted) {
            let bytes = usize_as_u64(bytes.len());
            mine.add(&mine.cell(counted).write_bytes, bytes.wrapping_neg());
            mine.add(&mine.cell(*tag).write_bytes, bytes);
        }
    }

    pub(crate) fn count_durable_write(&self, tag: Tag, bytes: u64) {
        self.count_write(tag, bytes);
        let mine = self.mine();
        mine.add(&mine.cause(tag.cause).durable_writes, 1);
    }

    pub(crate) fn count_flush(&self, cause: Cause) {
        let mine = self.mine();
        mine.add(&mine.cause(cause).flushes, 1);
    }

    pub(crate) fn count_fence(&self, cause: Cause) {
        let mine = self.mine();
        mine.add(&mine.cause(cause).fences, 1);
    }

    pub(crate) fn count_erase(&self, cause: Cause) {
        let mine = self.mine();
        mine.add(&mine.cause(cause).erases, 1);
    }

    pub(crate) fn count_discard(&self, bytes: u64, busy_ns: u64) {
        let mine = self.mine();
        mine.add(&mine.counts.discards.discards, 1);
        mine.add(&mine.counts.discards.discard_bytes, bytes);
        mine.add(&mine.counts.discards.busy_ns, busy_ns);
    }

    /// Returns the present numbers.
    pub fn snapshot(&self) -> MeterSnapshot {
        let read = |counts: &Counts| MeterSnapshot {
            cells: counts
                .cells
                .each_ref()
                .map(|row| row.each_ref().map(CellCount::load)),
            causes: counts.causes.each_ref().map(CauseCount::load),
            discards: counts.discards.load(),
        };
        let made = self.counts.iter().filter_map(OnceLock::get);
        made.fold(MeterSnapshot::default(), |sum, counts| sum + &read(counts))
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of a [`Meter`] at one moment; or, as the difference of two, what happened in
/// between.
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

    /// Iterates over everything that is not zero, by class and then by cause, in the order of
    /// [`Class::ALL`] and [`Cause::ALL`].
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

    /// Returns these numbers without everything of one cause.
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

/// The JSON form of a snapshot: only what is not zero, always in the same order.
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
