//! Reading a byte log after a crash: which transactions count ([`LEFT`]).
//! [`replay`](crate::parts::replay) reads their contents.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use stetfs_format::Tid;
use stetfs_format::private_log::{CHECKPOINT, COMMIT, TRANSACTION_SIZE, Transaction, state_of};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::Block;

use crate::parts::byte_log::Start;
use crate::parts::record::apply_mask;
use crate::parts::ring::{Medium, Ring, aligned};
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, Result, SchemeError, recovery_cases};

recovery_cases! {
    LEFT:
    WHOLE "a transaction with the expected number, intact"
        => "it counts", "its record is complete";
    IN_FLIGHT "one that is not, and no intact one with the next number behind it"
        => "the log ends before it",
        "it was in flight, or never written: nobody was told that it is durable";
    DAMAGED "one that is not, and an intact one with the next number behind it"
        => "error, nothing is written",
        "one is begun when the one before is durable, so this one was damaged later";
}

const ENDS: Ends = Ends {
    whole: &WHOLE,
    nothing: &IN_FLIGHT,
    in_flight: &IN_FLIGHT,
    damaged: &DAMAGED,
};

/// How far behind a place without a transaction recovery looks for the next number, in bytes. So a
/// transaction that is longer than this, durable, and damaged later at its start, passes for one in
/// flight, as in JBD2's log.
const SEARCHED: u64 = 1 << 20;

/// Bytes that this search reads at a time: a multiple of every unit.
const PIECE: u64 = 64 << 10;

/// An intact transaction in the log.
pub(crate) struct ByteTransaction {
    /// Its position.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) sequence: Tid,
    /// The number of its chunks.
    pub(crate) chunks: u32,
    /// Its bytes, without the mask; `None`: memory is short, so they are read again when needed.
    record: Option<Vec<u8>>,
}

pub(crate) struct Reader<'a, M> {
    ring: &'a Ring<M>,
    pub(crate) args: &'a OpenArgs,
    /// JBD2 would look for records at multiples of this many bytes; 0: nowhere.
    masked: usize,
    epoch: u64,
    /// The position at which the ring meets the log's start.
    pub(crate) end: u64,
    /// Bytes of records that may still be kept in memory.
    room: Cell<usize>,
    ahead: RefCell<Option<Ahead>>,
}

/// The piece of the log that was read last. Records are short and follow each other, and a disk
/// would turn once for each if they were read one by one.
struct Ahead {
    /// Its position.
    at: u64,
    len: usize,
    bytes: Block,
}

impl Ahead {
    fn has(&self, at: u64, len: usize) -> bool {
        let end = self.at + usize_as_u64(self.len);
        at >= self.at && at + usize_as_u64(len) <= end
    }
}

impl<'a, M: Medium> Reader<'a, M> {
    pub(crate) fn new(ring: &'a Ring<M>, args: &'a OpenArgs, masked: usize, start: &Start) -> Self {
        Self {
            ring,
            args,
            masked,
            epoch: start.epoch,
            end: start.at + ring.capacity,
            room: Cell::new(args.memory),
            ahead: RefCell::new(None),
        }
    }

