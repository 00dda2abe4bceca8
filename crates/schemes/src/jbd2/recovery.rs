//! Recovery of the block journal: the cases of [`LEFT`].
//!
//! In order of writes: all blocks home; flush; the journal superblock, which says that the log is
//! empty. A second cut before that finds the same log and does the same again. The next transaction
//! skips one sequence number, so that remains of an incomplete one are never taken for parts of it.

use hashbrown::{HashMap, HashSet};
use stetfs_format::checksum::crc32_be;
use stetfs_format::jbd2::{
    BlockType, ChecksumVersion, CommitBlock, DescriptorBlock, Header, JournalIncompat, LogFormat,
    RevokeBlock, Tag, unescape,
};
use stetfs_format::width::{must_fit_u32, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::{Block, BlockRef, Cause, Class};

use super::record::Super;
use super::ways::Ways;
use crate::parts::area::JournalArea;
use crate::parts::home::{Write, write_home};
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, RecoveryReport, Result, SchemeError, recovery_cases};

recovery_cases! {
    LEFT:
    EMPTY "`s_start` = 0"
        => "nothing", "everything was written home before the log was marked empty";
    READ_ONLY "a log to be replayed, and a device that may only be read"
        => "error", "home has not got the newest content";
    FAST_COMMITS "the kernel's fast commits"
        => "error, nothing is written", "stetfs does not replay them; e2fsck does";
    WHOLE "descriptors, revoke blocks and an intact commit block of the expected number"
        => "the transaction counts", "its body was durable before its commit block was written";
    NO_RECORD "a block without JBD2's magic, or with another sequence number"
        => "the log ends before it", "never written in this lap, or left from an earlier one";
    IN_FLIGHT "a damaged record, and no intact commit block of that number behind it"
        => "the log ends before it",
        "it was in flight when the power went: nobody was told that it is durable";
    DAMAGED "a damaged record, and an intact commit block of that number behind it"
        => "error, nothing is written",
        "the body was durable once and was damaged since; leaving it out would lose confirmed data \
            silently";
    ASYNC_IN_FLIGHT "with asynchronous commits: a body that does not fit its checksums, and \
        nothing behind it"
        => "the log ends before it", "it was in flight; the commit block was durable first";
    ASYNC_DAMAGED "with asynchronous commits: a body that does not fit its checksums, and the next \
        transaction behind it"
        => "error, nothing is written",
        "a transaction is begun only when the one before it is durable";
    REVOKED "a block named in the same or a later transaction's revoke block"
        => "this copy is not written",
        "the block was freed after; its new owner's content may be home already";
    LOGGED_AGAIN "a block logged several times"
        => "the newest copy is written, once", "it contains the older changes";
    BAD_COPY "a logged block that does not fit its tag's checksum"
        => "error", "it was durable once";
    BAD_HOME "a tag that names a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
}

/// The cases at the end of a log whose commit blocks were written after the body was durable.
const ENDS: Ends = Ends {
    whole: &WHOLE,
    nothing: &NO_RECORD,
    in_flight: &IN_FLIGHT,
    damaged: &DAMAGED,
};

/// The cases at the end of a log with asynchronous commits.
const ASYNC_ENDS: Ends = Ends {
    in_flight: &ASYNC_IN_FLIGHT,
    damaged: &ASYNC_DAMAGED,
    ..ENDS
};

/// Blocks that are written home at a time, which bounds the memory.
const BATCH: usize = 1024;

