//! Replaying the transactions of a byte log that count: [`LEFT`].
//!
//! Only the last transaction must have its blocks in place. An earlier one may name a block that
//! has another content now: it was durable once, and the block has been freed and has a new owner.

use hashbrown::HashMap;
use stetfs_format::checksum::crc64;
use stetfs_format::width::usize_as_u64;
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::{Block, Cause, Class, Tag};

use crate::parts::reader::{ByteTransaction, Reader};
use crate::parts::record::{Change, changes};
use crate::parts::ring::Medium;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, RecoveryReport, Result, recovery_cases};

recovery_cases! {
    LEFT:
    NOT_IN_PLACE "the last transaction names a block written in place that has not the content"
        => "the log ends before it",
        "it was in flight; the block is free in the state before it";
    FREED "bytes of a block that the same or a later transaction freed"
        => "they are forgotten", "its new owner's content may be home already";
    BYTES "other bytes"
        => "home with these bytes, in the order of the log, is the block",
        "whatever of them a checkpoint has written, they end as the newest";
    BAD_HOME "a chunk of a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
}

impl<M: Medium> Reader<'_, M> {
    /// Drops the last transaction if one of its blocks is not in place, and returns where the log
    /// goes on then; `None`: nothing was dropped.
    pub(crate) fn drop_unplaced(&self, found: &mut Vec<ByteTransaction>) -> Result<Option<u64>> {
        match found.last() {
            Some(last) if !self.is_in_place(last)? => {
                NOT_IN_PLACE.reached();
                Ok(found.pop().map(|last| last.at))
            }
            _ => Ok(None),
        }
    }

    /// True when each block that the transaction has written in place is there.
    fn is_in_place(&self, found: &ByteTransaction) -> Result<bool> {
        let is_unchecked = [Bug::UncheckedReplay, Bug::UncheckedPayload, Bug::LateData];
        if is_unchecked.into_iter().any(is_planted) {
            return Ok(true);
        }
        let record = self.record(found)?;
        for (_, change) in changes(&record, found.chunks, self.args.block_size)? {
            if let Change::InPlace(block, crc) = change {
                check_block(self.args, block)?;
                if crc64(0, read_home(self.args, block)?.bytes()) != crc {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads all transactions, to learn which bytes count and which blocks they rest on.
    pub(crate) fn survey(&self, found: &[ByteTransaction]) -> Result<Survey> {
        let mut survey = Survey::default();
        for (i, found) in found.iter().enumerate() {
            let record = self.record(found)?;
            let mut freed = Vec::new();
            for (_, change) in changes(&record, found.chunks, self.args.block_size)? {
                match change {
                    Change::Revoked(blocks) => freed.extend(blocks.iter().copied()),
                    Change::Bytes { block, is_all, .. } => {
                        check_block(self.args, block)?;
                        survey.rests_on_home.entry(block).or_insert(!is_all);
                    }
                    Change::InPlace(..) => {}
                }
            }
            for block in freed {
                survey.revoked.insert(block, i);
                survey.rests_on_home.remove(&block);
            }
        }
        Ok(survey)
    }

    /// Hands all bytes that count to `take`, in the order of the log.
    pub(crate) fn replay(
        &self,
        found: &[ByteTransaction],
        Survey { revoked, .. }: &Survey,
        report: &mut RecoveryReport,
        mut take: impl FnMut(Bytes<'_>) -> Result<()>,
    ) -> Result<()> {
        if let (Some(first), Some(last)) = (found.first(), found.last()) {
            report.sequences = Some((first.sequence.0, last.sequence.0));
            report.transactions = u32::try_from(found.len()).unwrap_or(u32::MAX);
        }
        let size = self.args.block_size;
        for (i, found) in found.iter().enumerate() {
            for (at, change) in changes(&self.record(found)?, found.chunks, size)? {
                let Change::Bytes {
                    block,
                    class,
                    is_all,
                    pieces,
                } = change
                else {
                    continue;
                };
                let is_revoked = revoked.get(&block).is_some_and(|&by| by >= i);
                if is_revoked && !is_planted(Bug::IgnoredRevoke) {
                    FREED.reached();
                    report.revoked += 1;
                    continue;
                }
                BYTES.reached();
                report.blocks += 1;
                take(Bytes {
                    sequence: found.sequence,
                    at: found.at + usize_as_u64(at),
                    block,
                    class,
                    is_all,
                    pieces,
                })?;
            }
        }
        Ok(())
    }
}

/// The result of reading a log once, before it is replayed.
#[derive(Default)]
pub(crate) struct Survey {
    /// The last transaction that freed each block. Bytes of the block up to it do not count.
    revoked: HashMap<BlockNo, usize>,
    /// Each block with bytes that count, and whether the first of these leave other bytes as home
    /// has them.
    rests_on_home: HashMap<BlockNo, bool>,
}

impl Survey {
    /// Reads home's content of all blocks that rest on it, in ascending order, so that a disk needs
    /// few turns.
    pub(crate) fn bases(&self, args: &OpenArgs) -> Result<HashMap<BlockNo, Block>> {
        let rests = self.rests_on_home.iter().filter(|(_, rests)| **rests);
        let mut blocks: Vec<BlockNo> = rests.map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        let read = |block| Ok((block, read_home(args, block)?));
        blocks.into_iter().map(read).collect()
    }
}

/// The bytes that one transaction has of a block.
pub(crate) struct Bytes<'a> {
    /// The transaction.
    pub(crate) sequence: Tid,
    /// The position in the ring of its chunk for the block.
    pub(crate) at: u64,
    pub(crate) block: BlockNo,
    pub(crate) class: Class,
    /// All other bytes are zeros.
    pub(crate) is_all: bool,
    /// The pieces, each at its offset.
    pub(crate) pieces: Vec<(usize, &'a [u8])>,
}

fn check_block(args: &OpenArgs, block: BlockNo) -> Result<()> {
    let in_log = args
        .log
        .iter()
        .any(|e| block >= e.start && block.0 < e.start.0 + u64::from(e.len));
    if block.0 >= args.blocks || in_log {
        BAD_HOME.reached();
        return Err(Corrupt::JournalTagBlock(block).into());
    }
    Ok(())
}

/// Reads home's content of a block.
pub(crate) fn read_home(args: &OpenArgs, block: BlockNo) -> Result<Block> {
    let mut content = Block::zeroed(args.block_size.bytes());
    let at = args.block_size.start_of(block);
    let tag = Tag::new(Class::Data, Cause::Recovery);
    args.dev.read_at(at, content.bytes_mut(), tag)?;
    Ok(content)
}
