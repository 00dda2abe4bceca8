//! Which transactions of a log count after a crash: [`LEFT`].

use std::sync::Arc;

use stetfs_format::Tid;
use stetfs_format::private_log::{COMMIT, TRANSACTION_SIZE, Transaction, state_of};
use stetfs_format::width::u64_as_usize;
use stetfs_media::BlockDev;

use crate::parts::byte_log::Start;
use crate::parts::record::apply_mask;
use crate::parts::replay::ByteTransaction;
use crate::parts::ring::{Ring, aligned};
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, Result, SchemeError, remnants};

remnants! {
    LEFT:
    WHOLE "a transaction with the expected number, intact"
        => "it counts", "its record is complete";
    IN_FLIGHT "one that is not, and no intact one with the next number behind it"
        => "the log ends before it",
        "it was in flight, or never written: nobody was told that it is durable";
    DAMAGED "one that is not, and an intact one with the next number behind it"
        => "error, nothing is written",
        "one is begun when the one before is durable, so this one was damaged later";
    CONFIRMED "one that is not, in memory beside the volume, and a word there that says that it \
        was durable"
        => "error, nothing is written", "it was damaged later";
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

pub(super) struct Reader<'a> {
    ring: &'a Ring<Arc<dyn BlockDev>>,
    args: &'a OpenArgs,
    /// Where JBD2 would look for records.
    masked: usize,
    /// One that was durable, where the log notes that.
    committed: Option<Tid>,
    epoch: u64,
    /// The position where the ring meets its beginning.
    pub(super) end: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        ring: &'a Ring<Arc<dyn BlockDev>>,
        args: &'a OpenArgs,
        masked: usize,
        committed: Option<Tid>,
        start: &Start,
    ) -> Self {
        Self {
            ring,
            args,
            masked,
            committed,
            epoch: start.epoch,
            end: start.at + ring.capacity,
        }
    }

    /// All transactions that are whole, and the position behind them.
    pub(super) fn all(&self, start: &Start) -> Result<(Vec<ByteTransaction>, u64)> {
        let (found, end) = scan(
            start.at,
            start.sequence,
            &ENDS,
            |at, sequence| self.look(at, sequence),
            |at, next, sequence| self.is_followed(at, next, sequence.next()),
        )?;
        let next = found.last().map_or(start.sequence, |t| t.sequence.next());
        if self.committed.is_some_and(|tid| tid.is_at_or_after(next)) {
            CONFIRMED.met();
            return Err(damaged(next, "it was durable"));
        }
        Ok((found, end))
    }

    fn unit(&self) -> u64 {
        self.ring.unit
    }

    /// The length of the transaction with that number whose header is the beginning of `unit`,
    /// which lies at `at`, if there is one.
    fn length(&self, at: u64, sequence: Tid, unit: &[u8]) -> Option<(u64, Transaction)> {
        // Most of what is looked at is nothing like one.
        if !unit.starts_with(&COMMIT.to_le_bytes()) {
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
        let unit = u64_as_usize(self.unit());
        let mut first = aligned(unit);
        let first = &mut first.bytes_mut()[..unit];
        ring.read(at, first)?;
        let Some((length, header)) = self.length(at, sequence, first) else {
            return Ok(Seen::Damaged(why(), None));
        };
        let mut record = vec![0; u64_as_usize(length)];
        ring.read(at, &mut record)?;
        apply_mask(&mut record, at, self.masked, header.mask);
        let next = at + length;
        let seed = ring.seed(&self.args.uuid, self.epoch, at, sequence);
        let is_unchecked = is_planted(Bug::UncheckedReplay) || is_planted(Bug::StaleLap);
        if !is_unchecked && !Transaction::is_intact(seed, &record) {
            return Ok(Seen::Damaged(why(), Some(next)));
        }
        let found = ByteTransaction {
            at,
            record,
            chunks: header.chunks,
            sequence,
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

fn damaged(sequence: Tid, why: &str) -> SchemeError {
    SchemeError::Unusable(format!(
        "transaction {sequence} in its log is damaged, and {why}; run `stetfs fsck`"
    ))
}
