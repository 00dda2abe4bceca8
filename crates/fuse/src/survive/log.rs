//! The log: a file in memory (memfd) that outlives the server, because the companion holds it too.
//!
//! ```text
//! 0       one page: a number that says what this is, and the length of a half
//! 4096    the first half
//!         the second half
//! ```
//!
//! Records are written one behind the other into a half. When it is full, the other one begins,
//! with a [`Start`]. By then it must be free: a sync of the volume that began after the log had
//! left it has ended. So what a half tells of is durable before it is overwritten, and both halves
//! together tell of everything since the last such sync.
//!
//! A record is a [`Head`], its parts, zeros up to a multiple of 8 bytes, and its number once more,
//! turned over. A server may be killed while it writes one. That number is then missing, and the
//! record is the last.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use bytemuck::{Pod, Zeroable};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use stetfs_format::width::{must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};

use super::uses::Uses;

/// What a log begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"stetlog1");
/// Bytes before the first half.
const FRONT: u64 = 4096;
/// The fewest bytes of a half: the longest request fits several times.
pub(super) const HALF_MIN: u64 = 4 << 20;
/// The most bytes of a half.
pub(super) const HALF_MAX: u64 = 16 << 20;
/// How many answers are kept beyond the half that they are in: as many as there can be workers, and
/// so answers between their record and their sending.
pub(super) const ANSWERS_KEPT: usize = 256;

/// The kinds of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A half begins: [`Start`], as JSON.
    Start = 1,
    /// A request begins that cannot simply be carried out twice: `Begun`, then the request.
    Began = 2,
    /// A request ends: `Done` and what belongs to it.
    Done = 3,
    /// A file is about to be closed: `Released`.
    Released = 4,
    /// The kernel has dropped an inode that was removed: `Forgot`.
    Forgot = 5,
    /// Everything before the record of this number is durable.
    Synced = 6,
    /// Whether a transaction is open: 0 or 1.
    Bound = 7,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Start,
        Self::Began,
        Self::Done,
        Self::Released,
        Self::Forgot,
        Self::Synced,
        Self::Bound,
    ];

    #[expect(clippy::as_conversions, reason = "the discriminant is the number")]
    const fn number(self) -> u32 {
        self as u32
    }
}

/// Begins each record.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Head {
    /// Its number: one more than that of the record before.
    seq: u64,
    /// Bytes of its parts.
    len: u32,
    kind: u32,
}

/// What a half begins with: where things stand.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(super) uses: Uses,
    /// The requests under way that have a record of their beginning: number and record.
    pub(super) begun: Vec<(u64, Vec<u8>)>,
    /// The last answers: the request's number, and the answer.
    pub(super) answers: Vec<(u64, Answered)>,
    /// A transaction is open.
    pub(super) is_bound: bool,
}

/// An answer: an errno, or bytes.
pub(super) type Answered = Result<Vec<u8>, i32>;

/// A record, as it is read.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
}

/// The log of a server.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    half: u64,
    state: Mutex<State>,
    /// Is told when a half becomes free, and when one is to become it.
    turned: Condvar,
}

#[derive(Debug)]
struct State {
    /// The number of the next record.
    seq: u64,
    /// Which half is written, and how far it is full.
    half: u64,
    end: u64,
    /// The other half may be overwritten.
    is_free: bool,
    is_over: bool,
    /// Nothing is written any more.
    is_broken: bool,
    uses: Uses,
    begun: HashMap<u64, Vec<u8>>,
    answers: VecDeque<(u64, Answered)>,
    is_bound: bool,
    /// Requests under way that have to do with transactions.
    binding: usize,
}

