//! What a crash left in the log, and what is done with it: [`LEFT`].
//!
//! All bytes go home, fence, then the tail is moved behind them, in one store. A second crash
//! before that finds the same log and does the same again. The next transaction skips one number,
//! so that remains of an incomplete one can never be taken for it.

use std::sync::Arc;

use stetfs_format::Tid;
use stetfs_format::private_log::{
    CHECKPOINT, COMMIT, TRANSACTION_SIZE, Tail, Transaction, state_of,
};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::pmem::LINE;
use stetfs_media::{Cause, Class, Pmem, Tag};

use crate::parts::byte_log::{ByteLog, Claim, Start};
use crate::parts::replay::{ByteTransaction, drop_unplaced, replay};
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{About, OpenArgs, RecoveryReport, Result, SchemeError, remnants};

remnants! {
    LEFT:
    WHOLE "a transaction with the expected number, COMMIT or CHECKPOINT, intact"
        => "it counts", "its record is complete";
    IN_FLIGHT "one that is not, and no intact one behind it"
        => "the log ends before it",
        "it was in flight: nobody was told that it is durable";
    DAMAGED "one that is not, and an intact one behind it"
        => "error, nothing is written",
        "one is begun when the one before is durable, so this one was damaged later";
}

const ENDS: Ends = Ends {
    whole: &WHOLE,
    nothing: &IN_FLIGHT,
    in_flight: &IN_FLIGHT,
    damaged: &DAMAGED,
};

pub(super) fn recover(
    about: &'static About,
    byte_log: &mut ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
) -> Result<(Start, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let start = match byte_log.claim(about, args)? {
        Claim::Empty(start) => start,
        Claim::Left(left) => {
            report.was_needed = true;
            bring_home(byte_log, args, &left, &mut report)?
        }
    };
    Ok((start, report))
}

fn bring_home(
    byte_log: &ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
    left: &Start,
    report: &mut RecoveryReport,
) -> Result<Start> {
    let reader = Reader {
        byte_log,
        args,
        epoch: left.epoch,
        end: left.at + byte_log.ring.capacity,
    };
    let (mut found, mut at) = scan(
        left.at,
        left.sequence,
        &ENDS,
        |at, sequence| reader.look(at, sequence),
        |_, next, sequence| match next {
            Some(next) => Ok(matches!(
                reader.look(next, sequence.next())?,
                Seen::Intact(..)
            )),
            None => Ok(false),
        },
    )?;
    at = drop_unplaced(args, &mut found)?.unwrap_or(at);
    let next = found.last().map_or(left.sequence, |t| t.sequence.next());
    apply(byte_log, args, &found, report)?;
    let start = Start {
        epoch: left.epoch,
        at: at % byte_log.ring.capacity,
        sequence: next.next(),
        was_used: true,
    };
    let tail = Tail {
        line: byte_log.ring.line(at),
        sequence: start.sequence,
    };
    byte_log.write_tail(tail, Cause::Recovery)?;
    Ok(start)
}

struct Reader<'a> {
    byte_log: &'a ByteLog<Arc<dyn Pmem>>,
    args: &'a OpenArgs,
    epoch: u64,
    /// The position where the ring meets its beginning.
    end: u64,
}

impl Reader<'_> {
    /// The transaction with that number at `at`, if its header is plausible.
    fn look(&self, at: u64, sequence: Tid) -> Result<Seen<u64, ByteTransaction>> {
        let left = self.end.saturating_sub(at);
        if left < usize_as_u64(TRANSACTION_SIZE) {
            return Ok(Seen::Nothing);
        }
        let mut raw = [0; TRANSACTION_SIZE];
        self.byte_log.ring.read(at, &mut raw)?;
        let (word, header) = Transaction::decode(&raw);
        let (state, its) = state_of(word);
        let counts = (state == COMMIT || state == CHECKPOINT)
            && (its == sequence || is_planted(Bug::StaleLap))
            && (header.epoch == self.epoch || is_planted(Bug::StaleLap));
        let fits = header.length.is_multiple_of(LINE)
            && (usize_as_u64(TRANSACTION_SIZE)..=left).contains(&header.length);
        if !counts || !fits {
            return Ok(Seen::Nothing);
        }
        let mut record = vec![0; u64_as_usize(header.length)];
        self.byte_log.ring.read(at, &mut record)?;
        let next = at + header.length;
        let seed = self
            .byte_log
            .ring
            .seed(&self.args.uuid, self.epoch, at, sequence);
        let is_unchecked = is_planted(Bug::UncheckedReplay) || is_planted(Bug::StaleLap);
        if !is_unchecked && !Transaction::is_intact(seed, &record) {
            let why = format!(
                "transaction {sequence} in its log is damaged, and there are later ones; run \
                    `stetfs fsck`"
            );
            return Ok(Seen::Damaged(SchemeError::Unusable(why), Some(next)));
        }
        let found = ByteTransaction {
            at,
            record,
            chunks: header.chunks,
            sequence,
        };
        Ok(Seen::Intact(found, next))
    }
}

/// Writes what counts home, durably.
fn apply(
    byte_log: &ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
    found: &[ByteTransaction],
    report: &mut RecoveryReport,
) -> Result<()> {
    let medium = &byte_log.ring.medium;
    let tag = Tag::new(Class::Journal, Cause::Recovery);
    replay(args, found, report, |_, block, bytes| {
        for (offset, bytes) in bytes.pieces {
            let at = block.0 * usize_as_u64(args.block_size) + usize_as_u64(offset);
            medium.store(at, bytes, tag)?;
            medium.flush(at, usize_as_u64(bytes.len()), tag)?;
        }
        Ok(())
    })?;
    if is_planted(Bug::MissingReplayFlush) {
        return Ok(());
    }
    Ok(medium.fence(Cause::Recovery)?)
}
