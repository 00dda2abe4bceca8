//! What a crash left in the log, and what is done with it: [`LEFT`].
//!
//! Nothing is written home: the index of what home has not got is made anew, and the volume is
//! served. The log goes on where the last transaction that counts ends.
//!
//! That an *earlier* transaction names a block written in place that has another content means
//! nothing: it was durable once, and the block was freed and has a new owner since.
//!
//! What lies behind the last transaction that counts is overwritten before the volume is served. A
//! transaction that was in flight could be complete but for a block written in place; if that block
//! got the same content again, the transaction would count after the next crash, although the
//! volume has been seen without it.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use stetfs_format::checksum::crc64;
use stetfs_format::private_log::{COMMIT, TRANSACTION_SIZE, Transaction, state_of};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::{Block, BlockDev, Cause, Class, Tag};

use super::versions::Version;
use crate::parts::byte_log::{ByteLog, Claim, Start};
use crate::parts::index::{Changing, Index};
use crate::parts::record::{Change, apply_mask, changes};
use crate::parts::ring::aligned;
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{About, OpenArgs, Ranges, RecoveryReport, Result, SchemeError, remnants};

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
    NOT_IN_PLACE "the last one names a block written in place that has not the content"
        => "the log ends before it",
        "it was in flight; the block is free in the state before it";
    FREED "bytes of a block that a later transaction freed"
        => "they are forgotten", "its new owner's content may be home already";
    BYTES "other bytes"
        => "home with these bytes, in the order of the log, is the block",
        "whatever of them a checkpoint has written, they end as the newest";
    BAD_HOME "a chunk of a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
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

/// What the log has.
pub(super) struct Left {
    /// Where it goes on.
    pub(super) start: Start,
    /// Where it begins.
    pub(super) tail: u64,
    /// Number and position of what is in it.
    pub(super) transactions: VecDeque<(Tid, u64)>,
    pub(super) index: Index<Version>,
}

pub(super) fn recover(
    about: &'static About,
    log: &mut ByteLog<Arc<dyn BlockDev>>,
    args: &OpenArgs,
) -> Result<(Left, RecoveryReport)> {
    let mut report = RecoveryReport::default();
    let left = match log.claim(about, args)? {
        Claim::Empty(start) => Left {
            tail: start.at,
            start,
            transactions: VecDeque::new(),
            index: Index::default(),
        },
        Claim::Left(start) => {
            report.was_needed = true;
            index_log(log, args, start, &mut report)?
        }
    };
    Ok((left, report))
}

/// A transaction in the log.
struct SectorTransaction {
    at: u64,
    record: Vec<u8>,
    chunks: u32,
    sequence: Tid,
}

fn index_log(
    log: &ByteLog<Arc<dyn BlockDev>>,
    args: &OpenArgs,
    start: Start,
    report: &mut RecoveryReport,
) -> Result<Left> {
    let reader = Reader {
        log,
        args,
        epoch: start.epoch,
        end: start.at + log.ring.capacity,
    };
    let (mut found, mut at) = scan(
        start.at,
        start.sequence,
        &ENDS,
        |at, sequence| reader.look(at, sequence),
        |at, next, sequence| reader.is_followed(at, next, sequence.next()),
    )?;
    if let Some(last) = found.last()
        && !reader.is_in_place(last)?
    {
        NOT_IN_PLACE.met();
        at = last.at;
        found.pop();
    }
    let index = make_index(args, &found, report)?;
    if let (Some(first), Some(last)) = (found.first(), found.last()) {
        report.sequences = Some((first.sequence.0, last.sequence.0));
        report.transactions = u32::try_from(found.len()).unwrap_or(u32::MAX);
    }
    if at < reader.end {
        log.ring.wipe_unit(at)?;
    }
    let next = found.last().map_or(start.sequence, |t| t.sequence.next());
    Ok(Left {
        tail: start.at,
        start: Start {
            at,
            sequence: next,
            ..start
        },
        transactions: found.iter().map(|t| (t.sequence, t.at)).collect(),
        index,
    })
}

struct Reader<'a> {
    log: &'a ByteLog<Arc<dyn BlockDev>>,
    args: &'a OpenArgs,
    epoch: u64,
    /// The position where the ring meets its beginning.
    end: u64,
}