    /// Fills `out` with the bytes at `at`, from the piece that was read last if it has them.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let piece = self.ring.medium.piece().min(self.end - at);
        if usize_as_u64(out.len()) >= piece {
            return self.ring.read(at, out);
        }
        let mut ahead = self.ahead.borrow_mut();
        if !ahead.as_ref().is_some_and(|it| it.has(at, out.len())) {
            *ahead = None;
            let len = u64_as_usize(piece);
            let mut bytes = aligned(len);
            self.ring.read(at, &mut bytes.bytes_mut()[..len])?;
            *ahead = Some(Ahead { at, len, bytes });
        }
        if let Some(it) = &*ahead {
            let from = u64_as_usize(at - it.at);
            out.copy_from_slice(&it.bytes.bytes()[from..from + out.len()]);
        }
        Ok(())
    }

    /// Returns all transactions that count, and the position behind them.
    pub(crate) fn all(&self, start: &Start) -> Result<(Vec<ByteTransaction>, u64)> {
        let keep = |seen| {
            let Seen::Intact(mut found, next) = seen else {
                return seen;
            };
            let ByteTransaction { record, .. } = &mut found;
            let len = record.as_ref().map_or(0, Vec::len);
            match self.room.get().checked_sub(len) {
                Some(room) => self.room.set(room),
                None => *record = None,
            }
            Seen::Intact(found, next)
        };
        scan(
            start.at,
            start.sequence,
            &ENDS,
            |at, sequence| self.look(at, sequence).map(keep),
            |at, next, sequence| self.is_followed(at, next, sequence.next()),
        )
    }

    /// Returns the bytes of a transaction, without the mask.
    pub(crate) fn record<'f>(&self, found: &'f ByteTransaction) -> Result<Cow<'f, [u8]>> {
        if let Some(record) = &found.record {
            return Ok(record.into());
        }
        let seen = self.look(found.at, found.sequence)?;
        match seen {
            Seen::Intact(
                ByteTransaction {
                    record: Some(record),
                    ..
                },
                _,
            ) => Ok(record.into()),
            _ => Err(damaged(found.sequence, "was not a moment ago")),
        }
    }

    fn unit(&self) -> u64 {
        self.ring.unit
    }

    /// Returns the length and the header of the transaction with that number whose header `unit`
    /// begins with, if it does. `unit` lies at `at`.
    fn length(&self, at: u64, sequence: Tid, unit: &[u8]) -> Option<(u64, Transaction)> {
        // A cheap test first, because most units do not begin like a header.
        let states = [COMMIT, CHECKPOINT].map(u32::to_le_bytes);
        if !states.iter().any(|state| unit.starts_with(state)) {
            return None;
        }
        let raw = unit.first_chunk::<TRANSACTION_SIZE>()?;
        let (word, header) = Transaction::decode(raw);
        let (_, its) = state_of(word);
        let counts = its == sequence && header.epoch == self.epoch || is_planted(Bug::StaleLap);
        let fits = header.length.is_multiple_of(self.unit())
            && (self.unit()..=self.end - at).contains(&header.length);
        (counts && fits).then_some((header.length, header))
    }

    /// Reads the transaction with that number at `at`.
    fn look(&self, at: u64, sequence: Tid) -> Result<Seen<u64, ByteTransaction>> {
        let why = || damaged(sequence, "there are later ones");
        if at + self.unit() > self.end {
            return Ok(Seen::Nothing);
        }
        let ring = self.ring;
        let mut first = vec![0; u64_as_usize(self.unit())];
        let first = &mut first[..];
        self.read(at, first)?;
        let Some((length, header)) = self.length(at, sequence, first) else {
            return Ok(Seen::Damaged(why(), None));
        };
        let mut record = vec![0; u64_as_usize(length)];
        self.read(at, &mut record)?;
        apply_mask(&mut record, at, self.masked, header.mask);
        let next = at + length;
        let seed = ring.seed(&self.args.uuid, self.epoch, at, sequence);
        let is_unchecked = is_planted(Bug::UncheckedReplay) || is_planted(Bug::StaleLap);
        if !is_unchecked && !Transaction::is_intact(seed, &record) {
            return Ok(Seen::Damaged(why(), Some(next)));
        }
        let found = ByteTransaction {
            at,
            sequence,
            chunks: header.chunks,
            record: Some(record),
        };
        Ok(Seen::Intact(found, next))
    }

    /// True when transaction `sequence` is intact behind `at`: at `next`, where that is known.
    fn is_followed(&self, at: u64, next: Option<u64>, sequence: Tid) -> Result<bool> {
        let is_there = |at| Ok(matches!(self.look(at, sequence)?, Seen::Intact(..)));
        if let Some(next) = next {
            return is_there(next);
        }
        let unit = self.unit();
        let end = at + (self.end - at).min(SEARCHED) / unit * unit;
        let mut piece = aligned(u64_as_usize(PIECE));
        let mut at = at + unit;
        while at < end {
            let len = u64_as_usize(PIECE.min(end - at));
            let sought = &mut piece.bytes_mut()[..len];
            self.ring.read(at, sought)?;
            for bytes in sought.chunks_exact(u64_as_usize(unit)) {
                if self.length(at, sequence, bytes).is_some() && is_there(at)? {
                    return Ok(true);
                }
                at += unit;
            }
        }
        Ok(false)
    }
}

/// Returns the error for a durable transaction that was damaged.
pub(crate) fn damaged(sequence: Tid, why: &str) -> SchemeError {
    SchemeError::Unusable(format!(
        "transaction {sequence} in its log is damaged, and {why}; run `stetfs fsck`"
    ))
}
