//! Which transactions of a log of bytes count after a crash: [`LEFT`]. What they say:
//! [`replay`](crate::parts::replay).

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

/// How far behind a place without a transaction one with the next number is sought, in bytes. A
/// longer transaction of which the beginning was damaged after it was durable is taken for one that
/// was in flight, as in JBD2's log.
const SEARCHED: u64 = 1 << 20;

/// Bytes of it that are read at a time: a multiple of every unit.
const PIECE: u64 = 64 << 10;

/// A transaction in the log, intact.
pub(crate) struct ByteTransaction {
    /// Its position.
    pub(crate) at: u64,
    /// Its number.
    pub(crate) sequence: Tid,
    /// How many chunks are in it.
    pub(crate) chunks: u32,
    /// All of it, without its mask; `None` where there is not the memory for that.
    record: Option<Vec<u8>>,
}

pub(crate) struct Reader<'a, M> {
    ring: &'a Ring<M>,
    pub(crate) args: &'a OpenArgs,
    /// Where JBD2 would look for records.
    masked: usize,
    epoch: u64,
    /// The position where the ring meets its beginning.
    pub(crate) end: u64,
    /// Bytes of records that may still be kept in memory.
    room: Cell<usize>,
    ahead: RefCell<Option<Ahead>>,
}

/// The piece of the log that was read last. Records are short and follow each other: a disk that is
/// asked for one after the other turns once for each.
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

    /// Fills `out` with what lies at `at`, from the piece that was read last where it can.
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

    /// All transactions that are whole, and the position behind them.
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

    /// All bytes of a transaction, without its mask.
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

    /// The length of the transaction with that number whose header is the beginning of `unit`,
    /// which lies at `at`, if there is one.
    fn length(&self, at: u64, sequence: Tid, unit: &[u8]) -> Option<(u64, Transaction)> {
        // Most of what is looked at is nothing like one.
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

    /// The transaction with that number at `at`.
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

    /// Whether transaction `sequence` is behind `at`: at `next`, where that is known.
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

/// The error for a transaction that is not what it was.
pub(crate) fn damaged(sequence: Tid, why: &str) -> SchemeError {
    SchemeError::Unusable(format!(
        "transaction {sequence} in its log is damaged, and {why}; run `stetfs fsck`"
    ))
}