/// Reads the journal superblock, sets the log's bounds, and replays if that is needed and allowed.
pub(super) fn recover(
    area: &mut JournalArea,
    args: &OpenArgs,
    ways: &dyn Ways,
) -> Result<(Super, RecoveryReport)> {
    let mut raw = Block::zeroed(args.block_size.bytes());
    area.read(0, raw.bytes_mut())?;
    let mut superblock = Super::decode(raw)?;
    area.set_log(superblock.fields.first, superblock.fields.log_end())?;
    let mut report = RecoveryReport {
        journal_errno: superblock.fields.errno,
        ..Default::default()
    };
    if superblock.fields.start == 0 {
        EMPTY.reached();
    } else {
        report.was_needed = true;
        if !args.writable {
            READ_ONLY.reached();
            return Err(SchemeError::Unusable(
                "it must be replayed, which needs a writable device".to_owned(),
            ));
        }
        if superblock
            .fields
            .feature_incompat
            .contains(JournalIncompat::FAST_COMMIT)
        {
            FAST_COMMITS.reached();
            return Err(SchemeError::Unusable(
                "it holds fast commits, which stetfs does not replay; run e2fsck first".to_owned(),
            ));
        }
        replay(area, args, ways, &mut superblock, &mut report)?;
    }
    if args.writable {
        superblock.fields.errno = 0;
        superblock.set_features(args.has_64bit, args.has_metadata_csum);
    }
    Ok((superblock, report))
}

fn replay(
    area: &JournalArea,
    args: &OpenArgs,
    ways: &dyn Ways,
    superblock: &mut Super,
    report: &mut RecoveryReport,
) -> Result<()> {
    let fields = &superblock.fields;
    let is_async = fields
        .feature_incompat
        .contains(JournalIncompat::ASYNC_COMMIT);
    let log = Reader {
        area,
        format: &fields.log_format(),
        is_async,
    };
    let transactions = log.transactions(fields.start, fields.sequence)?;
    let next = transactions
        .last()
        .map_or(fields.sequence, |t| t.sequence.next());
    if let (Some(first), Some(last)) = (transactions.first(), transactions.last()) {
        report.sequences = Some((first.sequence.0, last.sequence.0));
        report.transactions = must_fit_u32(transactions.len());
    }
    let copies = newest_copies(&transactions, report);
    for copy in &copies {
        let block = copy.tag.block;
        if block.0 >= args.blocks || area.contains(block) {
            BAD_HOME.reached();
            return Err(Corrupt::JournalTagBlock(block).into());
        }
    }
    let as_they_are = copies.iter().filter(|copy| !copy.tag.escaped);
    let as_they_are = as_they_are.map(|copy| (copy.tag.block, copy.at)).collect();
    let chosen = ways.choose(area, as_they_are)?;
    let homes: HashSet<BlockNo> = chosen.iter().map(|(home, _)| *home).collect();
    let is_chosen = |copy: &Copy| homes.contains(&copy.tag.block);
    let blocks = usize_as_u64(copies.len());
    let (brought, written): (Vec<Copy>, Vec<Copy>) = copies.into_iter().partition(is_chosen);
    for copy in &brought {
        // Only checks the copy: `bring` does not read it.
        log.content(copy)?;
    }
    ways.found(brought.len(), written.len());
    ways.bring(area, &chosen)?;
    for batch in written.chunks(BATCH) {
        let contents = batch
            .iter()
            .map(|copy| log.content(copy))
            .collect::<Result<Vec<_>>>()?;
        let writes = batch.iter().zip(&contents).map(|(copy, content)| Write {
            home: copy.tag.block,
            class: Class::Journal,
            content,
        });
        write_home(
            &*area.dev,
            area.block_size,
            Cause::Recovery,
            writes.collect(),
        )?;
    }
    report.blocks = blocks;
    area.dev.flush(Cause::Recovery)?;
    let next = if is_planted(Bug::ReusedSequence) {
        superblock.fields.sequence
    } else {
        next.next()
    };
    area.write_record(0, superblock.update(0, next), Cause::Recovery)
}

/// A complete transaction in the log.
struct BlockTransaction {
    sequence: Tid,
    copies: Vec<Copy>,
    revoked: Vec<BlockNo>,
}

/// A logged block.
#[derive(Clone, Copy)]
struct Copy {
    tag: Tag,
    sequence: Tid,
    at: u32,
}