impl Reader<'_> {
    fn unit(&self) -> u64 {
        self.log.ring.unit
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
    fn look(&self, at: u64, sequence: Tid) -> Result<Seen<u64, SectorTransaction>> {
        let why = || {
            SchemeError::Unusable(format!(
                "transaction {sequence} in its log is damaged, and there are later ones; run \
                    `stetfs fsck`"
            ))
        };
        if at + self.unit() > self.end {
            return Ok(Seen::Nothing);
        }
        let ring = &self.log.ring;
        let unit = u64_as_usize(self.unit());
        let mut first = aligned(unit);
        let first = &mut first.bytes_mut()[..unit];
        ring.read(at, first)?;
        let Some((length, header)) = self.length(at, sequence, first) else {
            return Ok(Seen::Damaged(why(), None));
        };
        let mut record = vec![0; u64_as_usize(length)];
        ring.read(at, &mut record)?;
        apply_mask(&mut record, at, self.args.block_size, header.mask);
        let next = at + length;
        let seed = ring.seed(&self.args.uuid, self.epoch, at, sequence);
        let is_unchecked = is_planted(Bug::UncheckedReplay) || is_planted(Bug::StaleLap);
        if !is_unchecked && !Transaction::is_intact(seed, &record) {
            return Ok(Seen::Damaged(why(), Some(next)));
        }
        let found = SectorTransaction {
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
            self.log.ring.read(at, sought)?;
            for bytes in sought.chunks_exact(u64_as_usize(unit)) {
                if self.length(at, sequence, bytes).is_some() && is_there(at)? {
                    return Ok(true);
                }
                at += unit;
            }
        }
        Ok(false)
    }

    /// Whether each block that the transaction says was written in place is there.
    fn is_in_place(&self, found: &SectorTransaction) -> Result<bool> {
        if is_planted(Bug::UncheckedReplay) || is_planted(Bug::UncheckedPayload) {
            return Ok(true);
        }
        let size = self.args.block_size;
        for change in changes(&found.record, found.chunks, size)? {
            if let Change::InPlace(block, crc) = change {
                check_block(self.args, block)?;
                if crc64(0, read_home(self.args, block)?.bytes()) != crc {
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

fn read_home(args: &OpenArgs, block: BlockNo) -> Result<Block> {
    let mut content = Block::zeroed(args.block_size);
    let at = block.0 * usize_as_u64(args.block_size);
    let tag = Tag::new(Class::Data, Cause::Recovery);
    args.dev.read_at(at, content.bytes_mut(), tag)?;
    Ok(content)
}

/// The newest version of every block that the transactions have bytes of.
fn make_index(
    args: &OpenArgs,
    found: &[SectorTransaction],
    report: &mut RecoveryReport,
) -> Result<Index<Version>> {
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
        all.push((found.sequence, changes));
    }
    let index = Index::default();
    let mut versions = index.write();
    for (i, (sequence, changes)) in all.into_iter().enumerate() {
        for change in changes {
            let Change::Bytes { block, .. } = change else {
                continue;
            };
            let is_revoked = revoked.get(&block).is_some_and(|&by| by >= i);
            if is_revoked && !is_planted(Bug::IgnoredRevoke) {
                FREED.met();
                report.revoked += 1;
                continue;
            }
            BYTES.met();
            report.blocks += 1;
            add(&mut versions, args, sequence, change)?;
        }
    }
    drop(versions);
    Ok(index)
}

/// Takes a change over into the index.
fn add(
    versions: &mut Changing<'_, Version>,
    args: &OpenArgs,
    sequence: Tid,
    change: Change<'_>,
) -> Result<()> {
    let Change::Bytes {
        block,
        class,
        is_all,
        pieces,
    } = change
    else {
        return Ok(());
    };
    let size = args.block_size;
    let is_all = is_all && !is_planted(Bug::UnzeroedBase);
    if !versions.contains_key(&block) {
        let content = match is_all {
            true => Block::zeroed(size),
            false => read_home(args, block)?,
        };
        let version = Version::new(class, None, content.into(), sequence);
        versions.insert(block, version);
    }
    let mut changed = Ranges::new();
    versions.change(&block, |version| {
        let content = version.content_mut();
        if is_all {
            content.fill(0);
            changed.add(0, size);
        }
        for (offset, bytes) in pieces {
            content[offset..offset + bytes.len()].copy_from_slice(bytes);
            changed.add(offset, bytes.len());
        }
        version.note(sequence, &changed);
    });
    Ok(())
}