impl Log {
    /// Makes a log that begins so, with halves for a mount that may take so much memory.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(start: Start, memory: u64) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("stetfs-log", MemfdFlags::CLOEXEC)?);
        Self::over(file, start, (memory / 16).clamp(HALF_MIN, HALF_MAX))
    }

    fn over(file: File, start: Start, half: u64) -> io::Result<Self> {
        let half = half.next_multiple_of(8);
        file.write_all_at(bytemuck::bytes_of(&[MAGIC, half]), 0)?;
        let log = Self {
            file,
            half,
            state: Mutex::new(State {
                seq: 1,
                half: 0,
                end: 0,
                is_free: true,
                is_over: false,
                is_broken: false,
                uses: start.uses,
                begun: start.begun.into_iter().collect(),
                answers: start.answers.into(),
                is_bound: start.is_bound,
                binding: 0,
            }),
            turned: Condvar::new(),
        };
        log.start(&mut log.state.lock())?;
        Ok(log)
    }

    /// Returns the file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes a record.
    pub(super) fn append(&self, kind: Kind, parts: &[&[u8]]) {
        self.append_to(&mut self.state.lock(), kind, parts);
    }

    /// Writes that a request begins which may open or end a transaction.
    pub(super) fn begin_binding(&self) {
        let mut state = self.state.lock();
        state.binding += 1;
        self.bind(&mut state, true);
    }

    /// Notes that such a request has ended.
    pub(super) fn end_binding(&self, has_transaction: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        state.binding -= 1;
        let is_bound = state.binding > 0 || has_transaction();
        self.bind(&mut state, is_bound);
    }

    /// Looks whether a transaction is open still.
    pub(super) fn look_at_binding(&self, has_transaction: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        if state.is_bound {
            let is_bound = state.binding > 0 || has_transaction();
            self.bind(&mut state, is_bound);
        }
    }

    fn bind(&self, state: &mut MutexGuard<'_, State>, is_bound: bool) {
        if state.is_bound != is_bound {
            state.is_bound = is_bound;
            self.append_to(state, Kind::Bound, &[&[is_bound.into()]]);
        }
    }

    /// Writes that a request begins.
    pub(super) fn began(&self, unique: u64, parts: &[&[u8]]) {
        let mut state = self.state.lock();
        self.append_to(&mut state, Kind::Began, parts);
        state.begun.insert(unique, parts.concat());
    }

    /// Writes that a request has ended with this answer. `note` notes what is in use now.
    pub(super) fn done(
        &self,
        (unique, answer): (u64, Answered),
        parts: &[&[u8]],
        note: impl FnOnce(&mut Uses),
    ) {
        let mut state = self.state.lock();
        self.append_to(&mut state, Kind::Done, parts);
        state.begun.remove(&unique);
        state.answers.push_back((unique, answer));
        if state.answers.len() > ANSWERS_KEPT {
            state.answers.pop_front();
        }
        note(&mut state.uses);
    }

    /// Calls `look` with the files in use.
    pub(super) fn with_uses<T>(&self, look: impl FnOnce(&mut Uses) -> T) -> T {
        look(&mut self.state.lock().uses)
    }

    /// Returns the number of the next record.
    pub(super) fn next_seq(&self) -> u64 {
        self.state.lock().seq
    }

    fn append_to(&self, state: &mut MutexGuard<'_, State>, kind: Kind, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let whole = whole(len);
        while !state.is_broken && state.end + whole > self.half {
            if !state.is_free {
                self.turned.wait(state);
                continue;
            }
            state.is_free = false;
            (state.half, state.end) = (1 - state.half, 0);
            self.turned.notify_all();
            if let Err(e) = self.start(state) {
                self.break_off(state, &e.to_string());
            } else if state.end + whole > self.half {
                self.break_off(state, "a request is longer than the log");
            }
        }
        if !state.is_broken
            && let Err(e) = self.write(state, kind, parts, len)
        {
            self.break_off(state, &e.to_string());
        }
    }

    /// Begins the half that is written.
    fn start(&self, state: &mut State) -> io::Result<()> {
        let start = Start {
            uses: state.uses.clone(),
            begun: state.begun.clone().into_iter().collect(),
            answers: state.answers.iter().cloned().collect(),
            is_bound: state.is_bound,
        };
        let bytes = serde_json::to_vec(&start)?;
        if whole(bytes.len()) > self.half / 2 {
            return Err(io::Error::other("too much is in use"));
        }
        self.write(state, Kind::Start, &[&bytes], bytes.len())
    }

    fn write(&self, state: &mut State, kind: Kind, parts: &[&[u8]], len: usize) -> io::Result<()> {
        let head = Head {
            seq: state.seq,
            len: must_fit_u32(len),
            kind: kind.number(),
        };
        let tail = !state.seq;
        let padding = [0; 7];
        let mut slices: smallvec::SmallVec<[IoSlice<'_>; 8]> = smallvec::smallvec![];
        slices.push(IoSlice::new(bytemuck::bytes_of(&head)));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        slices.push(IoSlice::new(&padding[..len.next_multiple_of(8) - len]));
        slices.push(IoSlice::new(bytemuck::bytes_of(&tail)));
        let at = FRONT + state.half * self.half + state.end;
        let whole = whole(len);
        let written = rustix::io::pwritev(&self.file, &slices, at)?;
        if usize_as_u64(written) != whole {
            return Err(io::Error::other("no memory for the log"));
        }
        state.seq += 1;
        state.end += whole;
        Ok(())
    }

    /// Waits until a half is to become free. False: the log is over.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while state.is_free && !state.is_over {
            self.turned.wait(&mut state);
        }
        !state.is_over
    }

    /// Notes that a sync has ended that began after [`wait`](Self::wait) had returned.
    pub(super) fn freed(&self, synced: Result<(), String>) {
        let mut state = self.state.lock();
        if let Err(why) = synced {
            self.break_off(&mut state, &why);
        }
        state.is_free = true;
        self.turned.notify_all();
    }

    /// Ends the log: [`wait`](Self::wait) returns.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.turned.notify_all();
    }

    /// Ends the log because it could not tell everything any more: nobody goes on with this mount.
    pub(super) fn breaks(&self, why: &str) {
        self.break_off(&mut self.state.lock(), why);
    }

    fn break_off(&self, state: &mut State, why: &str) {
        if std::mem::replace(&mut state.is_broken, true) {
            return;
        }
        tracing::warn!("this mount does not survive its server any more: {why}");
        // Nobody reads it then.
        if let Err(e) = self.file.write_all_at(&[0; 8], 0) {
            tracing::error!("ending the log: {e}");
        }
    }
}