/// Returns the copies to be written home, each block once, in ascending order.
fn newest_copies(transactions: &[BlockTransaction], report: &mut RecoveryReport) -> Vec<Copy> {
    let mut revoked: HashMap<BlockNo, Tid> = HashMap::new();
    for found in transactions {
        revoked.extend(found.revoked.iter().map(|&block| (block, found.sequence)));
    }
    let mut newest: HashMap<BlockNo, Copy> = HashMap::new();
    for copy in transactions.iter().flat_map(|found| &found.copies) {
        let is_revoked = revoked
            .get(&copy.tag.block)
            .is_some_and(|r| r.is_at_or_after(copy.sequence));
        if is_revoked && !is_planted(Bug::IgnoredRevoke) {
            REVOKED.reached();
            report.revoked += 1;
        } else if is_planted(Bug::OldestCopy) {
            newest.entry(copy.tag.block).or_insert(*copy);
        } else if newest.insert(copy.tag.block, *copy).is_some() {
            LOGGED_AGAIN.reached();
        }
    }
    let mut copies: Vec<Copy> = newest.into_values().collect();
    copies.sort_unstable_by_key(|copy| copy.tag.block);
    copies
}

struct Reader<'a> {
    area: &'a JournalArea,
    format: &'a LogFormat,
    is_async: bool,
}

