//! What a crash left in the log, and what is done with it: [`LEFT`].
//!
//! That an *earlier* transaction names a block written in place that has another content means
//! nothing: it was durable once, and the block was freed and has a new owner since.
//!
//! All bytes go home, fence, then the tail is moved behind them, in one store. A second crash
//! before that finds the same log and does the same again. The next transaction skips one number,
//! so that remains of an incomplete one can never be taken for it.

use std::sync::Arc;

use hashbrown::HashMap;
use stetfs_format::checksum::crc64;
use stetfs_format::private_log::{
    CHECKPOINT, COMMIT, TRANSACTION_SIZE, Tail, Transaction, state_of,
};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, Cause, Class, Pmem, Tag};

use crate::parts::byte_log::{ByteLog, Claim, Start};
use crate::parts::record::{Change, changes};
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
    NOT_IN_PLACE "the last one names a block written in place that has not the content"
        => "the log ends before it",
        "it was in flight; the block is free in the state before it";
    FREED "bytes of a block that the same or a later transaction freed"
        => "they are not written", "its new owner's content may be home already";
    BYTES "other bytes"
        => "they are written home, in the order of the log",
        "whatever of them a checkpoint has written, they end as the newest";
    BAD_HOME "a chunk of a block outside the volume or inside the journal"
        => "error", "no file system wrote that";
}

const ENDS: Ends = Ends {
    whole: &WHOLE,
    nothing: &IN_FLIGHT,
    in_flight: &IN_FLIGHT,
    damaged: &DAMAGED,
};

/// A transaction in the log.
struct ByteTransaction {
    at: u64,
    record: Vec<u8>,
    chunks: u32,
    sequence: Tid,
}

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
            replay(byte_log, args, &left, &mut report)?
        }
    };
    Ok((start, report))
}

fn replay(
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
    if let Some(last) = found.last()
        && !reader.is_in_place(last)?
    {
        NOT_IN_PLACE.met();
        at = last.at;
        found.pop();
    }
    let next = found.last().map_or(left.sequence, |t| t.sequence.next());
    if let (Some(first), Some(last)) = (found.first(), found.last()) {
        report.sequences = Some((first.sequence.0, last.sequence.0));
        report.transactions = u32::try_from(found.len()).unwrap_or(u32::MAX);
    }
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

    /// Whether each block that the transaction says was written in place is there.
    fn is_in_place(&self, found: &ByteTransaction) -> Result<bool> {
        if is_planted(Bug::UncheckedReplay) || is_planted(Bug::EarlySwitch) {
            return Ok(true);
        }
        let size = self.args.block_size;
        let mut content = Block::zeroed(size);
        for change in changes(&found.record, found.chunks, size)? {
            if let Change::InPlace(block, crc) = change {
                check_block(self.args, block)?;
                let at = block.0 * usize_as_u64(size);
                let tag = Tag::new(Class::Data, Cause::Recovery);
                self.byte_log
                    .ring
                    .medium
                    .load(at, content.bytes_mut(), tag)?;
                if crc64(0, content.bytes()) != crc {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn check_block(args: &OpenArgs, block: BlockNo) -> Result<()> {
    let in_log = args
        .log
        .iter()
        .any(|e| block >= e.start && block.0 < e.start.0 + u64::from(e.len));
    if block.0 >= args.blocks || in_log {
        BAD_HOME.met();
        return Err(Corrupt::JournalTagBlock(block).into());
    }
    Ok(())
}

/// Writes what counts home, durably.
fn apply(
    byte_log: &ByteLog<Arc<dyn Pmem>>,
    args: &OpenArgs,
    found: &[ByteTransaction],
    report: &mut RecoveryReport,
) -> Result<()> {
    let size = args.block_size;
    let mut all = Vec::with_capacity(found.len());
    let mut revoked: HashMap<BlockNo, usize> = HashMap::new();
    for (i, found) in found.iter().enumerate() {
        let changes = changes(&found.record, found.chunks, size)?;
        for change in &changes {
            match change {
                Change::Revoked(blocks) => revoked.extend(blocks.iter().map(|&b| (b, i))),
                Change::Bytes { block, .. } => check_block(args, *block)?,
                Change::InPlace(..) => {}
            }
        }
        all.push(changes);
    }
    let tag = Tag::new(Class::Journal, Cause::Recovery);
    for (i, changes) in all.iter().enumerate() {
        for change in changes {
            let Change::Bytes { block, pieces, .. } = change else {
                continue;
            };
            let is_revoked = revoked.get(block).is_some_and(|&by| by >= i);
            if is_revoked && !is_planted(Bug::IgnoredRevoke) {
                FREED.met();
                report.revoked += 1;
                continue;
            }
            BYTES.met();
            report.blocks += 1;
            for (offset, bytes) in pieces {
                let at = block.0 * usize_as_u64(size) + usize_as_u64(*offset);
                byte_log.ring.medium.store(at, bytes, tag)?;
                byte_log
                    .ring
                    .medium
                    .flush(at, usize_as_u64(bytes.len()), tag)?;
            }
        }
    }
    if is_planted(Bug::MissingReplayFlush) {
        return Ok(());
    }
    Ok(byte_log.ring.medium.fence(Cause::Recovery)?)
}