/// Returns the bytes of a record whose parts have `len`.
fn whole(len: usize) -> u64 {
    usize_as_u64(size_of::<Head>() + len.next_multiple_of(8) + size_of::<u64>())
}

/// Reads a log: what its first record says, and the others in their order.
///
/// # Errors
/// This is no log.
pub(super) fn read(file: &File) -> io::Result<(Start, Vec<Record>)> {
    let no_log = || io::Error::new(io::ErrorKind::InvalidData, "this is no log of a mount");
    let mut front = [0_u64; 2];
    file.read_exact_at(bytemuck::bytes_of_mut(&mut front), 0)?;
    let [magic, half] = front;
    if magic != MAGIC || !(half.is_multiple_of(8) && half <= HALF_MAX) {
        return Err(no_log());
    }
    let mut halves = [
        read_half(file, FRONT, half)?,
        read_half(file, FRONT + half, half)?,
    ];
    let first = |records: &[Record]| records.first().map_or(0, |record| record.seq);
    halves.sort_by_key(|records| first(records));
    let [mut older, newer] = halves;
    // The newer half goes on where the older one ends, unless that was left long ago or its own
    // beginning was cut off.
    let goes_on = older
        .last()
        .is_some_and(|last| last.seq + 1 == first(&newer));
    let records = if goes_on {
        older.extend(newer);
        older
    } else {
        newer
    };
    let mut records = records.into_iter();
    let start = records.next().ok_or_else(no_log)?;
    let start = serde_json::from_slice(&start.bytes)?;
    Ok((start, records.collect()))
}

