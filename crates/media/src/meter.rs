//! The account of a device: requests and bytes by class and cause, flushes by cause, discards.
//!
//! Counting is always on. It is relaxed atomic additions into one of a few copies of the counters, chosen by thread,
//! so that threads do not pull one cache line back and forth; a [`MeterSnapshot`] adds the
//! copies up. That costs 9 ns a request; with one copy for all, two threads would pay 24 ns each
//! (`examples/media_cost.rs meter`). Numbers of a snapshot taken while requests run may be one request apart from each other.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::tag::{Cause, Class, Tag};

const CLASSES: usize = Class::ALL.len();
const CAUSES: usize = Cause::ALL.len();

/// Counters of one class and cause.
#[derive(Default)]
struct CellCount {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
}

/// One copy of all counters. The alignment keeps neighbouring copies off each other's cache lines (pairs
/// of lines: the prefetcher takes two).
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    cells: [[CellCount; CAUSES]; CLASSES],
    flushes: [AtomicU64; CAUSES],
    durable_writes: [AtomicU64; CAUSES],
    discards: AtomicU64,
    discard_bytes: AtomicU64,
}

/// The counters of one device.
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

    pub(crate) fn count_read(&self, tag: Tag, bytes: u64) {
        let cell = &self.shard().cells[tag.class as usize][tag.cause as usize];
        cell.reads.fetch_add(1, Relaxed);
        cell.read_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn count_write(&self, tag: Tag, bytes: u64) {
        let cell = &self.shard().cells[tag.class as usize][tag.cause as usize];
        cell.writes.fetch_add(1, Relaxed);
        cell.write_bytes.fetch_add(bytes, Relaxed);
    }

    /// Moves the bytes of a write that was counted as `counted` to the classes that its parts really have.
    pub(crate) fn reclassify(&self, counted: Tag, parts: &[(Class, &[u8])]) {
        let cells = &self.shard().cells;
        let from = &cells[counted.class as usize][counted.cause as usize];
        for (class, bytes) in parts.iter().filter(|part| part.0 != counted.class) {
            let to = &cells[*class as usize][counted.cause as usize];
            from.write_bytes.fetch_sub(bytes.len() as u64, Relaxed);
            to.write_bytes.fetch_add(bytes.len() as u64, Relaxed);
        }
    }

    pub(crate) fn count_durable_write(&self, tag: Tag, bytes: u64) {
        self.count_write(tag, bytes);
        self.shard().durable_writes[tag.cause as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_flush(&self, cause: Cause) {
        self.shard().flushes[cause as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_discard(&self, bytes: u64) {
        let shard = self.shard();
        shard.discards.fetch_add(1, Relaxed);
        shard.discard_bytes.fetch_add(bytes, Relaxed);
    }

    /// The numbers now.
    pub fn snapshot(&self) -> MeterSnapshot {
        let mut sum = MeterSnapshot::default();
        for shard in &self.shards {
            for (into, from) in sum
                .cells
                .iter_mut()
                .flatten()
                .zip(shard.cells.iter().flatten())
            {
                into.reads += from.reads.load(Relaxed);
                into.read_bytes += from.read_bytes.load(Relaxed);
                into.writes += from.writes.load(Relaxed);
                into.write_bytes += from.write_bytes.load(Relaxed);
            }
            for i in 0..CAUSES {
                sum.flushes[i] += shard.flushes[i].load(Relaxed);
                sum.durable_writes[i] += shard.durable_writes[i].load(Relaxed);
            }
            sum.discards += shard.discards.load(Relaxed);
            sum.discard_bytes += shard.discard_bytes.load(Relaxed);
        }
        sum
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

/// Requests and bytes, of one class and cause or of several added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Traffic {
    fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

/// What a [`Meter`] showed at one moment; or, as the difference of two, what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Account", from = "Account")]
pub struct MeterSnapshot {
    cells: [[Traffic; CAUSES]; CLASSES],
    flushes: [u64; CAUSES],
    durable_writes: [u64; CAUSES],
    discards: u64,
    discard_bytes: u64,
}

impl MeterSnapshot {
    /// The traffic of one class and cause.
    pub fn of(&self, tag: Tag) -> Traffic {
        self.cells[tag.class as usize][tag.cause as usize]
    }

    /// Everything that is not zero, by class and then by cause, in the order of [`Class::ALL`] and [`Cause::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Tag, Traffic)> + '_ {
        Class::ALL
            .into_iter()
            .flat_map(|class| {
                Cause::ALL
                    .into_iter()
                    .map(move |cause| Tag::new(class, cause))
            })
            .map(|tag| (tag, self.of(tag)))
            .filter(|(_, traffic)| !traffic.is_zero())
    }

    /// The traffic of one class, all causes.
    pub fn by_class(&self, class: Class) -> Traffic {
        self.cells[class as usize]
            .iter()
            .fold(Traffic::default(), |sum, t| sum + *t)
    }

    /// The traffic of one cause, all classes.
    pub fn by_cause(&self, cause: Cause) -> Traffic {
        self.cells
            .iter()
            .fold(Traffic::default(), |sum, row| sum + row[cause as usize])
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
        self.flushes[cause as usize]
    }

    /// All flushes.
    pub fn total_flushes(&self) -> u64 {
        self.flushes.iter().sum()
    }

    /// Writes of one cause that were durable at once; they are among the writes too.
    pub fn durable_writes(&self, cause: Cause) -> u64 {
        self.durable_writes[cause as usize]
    }

    /// All writes that were durable at once.
    pub fn total_durable_writes(&self) -> u64 {
        self.durable_writes.iter().sum()
    }

    /// Discard requests.
    pub fn discards(&self) -> u64 {
        self.discards
    }

    /// Bytes discarded.
    pub fn discard_bytes(&self) -> u64 {
        self.discard_bytes
    }

    /// Applies `f` to each pair of numbers.
    fn zip(mut self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        for (a, b) in self
            .cells
            .iter_mut()
            .flatten()
            .zip(other.cells.iter().flatten())
        {
            a.reads = f(a.reads, b.reads);
            a.read_bytes = f(a.read_bytes, b.read_bytes);
            a.writes = f(a.writes, b.writes);
            a.write_bytes = f(a.write_bytes, b.write_bytes);
        }
        for i in 0..CAUSES {
            self.flushes[i] = f(self.flushes[i], other.flushes[i]);
            self.durable_writes[i] = f(self.durable_writes[i], other.durable_writes[i]);
        }
        self.discards = f(self.discards, other.discards);
        self.discard_bytes = f(self.discard_bytes, other.discard_bytes);
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

/// The sum of two devices' accounts.
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
    flushes: Vec<FlushRow>,
    discards: u64,
    discard_bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct TrafficRow {
    class: Class,
    cause: Cause,
    #[serde(flatten)]
    traffic: Traffic,
}

#[derive(Serialize, Deserialize)]
struct FlushRow {
    cause: Cause,
    flushes: u64,
    durable_writes: u64,
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
            .map(|cause| FlushRow {
                cause,
                flushes: snapshot.flushes(cause),
                durable_writes: snapshot.durable_writes(cause),
            })
            .filter(|row| row.flushes != 0 || row.durable_writes != 0)
            .collect();
        Self {
            traffic,
            flushes,
            discards: snapshot.discards,
            discard_bytes: snapshot.discard_bytes,
        }
    }
}

impl From<Account> for MeterSnapshot {
    fn from(account: Account) -> Self {
        let mut snapshot = Self {
            discards: account.discards,
            discard_bytes: account.discard_bytes,
            ..Self::default()
        };
        for row in account.traffic {
            snapshot.cells[row.class as usize][row.cause as usize] += row.traffic;
        }
        for row in account.flushes {
            snapshot.flushes[row.cause as usize] += row.flushes;
            snapshot.durable_writes[row.cause as usize] += row.durable_writes;
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
    const HOME: Tag = Tag::new(Class::Data, Cause::Home);

    #[test]
    fn counts_from_several_threads_add_up() {
        let meter = Meter::new();
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        meter.count_write(LOG, 4096);
                        meter.count_read(HOME, 512);
                        meter.count_flush(Cause::Log);
                    }
                    meter.count_durable_write(LOG, 512);
                    meter.count_discard(8192);
                });
            }
        });
        let s = meter.snapshot();
        assert_eq!(
            s.of(LOG),
            Traffic {
                writes: 5005,
                write_bytes: 5000 * 4096 + 5 * 512,
                ..Traffic::default()
            }
        );
        assert_eq!(
            s.by_class(Class::Data),
            Traffic {
                reads: 5000,
                read_bytes: 5000 * 512,
                ..Traffic::default()
            }
        );
        assert_eq!(
            (
                s.total_flushes(),
                s.flushes(Cause::Log),
                s.flushes(Cause::Home)
            ),
            (5000, 5000, 0)
        );
        assert_eq!(
            (s.total_durable_writes(), s.durable_writes(Cause::Log)),
            (5, 5)
        );
        assert_eq!((s.discards(), s.discard_bytes()), (5, 5 * 8192));
        assert_eq!(s.total().reads + s.total().writes, 10_005);
    }

    #[test]
    fn differences_show_what_happened_in_between() {
        let meter = Meter::new();
        meter.count_write(LOG, 4096);
        let before = meter.snapshot();
        meter.count_write(HOME, 1024);
        meter.count_flush(Cause::Home);
        let between = meter.snapshot() - &before;
        assert_eq!(
            between.iter().collect::<Vec<_>>(),
            [(
                HOME,
                Traffic {
                    writes: 1,
                    write_bytes: 1024,
                    ..Traffic::default()
                }
            )]
        );
        assert_eq!(between.by_cause(Cause::Log), Traffic::default());
        assert_eq!(between.clone() + &before, meter.snapshot());
    }

    #[test]
    fn json_has_only_what_is_not_zero_and_reads_back() {
        let meter = Meter::new();
        meter.count_write(LOG, 4096);
        meter.count_durable_write(Tag::new(Class::Journal, Cause::CommitRecord), 4096);
        meter.count_flush(Cause::Log);
        let snapshot = meter.snapshot();
        let json = serde_json::to_string(&snapshot).expect("plain numbers");
        assert_eq!(
            json,
            concat!(
                r#"{"traffic":[{"class":"journal","cause":"log","reads":0,"read_bytes":0,"writes":1,"write_bytes":4096},"#,
                r#"{"class":"journal","cause":"commit_record","reads":0,"read_bytes":0,"writes":1,"write_bytes":4096}],"#,
                r#""flushes":[{"cause":"log","flushes":1,"durable_writes":0},"#,
                r#"{"cause":"commit_record","flushes":0,"durable_writes":1}],"discards":0,"discard_bytes":0}"#
            )
        );
        assert_eq!(
            serde_json::from_str::<MeterSnapshot>(&json).expect("our own JSON"),
            snapshot
        );
    }
}