impl Reader<'_> {
    fn transactions(&self, start: u32, first: Tid) -> Result<Vec<BlockTransaction>> {
        let mut left = self.area.capacity();
        let look = |at, sequence| self.transaction(at, sequence, &mut left);
        let ends = if self.is_async { &ASYNC_ENDS } else { &ENDS };
        let (found, _) = scan(start, first, ends, look, |at, next, sequence| {
            Ok(self.is_committed_behind(at, sequence)? || self.is_followed(next, sequence)?)
        })?;
        Ok(found)
    }

    /// Reads the transaction that should begin at log block `at`. `left` counts the blocks of the
    /// log that have not been read yet.
    fn transaction(
        &self,
        mut at: u32,
        sequence: Tid,
        left: &mut u32,
    ) -> Result<Seen<u32, BlockTransaction>> {
        let mut block = Block::zeroed(self.area.block_size.bytes());
        let mut found = BlockTransaction {
            sequence,
            copies: Vec::new(),
            revoked: Vec::new(),
        };
        let mut crc = !0;
        loop {
            if *left == 0 {
                return Ok(Seen::Nothing);
            }
            self.area.read(at, block.bytes_mut())?;
            *left -= 1;
            let header = Header::decode(block.bytes())
                .filter(|h| h.sequence == sequence || is_planted(Bug::StaleLap));
            match header.and_then(|h| h.known_type()) {
                Some(BlockType::Descriptor) => {
                    let before = found.copies.len();
                    if let Err(corrupt) = self.descriptor(block.bytes(), at, &mut found, left) {
                        return Ok(Seen::Damaged(corrupt.into(), None));
                    }
                    crc = self.body_crc(crc, block.bytes(), &found.copies[before..])?;
                    at = self
                        .area
                        .step(at, must_fit_u32(found.copies.len() - before));
                }
                Some(BlockType::Revoke) => match RevokeBlock::decode(block.bytes(), self.format) {
                    Ok(revoke) => found.revoked.extend(revoke.blocks()),
                    Err(corrupt) => return Ok(Seen::Damaged(corrupt.into(), None)),
                },
                Some(BlockType::Commit) => {
                    let commit =
                        CommitBlock::decode(block.bytes(), self.format).and_then(|commit| {
                            if is_planted(Bug::UncheckedReplay) {
                                Ok(())
                            } else {
                                commit.check_transaction(crc)
                            }
                        });
                    let next = self.area.step(at, 1);
                    let whole = match commit {
                        Ok(()) => self.check_body(&found)?,
                        Err(corrupt) => Err(corrupt),
                    };
                    return Ok(match whole {
                        Ok(()) => Seen::Intact(found, next),
                        Err(corrupt) => Seen::Damaged(corrupt.into(), Some(next)),
                    });
                }
                _ => return Ok(Seen::Nothing),
            }
            at = self.area.step(at, 1);
        }
    }

    /// Reads the tags of a descriptor at `at`, behind which its blocks lie.
    fn descriptor(
        &self,
        block: &[u8],
        mut at: u32,
        found: &mut BlockTransaction,
        left: &mut u32,
    ) -> Result<(), Corrupt> {
        let descriptor = DescriptorBlock::decode(block, self.format)?;
        for tag in descriptor.tags() {
            let tag = tag?;
            at = self.area.step(at, 1);
            *left = left.saturating_sub(1);
            found.copies.push(Copy {
                tag,
                sequence: found.sequence,
                at,
            });
        }
        Ok(())
    }

    /// Continues the CRC of checksum version 1, which covers the body except for revoke blocks.
    fn body_crc(&self, mut crc: u32, descriptor: &[u8], copies: &[Copy]) -> Result<u32> {
        if self.format.checksum != ChecksumVersion::V1 {
            return Ok(crc);
        }
        crc = crc32_be(crc, descriptor);
        let mut logged = Block::zeroed(self.area.block_size.bytes());
        for copy in copies {
            self.area.read(copy.at, logged.bytes_mut())?;
            crc = crc32_be(crc, logged.bytes());
        }
        Ok(crc)
    }

    /// Checks the body of a transaction with an asynchronous commit, whose commit block may have
    /// become durable first.
    fn check_body(&self, found: &BlockTransaction) -> Result<Result<(), Corrupt>> {
        if !self.is_async || self.format.checksum == ChecksumVersion::V1 {
            return Ok(Ok(()));
        }
        let mut logged = Block::zeroed(self.area.block_size.bytes());
        for copy in &found.copies {
            self.area.read(copy.at, logged.bytes_mut())?;
            if !self
                .format
                .is_intact(&copy.tag, copy.sequence, logged.bytes())
            {
                return Ok(Err(Corrupt::JournalTagChecksum(copy.tag.block)));
            }
        }
        Ok(Ok(()))
    }

    /// With asynchronous commits: true when the transaction after `sequence` begins at `next`.
    fn is_followed(&self, next: Option<u32>, sequence: Tid) -> Result<bool> {
        let (true, Some(next)) = (self.is_async, next) else {
            return Ok(false);
        };
        let mut block = Block::zeroed(self.area.block_size.bytes());
        self.area.read(next, block.bytes_mut())?;
        let header = Header::decode(block.bytes());
        Ok(header.is_some_and(|h| h.sequence == sequence.next() && h.known_type().is_some()))
    }

    /// True when an intact commit block of `sequence` lies anywhere behind `at`: the body was
    /// durable then.
    fn is_committed_behind(&self, at: u32, sequence: Tid) -> Result<bool> {
        if self.is_async || !self.format.has_tails() {
            return Ok(false);
        }
        let mut block = Block::zeroed(self.area.block_size.bytes());
        for n in 0..self.area.capacity() {
            self.area.read(self.area.step(at, n), block.bytes_mut())?;
            if CommitBlock::decode(block.bytes(), self.format).is_ok_and(|c| c.tid == sequence) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the content of a logged block as it belongs home.
    fn content(&self, copy: &Copy) -> Result<BlockRef> {
        let mut block = Block::zeroed(self.area.block_size.bytes());
        self.area.read(copy.at, block.bytes_mut())?;
        if !self
            .format
            .is_intact(&copy.tag, copy.sequence, block.bytes())
        {
            BAD_COPY.reached();
            let why = format!(
                "log block {} (home {}, transaction {}) does not fit its checksum; run e2fsck",
                copy.at, copy.tag.block, copy.sequence
            );
            return Err(SchemeError::Unusable(why));
        }
        if copy.tag.escaped {
            unescape(block.bytes_mut());
        }
        Ok(block.into())
    }
}