/// Reads the records of a half up to the first that is not whole.
fn read_half(file: &File, at: u64, len: u64) -> io::Result<Vec<Record>> {
    let mut bytes = vec![0; u64_as_usize(len)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + usize_as_u64(filled))? {
            // Nothing was written behind this.
            0 => break,
            n => filled += n,
        }
    }
    let mut rest = &bytes[..];
    let mut records: Vec<Record> = Vec::new();
    while let Some((record, behind)) = next_record(rest) {
        let is_next = match records.last() {
            Some(last) => last.seq + 1 == record.seq,
            None => record.kind == Kind::Start,
        };
        if !is_next {
            break;
        }
        records.push(record);
        rest = behind;
    }
    Ok(records)
}

fn next_record(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<Head>())?;
    let head: Head = bytemuck::pod_read_unaligned(head);
    let len = u32_as_usize(head.len);
    let (body, rest) = rest.split_at_checked(len)?;
    let (_, rest) = rest.split_at_checked(len.next_multiple_of(8) - len)?;
    let (tail, rest) = rest.split_at_checked(size_of::<u64>())?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.number() == head.kind)?;
    let is_whole = bytemuck::pod_read_unaligned::<u64>(tail) == !head.seq;
    let record = Record {
        seq: head.seq,
        kind,
        bytes: body.to_vec(),
    };
    is_whole.then_some((record, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = 4096;

    fn log() -> Log {
        let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        Log::over(file.into(), Start::default(), HALF).unwrap()
    }

    /// Appends a record of some length whose content is its number.
    fn append(log: &Log, n: u64) {
        let bytes = n.to_ne_bytes();
        let len = u64_as_usize(n % 60) * 8;
        log.append(Kind::Synced, &[&bytes, &vec![0; len]]);
    }

    fn numbers(log: &Log) -> Vec<u64> {
        let (_, records) = read(&log.file).unwrap();
        let told = records.iter().filter(|record| record.kind != Kind::Start);
        told.map(|record| bytemuck::pod_read_unaligned(&record.bytes[..8]))
            .collect()
    }

    #[test]
    fn the_halves_tell_everything_since_the_last_sync() {
        let log = log();
        let mut synced = 0;
        for n in 1..3_000 {
            append(&log, n);
            let told = numbers(&log);
            let first = told[0];
            assert!(first <= synced + 1, "{n}: {first} {synced}");
            assert!(told.iter().copied().eq(first..=n), "{n}: {told:?}");
            if !log.state.lock().is_free {
                // Of what was there when the half before was left.
                synced = n - 1;
                log.freed(Ok(()));
            }
        }
        assert!(synced > 2_000);
    }

    #[test]
    fn a_half_is_not_left_until_the_other_one_is_free() {
        let log = log();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..1_000).for_each(|n| append(&log, n)));
            while !writer.is_finished() {
                if log.state.lock().is_free {
                    std::thread::yield_now();
                    continue;
                }
                let told = numbers(&log);
                assert!(told.is_sorted() && !told.is_empty());
                log.freed(Ok(()));
            }
        });
        assert_eq!(numbers(&log).last(), Some(&999));
    }

    #[test]
    fn a_record_that_was_not_written_whole_is_no_record() {
        let log = log();
        (1..4).for_each(|n| append(&log, n));
        let start = log.state.lock().end;
        append(&log, 59);
        let end = log.state.lock().end;
        for cut in start..end {
            let whole = {
                let mut bytes = vec![0; u64_as_usize(end - cut)];
                log.file.read_exact_at(&mut bytes, FRONT + cut).unwrap();
                bytes
            };
            let nothing = vec![0; whole.len()];
            log.file.write_all_at(&nothing, FRONT + cut).unwrap();
            assert_eq!(numbers(&log), [1, 2, 3], "cut at {cut}");
            log.file.write_all_at(&whole, FRONT + cut).unwrap();
        }
        assert_eq!(numbers(&log), [1, 2, 3, 59]);
    }

    #[test]
    fn nobody_reads_a_log_that_could_not_tell_everything() {
        let log = log();
        append(&log, 1);
        log.append(Kind::Synced, &[&[0; 5_000]]);
        assert!(read(&log.file).is_err());
        append(&log, 2);
    }
}
